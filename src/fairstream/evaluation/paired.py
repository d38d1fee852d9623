"""Contenders on the same draws of users and seeds, so that what is hard for all of them cancels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairstream.evaluation.by_group import CONFIDENCE, widening
from fairstream.evaluation.resampling import Array, GroupPanel
from fairstream.randomness import Randomness


@dataclass(frozen=True)
class Interval:
    """A number and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: Any, drawn: Array) -> Interval:
        """The percentile interval, moved so that the draws' median lies on the value.

        The size of a gap is biased upwards in every draw, because noise cannot make it negative.
        """
        tail = (1 - CONFIDENCE) / 2
        low, middle, high = np.nanquantile(drawn, [tail, 0.5, 1 - tail]) - value
        return cls(float(value), float(value + low - middle), float(value + high - middle))

    def at_least_zero(self) -> Interval:
        """The same for a number that cannot be negative."""
        return Interval(self.value, max(0.0, self.low), self.high)

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


class Paired:
    """Statistics of C contenders with S seeds each, averaged over the seeds: as observed and as drawn R times.

    The panel's metrics are the contenders' seeds, C · S of them. Users are drawn anew from each
    group, and seeds from the seeds; every contender sees the same draws.
    """

    def __init__(self, panel: GroupPanel, n_seeds: int, n_resamples: int) -> None:
        rng = Randomness(0).numpy("comparison")
        self.observed = panel.observed()
        self._drawn = panel.bootstrapped(rng, n_resamples)
        self._n_seeds = n_seeds
        self._seeds = rng.integers(0, n_seeds, size=(n_resamples, n_seeds))

    def of(self, statistic: str) -> tuple[Array, Array]:
        """(…, C) as observed and (R, …, C) as drawn."""
        seen, again = (self._by_seed(getattr(part, statistic)) for part in (self.observed, self._drawn))
        by_users = again.mean(axis=-1)
        chosen = self._seeds.reshape(len(again), *(1,) * (again.ndim - 2), self._n_seeds)
        by_seeds = np.take_along_axis(again, chosen, axis=-1).mean(axis=-1) - by_users
        # A handful of seeds differ less among themselves than seeds do.
        return seen.mean(axis=-1), by_users + widening(self._n_seeds) * by_seeds

    def _by_seed(self, values: Array) -> Array:
        return values.reshape(*values.shape[:-1], -1, self._n_seeds)
