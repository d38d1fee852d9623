"""Disaggregate, then compare: from users' values to groups' means, to gaps, to how sure they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from fairstream.evaluation.resampling import Array, GroupPanel, Statistics, mean_of

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Estimate:
    """A number, and what is known of its uncertainty (None where it was not asked for)."""

    value: float
    interval: tuple[float, float] | None = None
    """The 95 % bootstrap interval over users."""
    p_value: float | None = None
    """How often a number of this size or more comes up when the groups are dealt out at random
    (over several periods: among users who were tested equally often)."""
    chance: float | None = None
    """The size that it has on average when the groups are dealt out at random."""

    @property
    def may_be_chance(self) -> bool:
        """Whether it cannot be told from chance: p ≥ 0.05."""
        return self.p_value is not None and self.p_value >= SIGNIFICANCE

    def to_dict(self) -> dict[str, Any]:
        interval = None if self.interval is None else list(self.interval)
        return {"value": self.value, "interval": interval, "p_value": self.p_value, "chance": self.chance}


@dataclass(frozen=True)
class GroupScores:
    """One metric: over all tested users, by group, and the gaps. None: nobody was there to judge."""

    overall: float | None
    interval: tuple[float, float] | None
    """The 95 % bootstrap interval of `overall`."""
    by_group: Mapping[str, float | None]
    """Each group's mean, the advantaged group first; None where too few of its users were tested."""
    gaps: Mapping[str, Estimate]
    """Of each judged group: its value minus that of the users of all other judged groups."""
    largest_gap: Estimate | None
    """The largest |gap|; its p-value allows for having looked at every group."""
    largest_gap_group: str | None
    """Whose gap that is."""
    spread: Estimate | None
    """The best group's value minus the worst's."""
    disparity: Estimate | None
    """PD: the advantaged group's gap, for two groups Perf(a = 0) − Perf(a = 1)   (Section 2)."""
    abs_performance_disparity: float | None
    """|PD|; over several periods the mean of each period's, as in the paper."""
    abs_null_mean: float | None
    """What that is on average when the groups are dealt out at random; it is never 0."""

    @property
    def performance_disparity(self) -> float | None:
        """The value of PD."""
        return None if self.disparity is None else self.disparity.value

    @property
    def ahead(self) -> list[str]:
        """The groups that do better than the rest."""
        return [name for name, gap in self.gaps.items() if gap.value > 0]

    def to_dict(self) -> dict[str, Any]:
        disparity = self.disparity
        return {
            "overall": self.overall,
            "interval": None if self.interval is None else list(self.interval),
            "by_group": dict(self.by_group),
            "performance_disparity": self.performance_disparity,
            "abs_performance_disparity": self.abs_performance_disparity,
            "null_mean": self.abs_null_mean,
            "disparity": None if disparity is None else disparity.to_dict(),
            "gaps": {name: gap.to_dict() for name, gap in self.gaps.items()},
            "largest_gap": None
            if self.largest_gap is None
            else {"group": self.largest_gap_group, **self.largest_gap.to_dict()},
            "spread": None if self.spread is None else self.spread.to_dict(),
        }


def group_statistics(
    panel: GroupPanel, names: Sequence[str], rng: np.random.Generator | None = None, n_resamples: int = 0
) -> list[GroupScores]:
    """The scores of each metric of the panel; with `n_resamples`, also how sure they are.

    >>> panel = GroupPanel(np.array([[[0.5]], [[0.25]], [[1.0]]]), np.array([0, 1, 0], dtype=np.int16), n_groups=2)
    >>> (score,) = group_statistics(panel, ["M", "F"])
    >>> score.by_group, score.performance_disparity
    ({'M': 0.75, 'F': 0.25}, 0.5)
    """
    found, sure = panel.observed(), _Uncertainty({}, {}, {})
    if n_resamples and rng is not None:
        sure = _Uncertainty.of(panel, found, panel.bootstrapped(rng, n_resamples), panel.permuted(rng, n_resamples))
    return [_scores(m, names, found, sure) for m in range(panel.values.shape[2])]


