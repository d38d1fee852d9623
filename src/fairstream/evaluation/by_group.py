"""Disaggregate, then compare: users' values → group means → gaps, with confidence intervals and permutation tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from scipy.special import stdtrit

from fairstream.evaluation.resampling import Array, GroupPanel, Mask, Side, Statistics, largest_of, mean_of
from fairstream.text import number

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
_TWO = 2
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
    """Each group's mean, in the order of the codes; None where too few of its users were tested."""
    gaps: Mapping[str, Estimate]
    """Of each compared group: its mean minus that of the users of all other compared groups."""
    largest_gap: Estimate | None
    """The size of the largest gap; its p-value allows for several groups having been compared."""
    largest_gap_group: str | None
    """The group with that gap."""
    spread: Estimate | None
    """The best group's mean minus the worst's."""
    disparity: Estimate | None
    """PD: the advantaged group's gap, for two groups Perf(a = 0) − Perf(a = 1)   (Section 2).

    None where nobody has said which of three groups or more that is.
    """
    abs_performance_disparity: float | None
    """The size of PD; over several periods the mean of each period's, as in the paper. Noise makes it larger."""
    abs_performance_disparity_debiased: float | None
    """The same with each period's size replaced by √max(0, PD² − SE²)."""
    null_mean: float | None
    """What the size of PD is on average under the null hypothesis of equal means; it is never 0."""
    advantaged: str | None = None
    """The group that PD is of."""
    by_group_interval: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The 95 % confidence intervals of the means in `by_group`."""
    furthest_behind: Estimate | None = None
    """How far the worst-served group is behind the rest, for two groups the size of PD; its p-value allows for several
    groups having been compared."""
    furthest_behind_group: str | None = None
    """The worst-served group: the one furthest behind the rest."""

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

    def note_on_advantaged(self, metric: str) -> str | None:
        """Return a sentence where the group that counts as advantaged is behind the rest by more than chance."""
        gap = self.disparity
        if gap is None or gap.p_value is None or gap.may_be_chance or gap.value >= 0:
            return None
        return (
            f"{self.advantaged} counts as advantaged, but is {number(-gap.value)} behind the rest in {metric} "
            f"(p = {gap.p_value:.3f}), and a fairness loss would take from it; name another group with advantaged=, or "
            f"use max_disparity, which finds out who is behind"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return the numbers of everyone and of each group, in the columns `SCORE_COLUMNS`."""
        of_all = dict.fromkeys(name for name, _ in SCORE_COLUMNS)
        of_all |= {"group": "all", "value": self.mean, **_ends("", self.interval)}
        rows: list[dict[str, Any]] = [of_all]
        for name in ordered(list(self.by_group)):
            gap, interval = self.gaps.get(name), self.by_group_interval.get(name)
            of_gap = (None, None, None) if gap is None else (gap.value, gap.interval, gap.p_value)
            rows.append(
                {
                    "group": name,
                    "value": self.by_group[name],
                    **_ends("", interval),
                    "gap": of_gap[0],
                    **_ends("gap_", of_gap[1]),
                    "p_value": of_gap[2],
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        disparity = self.disparity
        return {
            "mean": self.mean,
            "interval": None if self.interval is None else list(self.interval),
            "by_group": dict(self.by_group),
            "by_group_interval": {name: list(interval) for name, interval in self.by_group_interval.items()},
            "advantaged": self.advantaged,
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
            "furthest_behind": None
            if self.furthest_behind is None
            else {"group": self.furthest_behind_group, **self.furthest_behind.to_dict()},
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
            advantaged=stored.get("advantaged"),
            by_group_interval={
                name: (interval[0], interval[1]) for name, interval in (stored.get("by_group_interval") or {}).items()
            },
            furthest_behind=Estimate.from_dict(stored.get("furthest_behind")),
            furthest_behind_group=(stored.get("furthest_behind") or {}).get("group"),
        )


def _pair(stored: Sequence[float] | None) -> tuple[float, float] | None:
    return None if stored is None else (stored[0], stored[1])


def _ends(prefix: str, interval: tuple[float, float] | None) -> dict[str, float | None]:
    low, high = interval or (None, None)
    return {f"{prefix}low": low, f"{prefix}high": high}


def ordered(names: Sequence[str]) -> list[str]:
    """Two groups with the advantaged one first; more in the order of their values, numbers as numbers.

    >>> ordered(["M", "F"]), ordered(["45", "100", "18"])
    (['M', 'F'], ['18', '45', '100'])
    """
    if len(names) <= _TWO:
        return list(names)
    return sorted(names, key=lambda name: [(not p.isdigit(), int(p) if p.isdigit() else 0, p) for p in name.split(",")])


SCORE_COLUMNS = (
    ("group", pa.string()),
    *((name, pa.float64()) for name in ("value", "low", "high", "gap", "gap_low", "gap_high", "p_value")),
)
"""What `GroupScores.rows` has, as fields of an Arrow schema: `low` and `high` are those of `value` in every row."""


def group_statistics(
    panel: GroupPanel,
    names: Sequence[str],
    rng: np.random.Generator | None = None,
    n_resamples: int = 0,
    *,
    has_advantaged: bool = True,
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
    has_advantaged
        Whether the first group is known to be the advantaged one; else there is no PD.

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
    has_advantaged = has_advantaged and len(names) > 0
    return [_scores(m, names, observed, debiased, uncertainty, has_advantaged) for m in range(panel.values.shape[2])]


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
        names = ("gap", "abs_gap", "largest", "behind", "spread")
        of_own = score_interval(own, pooled, panel.is_share)
        return cls(
            intervals={
                "mean": (low[0], high[0]),
                "by_group": of_own,
                "gap": difference_interval(
                    observed.gap,
                    (own.mean, *of_own),
                    (rest.mean, *score_interval(rest, pooled, panel.is_share)),
                ),
            },
            p_values={name: _p_value(size, null) for name, (size, null) in tests.items()},
            null_mean={name: mean_of(np.abs(getattr(permuted, name)), axis=0) for name in names},
        )


def _largest_size(studentised: Array) -> Array:
    return largest_of(np.abs(studentised), axis=-2)


def _largest_behind(studentised: Array) -> Array:
    return largest_of(-studentised, axis=-2)


def _range(studentised: Array) -> Array:
    return largest_of(studentised, axis=-2) + largest_of(-studentised, axis=-2)


_TESTS: Mapping[str, Callable[[Array], Array]] = {
    "gap": np.abs,
    "largest": _largest_size,
    "behind": _largest_behind,
    "spread": _range,
}
"""Statistic → what the permutation test compares, from the studentised gaps (…, G, M)."""


def _scores(
    m: int,
    names: Sequence[str],
    observed: Statistics,
    debiased: Array,
    uncertainty: _Uncertainty,
    has_advantaged: bool,
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
            interval = None if math.isnan(low[here]) else (float(low[here]), float(high[here]))
        if name not in uncertainty.p_values:
            return Estimate(value, interval)
        null_mean = _or_none(uncertainty.null_mean[name][here])
        return Estimate(value, interval, float(uncertainty.p_values[name][here]), null_mean)

    gaps = {name: gap for code, name in enumerate(names) if (gap := of("gap", code)) is not None}
    mean, means = of("mean"), {name: of("by_group", code) for code, name in enumerate(names)}
    return GroupScores(
        mean=None if mean is None else mean.value,
        interval=None if mean is None else mean.interval,
        by_group={name: None if part is None else part.value for name, part in means.items()},
        gaps=gaps,
        largest_gap=of("largest"),
        largest_gap_group=names[int(np.nanargmax(observed.abs_gap[:, m]))] if gaps else None,
        spread=of("spread") if gaps else None,
        disparity=of("gap", 0) if has_advantaged else None,
        abs_performance_disparity=_or_none(observed.abs_gap[0, m]) if has_advantaged else None,
        abs_performance_disparity_debiased=_or_none(debiased[0, m]) if has_advantaged else None,
        null_mean=_or_none(uncertainty.null_mean["abs_gap"][0, m])
        if uncertainty.null_mean and has_advantaged
        else None,
        advantaged=names[0] if has_advantaged else None,
        by_group_interval={name: part.interval for name, part in means.items() if part and part.interval},
        furthest_behind=of("behind"),
        furthest_behind_group=min(gaps, key=lambda name: gaps[name].value) if gaps else None,
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
