"""The cells that the paper averages over (data set × model × metric, Task-R), with the users behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fairstream.evaluation import Estimate, GroupPanel, Paired, UserResults, stack_periods
from fairstream.experiments import protocol_of
from fairstream.paper.catalogue import Catalogue, choose
from fairstream.paper.findings import Choice
from fairstream.paper.settings import JUDGED, METRICS, PLAIN, RERANK, ModelName, Setting

N_RESAMPLES = 1000
FEW = "FADE, few tries"
"""FADE with λ chosen from as few values as its competitors have: the minimum of many |PD|s is smaller by chance."""
PAST = "FADE, by the past"  # FADE with λ chosen in each period by the results of the periods before
_NOTHING = 1e-12  # the rounding error of a difference between equal numbers

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
Drawn = tuple[float, FloatArray]  # an observed number, and (R,) its resampled values


@dataclass(frozen=True)
class Cell:
    """One data set, model and metric: each method's numbers, on the same draws of users and seeds."""

    dataset: str
    values: Mapping[tuple[str, str], Drawn]  # by method and quantity: performance, abs_pd, advantaged or disadvantaged

    def __contains__(self, method: str) -> bool:
        return (method, "performance") in self.values


@dataclass(frozen=True)
class Effect:
    """An effect averaged over cells."""

    interval: Estimate
    by_dataset: Mapping[str, Estimate]
    n_positive: int
    n_cells: int
    n_seeds: int


@dataclass(frozen=True)
class _Column:
    """A method in a cell: the setting of each period, most often the same in all."""

    model: ModelName
    metric: str
    method: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class _Panel:
    """The results of a column for one seed."""

    periods: tuple[int, ...]  # in which there were tests
    values: Any  # (U, P, 1) of the users tested in any of them; None where there are none
    codes: Any  # their groups


