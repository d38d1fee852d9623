"""Disaggregate, then compare: users' values → group means → gaps, with confidence intervals and permutation tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter
from scipy.special import stdtrit

from fairstream.data.groups import Groups
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation.resampling import Array, GroupPanel, Mask, Side, Statistics, largest_of, mean_of
from fairstream.randomness import Randomness
from fairstream.text import number

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
_PRIOR_USERS = 8.0
"""Users' worth of the pooled dispersion in an interval: the value that covers best in benchmarks/coverage.py."""


@dataclass(frozen=True)
class Estimate:
    """A number and its uncertainty (None: not computed).

    >>> change = Estimate(0.02, (-0.01, 0.05))
    >>> change.low, change.excludes_zero
    (-0.01, False)
    """

    value: float
    interval: tuple[float, float] | None = None
    """The 95 % confidence interval over users."""
    p_value: float | None = None
    """The permutation test's, of the null hypothesis that the groups' means are equal
    (over several periods: among users with the same number of tests)."""
    null_mean: float | None = None
    """The average size of the number under that null hypothesis."""

    @classmethod
    def of_draws(cls, value: Any, draws: Array) -> Self:
        """Return a number with its percentile interval, shifted so that the median of the draws is the number.

        Without the shift, the interval of the size of a gap would be too high: noise cannot make a size negative.
        """
        tail = (1 - CONFIDENCE) / 2
        low, middle, high = np.nanquantile(draws, [tail, 0.5, 1 - tail]) - value
        return cls(float(value), (float(value + low - middle), float(value + high - middle)))

    @property
    def low(self) -> float:
        """The lower end of the interval; NaN without one."""
        return math.nan if self.interval is None else self.interval[0]

    @property
    def high(self) -> float:
        """The upper end of the interval; NaN without one."""
        return math.nan if self.interval is None else self.interval[1]

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes 0; False without one."""
        return self.low > 0 or self.high < 0

    @property
    def includes_zero(self) -> bool:
        """Whether the interval includes 0; False without one."""
        return self.low <= 0 <= self.high

    @property
    def may_be_chance(self) -> bool:
        """Whether the permutation test does not reject the null hypothesis: p ≥ 0.05."""
        return self.p_value is not None and self.p_value >= SIGNIFICANCE

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "interval": self.interval and list(self.interval)}


@dataclass(frozen=True)
class GroupScores:
    """One metric: the mean over all tested users, by group, and the gaps. None: there were too few users.

    Over several periods every number is a mean over periods. `by_group` and the gaps average the same periods, so for
    two groups the difference of the means is the printed PD.
    """

    mean: float | None = None
    interval: tuple[float, float] | None = None
    """The 95 % confidence interval of `mean`; that of PD is `disparity.interval`."""
    by_group: Mapping[str, float | None] = field(default_factory=dict)
    """Each group's mean, in the order of the codes; None: too few of its users were tested."""
    gaps: Mapping[str, Estimate] = field(default_factory=dict)
    """The mean of each compared group minus the mean over the users of all other compared groups."""
    largest_gap: Estimate | None = None
    """The size of the largest gap; its p-value allows for the comparison of several groups."""
    largest_gap_group: str | None = None
    """The group with that gap."""
    spread: Estimate | None = None
    """The best group's mean minus the worst's."""
    disparity: Estimate | None = None
    """PD: the advantaged group's gap, for two groups Perf(a = 0) − Perf(a = 1)   (Section 2).

    None if there are three or more groups and none was declared advantaged.
    """
    abs_performance_disparity: float | None = None
    """The size of PD; over several periods the mean of each period's, as in the paper. Noise makes it larger."""
    abs_performance_disparity_debiased: float | None = None
    """The same with each period's size replaced by √max(0, PD² − SE²)."""
    null_mean: float | None = None
    """The average size of PD under the null hypothesis of equal means; it is never 0."""
    advantaged: str | None = None
    """The group whose gap is PD."""
    by_group_interval: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The 95 % confidence intervals of the means in `by_group`."""
    furthest_behind: Estimate | None = None
    """How far the worst-served group is behind the rest, for two groups the size of PD; its p-value allows for the
    comparison of several groups."""
    furthest_behind_group: str | None = None
    """The worst-served group: the one furthest behind the rest."""
    attainable: Mapping[str, float] = field(default_factory=dict)
    """Each group's mean at the level that is best for it, free of the winner's curse; at least the mean as served."""
    regret: Mapping[str, Estimate] = field(default_factory=dict)
    """The share of its attainable mean that each group does not get."""
    best_level: Mapping[str, str] = field(default_factory=dict)
    """The level with the highest mean of each group."""
    inherent_gap: float | None = None
    """The part of PD (with three groups or more: of `furthest_behind`) that remains when each group gets its best
    attainable lists …"""
    avoidable_gap: float | None = None
    """… and the part that does not; both add up to the gap."""
    avoidable_gap_interval: tuple[float, float] | None = None
    """The 95 % confidence interval of `avoidable_gap`."""

    @property
    def gap(self) -> Estimate | None:
        """The gap of the worst-served group, from 0 upwards, with the p-value of `furthest_behind`."""
        test, group = self.furthest_behind, self.furthest_behind_group
        if test is None or group is None:
            return None
        own = self.gaps[group]
        return Estimate(-own.value, own.interval and (-own.high, -own.low), test.p_value, test.null_mean)

    @property
    def performance_disparity(self) -> float | None:
        """The value of PD."""
        return None if self.disparity is None else self.disparity.value

    @property
    def p_value(self) -> float | None:
        """The p-value of PD."""
        return None if self.disparity is None else self.disparity.p_value

    def note_on_advantaged(self, metric: str) -> str | None:
        """Return a sentence if the advantaged group is behind the rest by more than chance."""
        gap = self.disparity
        if gap is None or gap.p_value is None or gap.may_be_chance or gap.value >= 0:
            return None
        return (
            f"{self.advantaged} counts as advantaged, but is {number(-gap.value)} behind the rest in {metric} "
            f"(p = {gap.p_value:.3f}), and a fairness loss would take from it; name another group with advantaged=, or "
            f"use a target instead (--target least-regret, --max-gap), which can raise any group"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return the numbers of all users and of each group, in the columns `SCORE_COLUMNS`."""
        means = {name: (self.by_group[name], self.by_group_interval.get(name)) for name in ordered(list(self.by_group))}
        rows: list[dict[str, Any]] = []
        for name, (value, interval) in [("all", (self.mean, self.interval)), *means.items()]:
            gap = self.gaps.get(name) if rows else None
            of_gap = (None,) * 4 if gap is None else (gap.value, *(gap.interval or (None, None)), gap.p_value)
            regret = self.regret.get(name) if rows else None
            of_regret = (None,) * 3 if regret is None else (regret.value, *(regret.interval or (None, None)))
            attainable = self.attainable.get(name) if rows else None
            cells = (name, value, *(interval or (None, None)), attainable, *of_regret, *of_gap)
            rows.append({column: cell for (column, _), cell in zip(SCORE_COLUMNS, cells, strict=True)})
        return rows

    def to_dict(self) -> dict[str, Any]:
        stored = _SCORES.dump_python(self, mode="json")
        for name in _OF_A_GROUP:
            group = stored.pop(f"{name}_group")
            stored[name] = stored[name] and {"group": group, **stored[name]}
        return {**stored, "performance_disparity": self.performance_disparity, "p_value": self.p_value}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> GroupScores:
        """Read the result of `to_dict`; missing values are None.

        >>> GroupScores.from_dict({"mean": 0.2, "largest_gap": {"group": "F", "value": 0.1}}).largest_gap_group
        'F'
        """
        groups = {f"{name}_group": stored[name].get("group") for name in _OF_A_GROUP if stored.get(name)}
        return _SCORES.validate_python({name: value for name, value in stored.items() if value is not None} | groups)


