"""Disaggregate, then compare: users' values → group means → gaps, with confidence intervals and permutation tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from scipy.special import stdtrit

from fairstream.evaluation.resampling import Array, GroupPanel, Mask, Side, Statistics, largest_of, mean_of
from fairstream.text import number, signed

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
_PRIOR_USERS = 8.0
"""Users' worth of the pooled dispersion in an interval: what coverage in benchmarks/coverage.py asks for."""


@dataclass(frozen=True)
class Estimate:
    """A number and its uncertainty (None where that was not computed)."""

    value: float
    interval: tuple[float, float] | None = None
    """The 95 % confidence interval over users."""
    p_value: float | None = None
    """Of the permutation test of the null hypothesis that the groups' means are equal
    (over several periods: among users who were tested equally often)."""
    null_mean: float | None = None
    """The size that the number has on average under that null hypothesis."""

    @property
    def may_be_chance(self) -> bool:
        """Whether the null hypothesis is not rejected: p ≥ 0.05."""
        return self.p_value is not None and self.p_value >= SIGNIFICANCE

    def to_dict(self) -> dict[str, Any]:
        interval = None if self.interval is None else list(self.interval)
        return {"value": self.value, "interval": interval, "p_value": self.p_value, "null_mean": self.null_mean}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any] | None) -> Self | None:
        """From what `to_dict` wrote; None where there is no value."""
        if not stored or stored.get("value") is None:
            return None
        return cls(stored["value"], _pair(stored.get("interval")), stored.get("p_value"), stored.get("null_mean"))


