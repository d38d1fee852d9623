"""The runs of a reproduction by data set, model, setting and seed, and the choice of λ among them.

The paper chooses λ per method, data set, model and metric, by the numbers that it then reports. We follow a
fixed rule: **the smallest mean |PD| among the values that keep 95 % of the performance that the same
strategy has without fairness.** We also report a choice without hindsight: in period t, the same
rule on the results of earlier periods (Task-N of W_0 … W_{t−1}), with the models of all values updated in every
period. Under the paper's protocol even these numbers leak: training knows the future items of users and does not
draw them as negatives.
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
from fairstream.paper.settings import FULL, JUDGED, METRICS, PARTS, QUICK, Family, ModelName, Part, Scale, Setting

What = Literal["performance", "advantaged", "disadvantaged", "abs_pd"]
Entry = tuple[str, ModelName, Setting, int]
TASKS = {"R": "remain", "N": "next"}


@dataclass(frozen=True)
class _Numbers:
    """The numbers of a finished run."""

    about: Mapping[str, Any]
    scores: Mapping[tuple[int, str, str], Mapping[str, float | None]]  # (t, task, metric) → each quantity

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
        return cls(record.about, scores)


class Catalogue:
    """Reads numbers from a store that `fairstream reproduce` wrote."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._numbers = cache(lambda run_id: _Numbers.of(store.read(run_id)))
        self.tests = lru_cache(maxsize=4)(lambda run_id: store.read(run_id).tests)
        """The tested users of a finished run by (t, task)."""
        self.read_plan()

    def read_plan(self) -> None:
        """Read the plan again, with runs that were added since."""
        plan = self.store.note("plan")
        if plan is None:
            raise DataError(f"{self.store.folder} holds no reproduction; make one with `fairstream reproduce`")
        self.plan: Mapping[str, Any] = plan
        self._ids = {_entry(row): row["id"] for row in plan["runs"]}

    @property
    def scale(self) -> Scale:
        return QUICK if self.plan["quick"] else FULL

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds of the plan; the first decides every choice."""
        return tuple(sorted({seed for *_, seed in self._ids}))

    @property
    def n_missing(self) -> int:
        """The number of runs of the plan that are not finished."""
        return sum(name not in self.store for name in self._ids.values())

    @property
    def n_runs(self) -> int:
        return len(set(self._ids.values()))

    def data(self) -> list[dict[str, Any]]:
        names = ("name", "sha256", "n_events", "n_users", "n_items", "group", "groups")
        logs = {run.about["data"]["sha256"]: run.about["data"] for run in self._finished()}
        return [{name: data[name] for name in names} for _, data in sorted(logs.items())]

    def versions(self) -> dict[str, str]:
        """The versions that computed the runs; several where machines differ."""
        versions: dict[str, dict[str, None]] = {}
        for run in self._finished():
            for name, version in run.about["versions"].items():
                versions.setdefault(name, {})[version] = None
        return {name: ", ".join(each) for name, each in versions.items()}

    def recovery(self) -> list[dict[str, Any]]:
        """How well a fresh classifier recovers the group from the user embeddings."""
        return [
            {"dataset": dataset, "model": model, "method": setting.label, "seed": seed, **recovery}
            for (dataset, model, setting, seed), name in self._ids.items()
            if name in self.store and (recovery := self._numbers(name).about.get("group_recovery"))
        ]

    def _finished(self) -> Iterator[_Numbers]:
        return (self._numbers(name) for name in sorted(set(self._ids.values())) if name in self.store)

    def parts(self) -> list[Part]:
        planned = {(dataset, model) for dataset, model, *_ in self._ids}
        return [part for part in PARTS if part in planned]

    def run_id(self, entry: Entry) -> str | None:
        """The id of a finished run."""
        name = self._ids.get(entry)
        return name if name is not None and name in self.store else None

    def seeds_of(self, dataset: str, model: ModelName, setting: Setting) -> list[int]:
        return [seed for seed in self.seeds if self.run_id((dataset, model, setting, seed))]

    def value(self, entry: Entry, task: str, t: int, metric: str, what: What) -> float | None:
        """One number of one run at period t."""
        name = self.run_id(entry)
        return None if name is None else self._numbers(name).scores.get((t, TASKS[task], metric.lower()), {}).get(what)

    def mean(self, entry: Entry, task: str, metric: str, what: What, periods: Iterable[int] = JUDGED) -> float | None:
        """The mean of `value` over the periods that have one, as the paper averages."""
        return mean_of_known(self.value(entry, task, t, metric, what) for t in periods)

    def over_seeds(
        self, part: Part, setting: Setting, metric: str, what: What, periods: Iterable[int] = JUDGED
    ) -> float | None:
        """The mean of `mean` over the finished seeds, on Task-R."""
        entries = [(*part, setting, seed) for seed in self.seeds_of(*part, setting)]
        return mean_of_known([self.mean(entry, "R", metric, what, periods) for entry in entries])

    def tried(
        self, family: Family, part: Part, task: str, metric: str, periods: Iterable[int] = JUDGED
    ) -> dict[float, tuple[float, float]]:
        """Map each value of a family with a result to (mean performance, mean |PD|) of the first seed."""
        numbers = {}
        for value in family.values:
            entry = (*part, family.at(value), self.seeds[0])
            performance = self.mean(entry, task, metric, "performance", periods)
            gap = self.mean(entry, task, metric, "abs_pd", periods)
            if performance is not None and gap is not None:  # else not run yet, or a training that diverged
                numbers[value] = (performance, gap)
        return numbers


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None; None where there are none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def row_of(entry: Entry, name: str) -> dict[str, Any]:
    """The row of an entry in `plan.json`."""
    dataset, model, setting, seed = entry
    about = {"dataset": dataset, "model": model, "method": setting.method, "options": dict(setting.options)}
    return {**about, "seed": seed, "id": name}


def _entry(row: Mapping[str, Any]) -> Entry:
    return row["dataset"], row["model"], Setting.of(row["method"], **row["options"]), row["seed"]


KEPT = 0.95  # share of the performance without fairness that must be kept


def best(tried: Mapping[float, tuple[float, float]], floor: float) -> float:
    """Return the value with the smallest |PD| whose performance reaches the floor; if none does, the best performer.

    The other quantity breaks ties.

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
    """Return the choice for one panel by the runs of the first seed; None without results."""
    part = (dataset, model)
    plain = (*part, Setting.of(family.plain), catalogue.seeds[0])
    reference = catalogue.mean(plain, "R", metric, "performance")
    tried = catalogue.tried(family, part, "R", metric)
    if reference is None or not tried:
        return None
    chosen = best(tried, KEPT * reference)
    reason = f"smallest mean |PD| of those that keep 95 % of {family.plain}'s {metric}"
    if tried[chosen][0] < KEPT * reference:
        reason = f"none keeps 95 % of {family.plain}'s {metric}; the best of them"
    if n_missing := len(family.values) - len(tried):
        reason += f"; {n_missing} of {len(family.values)} values have no result"
    past = _by_the_past(catalogue, family, part, metric)
    return Choice(family.name, *part, metric, family.parameter, tried, chosen, reason, *past)