_OF_A_GROUP = ("largest_gap", "furthest_behind")
_SCORES = TypeAdapter(GroupScores)


def ordered(names: Sequence[str]) -> list[str]:
    """Two groups with the advantaged one first; more in the order of their values, numbers as numbers.

    >>> ordered(["M", "F"]), ordered(["45", "100", "18"])
    (['M', 'F'], ['18', '45', '100'])
    """
    if len(names) <= 2:
        return list(names)
    return sorted(names, key=lambda name: [(not p.isdigit(), int(p) if p.isdigit() else 0, p) for p in name.split(",")])


SCORE_COLUMNS = (
    ("group", pa.string()),
    *((name, pa.float64()) for name in ("value", "low", "high", "attainable", "regret", "regret_low", "regret_high")),
    *((name, pa.float64()) for name in ("gap", "gap_low", "gap_high", "p_value")),
)
"""What `GroupScores.rows` has, as fields of an Arrow schema: `low` and `high` are those of `value` in every row."""


def group_statistics(
    values: Any,
    groups: Any,
    *,
    advantaged: object = None,
    min_group_size: int = 20,
    n_resamples: int = 1000,
    seed: int = 0,
) -> GroupScores:
    """Compare any numbers, one for each user, between groups: means, gaps, confidence intervals, permutation tests.

    These are the statistics of `FairRecommender.evaluate` and `evaluate_recommendations`.

    Parameters
    ----------
    values
        One finite number for each user: a list, or an array or column of NumPy, pandas, Polars or Arrow.
    groups
        Each user's group: as many strings, numbers, booleans or tuples. Users with None count overall and in no group.
    advantaged
        The group whose gap is the disparity; by default the larger of two groups, and none of three or more.
    min_group_size
        Groups with fewer users are not compared.
    n_resamples
        Permutations; 0: no intervals and no p-values.
    seed
        Of the permutations.

    Returns
    -------
    GroupScores
        `mean` and `interval`, `by_group` and `by_group_interval`, `gap` (how far the worst-served group is behind),
        `gaps` of each group to the rest, `disparity` of the advantaged group.

    Raises
    ------
    DataError
        If a value is not a finite number, values and groups differ in number, or there are fewer than two groups.
    ConfigurationError
        If an option is out of range.

    Examples
    --------
    >>> from fairstream import group_statistics
    >>> clicked = [1, 0, 1, 1] * 10 + [0, 1, 0, 0] * 10
    >>> scores = group_statistics(clicked, ["adult"] * 40 + ["child"] * 40, advantaged="adult")
    >>> scores.by_group, scores.furthest_behind_group
    ({'adult': 0.75, 'child': 0.25}, 'child')
    >>> scores.gap.value, [round(end, 2) for end in scores.gap.interval], scores.gap.p_value < 0.01
    (0.5, [0.27, 0.66], True)

    """
    check_resampling(min_group_size, n_resamples)
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError("values must be numbers, one for each user") from None
    if numbers.ndim != 1 or not np.isfinite(numbers).all():
        problem = f"an array of shape {numbers.shape}" if numbers.ndim != 1 else "some that are missing or infinite"
        raise DataError(f"values must be finite numbers, one for each user, got {problem}")
    coded = Groups.from_values("groups", groups, advantaged=advantaged)
    if len(coded.codes) != len(numbers):
        raise DataError(f"each value needs a group, got {len(numbers)} values and {len(coded.codes)} groups")
    panel = GroupPanel(numbers[:, None, None], coded.codes, len(coded.names), min_group_size)
    rng = Randomness(seed).numpy("recommendations")
    (scores,) = panel_scores(panel, coded.names, rng, n_resamples, has_advantaged=coded.has_advantaged)
    return scores


