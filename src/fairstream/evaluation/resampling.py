"""Group means, the gaps between them, and how they vary: standard errors, bootstrap and permutations over users.

Shapes: U users, P periods, M metrics, G groups, S = G + 1 strata (the groups, and the users without one). A bootstrap
sample weighs each user by the number of draws, a permutation gives each user another user's group. So every number here
comes from tables of sums over the users of each stratum, (…, S, P · M + P), where "…" stands for any leading axes.
Users are drawn with all of their periods, because a user's periods are not independent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from fairstream.compiled import njit, parallel_ranges
from fairstream.data.groups import Codes
from fairstream.randomness import uniform_at

Array = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
_WEIGHTS_AT_ONCE = 1 << 20  # draws are made in parts of about this many numbers, so that memory stays bounded
_PRIOR_USERS = 1.0  # how many users' worth of the pooled variance enters the standard error of the permutation test


class Statistics(NamedTuple):
    """The statistics of M metrics, averaged over the periods; NaN if there is no user to average."""

    mean: Array  # (…, M) over all users
    by_group: Array  # (…, G, M) over the periods in which the group's gap is defined
    gap: Array  # (…, G, M) each group's mean minus that of the rest; for two groups the first is PD
    abs_gap: Array  # (…, G, M) the mean over periods of |gap|: for two groups the paper's mean |PD|
    largest: Array  # (…, M) the largest |gap| of any group
    behind: Array  # (…, M) how far the group furthest behind the rest is behind; for two groups |PD|
    behind_as_observed: Array
    """(…, M) how far the group that is furthest behind in the data is behind.

    In the data it equals `behind`. In a draw the group is fixed, so that noise does not push the value upwards as it
    does with `behind`.
    """
    spread: Array  # (…, M) the best group's mean minus the worst's


class Side(NamedTuple):
    """One side of each gap: the mean over its periods, and the variance between users."""

    n_users: Array  # (G, 1)
    mean: Array  # (…, G, M)
    variance: Array
    """(…, G, M) of a user's share in the mean; divided by `n_users`, the squared standard error of the mean.

    Cluster-robust: a user's periods are summed before squaring.
    """

    def dispersion(self, pooled: Side, n_prior: float) -> Array:
        """Return the variance divided by that of a 0/1 metric with this mean; add `n_prior` users of the pooled sample.

        In a small group with a sparse metric the variance depends on the number of non-zero values that
        happened to be drawn. This ratio does not, and it is defined even if every value is 0.
        """
        variance = self.n_users * self.variance + n_prior * pooled.variance
        bernoulli = self.n_users * self.mean * (1 - self.mean) + n_prior * pooled.mean * (1 - pooled.mean)
        return ratio_of(variance, bernoulli)


@dataclass(frozen=True, eq=False)
class GroupPanel:
    """Values (U, P, M) of U users in P periods (NaN where a user was not tested) by M metrics.

    A group is compared in a period if at least `min_size` of its users were tested in it. Smaller
    groups are excluded: their users count in the mean over all users, and in no group's mean or rest.

    >>> panel = GroupPanel(np.array([[[0.5]], [[0.25]], [[1.0]]]), np.array([0, 1, 0], dtype=np.int16), n_groups=2)
    >>> panel.observed().gap.tolist()
    [[0.5], [-0.5]]
    """

    values: Array
    codes: Codes  # (U,) the group of each user, −1 where it is unknown
    n_groups: int
    min_size: int = 1

    @cached_property
    def judged(self) -> Mask:
        """(G, P) whether the group has enough tested users in the period."""
        return np.asarray(self.n_tested >= max(1, self.min_size))

    @cached_property
    def n_tested(self) -> Array:
        """(G, P) tested users."""
        return self._split(self._observed)[1][: self.n_groups]

    @cached_property
    def compared(self) -> Mask:
        """(G, P) whether a gap is defined: this group and another one are judged."""
        return np.asarray(self.judged & (self.judged.sum(axis=0) >= 2))

    @cached_property
    def is_share(self) -> Mask:
        """(M,) whether all values of a metric lie between 0 and 1."""
        with np.errstate(invalid="ignore"):
            is_outside = (self.values < 0) | (self.values > 1)
        return np.asarray(~is_outside.any(axis=(0, 1)))

    def observed(self) -> Statistics:
        """Return the statistics of the data."""
        return self._statistics(self._observed)

    # ── standard errors ──────────────────────────────────────────────────────────────────

    @cached_property
    def everyone(self) -> Side:
        """All users as one side (G = 1)."""
        sums, counts = (part.sum(axis=0) for part in self._split(self._observed))
        return _side([_moments(self.values, sums, counts, counts > 0)], self.values.shape[2])

    @cached_property
    def sides(self) -> tuple[Side, Side, Side]:
        """Each group, its rest, and both pooled, over the periods in which its gap is defined."""
        sums, n = self._judged_sums(self._observed)
        n = n[..., 0]
        pooled_sums, n_pooled = sums.sum(axis=0), n.sum(axis=0)
        values = self.values
        if self.n_groups:
            # (U, P) users of an excluded group are in no rest either. The code −1 picks the last group: mask it.
            is_compared = self.judged[self.codes] & (self.codes >= 0)[:, None]
            values = np.where(is_compared[..., None], values, np.nan)
        parts: tuple[list[Any], ...] = ([], [], [])
        for code, is_defined in enumerate(self.compared):
            is_own = self.codes == code
            parts[0].append(_moments(values[is_own], sums[code], n[code], is_defined))
            parts[1].append(_moments(values[~is_own], pooled_sums - sums[code], n_pooled - n[code], is_defined))
            parts[2].append(_moments(values, pooled_sums, n_pooled, is_defined))
        own, rest, pooled = (_side(part, self.values.shape[2]) for part in parts)
        return own, rest, pooled

    @cached_property
    def period_gaps(self) -> tuple[Array, Array]:
        """(G, P, M) the gaps of each period, and their standard errors (Welch's)."""
        sums, n = self._judged_sums(self._observed)
        squares = np.zeros_like(sums)
        for code, rows in enumerate(self._strata[:-1]):
            squares[code] = np.where(self.judged[code, :, None], np.nansum(self.values[rows] ** 2, axis=0), 0.0)

        def squared_error(s: Array, q: Array, m: Array) -> Array:
            return np.maximum(q - m * ratio_of(s, m) ** 2, 0.0) / np.maximum(m * (m - 1), 1.0)

        rests = (part.sum(axis=0) - part for part in (sums, squares, n))
        return self._gaps(self._observed)[0], np.sqrt(squared_error(sums, squares, n) + squared_error(*rests))

    def debiased(self) -> Array:
        """`abs_gap` (G, M) of de-biased sizes: √max(0, gap² − SE²) for each period's |gap|."""
        gap, standard_error = self.period_gaps
        return mean_of(np.sqrt(np.maximum(gap**2 - standard_error**2, 0.0)), axis=-2)

    # ── resampling ───────────────────────────────────────────────────────────────────────

    def bootstrapped(self, rng: np.random.Generator, n: int) -> Statistics:
        """Return the statistics of n samples of as many users, drawn with replacement from each group."""
        sums_of = partial(bootstrap_sums, self._columns, self._strata, rng)
        return Statistics(*self._in_parts(lambda size: self._statistics(sums_of(size)), n, len(self.codes)))

    def studentised(self) -> Array:
        """(G, M) each gap divided by its standard error: the statistic of the permutation test."""
        own, rest, pooled = self.sides
        return _over(own.mean - rest.mean, self._standard_error(own, rest, pooled))

    def permuted(self, rng: np.random.Generator, n: int) -> tuple[Statistics, Array]:
        """Permute the groups of the same users n times; return the statistics and the studentised gaps (n, G, M).

        Groups are permuted among users who were tested in the same number of periods: a group with
        fewer tests has larger gaps by chance, and keeps its number of tests in every permutation.
        The sizes of the gaps are scaled to the standard errors of the data; those of the permutations
        differ if one group varies more than another.
        """
        groups = np.flatnonzero(self.judged.any(axis=1))
        rows = np.flatnonzero(np.isin(self.codes, groups))
        n_tests = (~np.isnan(self.values[rows, :, 0])).sum(axis=1)
        # Places in `rows` of the users who may swap groups: those with the same number of tests.
        blocks = [np.flatnonzero(n_tests == times) for times in np.unique(n_tests)]
        # Only the smaller groups draw users. The largest one gets the users left over, whose sums follow from the
        # totals: with a majority of 90 % that saves nine tenths of the work.
        *others, largest = sorted(groups.tolist(), key=lambda code: len(self._strata[code])) or [0]
        sizes = [np.array([(self.codes[rows[at]] == code).sum() for code in others], np.int64) for at in blocks]
        pooled_sums = self._observed[groups].sum(axis=0)  # (P · M + P,), the same in every permutation
        moments = self._null_moments(rows, blocks)
        own, rest, pooled = self.sides
        standard_error = self._standard_error(own, rest, pooled)
        # Each of two groups is the other's rest: the moments of one are those of both.
        is_pair, cut, n_moments = len(groups) == 2, self._columns.shape[1], 4 * self.values.shape[2]
        last = moments[largest : largest + 1] if others and not is_pair else moments[:0]
        # For each user that a group draws, the compiled loop adds the user's moments in that group, then (`columns`)
        # the user's values and tests and, with more than two groups, the moments in the largest group.
        columns, drawing = np.hstack([self._columns[rows], *last]), np.array(others, np.int64)

        def permutations(size: int) -> tuple[Array, ...]:
            tables = np.repeat(self._observed[None], size, axis=0)
            variances = np.full((2, size, *own.mean.shape), np.nan)  # of the group, of the rest
            if others:
                sums = np.zeros((size, len(others), n_moments + columns.shape[1]))
                for at, n_drawn in zip(blocks, sizes, strict=True):
                    parallel_ranges(size, partial(permute, _key(rng), at, drawing, n_drawn, moments, columns, sums))
                sums, own_sums = sums[..., n_moments:], sums[..., :n_moments]
                tables[:, others] = sums[..., :cut]
                tables[:, largest] = pooled_sums - tables[:, others].sum(axis=1)
                for i, code in enumerate(others):
                    variances[:, :, code] = self._null_variances(moments, code, own_sums[:, i])
                if is_pair:
                    variances[:, :, largest] = variances[::-1, :, others[0]]
                else:  # the users left over
                    left = moments[largest].sum(axis=0) - sums[..., cut:].sum(axis=1)
                    variances[:, :, largest] = self._null_variances(moments, largest, left)
            drawn = self._statistics(tables)
            own_drawn = own._replace(mean=drawn.by_group, variance=variances[0])
            rest_drawn = rest._replace(mean=drawn.by_group - drawn.gap, variance=variances[1])
            errors = self._standard_error(own_drawn, rest_drawn, pooled)
            # Without this, the null mean would hold only for groups that vary equally.
            scale = ratio_of(np.broadcast_to(standard_error, errors.shape), errors)
            scaled = self._statistics(tables, np.where(np.isnan(scale), 1.0, scale))
            return *scaled, _over(drawn.gap, errors)

        *parts, studentised = self._in_parts(permutations, n, len(others) * (n_moments + columns.shape[1]))
        return Statistics(*parts), studentised

    def _standard_error(self, own: Side, rest: Side, pooled: Side) -> Array:
        """(…, G, M) the standard error of a gap under the null hypothesis of equal means.

        Welch's: each side has its own variance. For metrics between 0 and 1 this is the variance at the
        pooled mean, dispersion · mean · (1 − mean), as in a score test.
        """
        null = pooled.mean * (1 - pooled.mean)
        total = np.zeros(())
        for side in (own, rest):
            welch = ratio_of(side.variance, side.n_users)
            score = ratio_of(side.dispersion(pooled, _PRIOR_USERS) * null, side.n_users)
            total = total + np.where(self.is_share & ~np.isnan(score), score, welch)
        return np.sqrt(total)

    def _null_moments(self, rows: Ints, blocks: list[Ints]) -> Array:
        """(G, users, 4 M) a user's share in each gap and its square, if the user were in the group, and in the rest.

        The standard errors of permutations follow from them. `blocks` are the users with the same number of tests.
        """
        tested = ~np.isnan(self.values[rows, :, 0])
        codes = self.codes[rows]
        expected = np.zeros(self.judged.shape)  # (G, P) tested users, on average over the permutations
        for at in blocks:
            size = np.bincount(codes[at], minlength=self.n_groups)
            expected += np.outer(size, tested[at].mean(axis=0))
        expected = np.where(self.judged, expected, 0.0)
        centre = ratio_of(np.nansum(self.values[rows], axis=0), tested.sum(axis=0)[:, None])
        deviations = np.where(tested[..., None], self.values[rows] - centre, 0.0)
        columns = np.empty((self.n_groups, len(rows), 4 * self.values.shape[2]))
        for code, is_defined in enumerate(self.compared):
            sides = (expected[code], expected.sum(axis=0) - expected[code])
            shares = [np.einsum("upm,p->um", deviations, _share(n, is_defined)) for n in sides]
            np.concatenate([part for share in shares for part in (share, share**2)], axis=1, out=columns[code])
        return columns

    def _null_variances(self, moments: Array, code: int, sums: Array) -> Array:
        """(2, n, M) the variances of the group and of the rest, from the sums (n, 4 M) of moments over its users."""
        own, rest, _ = self.sides
        m, of_rest = sums.shape[1] // 4, moments[code].sum(axis=0) - sums
        variance = _variance(sums[:, :m], sums[:, m : 2 * m], own.n_users[code])
        return np.stack([variance, _variance(of_rest[:, 2 * m : 3 * m], of_rest[:, 3 * m :], rest.n_users[code])])

    def _in_parts(self, draws_of: Callable[[int], tuple[Array, ...]], n: int, n_weights: int) -> list[Array]:
        """Make n draws of `n_weights` numbers each in parts, so that memory stays bounded."""
        step = max(1, _WEIGHTS_AT_ONCE // max(1, n_weights, self._observed.size))
        parts = [draws_of(min(step, n - start)) for start in range(0, n, step)]
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    # ── sums ─────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _strata(self) -> list[Ints]:
        """The rows of the users of each group, and last those of users without one."""
        return [np.flatnonzero(self.codes == code) for code in (*range(self.n_groups), -1)]

    @cached_property
    def _columns(self) -> Array:
        """(U, P · M + P): each user's values, then whether the user was tested in each period."""
        n_users, n_periods, n_metrics = self.values.shape
        tested = ~np.isnan(self.values[:, :, 0])
        values = np.where(tested[:, :, None], self.values, 0.0).reshape(n_users, n_periods * n_metrics)
        return np.concatenate([values, tested], axis=1)

    @cached_property
    def _observed(self) -> Array:
        return np.stack([self._columns[rows].sum(axis=0) for rows in self._strata])

    @cached_property
    def _is_furthest_behind(self) -> Array:
        return furthest_behind(self._gaps(self._observed)[0])

    def _split(self, tables: Array) -> tuple[Array, Array]:
        """(…, S, P · M + P) → sums (…, S, P, M) and counts (…, S, P)."""
        _, n_periods, n_metrics = self.values.shape
        cut = n_periods * n_metrics
        return tables[..., :cut].reshape(*tables.shape[:-1], n_periods, n_metrics), tables[..., cut:]

    def _judged_sums(self, tables: Array) -> tuple[Array, Array]:
        """(…, G, P, M) sums and (…, G, P, 1) counts; 0 where a group is not judged."""
        sums, counts = self._split(tables)
        sums, n = sums[..., : self.n_groups, :, :], counts[..., : self.n_groups, :, None]
        return np.where(self.judged[..., None], sums, 0.0), np.where(self.judged[..., None], n, 0.0)

    def _gaps(self, tables: Array) -> tuple[Array, Array]:
        """(…, G, P, M) the gaps, and the group means."""
        sums, n = self._judged_sums(tables)
        mean = ratio_of(sums, n)
        rest = ratio_of(sums.sum(axis=-3, keepdims=True) - sums, n.sum(axis=-3, keepdims=True) - n)
        return mean - rest, mean

    def _statistics(self, tables: Array, scale: Array | None = None) -> Statistics:
        """Return the statistics of tables of sums and counts; `scale` (…, G, M) multiplies the gaps."""
        sums, counts = self._split(tables)
        everyone = ratio_of(sums.sum(axis=-3), counts.sum(axis=-2)[..., None])
        gap, mean = self._gaps(tables)
        return average_periods(everyone, mean, gap, self.compared, self._is_furthest_behind, scale)


def average_periods(
    everyone: Array, mean: Array, gap: Array, compared: Mask, is_furthest: Array, scale: Array | None = None
) -> Statistics:
    """Average the means over all users (…, P, M), the groups' means and gaps (…, G, P, M) over the periods.

    `compared` (G, P) says where a gap is defined, `is_furthest` (G, P, M) is the result of `furthest_behind`, and
    `scale` (…, G, M) multiplies the gaps.
    """
    known = np.where(np.isnan(gap), np.nan, mean)
    # Average a group's mean over the periods of its gap, so that for two groups the difference of the means is the
    # gap. A group that was never compared keeps the mean of the periods in which it was judged alone.
    shown = np.where(np.asarray(compared.any(axis=1))[:, None, None], known, mean)
    if scale is not None:
        gap = gap * scale[..., None, :]
    size, behind = np.abs(gap), largest_of(-gap, axis=-3)
    as_observed = np.where(np.isnan(behind), np.nan, -np.nansum(gap * is_furthest, axis=-3))
    return Statistics(
        mean=mean_of(everyone, axis=-2),
        by_group=mean_of(shown, axis=-2),
        gap=mean_of(gap, axis=-2),
        abs_gap=mean_of(size, axis=-2),
        largest=mean_of(largest_of(size, axis=-3), axis=-2),
        behind=mean_of(behind, axis=-2),
        behind_as_observed=mean_of(as_observed, axis=-2),
        spread=mean_of(largest_of(known, axis=-3) + largest_of(-known, axis=-3), axis=-2),
    )


def furthest_behind(gap: Array) -> Array:
    """(G, P, M) 1 for the group furthest behind the rest in the period, 0 for the others."""
    is_furthest = np.zeros(gap.shape)
    if len(gap):
        np.put_along_axis(is_furthest, np.where(np.isnan(gap), np.inf, gap).argmin(axis=0)[None], 1.0, axis=0)
    return is_furthest


def _variance(total: Array, squares: Array, n: Array) -> Array:
    """n² / (n − 1) · Σ (share − mean share)², at least 0 despite rounding."""
    return np.maximum(squares - total**2 / np.maximum(n, 1), 0.0) * n**2 / np.maximum(n - 1, 1)


def _share(n: Array, is_defined: Mask) -> Array:
    """(P,) the weight of one of n tested users in a mean over the defined periods."""
    return ratio_of(is_defined / max(1, int(is_defined.sum())), np.where(is_defined, n, 1.0))


def _moments(values: Array, sums: Array, n_tested: Array, is_defined: Mask) -> tuple[Array, Array, float]:
    """The mean (M,) over the defined periods, the variance between users (M,), and the number of users."""
    share, centre = _share(n_tested, is_defined), ratio_of(sums, n_tested[:, None])
    is_tested = ~np.isnan(values[:, :, 0]) & (share > 0)
    n = float(is_tested.any(axis=1).sum())
    if n == 0:
        return np.full(values.shape[2], np.nan), np.full(values.shape[2], np.nan), n
    deviations = np.einsum("upm,p->um", np.where(is_tested[..., None], values - centre, 0.0), share)
    variance = _variance(np.zeros(values.shape[2]), (deviations**2).sum(axis=0), np.array(n))
    return centre[share > 0].mean(axis=0), variance, n


def _side(parts: list[tuple[Array, Array, float]], n_metrics: int) -> Side:
    empty = np.empty((0, n_metrics))
    means, variances = (np.array([part[i] for part in parts]) if parts else empty for i in range(2))
    return Side(np.array([part[2] for part in parts]).reshape(-1, 1), means, variances)


def bootstrap_sums(columns: Array, strata: list[Ints], rng: np.random.Generator, n: int) -> Array:
    """(n, strata, C) the sums of `columns` (U, C) over n samples of the rows of each stratum, with replacement."""
    sums = np.empty((n, len(strata), columns.shape[1]))
    for stratum, rows in enumerate(strata):
        weights = np.zeros((n, len(rows)))  # how often each was drawn
        parallel_ranges(n, partial(draw, _key(rng), weights))
        sums[:, stratum] = weights @ columns[rows]
    return sums


@njit
def draw(key: int, weights: Array, begin: int, end: int) -> None:
    """Rows `begin` … `end` of `weights` (n, size): add 1 for each of `size` draws with replacement.

    A draw is a function of the key and of its place, so that the number of threads changes nothing.
    """
    size = weights.shape[1]
    for r in range(begin, end):
        row = weights[r]
        for j in range(size):
            row[_below(key, r * size + j, size)] += 1.0


@njit
def permute(
    key: int, members: Ints, codes: Ints, sizes: Ints, moments: Array, columns: Array, sums: Array, begin: int, end: int
) -> None:
    """Add to rows `begin` … `end` of `sums` (n, groups, D + C) the columns of the members that each group draws.

    These are `moments[codes[g]]` (users, D) of group g and `columns` (users, C). The first steps of a Fisher–Yates
    shuffle order the members: group g draws `sizes[g]` of them, and nobody is in two groups.
    """
    n, cut = len(members), moments.shape[2]
    for r in range(begin, end):
        order, place = members.copy(), 0
        for g in range(len(sizes)):
            total = sums[r, g]
            for _ in range(sizes[g]):
                other = place + _below(key, r * n + place, n - place)
                order[place], order[other] = order[other], order[place]
                first, second = moments[codes[g], order[place]], columns[order[place]]
                for c in range(cut):
                    total[c] += first[c]
                for c in range(len(second)):
                    total[cut + c] += second[c]
                place += 1


@njit
def _below(key: int, counter: int, n: int) -> int:
    """Draw from 0 … n − 1, uniform to within n / 2⁵³."""
    return int(uniform_at(np.uint64(key), np.uint64(counter)) * n)


def _key(rng: np.random.Generator) -> int:
    return int(rng.integers(1 << 63))


def ratio_of(above: Array, below: Array) -> Array:
    """Above / below; NaN if `below` is not positive."""
    result = np.full(np.broadcast(above, below).shape, np.nan)
    return np.divide(above, below, out=result, where=below > 0)


def _over(gap: Array, standard_error: Array) -> Array:
    """Gap / SE. Without any variation, SE = 0, a gap counts as very many standard errors, and no gap as 0."""
    return gap / np.maximum(standard_error, 1e-9)


def mean_of(values: Array, axis: int) -> Array:
    """The mean over the values that are not NaN; NaN if there are none."""
    is_defined = ~np.isnan(values)
    return ratio_of(np.where(is_defined, values, 0.0).sum(axis=axis), is_defined.sum(axis=axis))


def largest_of(values: Array, axis: int) -> Array:
    """The largest of the values that are not NaN; NaN if there are none."""
    highest = np.where(np.isnan(values), -np.inf, values).max(axis=axis, initial=-np.inf)
    return np.where(np.isfinite(highest), highest, np.nan)
