"""What a comparison measures of each contender, averaged over periods and seeds: performance, disparity, groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fairstream.errors import DataError
from fairstream.evaluation import (
    GroupPanel,
    Interval,
    MetricAtK,
    Paired,
    PointValue,
    UserResults,
    score_periods,
    stack_periods,
)
from fairstream.experiments.results import mean_of


class Measured(Protocol):
    """Contenders by their numbers 0, 1 …, each by itself or minus another."""

    def performance(self, contender: int, minus: int | None = None) -> Interval | PointValue:
        """The mean over all users."""

    def disparity(self, contender: int, minus: int | None = None) -> Interval | PointValue:
        """How far the worst-served group is behind the rest, for two groups |PD|."""

    def behind(self, contender: int) -> str:
        """The worst-served group."""

    def by_group(self, contender: int) -> dict[str, float | None]:
        """Each group's mean."""


def measure(
    tests: Sequence[Sequence[UserResults]],
    metric: str | MetricAtK,
    groups: Sequence[Sequence[str]],
    min_size: int,
    n_seeds: int,
    n_resamples: int,
) -> Measured:
    """Measure contenders by a metric; those of one value a user get intervals.

    Parameters
    ----------
    tests
        The tested users of each period, of each contender's seeds.
    metric
        A built-in metric, or the name of a stored one.
    groups
        Of each of these tests, the groups' names in the order of their codes.
    min_size
        The fewest tested users with which a group is compared.
    n_seeds
        The number of seeds that each contender has.
    n_resamples
        Bootstrap samples.

    Raises
    ------
    DataError
        If there are too few users of the groups.

    """
    name = metric if isinstance(metric, str) else metric.name
    if any(name in tested.totals for periods in tests for tested in periods):
        return _OfAllUsers(tests, name, groups, n_seeds)
    stacks = [stack_periods(periods, [metric]) for periods in tests]
    # (U, P, C · S): each contender and seed is a metric of its own.
    values = np.concatenate([values for values, _ in stacks], axis=2)
    panel = GroupPanel(values, stacks[0][1], len(groups[0]), min_size)
    return _OfUsers(Paired(panel, n_seeds, n_resamples), groups[0])


class _OfUsers:
    """A metric of one value a user: intervals come from resampled users and seeds."""

    def __init__(self, paired: Paired, groups: Sequence[str]) -> None:
        _need_disparities(paired.of("behind")[0].tolist(), groups)
        self._groups = groups
        self._paired, self._by_group = paired, paired.of("by_group")[0]

    def performance(self, contender: int, minus: int | None = None) -> Interval:
        return self._paired.interval("mean", contender, minus)

    def disparity(self, contender: int, minus: int | None = None) -> Interval:
        return self._paired.furthest_behind(contender, minus=minus)

    def behind(self, contender: int) -> str:
        return self._groups[int(np.nanargmin(self._paired.of("gap")[0][:, contender]))]

    def by_group(self, contender: int) -> dict[str, float | None]:
        values = [None if np.isnan(value) else float(value) for value in self._by_group[:, contender]]
        return dict(zip(self._groups, values, strict=True))


class _OfAllUsers:
    """A metric that is one number for all users."""

    def __init__(
        self, tests: Sequence[Sequence[UserResults]], name: str, groups: Sequence[Sequence[str]], n_seeds: int
    ) -> None:
        scores = [
            score_periods(periods, [name], own, min_size=1)[0][name] for periods, own in zip(tests, groups, strict=True)
        ]
        gaps = [np.nan if score.furthest_behind is None else score.furthest_behind.value for score in scores]
        _need_disparities(gaps, groups[0])
        by_name = [{name: gap.value for name, gap in score.gaps.items()} for score in scores]
        self._gaps = mean_of([by_name[s::n_seeds] for s in range(n_seeds)])
        self._mean = mean_of([[score.mean for score in scores[s::n_seeds]] for s in range(n_seeds)])
        self._gap = mean_of([gaps[s::n_seeds] for s in range(n_seeds)])
        by_group = [{group: score.by_group[group] for group in groups[0]} for score in scores]
        self._by_group = mean_of([by_group[s::n_seeds] for s in range(n_seeds)])

    def performance(self, contender: int, minus: int | None = None) -> PointValue:
        return PointValue(self._mean[contender] - (0.0 if minus is None else self._mean[minus]))

    def disparity(self, contender: int, minus: int | None = None) -> PointValue:
        return PointValue(self._gap[contender] - (0.0 if minus is None else self._gap[minus]))

    def behind(self, contender: int) -> str:
        return min(self._gaps[contender], key=self._gaps[contender].__getitem__)

    def by_group(self, contender: int) -> dict[str, float | None]:
        return dict(self._by_group[contender])


def _need_disparities(sizes: Sequence[float], groups: Sequence[str]) -> None:
    if not groups:
        raise DataError("no disparity can be compared: the runs were made without groups")
    if np.isnan(sizes).any():
        raise DataError("no disparity can be compared: too few users of the groups were tested")