def all_choices(catalogue: Catalogue) -> list[Choice]:
    """Return all choices that the runs of the store allow."""
    choices = (
        choose(catalogue, family, *part, metric)
        for part in catalogue.parts()
        for family in catalogue.scale.families(part[0])
        for metric in METRICS
    )
    return [choice for choice in choices if choice is not None]


def _by_the_past(
    catalogue: Catalogue, family: Family, part: Part, metric: str
) -> tuple[tuple[float, ...], tuple[float, float] | None]:
    """Return the value chosen in each period t by Task-N of W_0 … W_{t−1}, and its result on Task-R."""
    seed = catalogue.seeds[0]
    plain = (*part, Setting.of(family.plain), seed)
    chosen, results = [], []
    for t in JUDGED:
        reference = catalogue.mean(plain, "N", metric, "performance", range(t))
        tried = catalogue.tried(family, part, "N", metric, range(t))
        if reference is None or not tried:
            break
        value = best(tried, KEPT * reference)
        entry = (*part, family.at(value), seed)
        performance = catalogue.value(entry, "R", t, metric, "performance")
        gap = catalogue.value(entry, "R", t, metric, "abs_pd")
        if performance is None or gap is None:
            break
        chosen.append(value)
        results.append((performance, gap))
    if not results:
        return (), None
    performances, gaps = zip(*results, strict=True)
    return tuple(chosen), (fmean(performances), fmean(gaps))