class _Uncertainty(NamedTuple):
    """How sure statistics are, by their names; what is held of one has its shape (…, M)."""

    intervals: Mapping[str, tuple[Array, Array]]
    p_values: Mapping[str, Array]
    null_mean: Mapping[str, Array]

    @classmethod
    def of(cls, panel: GroupPanel, found: Statistics, drawn: Statistics, permuted_groups: Statistics) -> _Uncertainty:
        n_users = np.bincount(panel.codes[panel.codes >= 0], minlength=panel.n_groups)
        # What an interval rests on: everyone; or the users of a group or of its rest, whichever are fewer.
        fewest = np.minimum(n_users, n_users.sum() - n_users)
        sizes = {name: np.abs(getattr(permuted_groups, name)) for name in ("gap", "abs_gap", "largest", "spread")}
        return cls(
            intervals={
                "overall": _interval(found.overall, drawn.overall, np.array(widening(len(panel.codes)))),
                "gap": _interval(found.gap, drawn.gap, np.array([widening(int(n)) for n in fewest]).reshape(-1, 1)),
            },
            p_values={name: _p_value(np.abs(getattr(found, name)), null_mean) for name, null_mean in sizes.items()},
            null_mean={name: mean_of(null_mean, axis=0) for name, null_mean in sizes.items()},
        )


def _scores(m: int, names: Sequence[str], found: Statistics, sure: _Uncertainty) -> GroupScores:
    def of(name: str, *at: int) -> Estimate | None:
        """The statistic `name` of metric m (of group `at`) with its interval and what chance does."""
        here = (*at, m)
        value = _or_none(getattr(found, name)[here])
        if value is None:
            return None
        interval = None
        if name in sure.intervals:
            low, high = sure.intervals[name]
            interval = (float(low[here]), float(high[here]))
        if name not in sure.p_values:
            return Estimate(value, interval)
        return Estimate(value, interval, float(sure.p_values[name][here]), _or_none(sure.null_mean[name][here]))

    gaps = {name: gap for code, name in enumerate(names) if (gap := of("gap", code)) is not None}
    sizes = np.nan_to_num(found.abs_gap[:, m], nan=-1.0)
    overall, abs_disparity = of("overall"), of("abs_gap", 0) if len(names) else None
    return GroupScores(
        overall=None if overall is None else overall.value,
        interval=None if overall is None else overall.interval,
        by_group={name: _or_none(found.by_group[code, m]) for code, name in enumerate(names)},
        gaps=gaps,
        largest_gap=of("largest"),
        largest_gap_group=names[int(sizes.argmax())] if gaps else None,
        spread=of("spread") if gaps else None,
        disparity=of("gap", 0) if len(names) else None,
        abs_performance_disparity=None if abs_disparity is None else abs_disparity.value,
        abs_null_mean=_or_none(sure.null_mean["abs_gap"][0, m]) if sure.null_mean and gaps else None,
    )


def _interval(value: Array, drawn: Array, factor: Array) -> tuple[Array, Array]:
    """The percentiles of the draws, their distance from the value widened for few users.

    The bootstrap draws from n users, not from the population behind them, and so comes out
    narrower than it should by √((n − 1) / n), and by what tells the normal from Student's t.
    """
    tail = (1 - CONFIDENCE) / 2
    low, high = _quantiles(drawn, (tail, 1 - tail))
    return value - factor * (value - low), value + factor * (high - value)


def _quantiles(drawn: Array, shares: tuple[float, ...]) -> list[Array]:
    """Over the first axis, of what is there: between the two draws nearest to each share of the way."""
    ordered = np.sort(drawn, axis=0)  # NaN comes last
    last = np.maximum((~np.isnan(drawn)).sum(axis=0) - 1, 0)

    def at(place: np.ndarray[Any, np.dtype[np.int64]]) -> Array:
        return np.take_along_axis(ordered, place[None], axis=0)[0]

    found = []
    for share in shares:
        below = np.floor(share * last).astype(np.int64)
        low, high = at(below), at(np.minimum(below + 1, last))
        found.append(low + (share * last - below) * (high - low))
    return found


def widening(n: int) -> float:
    """√(n / (n − 1)) t_{n−1} / z, with the quantile of t from its expansion in 1 / (n − 1).

    >>> round(widening(20), 3), round(widening(1000), 3)
    (1.095, 1.002)
    """
    n, z = max(n, 3), NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    f = n - 1
    t = z + (z**3 + z) / (4 * f) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * f**2)
    return math.sqrt(n / f) * t / z


def _p_value(size: Array, null_mean: Array) -> Array:
    """(1 + how often chance does at least as much) / (1 + draws): valid, and never 0."""
    less = null_mean < size - 1e-12  # a deal that tells nothing is not less
    return (1.0 + (~less).sum(axis=0)) / (1.0 + len(null_mean))


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
