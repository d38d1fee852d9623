"""The runs of a reproduction by data set, model, setting and seed, and the choice of λ among them.

The paper chooses it per method, data set, model and metric, by the numbers that it then reports.
We do the same by a rule that is written down: **the smallest mean |PD| among the values that keep
95 % of the performance that the same strategy has without fairness.** Beside it stands a choice
that could have been made on the day: in period t, the same rule by what the periods before had
shown on the events that came after them (Task-N of W_0 … W_{t−1}), with the models of all values
kept up side by side. Under the paper's protocol even these numbers carry its leak: training
knows what users will do later, and does not draw it as negatives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import fmean
from typing import Any, Literal

from fairstream import DataError
from fairstream.experiments import Record, Store
from fairstream.paper.findings import Choice
from fairstream.paper.settings import DATASETS, FULL, JUDGED, METRICS, MODELS, QUICK, Family, ModelName, Scale, Setting

What = Literal["performance", "advantaged", "disadvantaged", "abs_pd"]
Entry = tuple[str, ModelName, Setting, int]
TASKS = {"R": "remain", "N": "next"}


@dataclass(frozen=True)
class _Numbers:
    """What of a finished run is kept in memory."""

    data: Mapping[str, Any]
    versions: Mapping[str, str]
    recovery: Mapping[str, Any] | None
    scores: Mapping[tuple[int, str, str], Mapping[str, float | None]]
    """(t, task, metric) → each quantity."""

    @classmethod
    def of(cls, record: Record) -> _Numbers:
        advantaged, disadvantaged, *_ = record.about["data"]["groups"]
        scores = {}
        for result in record.results:
            for task, evaluation in result["tasks"].items():
                for metric in map(str.lower, METRICS):
                    score = evaluation[metric]
                    gap = score["performance_disparity"]
                    scores[result["t"], task, metric] = {
                        "performance": score["mean"],
                        "advantaged": score["by_group"].get(advantaged),
                        "disadvantaged": score["by_group"].get(disadvantaged),
                        "abs_pd": None if gap is None else abs(gap),
                    }
        return cls(record.about["data"], record.about["versions"], record.about.get("group_recovery"), scores)


class Catalogue:
    """Reads numbers from a store that `fairstream reproduce` wrote."""

    def __init__(self, store: Store) -> None:
        self.store = store
        plan = store.note("plan")
        if plan is None:
            raise DataError(f"{store.folder} holds no reproduction; make one with `fairstream reproduce`")
        self.plan: Mapping[str, Any] = plan
        self._ids = {_entry(row): row["id"] for row in plan["runs"]}
        self._numbers = cache(lambda run_id: _Numbers.of(store.read(run_id)))
        self.tests = lru_cache(maxsize=4)(lambda run_id: store.read(run_id).tests)
        """Of a finished run, (t, task) → the tested users."""

    @property
    def scale(self) -> Scale:
        return QUICK if self.plan["quick"] else FULL

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds of the plan; what was chosen was chosen by the first."""
        return tuple(sorted({seed for *_, seed in self._ids}))

    @property
    def planned(self) -> set[tuple[str, ModelName, Setting]]:
        """What the plan runs, with whatever seeds."""
        return {(dataset, model, setting) for dataset, model, setting, _ in self._ids}

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
        logs = {run.data["sha256"]: run.data for run in self._finished()}
        return [{name: data[name] for name in names} for _, data in sorted(logs.items())]

    def versions(self) -> dict[str, str]:
        """What computed the runs; several where they were computed in several places."""
        versions: dict[str, dict[str, None]] = {}
        for run in self._finished():
            for name, version in run.versions.items():
                versions.setdefault(name, {})[version] = None
        return {name: ", ".join(each) for name, each in versions.items()}

    def recovery(self) -> list[dict[str, Any]]:
        """How well a fresh classifier recovers the group from what the model scores users by."""
        return [
            {"dataset": dataset, "model": model, "method": setting.label, "seed": seed, **recovery}
            for (dataset, model, setting, seed), name in self._ids.items()
            if name in self.store and (recovery := self._numbers(name).recovery)
        ]

    def _finished(self) -> Iterator[_Numbers]:
        return (self._numbers(name) for name in sorted(set(self._ids.values())) if name in self.store)

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
        return self._numbers(name).scores.get((t, TASKS[task], metric.lower()), {}).get(what)

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