def check_resampling(min_group_size: int, n_resamples: int) -> None:
    """Raise a `ConfigurationError` if an option of the statistics is out of range."""
    are_counts = all(isinstance(count, int | np.integer) for count in (min_group_size, n_resamples))
    if not (are_counts and min_group_size >= 1 and n_resamples >= 0):
        raise ConfigurationError(
            f"min_group_size must be >= 1 and n_resamples >= 0, got {min_group_size!r} and {n_resamples!r}"
        )


def panel_scores(
    panel: GroupPanel,
    names: Sequence[str],
    rng: np.random.Generator | None = None,
    n_resamples: int = 0,
    *,
    has_advantaged: bool = True,
) -> list[GroupScores]:
    """Return the scores of each metric of a panel; `names` are the groups', in the order of their codes.

    Without a generator or permutations there are no intervals and no p-values; if the first group is not the advantaged
    one, there is no PD.
    """
    if len(panel.values) == 0:
        return [GroupScores(by_group=dict.fromkeys(names))] * panel.values.shape[2]
    observed, uncertainty = panel.observed(), _CERTAIN
    if n_resamples and rng is not None:
        uncertainty = _Uncertainty.of(panel, observed, *panel.permuted(rng, n_resamples))
    parts = (names, observed, panel.debiased(), uncertainty)
    return [scores_of(m, *parts, has_advantaged=has_advantaged) for m in range(panel.values.shape[2])]


class _Uncertainty(NamedTuple):
    """Intervals, p-values and null means by the names of the statistics, in their shape (…, M)."""

    intervals: Mapping[str, tuple[Array, Array]]
    p_values: Mapping[str, Array]
    null_mean: Mapping[str, Array]

    @classmethod
    def of(cls, panel: GroupPanel, observed: Statistics, permuted: Statistics, studentised: Array) -> _Uncertainty:
        own, rest, pooled = panel.sides
        low, high = score_interval(panel.everyone, panel.everyone, panel.is_share)
        tests = {name: (test(panel.studentised()), test(studentised)) for name, test in _TESTS.items()}
        names = ("gap", "abs_gap", "largest", "behind", "spread")
        of_own = score_interval(own, pooled, panel.is_share)
        return cls(
            intervals={
                "mean": (low[0], high[0]),
                "by_group": of_own,
                "gap": difference_interval(
                    observed.gap, (own.mean, *of_own), (rest.mean, *score_interval(rest, pooled, panel.is_share))
                ),
            },
            p_values={name: _p_value(size, null) for name, (size, null) in tests.items()},
            null_mean={name: mean_of(np.abs(getattr(permuted, name)), axis=0) for name in names},
        )


