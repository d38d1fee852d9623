"""The cells that the paper averages over (data set × model × metric, Task-R), with the users behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairstream.evaluation import Panel, Protocol, side_by_side
from fairstream.evaluation.resampling import Array
from fairstream.experiment.paired import Interval, Paired
from fairstream.experiment.paper.catalogue import Catalogue
from fairstream.experiment.paper.findings import Choice
from fairstream.experiment.paper.settings import JUDGED, METRICS, ModelName, Setting

N_RESAMPLES = 1000
_NOTHING = 1e-12
"""What rounding leaves of a difference between equals."""

Quantity = str
"""performance, abs_pd, advantaged or disadvantaged."""
Drawn = tuple[float, Array]
"""A number as observed, and (R,) as it came out in the resamples."""


@dataclass(frozen=True)
class Cell:
    """One data set, model and metric: each method's numbers, on the same draws of users and seeds."""

    dataset: str
    model: ModelName
    metric: str
    values: Mapping[tuple[str, Quantity], Drawn]

    def __contains__(self, method: str) -> bool:
        return (method, "performance") in self.values


class Cells:
    """All cells of a reproduction."""

    def __init__(self, catalogue: Catalogue, choices: Sequence[Choice]) -> None:
        self._catalogue, self._choices = catalogue, choices

    @cached_property
    def all(self) -> list[Cell]:
        return [cell for dataset in dict.fromkeys(d for d, _ in self._catalogue.parts()) for cell in self._of(dataset)]

    def mean(self, methods: Sequence[str], effect: Callable[[Cell], Drawn]) -> tuple[Interval, int, int] | None:
        """An effect averaged over the cells that have all these methods; in how many it is positive, of how many."""
        cells = [cell for cell in self.all if all(method in cell for method in methods)]
        effects = [found for found in map(effect, cells) if not np.isnan(found[0])]
        if not effects:
            return None
        drawn = np.mean([draws for _, draws in effects], axis=0)
        value = float(np.mean([value for value, _ in effects]))
        return Interval.of(value, drawn), sum(value > 0 for value, _ in effects), len(effects)

    def _methods(self, dataset: str, model: ModelName, metric: str) -> dict[str, Setting]:
        """Every method with what was chosen for this cell."""
        families = {family.name: family for family in self._catalogue.scale.families(dataset)}
        fixed = {name: Setting.of(name) for name in ("Pretrain", "Retrain", "Finetune", "Rerank")}
        chosen = {
            choice.method: families[choice.method].at(choice.chosen)
            for choice in self._choices
            if (choice.dataset, choice.model, choice.metric) == (dataset, model, metric)
        }
        return fixed | chosen

    def _of(self, dataset: str) -> list[Cell]:
        """The cells of one data set, whose users are drawn together."""
        catalogue = self._catalogue
        wanted = [
            (model, metric, method, setting)
            for part, model in catalogue.parts()
            if part == dataset
            for metric in METRICS
            for method, setting in self._methods(dataset, model, metric).items()
            if catalogue.seeds_of(dataset, model, setting)
        ]
        seeds = [
            seed
            for seed in catalogue.seeds
            if all(catalogue.run_id((dataset, model, setting, seed)) for model, _, _, setting in wanted)
        ]
        if not wanted or not seeds:
            return []
        columns, codes = [], None
        for model, metric, _, setting in wanted:
            for seed in seeds:
                values, codes = self._values((dataset, model, setting, seed), metric)
                columns.append(values)
        assert codes is not None
        paired = Paired(Panel(np.concatenate(columns, axis=2), codes, 2), len(seeds), N_RESAMPLES)
        (overall, overall_drawn), (groups, groups_drawn) = paired.of("overall"), paired.of("by_group")
        gaps, gaps_drawn = paired.of("abs_gap")
        found: dict[tuple[ModelName, str], dict[tuple[str, Quantity], Drawn]] = {}
        for c, (model, metric, method, _) in enumerate(wanted):
            values_of = found.setdefault((model, metric), {})
            values_of[method, "performance"] = (overall[c], overall_drawn[:, c])
            values_of[method, "abs_pd"] = (gaps[0, c], gaps_drawn[:, 0, c])
            values_of[method, "advantaged"] = (groups[0, c], groups_drawn[:, 0, c])
            values_of[method, "disadvantaged"] = (groups[1, c], groups_drawn[:, 1, c])
        return [Cell(dataset, model, metric, values) for (model, metric), values in found.items()]

    def _values(self, entry: tuple[str, ModelName, Setting, int], metric: str) -> tuple[Array, np.ndarray]:
        """(U, P, 1) of the users tested, and their groups."""
        name = self._catalogue.run_id(entry)
        assert name is not None
        stored = self._catalogue.store.read(name)
        measure = Protocol.named(self._catalogue.plan["protocol"]).metrics[metric.lower().partition("@")[0]]
        tests = [test for (t, task), test in sorted(stored.tests.items()) if task == "remain" and t in JUDGED]
        return side_by_side(tests, [measure])


def gain(better: str, than: str, quantity: Quantity = "performance") -> Callable[[Cell], Drawn]:
    """By how many per cent `better` is above `than`; NaN where that is 0."""

    def effect(cell: Cell) -> Drawn:
        (a, a_drawn), (b, b_drawn) = cell.values[better, quantity], cell.values[than, quantity]
        ratios = np.divide(a_drawn, b_drawn, out=np.full_like(a_drawn, np.nan), where=b_drawn > _NOTHING)
        return 100 * (a / b - 1) if b > _NOTHING else np.nan, 100 * (ratios - 1)

    return effect


def reduction(smaller: str, than: str, quantity: Quantity = "abs_pd") -> Callable[[Cell], Drawn]:
    """By how many per cent `smaller` is below `than`."""
    above = gain(smaller, than, quantity)

    def effect(cell: Cell) -> Drawn:
        value, drawn = above(cell)
        return -value, -drawn

    return effect