KEPT = 0.95
"""Share of the performance without fairness that must be kept."""


def best(tried: Mapping[float, tuple[float, float]], floor: float) -> float:
    """The value with the smallest |PD| among those whose performance reaches the floor; if none does, the best one.

    Of equals, the one that is better in the other respect.

    >>> best({0.5: (0.80, 0.02), 1.0: (0.79, 0.01), 4.0: (0.60, 0.00)}, floor=0.75)
    1.0
    >>> best({0.5: (0.70, 0.02), 1.0: (0.60, 0.01)}, floor=0.75)
    0.5
    """
    fit = {value: (gap, -performance) for value, (performance, gap) in tried.items() if performance >= floor}
    if fit:
        return min(fit, key=lambda value: fit[value])
    return max(tried, key=lambda value: (tried[value][0], -tried[value][1]))


def choose(catalogue: Catalogue, family: Family, dataset: str, model: ModelName, metric: str) -> Choice | None:
    """The choice for one panel, from the runs of the first seed; None where there is nothing to choose from."""
    if not catalogue.seeds:
        return None
    seed = catalogue.seeds[0]
    plain = (dataset, model, Setting.of(family.plain), seed)
    reference = catalogue.mean(plain, "R", metric, "performance")
    tried = {}
    for value in family.values:
        entry = (dataset, model, family.at(value), seed)
        performance = catalogue.mean(entry, "R", metric, "performance")
        gap = catalogue.mean(entry, "R", metric, "abs_pd")
        if performance is None or gap is None:
            continue  # not run yet, or a training that diverged
        tried[value] = (performance, gap)
    if reference is None or not tried:
        return None
    chosen = best(tried, KEPT * reference)
    by_the_past, past_result = _by_the_past(catalogue, family, (dataset, model), metric)
    return Choice(
        method=family.name,
        dataset=dataset,
        model=model,
        metric=metric,
        parameter=family.parameter,
        tried=tried,
        chosen=chosen,
        reason=_reason(family, metric, tried[chosen][0] >= KEPT * reference, len(family.values) - len(tried)),
        by_the_past=by_the_past,
        past_result=past_result,
    )


def _reason(family: Family, metric: str, keeps: bool, n_missing: int) -> str:
    reason = f"smallest mean |PD| of those that keep 95 % of {family.plain}'s {metric}"
    if not keeps:
        reason = f"none keeps 95 % of {family.plain}'s {metric}; the best of them"
    return reason + (f"; {n_missing} of {len(family.values)} values have no result" if n_missing else "")


def all_choices(catalogue: Catalogue) -> list[Choice]:
    """Every choice that the store's runs allow."""
    found = [
        choose(catalogue, family, dataset, model, metric)
        for dataset, model in catalogue.parts()
        for family in catalogue.scale.families(dataset)
        for metric in METRICS
    ]
    return [choice for choice in found if choice is not None]


def _by_the_past(
    catalogue: Catalogue, family: Family, part: tuple[str, ModelName], metric: str
) -> tuple[tuple[float, ...], tuple[float, float] | None]:
    """What is chosen in each period t by W_0 … W_{t−1} on the period after each, and how Task-R then goes."""
    seed = catalogue.seeds[0]
    plain = (*part, Setting.of(family.plain), seed)
    entries = {value: (*part, family.at(value), seed) for value in family.values}
    chosen, results = [], []
    for t in JUDGED:
        past = range(t)
        reference = catalogue.mean(plain, "N", metric, "performance", past)
        tried = {}
        for value, entry in entries.items():
            performance = catalogue.mean(entry, "N", metric, "performance", past)
            gap = catalogue.mean(entry, "N", metric, "abs_pd", past)
            if performance is not None and gap is not None:
                tried[value] = (performance, gap)
        if reference is None or not tried:
            break
        value = best(tried, KEPT * reference)
        now = [catalogue.value(entries[value], "R", t, metric, what) for what in ("performance", "abs_pd")]
        if now[0] is None or now[1] is None:
            break
        chosen.append(value)
        results.append((now[0], now[1]))
    if not results:
        return (), None
    performance, gap = (fmean(column) for column in zip(*results, strict=True))
    return tuple(chosen), (performance, gap)
