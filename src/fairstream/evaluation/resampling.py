"""How sure a gap between groups is: bootstrap over users, and permutation of their groups.

Both are matrix products: a resample gives each user a weight (how often it was drawn), a
permutation gives each user a group, and either way groups' sums are weights times values.
Users are what is drawn, with all of their periods, because a user's periods are not independent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from fairstream.compiled import parallel_ranges
from fairstream.data.groups import Codes
from fairstream.evaluation.draws import draw, permute

Array = np.ndarray[Any, np.dtype[np.float64]]
_WEIGHTS_AT_ONCE = 1 << 20


class Statistics(NamedTuple):
    """Of M metrics, averaged over the periods; NaN where there is nobody to tell of. Any axes may lead."""

    overall: Array
    """(…, M) the mean over all users."""
    by_group: Array
    """(…, G, M)"""
    gap: Array
    """(…, G, M) each group's value minus the rest's; for two groups the first is PD."""
    abs_gap: Array
    """(…, G, M) the mean of the gap's size, period by period: for two groups the paper's mean |PD|."""
    largest: Array
    """(…, M) the largest |gap| of any group."""
    spread: Array
    """(…, M) the best group's value minus the worst's."""


@dataclass(frozen=True, eq=False)
class GroupPanel:
    """Values (U, P, M) of U users in P periods (NaN where a user was not tested) by M metrics.

    A group is judged in a period if at least `min_size` of its users were tested in it; smaller
    ones are set aside: they count overall, and neither for themselves nor in anyone's rest.
    """

    values: Array
    codes: Codes
    n_groups: int
    min_size: int = 1

    @cached_property
    def judged(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """(G, P) which groups are judged in which period."""
        mask: np.ndarray[Any, np.dtype[np.bool_]] = self.n_tested >= max(1, self.min_size)
        return mask

    @cached_property
    def n_tested(self) -> Array:
        """(G, P) tested users."""
        return self._split(self._observed)[1][: self.n_groups]

    def observed(self) -> Statistics:
        """The numbers themselves."""
        return self._statistics(self._observed)

    def bootstrapped(self, rng: np.random.Generator, n: int) -> Statistics:
        """The numbers of n samples of as many users, drawn with replacement from each group."""

        def tables_of(size: int) -> Array:
            tables = np.empty((size, *self._observed.shape))
            for stratum, rows in enumerate(self._strata):
                weights = np.zeros((size, len(rows)))  # how often each was drawn
                parallel_ranges(size, partial(draw, _key(rng), weights))
                tables[:, stratum] = weights @ self._columns[rows]
            return tables

        return self._in_parts(tables_of, n, len(self.codes))

    def permuted(self, rng: np.random.Generator, n: int) -> Statistics:
        """The numbers if the judged groups were dealt out anew to the same users, n times.

        A user gets the group of someone who was tested in as many periods: a group that comes
        less often has fewer tests and larger gaps by chance, and keeps them in every deal.
        """
        permuted_groups = np.flatnonzero(self.judged.any(axis=1))
        rows = np.flatnonzero(np.isin(self.codes, permuted_groups))
        n_tests = (~np.isnan(self.values[rows, :, 0])).sum(axis=1)
        alike = [np.flatnonzero(n_tests == times) for times in np.unique(n_tests)]
        # The largest group gets whom the others leave over, and what they leave of the sums.
        *others, largest = sorted(permuted_groups.tolist(), key=lambda code: len(self._strata[code])) or [0]
        sizes = [np.array([(self.codes[rows[at]] == code).sum() for code in others], np.int64) for at in alike]
        together = self._observed[permuted_groups].sum(axis=0)

        def tables_of(size: int) -> Array:
            tables = np.repeat(self._observed[None], size, axis=0)
            weights = np.zeros((size, len(others), len(rows)))  # 1: this group is dealt to this user
            for at, wanted in zip(alike, sizes, strict=True):
                parallel_ranges(size, partial(permute, _key(rng), at, wanted, weights))
            if others:
                sums = weights.reshape(-1, len(rows)) @ self._columns[rows]  # one product, not one a deal
                tables[:, others] = sums.reshape(size, len(others), -1)
                tables[:, largest] = together - tables[:, others].sum(axis=1)
            return tables

        return self._in_parts(tables_of, n, len(rows) * len(others))

    def _in_parts(self, tables_of: Callable[[int], Array], n: int, n_weights: int) -> Statistics:
        """Draw n tables of so many weights, so many at a time that memory stays bounded."""
        step = max(1, _WEIGHTS_AT_ONCE // max(1, n_weights, self._observed.size))
        parts = [self._statistics(tables_of(min(step, n - start))) for start in range(0, n, step)]
        return Statistics(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    @cached_property
    def _strata(self) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
        """Who is in each group, and last who is in none."""
        return [np.flatnonzero(self.codes == code) for code in (*range(self.n_groups), -1)]

    @cached_property
    def _columns(self) -> Array:
        """(U, P · M + P): each user's values, and whether it was tested."""
        n_users, n_periods, n_metrics = self.values.shape
        there = ~np.isnan(self.values[:, :, 0])
        values = np.where(there[:, :, None], self.values, 0.0).reshape(n_users, n_periods * n_metrics)
        return np.concatenate([values, there], axis=1)

    @cached_property
    def _observed(self) -> Array:
        return np.stack([self._columns[rows].sum(axis=0) for rows in self._strata])

    def _split(self, tables: Array) -> tuple[Array, Array]:
        """(…, S, P · M + P) → sums (…, S, P, M) and counts (…, S, P)."""
        _, n_periods, n_metrics = self.values.shape
        cut = n_periods * n_metrics
        return tables[..., :cut].reshape(*tables.shape[:-1], n_periods, n_metrics), tables[..., cut:]

    def _statistics(self, tables: Array) -> Statistics:
        sums, counts = self._split(tables)
        overall = _ratio(sums.sum(axis=-3), counts.sum(axis=-2)[..., None])
        sums = np.where(self.judged[..., None], sums[..., : self.n_groups, :, :], 0.0)
        n = np.where(self.judged, counts[..., : self.n_groups, :], 0.0)[..., None]
        mean = _ratio(sums, n)
        rest = _ratio(sums.sum(axis=-3, keepdims=True) - sums, n.sum(axis=-3, keepdims=True) - n)
        gap = mean - rest
        compared = np.where(np.isnan(gap), np.nan, mean)  # a group that is judged alone has no spread
        best, worst = _largest(compared, axis=-3), -_largest(-compared, axis=-3)
        return Statistics(
            overall=mean_of(overall, axis=-2),
            by_group=mean_of(mean, axis=-2),
            gap=mean_of(gap, axis=-2),
            abs_gap=mean_of(np.abs(gap), axis=-2),
            largest=mean_of(_largest(np.abs(gap), axis=-3), axis=-2),
            spread=mean_of(best - worst, axis=-2),
        )


def _key(rng: np.random.Generator) -> int:
    return int(rng.integers(1 << 63))


def _ratio(above: Array, below: Array) -> Array:
    return np.divide(above, below, out=np.full(np.broadcast_shapes(above.shape, below.shape), np.nan), where=below > 0)


def mean_of(values: Array, axis: int) -> Array:
    """The mean over what is there."""
    there = ~np.isnan(values)
    return _ratio(np.where(there, values, 0.0).sum(axis=axis), there.sum(axis=axis))


def _largest(values: Array, axis: int) -> Array:
    """The largest of what is there."""
    highest = np.where(np.isnan(values), -np.inf, values).max(axis=axis, initial=-np.inf)
    return np.where(np.isfinite(highest), highest, np.nan)
