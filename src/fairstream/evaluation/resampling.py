"""Group means, the gaps between them, and how they vary: standard errors, bootstrap and permutations over users.

All of them start from sums over users: a bootstrap sample weighs each user by how often it was
drawn, a permutation gives each user another's group. Users are drawn with all of their periods,
because a user's periods are not independent.
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
_WEIGHTS_AT_ONCE = 1 << 20
_PRIOR_USERS = 1.0
"""Users' worth of the pooled variance in the standard error of the permutation test."""


class Statistics(NamedTuple):
    """Of M metrics, averaged over the periods; NaN where there is no user to average. Any axes may lead."""

    mean: Array
    """(…, M) over all users."""
    by_group: Array
    """(…, G, M) over the periods in which the group's gap is defined."""
    gap: Array
    """(…, G, M) each group's mean minus that of the rest; for two groups the first is PD."""
    abs_gap: Array
    """(…, G, M) the mean over periods of |gap|: for two groups the paper's mean |PD|."""
    largest: Array
    """(…, M) the largest |gap| of any group."""
    behind: Array
    """(…, M) how far the group furthest behind the rest is behind; for two groups |PD|."""
    behind_as_observed: Array
    """(…, M) how far the group that is furthest behind in the data themselves is behind.

    As observed it equals `behind`. Its draws are those of a mean: unlike draws of `behind` they are
    not pushed upwards by noise.
    """
    spread: Array
    """(…, M) the best group's mean minus the worst's."""


class Side(NamedTuple):
    """One side of each gap: the mean over its periods, and the variance between users."""

    n_users: Array
    """(G, 1)"""
    mean: Array
    """(…, G, M)"""
    variance: Array
    """(…, G, M) of a user's share in the mean; divided by `n_users`, the squared standard error of the mean.

    Cluster-robust: a user's periods are summed before squaring.
    """

    def dispersion(self, pooled: Side, n_prior: float) -> Array:
        """The variance over that of a 0/1 metric with this mean, with `n_prior` users of the pooled sample added.

        In a small group with a sparse metric the variance hangs on how many non-zero values were
        drawn; this ratio does not, and it exists where every value is 0.
        """
        variance = self.n_users * self.variance + n_prior * pooled.variance
        bernoulli = self.n_users * self.mean * (1 - self.mean) + n_prior * pooled.mean * (1 - pooled.mean)
        return ratio_of(variance, bernoulli)


