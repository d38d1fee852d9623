"""Performance, disparity and group means of each contender, averaged over periods and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from fairstream.errors import DataError
from fairstream.evaluation import Estimate, GroupPanel, MetricAtK, Paired, UserResults, score_periods, stack_periods
from fairstream.evaluation.regret import LevelPanel, SystemRegret
from fairstream.evaluation.resampling import Array


class Measured(NamedTuple):
    """Contenders by their numbers 0, 1 …"""

    performance: Callable[[int, int | None], Estimate]  # of a contender over all users, or minus that of another
    disparity: Callable[[int, int | None], Estimate]  # of the worst-served group, or minus that of another
    by_group: Array  # (G, C), the mean of each group
    gaps: Array  # (G, C), of each group minus the rest
    by_seed: Array  # (C, S), how far the worst-served group is behind with each seed


def measure(
    tests: Sequence[Sequence[UserResults]],
    metric: str | MetricAtK,
    groups: Sequence[Sequence[str]],
    min_size: int,
    n_seeds: int,
    n_resamples: int,
) -> Measured:
    """Measure contenders by a metric; metrics with a value for each user give intervals over users and seeds.

    `tests` and `groups` are those of each contender's seeds: the tested users of each period, and the groups' names in
    the order of their codes. Raises DataError if too few users of the groups were tested.
    """
    if not groups[0]:
        raise DataError("no disparity can be compared: the runs were made without groups")
    name = metric if isinstance(metric, str) else metric.name
    if any(name in tested.totals for periods in tests for tested in periods):
        measured, disparities = _of_all_users(tests, name, groups, n_seeds)
    else:
        stacks = [stack_periods(periods, [metric]) for periods in tests]
        # (U, P, C · S): each contender and seed counts as a metric.
        values = np.concatenate([values for values, _ in stacks], axis=2)
        paired = Paired(GroupPanel(values, stacks[0][1], len(groups[0]), min_size), n_seeds, n_resamples)
        by_group, gaps, disparities = (paired.of(each)[0] for each in ("by_group", "gap", "behind"))
        by_seed = paired.observed.behind.reshape(-1, n_seeds)
        measured = Measured(partial(paired.interval, "mean"), paired.furthest_behind, by_group, gaps, by_seed)
    if np.isnan(disparities).any():
        raise DataError("no disparity can be compared: too few users of the groups were tested")
    return measured


def _of_all_users(
    tests: Sequence[Sequence[UserResults]], name: str, groups: Sequence[Sequence[str]], n_seeds: int
) -> tuple[Measured, Array]:
    """Measure by a metric that is one number for all users."""
    scores = [
        score_periods(periods, [name], own, min_size=1)[0][name] for periods, own in zip(tests, groups, strict=True)
    ]

    def averaged(values: Sequence[float | None]) -> Array:  # (C,), over the seeds
        known = np.ma.masked_invalid(np.array(values, np.float64).reshape(-1, n_seeds))
        return np.ma.filled(known.mean(axis=1), np.nan)

    means = averaged([score.mean for score in scores])
    sizes = [np.nan if score.furthest_behind is None else score.furthest_behind.value for score in scores]
    by_seed = np.reshape(sizes, (-1, n_seeds))
    furthest = by_seed.mean(axis=1)  # NaN where one seed has none
    by_group = [averaged([score.by_group[group] for score in scores]) for group in groups[0]]
    gaps = [
        averaged([score.gaps[name].value if name in score.gaps else None for score in scores]) for name in groups[0]
    ]

    def estimate(values: Array, contender: int, minus: int | None = None) -> Estimate:
        return Estimate(float(values[contender] - (0.0 if minus is None else values[minus])))

    values = (partial(estimate, means), partial(estimate, furthest), np.array(by_group), np.array(gaps))
    return Measured(*values, by_seed), furthest


def level_panels(
    tests: Sequence[Sequence[UserResults]],
    metric: str | MetricAtK,
    groups: Sequence[Sequence[str]],
    min_size: int,
    n_seeds: int,
) -> list[LevelPanel]:
    """Return the users' values with each contender, as served and at its levels, averaged over periods and seeds.

    The parameters are those of `measure`, which raises if too few users of the groups were tested.
    """
    seeds = [LevelPanel.of(periods, metric, names, min_size) for periods, names in zip(tests, groups, strict=True)]
    panels = [panel for panel in seeds if panel is not None]
    contenders = [panels[start : start + n_seeds] for start in range(0, len(panels), n_seeds)]
    return [replace(each[0], values=np.mean([panel.values for panel in each], axis=0)) for each in contenders]


def own_regret(panel: LevelPanel, n_resamples: int) -> dict[str, Estimate]:
    """Return each group's regret at the contender's own levels; none without levels."""
    return SystemRegret.of([panel], n_resamples).by_group(0) if panel.levels else {}


def pareto_front(costs: Sequence[tuple[float, float]]) -> list[bool]:
    """Return for each point whether no other is at most as costly in both respects and less in one.

    >>> pareto_front([(0, 2), (1, 1), (1, 2)])
    [True, True, False]
    """

    def dominates(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one != other and one[0] <= other[0] and one[1] <= other[1]

    return [not any(dominates(other, one) for other in costs) for one in costs]