class Cells:
    """All cells of a reproduction, by the runs of some seeds."""

    def __init__(self, catalogue: Catalogue, choices: Sequence[Choice], seeds: Sequence[int]) -> None:
        self._catalogue, self._choices, self._seeds = catalogue, choices, seeds

    @cached_property
    def all(self) -> list[Cell]:
        return [cell for dataset in dict.fromkeys(d for d, _ in self._catalogue.parts()) for cell in self._of(dataset)]

    def mean(self, methods: Sequence[str], effect: Callable[[Cell], Drawn]) -> Effect | None:
        """An effect averaged over the cells that have all these methods."""
        effects: dict[str, list[Drawn]] = {}
        for cell in self.all:
            if all(method in cell for method in methods) and not np.isnan((drawn := effect(cell))[0]):
                effects.setdefault(cell.dataset, []).append(drawn)
        if not effects:
            return None
        everywhere = [drawn for each in effects.values() for drawn in each]
        return Effect(
            interval=_mean(everywhere),
            by_dataset={dataset: _mean(each) for dataset, each in effects.items()},
            n_positive=sum(value > 0 for value, _ in everywhere),
            n_cells=len(everywhere),
            n_seeds=len(self._seeds),
        )

    def _columns(self, dataset: str, model: ModelName, metric: str) -> list[_Column]:
        """Return the methods whose runs are finished, with the settings chosen for this cell."""
        families = {family.name: family for family in self._catalogue.scale.families(dataset)}
        settings = {setting.method: (setting,) * len(JUDGED) for setting in (*PLAIN, RERANK)}
        cell = (dataset, model, metric)
        for choice in self._choices:
            if (choice.dataset, choice.model, choice.metric) == cell:
                family = families[choice.method]
                settings[choice.method] = (family.at(choice.chosen),) * len(JUDGED)
                if choice.method == "FADE" and len(choice.by_the_past) == len(JUDGED):
                    settings[PAST] = tuple(family.at(value) for value in choice.by_the_past)
        few = replace(families["FADE"], values=families["Retrain-Fair"].values)
        if (choice_of_few := choose(self._catalogue, few, *cell)) is not None:
            settings[FEW] = (few.at(choice_of_few.chosen),) * len(JUDGED)

        def is_done(setting: Setting) -> bool:
            return all(self._catalogue.run_id((dataset, model, setting, seed)) for seed in self._seeds)

        return [_Column(model, metric, method, each) for method, each in settings.items() if all(map(is_done, each))]

    def _of(self, dataset: str) -> list[Cell]:
        """The cells of one data set; users tested in the same periods are resampled together.

        In a quick reproduction one model has fewer periods, and so other users, who are resampled separately.
        """
        parts = [part for part in self._catalogue.parts() if part[0] == dataset]
        columns = [column for part in parts for metric in METRICS for column in self._columns(*part, metric)]
        together: dict[tuple[int, ...], tuple[list[_Column], list[_Panel]]] = {}
        for column in columns:
            panels = [self._panel(dataset, column, seed) for seed in self._seeds]
            same = together.setdefault(panels[0].periods, ([], []))
            same[0].append(column)
            same[1].extend(panels)
        return [cell for periods, each in together.items() if periods for cell in self._drawn(dataset, *each)]

    def _drawn(self, dataset: str, columns: Sequence[_Column], panels: Sequence[_Panel]) -> list[Cell]:
        values, codes = np.concatenate([panel.values for panel in panels], axis=2), panels[0].codes
        min_size = 1 if self._catalogue.plan["protocol"].startswith("paper") else 20
        paired = Paired(GroupPanel(values, codes, 2, min_size), len(self._seeds), N_RESAMPLES)
        (overall, overall_drawn), (groups, groups_drawn) = paired.of("mean"), paired.of("by_group")
        gaps, gaps_drawn = paired.of("abs_gap")
        cells: dict[tuple[ModelName, str], dict[tuple[str, str], Drawn]] = {}
        for c, column in enumerate(columns):
            cell = cells.setdefault((column.model, column.metric), {})
            cell[column.method, "performance"] = (overall[c], overall_drawn[:, c])
            cell[column.method, "abs_pd"] = (gaps[0, c], gaps_drawn[:, 0, c])
            cell[column.method, "advantaged"] = (groups[0, c], groups_drawn[:, 0, c])
            cell[column.method, "disadvantaged"] = (groups[1, c], groups_drawn[:, 1, c])
        return [Cell(dataset, values) for values in cells.values()]

    def _panel(self, dataset: str, column: _Column, seed: int) -> _Panel:
        measure = protocol_of(self._catalogue.plan["protocol"]).metrics[column.metric.lower().partition("@")[0]]
        tests: dict[int, UserResults] = {}
        for t, setting in zip(JUDGED, column.settings, strict=True):
            name = self._catalogue.run_id((dataset, column.model, setting, seed))
            if (test := self._catalogue.tests(name).get((t, "remain"))) is not None:
                tests[t] = test
        return _Panel(tuple(tests), *(stack_periods(list(tests.values()), [measure]) if tests else (None, None)))


def _mean(effects: Sequence[Drawn]) -> Estimate:
    value = float(np.mean([value for value, _ in effects]))
    return Estimate.of_draws(value, np.mean([draws for _, draws in effects], axis=0))


def gain(better: str, than: str, quantity: str = "performance") -> Callable[[Cell], Drawn]:
    """By how many per cent `better` is above `than`; NaN where that is 0."""

    def effect(cell: Cell) -> Drawn:
        (a, a_drawn), (b, b_drawn) = cell.values[better, quantity], cell.values[than, quantity]
        ratios = np.divide(a_drawn, b_drawn, out=np.full_like(a_drawn, np.nan), where=b_drawn > _NOTHING)
        return 100 * (a / b - 1) if b > _NOTHING else np.nan, 100 * (ratios - 1)

    return effect


def reduction(smaller: str, than: str, quantity: str = "abs_pd") -> Callable[[Cell], Drawn]:
    """By how many per cent `smaller` is below `than`."""
    return _applied(np.negative, gain(smaller, than, quantity))


def difference(one: str, other: str, quantity: str = "abs_pd") -> Callable[[Cell], Drawn]:
    """By how many per cent the two differ, whichever is larger."""
    return _applied(np.abs, gain(one, other, quantity))


def _applied(function: np.ufunc, effect: Callable[[Cell], Drawn]) -> Callable[[Cell], Drawn]:
    def applied(cell: Cell) -> Drawn:
        value, draws = effect(cell)
        return function(value), function(draws)

    return applied