@dataclass(frozen=True, eq=False)
class GroupPanel:
    """Values (U, P, M) of U users in P periods (NaN where a user was not tested) by M metrics.

    A group is compared in a period if at least `min_size` of its users were tested in it; smaller
    ones are excluded: they count in the mean over all users, and neither for themselves nor in
    the rest of another group.

    Parameters
    ----------
    values
        (U, P, M); NaN in all metrics where a user was not tested.
    codes
        (U,) the group of each user, −1 where it is unknown.
    n_groups
        How many groups there are.
    min_size
        The fewest tested users with which a group is compared.

    Examples
    --------
    >>> panel = GroupPanel(np.array([[[0.5]], [[0.25]], [[1.0]]]), np.array([0, 1, 0], dtype=np.int16), n_groups=2)
    >>> panel.observed().gap.tolist()
    [[0.5], [-0.5]]

    """

    values: Array
    codes: Codes
    n_groups: int
    min_size: int = 1

    @cached_property
    def judged(self) -> Mask:
        """(G, P) which groups have enough tested users in which period."""
        mask: Mask = self.n_tested >= max(1, self.min_size)
        return mask

    @cached_property
    def n_tested(self) -> Array:
        """(G, P) tested users."""
        return self._split(self._observed)[1][: self.n_groups]

    @cached_property
    def compared(self) -> Mask:
        """(G, P) where a gap is defined: the group is judged, and so is another."""
        mask: Mask = self.judged & (self.judged.sum(axis=0) >= 2)
        return mask

    @cached_property
    def is_share(self) -> Mask:
        """(M,) whether all values of a metric lie between 0 and 1."""
        with np.errstate(invalid="ignore"):
            is_outside = (self.values < 0) | (self.values > 1)
        mask: Mask = ~np.asarray(is_outside.any(axis=(0, 1)))
        return mask

    def observed(self) -> Statistics:
        """The numbers themselves."""
        return self._statistics(self._observed)

    # ── standard errors ──────────────────────────────────────────────────────────────────

    @cached_property
    def everyone(self) -> Side:
        """All users as one side (G = 1)."""
        sums, counts = (part.sum(axis=0) for part in self._split(self._observed))
        is_defined = counts > 0
        mean, variance, n = _moments(self.values, ratio_of(sums, counts[:, None]), _share(counts, is_defined))
        return Side(np.array([[n]]), mean[None], variance[None])

    @cached_property
    def sides(self) -> tuple[Side, Side, Side]:
        """Each group, its rest, and both pooled, over the periods in which its gap is defined."""
        groups, counts = (part[: self.n_groups] for part in self._split(self._observed))
        groups, counts = np.where(self.judged[..., None], groups, 0.0), np.where(self.judged, counts, 0.0)
        together, n_together = groups.sum(axis=0), counts.sum(axis=0)
        is_compared = self.judged[self.codes] & (self.codes >= 0)[:, None] if self.n_groups else np.empty((0, 0), bool)
        values = np.where(is_compared[..., None], self.values, np.nan) if self.n_groups else self.values
        found: tuple[list[Any], ...] = ([], [], [])
        for code, is_defined in enumerate(self.compared):
            is_own = self.codes == code
            for part, rows, total, n in (
                (found[0], is_own, groups[code], counts[code]),
                (found[1], ~is_own, together - groups[code], n_together - counts[code]),
                (found[2], slice(None), together, n_together),
            ):
                part.append(_moments(values[rows], ratio_of(total, n[:, None]), _share(n, is_defined)))
        own, rest, pooled = (_side(part, self.values.shape[2]) for part in found)
        return own, rest, pooled

    @cached_property
    def period_gaps(self) -> tuple[Array, Array]:
        """(G, P, M) the gaps of each period, and their standard errors (Welch's)."""
        sums, counts = (part[: self.n_groups] for part in self._split(self._observed))
        squares = np.zeros_like(sums)
        for code, rows in enumerate(self._strata[:-1]):
            squares[code] = np.nansum(self.values[rows] ** 2, axis=0)
        n = np.where(self.judged, counts, 0.0)[..., None]
        sums, squares = (np.where(self.judged[..., None], part, 0.0) for part in (sums, squares))
        gap, variance = np.zeros_like(sums), np.zeros_like(sums)
        for sign, s, q, m in (
            (1, sums, squares, n),
            (-1, sums.sum(axis=0) - sums, squares.sum(axis=0) - squares, n.sum(axis=0) - n),
        ):
            mean = ratio_of(s, m)
            gap += sign * mean
            variance += np.maximum(q - m * mean**2, 0.0) / np.maximum(m * (m - 1), 1.0)
        return gap, np.sqrt(variance)

    def debiased(self) -> Array:
        """`abs_gap` (G, M) of de-biased sizes: √max(0, gap² − SE²) for each period's |gap|."""
        gap, standard_error = self.period_gaps
        return mean_of(np.sqrt(np.maximum(gap**2 - standard_error**2, 0.0)), axis=-2)

    # ── resampling ───────────────────────────────────────────────────────────────────────

    def bootstrapped(self, rng: np.random.Generator, n: int) -> Statistics:
        """The numbers of n samples of as many users, drawn with replacement from each group."""

        def tables_of(size: int) -> Statistics:
            tables = bootstrap_sums(self._columns, self._strata, rng, size)
            return self._statistics(tables)

        return Statistics(*self._in_parts(tables_of, n, len(self.codes)))

    def studentised(self) -> Array:
        """(G, M) each gap over its standard error, as the permutation test compares it."""
        own, rest, pooled = self.sides
        return _over(own.mean - rest.mean, self._standard_error(own, rest, pooled))

    def permuted(self, rng: np.random.Generator, n: int) -> tuple[Statistics, Array]:
        """The numbers, and the studentised gaps (n, G, M), if the same users had their groups permuted, n times.

        Groups are permuted among users who were tested in equally many periods: a group that comes
        less often has fewer tests and larger gaps by chance, and keeps them in every permutation.
        The sizes of the gaps are scaled to the standard errors of the data, which are not those of
        the permutations where one group varies more than another.
        """
        groups = np.flatnonzero(self.judged.any(axis=1))
        rows = np.flatnonzero(np.isin(self.codes, groups))
        n_tests = (~np.isnan(self.values[rows, :, 0])).sum(axis=1)
        alike = [np.flatnonzero(n_tests == times) for times in np.unique(n_tests)]
        # The largest group gets the users whom the others leave over, and what they leave of the sums.
        *others, largest = sorted(groups.tolist(), key=lambda code: len(self._strata[code])) or [0]
        sizes = [np.array([(self.codes[rows[at]] == code).sum() for code in others], np.int64) for at in alike]
        together = self._observed[groups].sum(axis=0)
        moments = self._null_moments(rows, alike)
        own, rest, pooled = self.sides
        standard_error = self._standard_error(own, rest, pooled)
        # Of two groups each is the other's rest: one of them says all.
        mirrored, cut, n_moments = len(groups) == 2, self._columns.shape[1], 4 * self.values.shape[2]
        last = moments.columns[largest : largest + 1] if others and not mirrored else moments.columns[:0]
        columns, by_group = np.hstack([self._columns[rows], *last]), moments.columns[others]

        def permutations(size: int) -> tuple[Array, ...]:
            tables = np.repeat(self._observed[None], size, axis=0)
            variances = np.full((2, size, *own.mean.shape), np.nan)  # of the group, of the rest
            if others:
                sums = np.zeros((size, len(others), n_moments + columns.shape[1]))
                for at, wanted in zip(alike, sizes, strict=True):
                    parallel_ranges(size, partial(permute, _key(rng), at, wanted, by_group, columns, sums))
                sums, own_sums = sums[..., n_moments:], sums[..., :n_moments]
                tables[:, others] = sums[..., :cut]
                tables[:, largest] = together - tables[:, others].sum(axis=1)
                for i, code in enumerate(others):
                    variances[:, :, code] = moments.variances(code, own_sums[:, i])
                if mirrored:
                    variances[:, :, largest] = variances[::-1, :, others[0]]
                else:  # all that the others leave over
                    left = moments.columns[largest].sum(axis=0) - sums[..., cut:].sum(axis=1)
                    variances[:, :, largest] = moments.variances(largest, left)
            drawn = self._statistics(tables)
            shown = own._replace(mean=drawn.by_group, variance=variances[0])
            other = rest._replace(mean=drawn.by_group - drawn.gap, variance=variances[1])
            errors = self._standard_error(shown, other, pooled)
            scale = ratio_of(np.broadcast_to(standard_error, errors.shape), errors)
            scaled = self._statistics(tables, np.where(np.isnan(scale), 1.0, scale))
            return *scaled, _over(drawn.gap, errors)

        *parts, studentised = self._in_parts(permutations, n, len(others) * (n_moments + columns.shape[1]))
        return Statistics(*parts), studentised

    def _standard_error(self, own: Side, rest: Side, pooled: Side) -> Array:
        """(…, G, M) of a gap under the null hypothesis of equal means.

        Welch's: each side by its own variance. For metrics between 0 and 1 that is carried from
        the side's mean to the pooled one by way of the dispersion, as in a score test.
        """
        null = pooled.mean * (1 - pooled.mean)
        total = np.zeros(())
        for side in (own, rest):
            welch = ratio_of(side.variance, side.n_users)
            score = ratio_of(side.dispersion(pooled, _PRIOR_USERS) * null, side.n_users)
            total = total + np.where(self.is_share & ~np.isnan(score), score, welch)
        return np.sqrt(total)

    def _null_moments(self, rows: Ints, alike: list[Ints]) -> _NullMoments:
        """What the standard errors of permutations are made from, over users tested equally often (`alike`)."""
        tested = ~np.isnan(self.values[rows, :, 0])
        codes = self.codes[rows]
        expected = np.zeros(self.judged.shape)  # tested users by group and period, on average over the permutations
        for at in alike:
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
        return _NullMoments(columns, (self.sides[0].n_users, self.sides[1].n_users))

    def _in_parts(self, draws_of: Callable[[int], tuple[Array, ...]], n: int, n_weights: int) -> list[Array]:
        """Make n draws of so many weights, so many at a time that memory stays bounded."""
        step = max(1, _WEIGHTS_AT_ONCE // max(1, n_weights, self._observed.size))
        parts = [draws_of(min(step, n - start)) for start in range(0, n, step)]
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    # ── sums ─────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _strata(self) -> list[Ints]:
        """The users of each group, and last those of none."""
        return [np.flatnonzero(self.codes == code) for code in (*range(self.n_groups), -1)]

    @cached_property
    def _columns(self) -> Array:
        """(U, P · M + P): each user's values, and whether it was tested."""
        n_users, n_periods, n_metrics = self.values.shape
        tested = ~np.isnan(self.values[:, :, 0])
        values = np.where(tested[:, :, None], self.values, 0.0).reshape(n_users, n_periods * n_metrics)
        return np.concatenate([values, tested], axis=1)

    @cached_property
    def _observed(self) -> Array:
        return np.stack([self._columns[rows].sum(axis=0) for rows in self._strata])

    @cached_property
    def _is_furthest_behind(self) -> Array:
        """(G, P, M) 1 for the group furthest behind the rest in the period as observed, 0 for the others."""
        gap, _ = self._gaps(self._observed)
        is_furthest = np.zeros(gap.shape)
        if self.n_groups:
            np.put_along_axis(is_furthest, np.where(np.isnan(gap), np.inf, gap).argmin(axis=0)[None], 1.0, axis=0)
        return is_furthest

    def _split(self, tables: Array) -> tuple[Array, Array]:
        """(…, S, P · M + P) → sums (…, S, P, M) and counts (…, S, P)."""
        _, n_periods, n_metrics = self.values.shape
        cut = n_periods * n_metrics
        return tables[..., :cut].reshape(*tables.shape[:-1], n_periods, n_metrics), tables[..., cut:]

    def _gaps(self, tables: Array) -> tuple[Array, Array]:
        """(…, G, P, M) the gaps, and the group means."""
        sums, counts = self._split(tables)
        sums = np.where(self.judged[..., None], sums[..., : self.n_groups, :, :], 0.0)
        n = np.where(self.judged, counts[..., : self.n_groups, :], 0.0)[..., None]
        mean = ratio_of(sums, n)
        rest = ratio_of(sums.sum(axis=-3, keepdims=True) - sums, n.sum(axis=-3, keepdims=True) - n)
        return mean - rest, mean

    def _statistics(self, tables: Array, scale: Array | None = None) -> Statistics:
        """Of sums and counts; `scale` (…, G, M) multiplies the gaps."""
        sums, counts = self._split(tables)
        everyone = ratio_of(sums.sum(axis=-3), counts.sum(axis=-2)[..., None])
        gap, mean = self._gaps(tables)
        compared = np.where(np.isnan(gap), np.nan, mean)
        # A group that was never compared keeps the mean of the periods in which it was judged alone.
        is_ever_compared = np.asarray(self.compared.any(axis=1))
        shown = np.where(is_ever_compared[:, None, None], compared, mean)
        best, worst = largest_of(compared, axis=-3), -largest_of(-compared, axis=-3)
        if scale is not None:
            gap = gap * scale[..., None, :]
        size = np.abs(gap)
        behind = largest_of(-gap, axis=-3)
        as_observed = np.where(np.isnan(behind), np.nan, -np.nansum(gap * self._is_furthest_behind, axis=-3))
        return Statistics(
            mean=mean_of(everyone, axis=-2),
            by_group=mean_of(shown, axis=-2),
            gap=mean_of(gap, axis=-2),
            abs_gap=mean_of(size, axis=-2),
            largest=mean_of(largest_of(size, axis=-3), axis=-2),
            behind=mean_of(behind, axis=-2),
            behind_as_observed=mean_of(as_observed, axis=-2),
            spread=mean_of(best - worst, axis=-2),
        )


class _NullMoments(NamedTuple):
    columns: Array
    """(G, users, 4 M): a user's share in each gap and its square, were it in the group and were it in the rest."""
    n_users: tuple[Array, Array]
    """(G, 1) of each group and of its rest."""

    def variances(self, code: int, sums: Array) -> Array:
        """(2, n, M) of the group and of the rest, from the sums (n, 4 M) of the group's columns over its users."""
        n, rest = sums.shape[1] // 4, self.columns[code].sum(axis=0) - sums
        own = _variance(sums[:, :n], sums[:, n : 2 * n], self.n_users[0][code])
        return np.stack([own, _variance(rest[:, 2 * n : 3 * n], rest[:, 3 * n :], self.n_users[1][code])])


def _variance(total: Array, squares: Array, n: Array) -> Array:
    """n² / (n − 1) · Σ (share − mean share)²"""
    return np.maximum(squares - total**2 / np.maximum(n, 1), 0.0) * n**2 / np.maximum(n - 1, 1)


def _share(n: Array, is_defined: Mask) -> Array:
    """(P,) what one of n tested users counts for in a mean over the defined periods."""
    return ratio_of(is_defined / max(1, int(is_defined.sum())), np.where(is_defined, n, 1.0))


def _moments(values: Array, centre: Array, share: Array) -> tuple[Array, Array, float]:
    """The mean (M,) over the periods with a share, the variance between users (M,), and the number of users."""
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

    A draw is a function of a key and of the place at which it is made, so that threads change nothing.
    """
    size = weights.shape[1]
    for r in range(begin, end):
        row = weights[r]
        for j in range(size):
            row[_below(key, r * size + j, size)] += 1.0


@njit
def permute(
    key: int, members: Ints, sizes: Ints, by_group: Array, columns: Array, sums: Array, begin: int, end: int
) -> None:
    """Add to rows `begin` … `end` of `sums` (n, groups, D + C) the columns of the members that each group is given.

    These are `by_group` (groups, users, D) and `columns` (users, C). The members are in the order
    of the first steps of a Fisher–Yates shuffle: group g gets `sizes[g]` of them, none gets two groups.
    """
    n, cut = len(members), by_group.shape[2]
    for r in range(begin, end):
        order, place = members.copy(), 0
        for g in range(len(sizes)):
            total = sums[r, g]
            for _ in range(sizes[g]):
                other = place + _below(key, r * n + place, n - place)
                order[place], order[other] = order[other], order[place]
                first, second = by_group[g, order[place]], columns[order[place]]
                for c in range(cut):
                    total[c] += first[c]
                for c in range(len(second)):
                    total[cut + c] += second[c]
                place += 1


@njit
def _below(key: int, counter: int, n: int) -> int:
    """0 … n − 1, each as likely as any other to within n / 2⁵³."""
    return int(uniform_at(np.uint64(key), np.uint64(counter)) * n)


def _key(rng: np.random.Generator) -> int:
    return int(rng.integers(1 << 63))


def ratio_of(above: Array, below: Array) -> Array:
    """Above / below; NaN where that is not above 0."""
    result = np.full(np.broadcast(above, below).shape, np.nan)
    return np.divide(above, below, out=result, where=below > 0)


def _over(gap: Array, standard_error: Array) -> Array:
    """Gap / SE; where nothing varies a gap is infinitely many standard errors, and no gap is none."""
    return gap / np.maximum(standard_error, 1e-9)


def mean_of(values: Array, axis: int) -> Array:
    """The mean over what is not NaN."""
    is_defined = ~np.isnan(values)
    return ratio_of(np.where(is_defined, values, 0.0).sum(axis=axis), is_defined.sum(axis=axis))


def largest_of(values: Array, axis: int) -> Array:
    """The largest of what is not NaN."""
    highest = np.where(np.isnan(values), -np.inf, values).max(axis=axis, initial=-np.inf)
    return np.where(np.isfinite(highest), highest, np.nan)
