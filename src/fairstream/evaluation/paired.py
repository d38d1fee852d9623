"""Contenders compared on the same bootstrap draws of users and seeds, so that common noise cancels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import ndtr

from fairstream.evaluation.by_group import Estimate, student_t
from fairstream.evaluation.resampling import Array, GroupPanel, largest_of
from fairstream.randomness import Randomness

_FAR = 4.0  # from this many standard errors on, noise does not increase the size of a gap


class Paired:
    """Statistics of C contenders with S seeds each, averaged over the seeds: as observed and as drawn R times.

    The panel's metrics are the contenders' seeds, C · S of them. Users are drawn with replacement
    from each group, and seeds from the seeds; every contender sees the same draws.
    """

    def __init__(self, panel: GroupPanel, n_seeds: int, n_resamples: int) -> None:
        rng = Randomness(0).numpy("comparison")
        self.observed = panel.observed()
        self._gaps, errors = panel.period_gaps
        self._bias = _bias(self._gaps, errors)
        self._drawn = panel.bootstrapped(rng, n_resamples)
        self._n_seeds = n_seeds
        self._seeds = rng.integers(0, n_seeds, size=(n_resamples, n_seeds))
        self._averaged: dict[str, tuple[Array, Array]] = {}  # every pair of contenders reads the same draws

    def of(self, statistic: str) -> tuple[Array, Array]:
        """(…, C) as observed and (R, …, C) as drawn."""
        if statistic not in self._averaged:
            observed, drawn = (self._by_seed(getattr(part, statistic)) for part in (self.observed, self._drawn))
            by_users = drawn.mean(axis=-1)
            chosen = self._seeds.reshape(len(drawn), *(1,) * (drawn.ndim - 2), self._n_seeds)
            by_seeds = np.take_along_axis(drawn, chosen, axis=-1).mean(axis=-1) - by_users
            self._averaged[statistic] = observed.mean(axis=-1), by_users + _widening(self._n_seeds) * by_seeds
        return self._averaged[statistic]

    def interval(
        self, statistic: str, contender: int, minus: int | None = None, *, group: int | None = None
    ) -> Estimate:
        """Return a statistic of a contender (of one group, if it has several values) or its difference to another's."""
        value, drawn = self.of(statistic)
        if group is not None:
            value, drawn = value[group], drawn[:, group]
        if minus is None:
            return Estimate.of_draws(value[contender], drawn[:, contender])
        return Estimate.of_draws(value[contender] - value[minus], drawn[:, contender] - drawn[:, minus])

    def furthest_behind(self, contender: int, minus: int | None = None) -> Estimate:
        """Return how far a contender's worst-served group is behind the rest (for two groups |PD|), mean over periods.

        Or the difference to another contender's. Noise makes it too large by up to 0.8 standard errors where the true
        gap is 0, and by nothing where it is large. The end of the interval on that side is moved by the possible
        bias; between two contenders that cannot exceed the difference of their gaps.
        """
        behind = self.interval("behind_as_observed", contender, minus)
        if minus is None:  # the size of a gap cannot be negative
            return Estimate(behind.value, (max(0.0, behind.low - self._mean_bias(contender)), behind.high))
        gaps = self._by_seed(self._gaps)
        between = largest_of(np.abs(gaps[..., contender, :] - gaps[..., minus, :]), axis=0)  # (P, S)
        low, high = self._mean_bias(contender, between), self._mean_bias(minus, between)
        return Estimate(behind.value, (behind.low - low, behind.high + high))

    def _mean_bias(self, contender: int, limit: Any = np.inf) -> float:
        return float(np.nanmean(np.minimum(self._by_seed(self._bias)[:, contender], limit)))

    def _by_seed(self, values: Array) -> Array:
        return values.reshape(*values.shape[:-1], -1, self._n_seeds)


def _bias(gaps: Array, standard_errors: Array) -> Array:
    """(P, M) by how much noise may have increased how far a group is behind: E|N(δ, SE²)| − δ at δ = −gap − SE."""
    sizes, errors = (np.where(np.isnan(gaps), np.nan, part) for part in (-gaps, standard_errors))
    size = largest_of(sizes, axis=0)
    error = largest_of(np.where(sizes == size, errors, np.nan), axis=0)
    z = np.minimum(size, _FAR * error) / np.where(error > 0, error, 1.0)  # at most _FAR; 0 without noise
    delta = np.maximum(z - 1, 0.0)
    folded = math.sqrt(2 / math.pi) * np.exp(-(delta**2) / 2) - 2 * delta * ndtr(-delta)
    return np.where(np.isnan(size), np.nan, np.where(size < _FAR * error, error * folded, 0.0))


def _widening(n: int) -> float:
    """√(n / (n − 1)) t / z: a sample of a few seeds varies less than seeds in general.

    >>> round(_widening(5), 2)
    1.58
    """
    n = max(n, 3)
    return math.sqrt(n / (n - 1)) * float(student_t(n - 1)) / float(student_t(math.inf))
