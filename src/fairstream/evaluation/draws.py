"""The weights of resamples: how often each user was drawn, and who was dealt which group.

A draw is a function of a key and of the place at which it is made, so that threads change nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fairstream.compiled import njit
from fairstream.sampling import uniform_at

Weights = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


@njit
def draw(key: int, weights: Weights, begin: int, end: int) -> None:
    """Rows `begin` … `end` of `weights` (n, size): add 1 for each of `size` draws with replacement."""
    size = weights.shape[1]
    for r in range(begin, end):
        row = weights[r]
        for j in range(size):
            row[_below(key, r * size + j, size)] += 1.0


@njit
def permute(key: int, members: Ints, sizes: Ints, weights: Weights, begin: int, end: int) -> None:
    """Rows `begin` … `end` of `weights` (n, groups, users): 1 for whom of the `members` each group is dealt to.

    The first steps of a Fisher–Yates shuffle: group g gets `sizes[g]` of them, nobody gets two.
    """
    n = len(members)
    for r in range(begin, end):
        order, place = members.copy(), 0
        for g in range(len(sizes)):
            for _ in range(sizes[g]):
                other = place + _below(key, r * n + place, n - place)
                order[place], order[other] = order[other], order[place]
                weights[r, g, order[place]] = 1.0
                place += 1


@njit
def _below(key: int, counter: int, n: int) -> int:
    """0 … n − 1, each as likely as any other to within n / 2⁵³."""
    return int(uniform_at(np.uint64(key), np.uint64(counter)) * n)