_CERTAIN = _Uncertainty({}, {}, {})
_TESTS: Mapping[str, Callable[[Array], Array]] = {
    "gap": np.abs,
    "largest": lambda gaps: largest_of(np.abs(gaps), axis=-2),
    "behind": lambda gaps: largest_of(-gaps, axis=-2),
    "spread": lambda gaps: largest_of(gaps, axis=-2) + largest_of(-gaps, axis=-2),
}
"""Statistic → what the permutation test compares, from the studentised gaps (…, G, M)."""


def scores_of(
    m: int,
    names: Sequence[str],
    observed: Statistics,
    debiased: Array | None = None,
    uncertainty: _Uncertainty = _CERTAIN,
    *,
    has_advantaged: bool,
) -> GroupScores:
    """Return the scores of metric m; the other parameters are those of `panel_scores` and its results."""

    def of(name: str, *at: int) -> Estimate | None:
        """The statistic `name` (of group `at`) with its uncertainty."""
        here = (*at, m)
        value = _or_none(getattr(observed, name)[here])
        if value is None:
            return None
        interval = None
        if name in uncertainty.intervals:
            low, high = (float(end[here]) for end in uncertainty.intervals[name])
            interval = None if math.isnan(low) else (low, high)
        if name not in uncertainty.p_values:
            return Estimate(value, interval)
        null_mean = _or_none(uncertainty.null_mean[name][here])
        return Estimate(value, interval, float(uncertainty.p_values[name][here]), null_mean)

    gaps = {name: gap for code, name in enumerate(names) if (gap := of("gap", code)) is not None}
    mean, means = of("mean"), {name: of("by_group", code) for code, name in enumerate(names)}
    of_pd: dict[str, Any] = {}
    if has_advantaged and names:
        sizes = {"abs_performance_disparity": observed.abs_gap, "abs_performance_disparity_debiased": debiased}
        sizes["null_mean"] = uncertainty.null_mean.get("abs_gap")
        of_pd = {name: None if size is None else _or_none(size[0, m]) for name, size in sizes.items()}
        of_pd |= {"disparity": of("gap", 0), "advantaged": names[0]}
    return GroupScores(
        mean=None if mean is None else mean.value,
        interval=None if mean is None else mean.interval,
        by_group={name: None if part is None else part.value for name, part in means.items()},
        gaps=gaps,
        largest_gap=of("largest"),
        largest_gap_group=names[int(np.nanargmax(observed.abs_gap[:, m]))] if gaps else None,
        spread=of("spread") if gaps else None,
        by_group_interval={name: part.interval for name, part in means.items() if part and part.interval},
        furthest_behind=of("behind"),
        furthest_behind_group=min(gaps, key=lambda name: gaps[name].value) if gaps else None,
        **of_pd,
    )


def score_interval(side: Side, pooled: Side, is_share: Mask) -> tuple[Array, Array]:
    """The 95 % confidence interval of each mean (…, G, M).

    Metrics between 0 and 1: Wilson's score interval with the effective sample size n / φ, where
    φ is the variance divided by that of a 0/1 metric with this mean. Others: mean ± t SE.
    """
    n, mean = side.n_users, side.mean
    t = student_t(n - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.nan_to_num(side.variance / (mean * (1 - mean)), nan=0.0, posinf=0.0)
        # If the group's own values vary more than the pooled ones, the pooled ones must not narrow its interval.
        dispersion = np.maximum(side.dispersion(pooled, _PRIOR_USERS), own)
        k = t**2 * dispersion / n  # Wilson's z² / n with the effective sample size
        centre, half = (mean + k / 2) / (1 + k), np.sqrt(k * mean * (1 - mean) + k**2 / 4) / (1 + k)
        plain = t * np.sqrt(side.variance / n)
    use = is_share & np.isfinite(k)
    low = np.where(use, np.minimum(centre - half, mean), mean - plain)
    return low, np.where(use, np.maximum(centre + half, mean), mean + plain)


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
    # The tolerance is for rounding: a permutation with the same groups as the data must reach the size.
    less = null < size - 1e-9 * np.maximum(1.0, size)
    return (1.0 + (~less).sum(axis=0)) / (1.0 + len(null))


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
