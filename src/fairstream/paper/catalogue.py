"""The runs of a reproduction by what they are: data set, model, setting, seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from statistics import fmean
from typing import Any, Literal

from fairstream.errors import DataError
from fairstream.experiments.store import Store
from fairstream.paper.settings import DATASETS, FULL, JUDGED, MODELS, QUICK, ModelName, Scale, Setting

What = Literal["performance", "advantaged", "disadvantaged", "abs_pd"]
Entry = tuple[str, ModelName, Setting, int]
TASKS = {"R": "remain", "N": "next"}


class Catalogue:
    """Reads numbers out of a store that `fairstream reproduce` made."""

    def __init__(self, store: Store) -> None:
        self.store = store
        plan = store.note("plan")
        if plan is None:
            raise DataError(f"{store.folder} holds no reproduction; make one with `fairstream reproduce`")
        self.plan: Mapping[str, Any] = plan
        self._ids = {_entry(row): row["id"] for row in plan["runs"]}
        self.about = cache(store.about)
        self.tests = lru_cache(maxsize=4)(lambda name: store.read(name).tests)
        """Of a finished run, (t, task) → the users tested."""

    @property
    def scale(self) -> Scale:
        return QUICK if self.plan["quick"] else FULL

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds of the plan; what was chosen was chosen by the first."""
        return tuple(sorted({seed for *_, seed in self._ids}))

    @property
    def n_missing(self) -> int:
        """Runs of the plan that are not there yet."""
        return sum(name not in self.store for name in self._ids.values())

    @property
    def n_runs(self) -> int:
        """Runs of the plan."""
        return len(set(self._ids.values()))

    def data(self) -> list[dict[str, Any]]:
        """What each data set was."""
        names = ("name", "sha256", "n_events", "n_users", "n_items", "group", "groups")
        found = {about["data"]["sha256"]: about["data"] for about in self._abouts()}
        return [{name: data[name] for name in names} for _, data in sorted(found.items())]

    def versions(self) -> dict[str, str]:
        """What computed the runs; several where they were computed in several places."""
        found: dict[str, dict[str, None]] = {}
        for about in self._abouts():
            for name, version in about["versions"].items():
                found.setdefault(name, {})[version] = None
        return {name: ", ".join(versions) for name, versions in found.items()}

    def recovery(self) -> list[dict[str, Any]]:
        """How well a fresh classifier recovers the group from what the model scores users by."""
        return [
            {"dataset": dataset, "model": model, "method": setting.label, "seed": seed, **found}
            for (dataset, model, setting, seed), name in self._ids.items()
            if name in self.store and (found := self.about(name).get("group_recovery"))
        ]

    def _abouts(self) -> Iterator[Mapping[str, Any]]:
        return (self.about(name) for name in sorted(set(self._ids.values())) if name in self.store)

    def parts(self) -> list[tuple[str, ModelName]]:
        """The data sets and models that there are runs of."""
        there = {(dataset, model) for dataset, model, *_ in self._ids}
        return [(dataset, model) for dataset in DATASETS for model in MODELS if (dataset, model) in there]

    def run_id(self, entry: Entry) -> str | None:
        """The id of a finished run."""
        name = self._ids.get(entry)
        return name if name is not None and name in self.store else None

    def seeds_of(self, dataset: str, model: ModelName, setting: Setting) -> list[int]:
        """The seeds that there are finished runs of."""
        return [seed for seed in self.seeds if self.run_id((dataset, model, setting, seed))]

    def value(self, entry: Entry, task: str, t: int, metric: str, what: What) -> float | None:
        """One number of one run at period t."""
        name = self.run_id(entry)
        if name is None:
            return None
        about = self.about(name)
        result = next((result for result in about["results"] if result["t"] == t), None)
        if result is None:
            return None
        score = result["tasks"][TASKS[task]][metric.lower()]
        ahead, *rest = about["data"]["groups"]
        if what == "abs_pd":
            gap: float | None = score["performance_disparity"]
            return None if gap is None else abs(gap)
        found: float | None = {
            "performance": score["mean"],
            "advantaged": score["by_group"].get(ahead),
            "disadvantaged": score["by_group"].get(rest[0]),
        }[what]
        return found

    def mean(self, entry: Entry, task: str, metric: str, what: What, periods: Iterable[int] = JUDGED) -> float | None:
        """The same, averaged over the periods that are there, as the paper averages."""
        values = [self.value(entry, task, t, metric, what) for t in periods]
        there = [value for value in values if value is not None]
        return fmean(there) if there else None


def row_of(entry: Entry, name: str) -> dict[str, Any]:
    """How an entry is written in `plan.json`."""
    dataset, model, setting, seed = entry
    options = dict(setting.options)
    return {
        "dataset": dataset, "model": model, "method": setting.method, "options": options, "seed": seed, "id": name,
    }  # fmt: skip


def _entry(row: Mapping[str, Any]) -> Entry:
    return row["dataset"], row["model"], Setting.of(row["method"], **row["options"]), row["seed"]