@dataclass(frozen=True)
class GroupScores:
    """One metric: the mean over all tested users, by group, and the gaps. None: there were too few users.

    Over several periods every number is a mean over periods; `by_group` and the gaps are means
    over the same ones, so that for two groups their difference is the printed PD.
    """

    mean: float | None
    interval: tuple[float, float] | None
    """The 95 % confidence interval of `mean`; that of PD is `disparity.interval`."""
    by_group: Mapping[str, float | None]
    """Each group's mean, the advantaged group first; None where too few of its users were tested."""
    gaps: Mapping[str, Estimate]
    """Of each compared group: its mean minus that of the users of all other compared groups."""
    largest_gap: Estimate | None
    """The size of the largest gap; its p-value allows for several groups having been compared."""
    largest_gap_group: str | None
    """The group with that gap."""
    spread: Estimate | None
    """The best group's mean minus the worst's."""
    disparity: Estimate | None
    """PD: the advantaged group's gap, for two groups Perf(a = 0) − Perf(a = 1)   (Section 2)."""
    abs_performance_disparity: float | None
    """The size of PD; over several periods the mean of each period's, as in the paper. Noise makes it larger."""
    abs_performance_disparity_debiased: float | None
    """The same with each period's size replaced by √max(0, PD² − SE²)."""
    null_mean: float | None
    """What the size of PD is on average under the null hypothesis of equal means; it is never 0."""

    @property
    def performance_disparity(self) -> float | None:
        """The value of PD."""
        return None if self.disparity is None else self.disparity.value

    @property
    def p_value(self) -> float | None:
        """The p-value of PD."""
        return None if self.disparity is None else self.disparity.p_value

    @property
    def ahead(self) -> list[str]:
        """The groups that do better than the rest."""
        return [name for name, gap in self.gaps.items() if gap.value > 0]

    @property
    def not_compared(self) -> list[str]:
        """The groups without a gap: too few of their users were tested, or those of no other group."""
        return [name for name in self.by_group if name not in self.gaps]

    def cells(self, groups: Sequence[str]) -> list[str]:
        """Return the mean, its interval, the groups' means and, where there are groups, PD, its interval and its p."""
        cells = [number(self.mean), _interval(self.interval), *(number(self.by_group.get(name)) for name in groups)]
        if not groups:
            return cells
        gap = self.disparity or Estimate(float("nan"))
        p_value = "–" if gap.p_value is None else f"{gap.p_value:.3f}"
        return [*cells, signed(self.performance_disparity), _interval(gap.interval), p_value]

    def rows(self) -> list[dict[str, Any]]:
        """Return the numbers of everyone and of each group, in the columns `SCORE_COLUMNS`."""
        low, high = self.interval or (None, None)
        rows = [{"group": "all", "value": self.mean, "low": low, "high": high, "gap": None, "p_value": None}]
        for name, value in self.by_group.items():
            gap = self.gaps.get(name)
            low, high = (None, None) if gap is None or gap.interval is None else gap.interval
            size, p_value = (None, None) if gap is None else (gap.value, gap.p_value)
            rows.append({"group": name, "value": value, "low": low, "high": high, "gap": size, "p_value": p_value})
        return rows

    def to_dict(self) -> dict[str, Any]:
        disparity = self.disparity
        return {
            "mean": self.mean,
            "interval": None if self.interval is None else list(self.interval),
            "by_group": dict(self.by_group),
            "performance_disparity": self.performance_disparity,
            "abs_performance_disparity": self.abs_performance_disparity,
            "abs_performance_disparity_debiased": self.abs_performance_disparity_debiased,
            "p_value": self.p_value,
            "null_mean": self.null_mean,
            "disparity": None if disparity is None else disparity.to_dict(),
            "gaps": {name: gap.to_dict() for name, gap in self.gaps.items()},
            "largest_gap": None
            if self.largest_gap is None
            else {"group": self.largest_gap_group, **self.largest_gap.to_dict()},
            "spread": None if self.spread is None else self.spread.to_dict(),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """From what `to_dict` wrote; what was left out is None.

        >>> GroupScores.from_dict({"mean": 0.2, "largest_gap": {"group": "F", "value": 0.1}}).largest_gap_group
        'F'
        """
        gaps = {name: Estimate.from_dict(gap) for name, gap in (stored.get("gaps") or {}).items()}
        return cls(
            mean=stored.get("mean"),
            interval=_pair(stored.get("interval")),
            by_group=dict(stored.get("by_group") or {}),
            gaps={name: gap for name, gap in gaps.items() if gap is not None},
            largest_gap=Estimate.from_dict(stored.get("largest_gap")),
            largest_gap_group=(stored.get("largest_gap") or {}).get("group"),
            spread=Estimate.from_dict(stored.get("spread")),
            disparity=Estimate.from_dict(stored.get("disparity")),
            abs_performance_disparity=stored.get("abs_performance_disparity"),
            abs_performance_disparity_debiased=stored.get("abs_performance_disparity_debiased"),
            null_mean=stored.get("null_mean"),
        )


def _pair(stored: Sequence[float] | None) -> tuple[float, float] | None:
    return None if stored is None else (stored[0], stored[1])


def score_headings(groups: Sequence[str]) -> list[str]:
    """Return the headings of `GroupScores.cells`."""
    return ["mean", "95 % interval", *groups, *(["PD", "95 % interval", "p"] if groups else [])]


SCORE_COLUMNS = (
    ("group", pa.string()),
    *((name, pa.float64()) for name in ("value", "low", "high", "gap", "p_value")),
)
"""What `GroupScores.rows` has, as fields of an Arrow schema."""


def _interval(interval: tuple[float, float] | None) -> str:
    return "–" if interval is None else f"{interval[0]:.4f} … {interval[1]:.4f}"


def group_statistics(
    panel: GroupPanel, names: Sequence[str], rng: np.random.Generator | None = None, n_resamples: int = 0
) -> list[GroupScores]:
    """The scores of each metric of the panel.

    Parameters
    ----------
    panel
        The users' values and groups.
    names
        The groups' names, in the order of their codes.
    rng
        Draws the permutations.
    n_resamples
        The number of permutations; 0: no confidence intervals and no p-values.

    Returns
    -------
    list of GroupScores
        One per metric of the panel.

    Examples
    --------
    >>> panel = GroupPanel(np.array([[[0.5]], [[0.25]], [[1.0]]]), np.array([0, 1, 0], dtype=np.int16), n_groups=2)
    >>> (score,) = group_statistics(panel, ["M", "F"])
    >>> score.by_group, score.performance_disparity
    ({'M': 0.75, 'F': 0.25}, 0.5)

    """
    if len(panel.values) == 0:
        nobody = GroupScores(None, None, dict.fromkeys(names), {}, None, None, None, None, None, None, None)
        return [nobody] * panel.values.shape[2]
    observed, uncertainty = panel.observed(), _Uncertainty({}, {}, {})
    if n_resamples and rng is not None:
        uncertainty = _Uncertainty.of(panel, observed, *panel.permuted(rng, n_resamples))
    debiased = panel.debiased()
    return [_scores(m, names, observed, debiased, uncertainty) for m in range(panel.values.shape[2])]


class _Uncertainty(NamedTuple):
    """Intervals, p-values and null means by the names of the statistics, in their shape (…, M)."""

    intervals: Mapping[str, tuple[Array, Array]]
    p_values: Mapping[str, Array]
    null_mean: Mapping[str, Array]

    @classmethod
    def of(cls, panel: GroupPanel, observed: Statistics, permuted: Statistics, studentised: Array) -> _Uncertainty:
        own, rest, pooled = panel.sides
        everyone = panel.everyone
        low, high = score_interval(everyone, everyone, panel.is_share)
        tests = {name: (test(panel.studentised()), test(studentised)) for name, test in _TESTS.items()}
        names = ("gap", "abs_gap", "largest", "spread")
        return cls(
            intervals={
                "mean": (low[0], high[0]),
                "gap": difference_interval(
                    observed.gap,
                    (own.mean, *score_interval(own, pooled, panel.is_share)),
                    (rest.mean, *score_interval(rest, pooled, panel.is_share)),
                ),
            },
            p_values={name: _p_value(size, null) for name, (size, null) in tests.items()},
            null_mean={name: mean_of(np.abs(getattr(permuted, name)), axis=0) for name in names},
        )


def _largest_size(studentised: Array) -> Array:
    return largest_of(np.abs(studentised), axis=-2)


def _range(studentised: Array) -> Array:
    return largest_of(studentised, axis=-2) + largest_of(-studentised, axis=-2)


_TESTS: Mapping[str, Callable[[Array], Array]] = {"gap": np.abs, "largest": _largest_size, "spread": _range}
"""Statistic → what the permutation test compares, from the studentised gaps (…, G, M)."""


def _scores(
    m: int, names: Sequence[str], observed: Statistics, debiased: Array, uncertainty: _Uncertainty
) -> GroupScores:
    def of(name: str, *at: int) -> Estimate | None:
        """The statistic `name` of metric m (of group `at`) with its uncertainty."""
        here = (*at, m)
        value = _or_none(getattr(observed, name)[here])
        if value is None:
            return None
        interval = None
        if name in uncertainty.intervals:
            low, high = uncertainty.intervals[name]
            interval = (float(low[here]), float(high[here]))
        if name not in uncertainty.p_values:
            return Estimate(value, interval)
        null_mean = _or_none(uncertainty.null_mean[name][here])
        return Estimate(value, interval, float(uncertainty.p_values[name][here]), null_mean)

    gaps = {name: gap for code, name in enumerate(names) if (gap := of("gap", code)) is not None}
    mean, has_groups = of("mean"), len(names) > 0
    return GroupScores(
        mean=None if mean is None else mean.value,
        interval=None if mean is None else mean.interval,
        by_group={name: _or_none(observed.by_group[code, m]) for code, name in enumerate(names)},
        gaps=gaps,
        largest_gap=of("largest"),
        largest_gap_group=names[int(np.nanargmax(observed.abs_gap[:, m]))] if gaps else None,
        spread=of("spread") if gaps else None,
        disparity=of("gap", 0) if has_groups else None,
        abs_performance_disparity=_or_none(observed.abs_gap[0, m]) if has_groups else None,
        abs_performance_disparity_debiased=_or_none(debiased[0, m]) if has_groups else None,
        null_mean=_or_none(uncertainty.null_mean["abs_gap"][0, m]) if uncertainty.null_mean and has_groups else None,
    )


def score_interval(side: Side, pooled: Side, is_share: Mask) -> tuple[Array, Array]:
    """The 95 % confidence interval of each mean (…, G, M).

    Metrics between 0 and 1: Wilson's score interval with the effective sample size n / φ, where
    φ is the variance over that of a 0/1 metric with this mean. Others: mean ± t SE.
    """
    n, mean = side.n_users, side.mean
    t = student_t(n - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.nan_to_num(side.variance / (mean * (1 - mean)), nan=0.0, posinf=0.0)
        # Where the group's own values vary more than the pooled ones, these may not narrow its interval.
        dispersion = np.maximum(side.dispersion(pooled, _PRIOR_USERS), own)
        k = t**2 * dispersion / n
        centre, half = (mean + k / 2) / (1 + k), np.sqrt(k * mean * (1 - mean) + k**2 / 4) / (1 + k)
        plain = t * np.sqrt(side.variance / n)
    use = is_share & np.isfinite(k)
    return np.where(use, np.minimum(centre - half, mean), mean - plain), np.where(
        use, np.maximum(centre + half, mean), mean + plain
    )


def difference_interval(
    gap: Array, one: tuple[Array, Array, Array], other: tuple[Array, Array, Array]
) -> tuple[Array, Array]:
    """Newcombe's interval of the difference of two independent means, from (mean, low, high) of each."""
    (a, low_a, high_a), (b, low_b, high_b) = one, other
    return gap - np.hypot(a - low_a, high_b - b), gap + np.hypot(high_a - a, b - low_b)


def student_t(degrees_of_freedom: Any) -> Any:
    """The two-sided 95 % quantile of Student's t.

    >>> round(float(student_t(19)), 3)
    2.093
    """
    return stdtrit(np.maximum(degrees_of_freedom, 1), (1 + CONFIDENCE) / 2)


def _p_value(size: Array, null: Array) -> Array:
    """(1 + how many permutations reach the size) / (1 + permutations): valid, and never 0."""
    less = null < size - 1e-9 * np.maximum(1.0, size)  # a permutation without a gap is not less
    return (1.0 + (~less).sum(axis=0)) / (1.0 + len(null))


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
