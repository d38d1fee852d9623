"""`NegativeSampler.draw`, compiled: the same negatives, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairstream.compiled import njit, njit_inline
from fairstream.randomness import uniform_at


@njit
def draw(place: Any, first: Any, bounds: Any, free_before: Any, n_items: Any, key: Any, taken: Any, out: Any) -> None:
    """Fill `out` (B, n) with the negatives of positions `first` … of users standing at `place` (B,).

    Every user must have n free items or more; `taken` is room for n numbers.
    """
    for b in range(len(place)):
        begin, end = bounds[place[b]], bounds[place[b] + 1]
        _distinct_ranks(n_items - (end - begin), np.uint64((first + b) * out.shape[1]), key, taken, out[b])
        _to_items(free_before, begin, end, taken, out[b])


@njit_inline
def _distinct_ranks(n_free: Any, counter: Any, key: Any, taken: Any, out: Any) -> None:
    """Distinct integers below `n_free`: each the r-th of what those before it have left."""
    for c in range(len(out)):
        rank = np.int64(uniform_at(key, counter + np.uint64(c)) * np.float64(n_free - c))
        at = 0
        while at < c and taken[at] - at <= rank:  # `taken` is sorted
            at += 1
        rank += at
        for later in range(c, at, -1):
            taken[later] = taken[later - 1]
        taken[at] = rank
        out[c] = rank


@njit_inline
def _to_items(free_before: Any, begin: Any, end: Any, at: Any, out: Any) -> None:
    """Turn each rank r into the r-th free item, r + #{j : e_j − j ≤ r}.

    All searches go on side by side and without branches, since none can be guessed: three times
    as fast as one binary search after the other.
    """
    length = end - begin
    at[:] = begin
    while length > 1:
        half = length >> 1
        for c in range(len(out)):
            at[c] += half * (free_before[at[c] + half - 1] <= out[c])
        length -= half
    for c in range(len(out)):
        last = length == 1 and free_before[at[c]] <= out[c]
        out[c] += at[c] - begin + (1 if last else 0)
