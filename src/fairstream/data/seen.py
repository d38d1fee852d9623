"""Which items each user has had, as sorted lists behind each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from fairstream.compiled import njit
from fairstream.data.log import pair_keys
from fairstream.data.runs import append_run, merged
from fairstream.data.sorting import radix_sort
from fairstream.data.vocabulary import Rows

_ITEM_BITS = 0xFFFF_FFFF


@dataclass(frozen=True, eq=False)
class SeenItems:
    """For each user row a sorted list of item rows: memory grows with the pairs alone.

    >>> seen = SeenItems.from_pairs(np.array([1, 0, 1]), np.array([7, 3, 2]))
    >>> seen.lists(np.array([1, 0, 5]))
    (array([0, 2, 3, 3]), array([2, 7, 3]))
    """

    runs: tuple[Rows, ...]
    """Sorted `pair_keys`; no pair is there twice."""
    n_items: int
    """Every item row is below this."""

    @classmethod
    def from_pairs(cls, users: Rows, items: Rows) -> SeenItems:
        keys = radix_sort(pair_keys(users, items))
        keys.resize(_without_repeats(keys), refcheck=False)
        return cls((keys,) if len(keys) else (), int(items.max(initial=-1)) + 1)

    def union(self, other: SeenItems) -> SeenItems:
        """Both together, at a cost that follows `other`."""
        new = other.keys
        new = new[~self._hold(new)] if self.runs else new
        return SeenItems(append_run(self.runs, new, merged), max(self.n_items, other.n_items))

    def below(self, n_items: int) -> SeenItems:
        """Only the pairs whose item row is one of the first `n_items`."""
        if self.n_items <= n_items:
            return self
        runs = (run[(run & _ITEM_BITS) < n_items] for run in self.runs)
        return SeenItems(tuple(run for run in runs if len(run)), n_items)

    def has(self, users: Rows, items: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether each pair is among them."""
        keys = pair_keys(users, items)
        order = np.argsort(keys)
        found = np.empty(len(keys), dtype=np.bool_)
        found[order] = self._hold(keys[order])
        return found

    def _hold(self, keys: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether each of the sorted keys is in some run."""
        found = np.zeros(len(keys), dtype=np.bool_)
        for run in self.runs:
            _mark(run, keys, found)
        return found

    def lists(self, users: Rows) -> tuple[Rows, Rows]:
        """The sorted items of each of `users`: those of `users[i]` are `items[bounds[i] : bounds[i + 1]]`."""
        bounds = np.zeros(len(users) + 1, dtype=np.int64)
        for run in self.runs:
            _count(run, users, bounds[1:])
        np.cumsum(bounds, out=bounds)
        items, ends = np.empty(bounds[-1], dtype=np.int64), bounds[:-1].copy()
        for run in self.runs:
            _merge_in(run, users, bounds, ends, items)
        return bounds, items

    def __len__(self) -> int:
        """The number of pairs."""
        return sum(map(len, self.runs))

    def without(self, other: SeenItems) -> SeenItems:
        """The pairs that are not among those of `other`."""
        keys = self.keys
        is_other = other._hold(keys)
        return SeenItems((keys[~is_other],), self.n_items) if is_other.any() else self

    def distinct_users(self) -> Rows:
        """The users that have any item, sorted."""
        users = self.keys >> 32
        is_new = np.ones(len(users), np.bool_)
        np.not_equal(users[1:], users[:-1], out=is_new[1:])
        return users[is_new]

    @property
    def keys(self) -> Rows:
        """All pairs as one sorted array of `pair_keys`, made anew where there are several runs."""
        return reduce(merged, reversed(self.runs)) if self.runs else np.empty(0, dtype=np.int64)

    @property
    def users(self) -> Rows:
        return self.keys >> 32

    @property
    def items(self) -> Rows:
        return self.keys & _ITEM_BITS


@njit
def _without_repeats(keys: Any) -> int:
    """Move the distinct ones of sorted keys to the front; gives how many they are."""
    n = 0
    for key in keys:
        if n == 0 or keys[n - 1] != key:
            keys[n] = key
            n += 1
    return n


@njit
def _mark(run: Any, keys: Any, found: Any) -> None:
    """Mark the sorted keys that are in the run, going on from each in steps that double.

    What a user has had lies close together: most steps stay in memory that is at hand.
    """
    at = 0
    for n in range(len(keys)):
        step = 1
        while at + step < len(run) and run[at + step] < keys[n]:
            at += step
            step *= 2
        at += np.searchsorted(run[at : at + step + 1], keys[n])
        if at == len(run):
            break
        found[n] |= run[at] == keys[n]


@njit
def _count(run: Any, users: Any, counts: Any) -> None:
    for u in range(len(users)):
        start = np.searchsorted(run, users[u] << 32)
        end = start
        while end < len(run) and run[end] >> 32 == users[u]:
            end += 1
        counts[u] += end - start


@njit
def _merge_in(run: Any, users: Any, bounds: Any, ends: Any, items: Any) -> None:
    """Merge each user's items of the run with those that it has got between its bound and its end."""
    for u in range(len(users)):
        start = np.searchsorted(run, users[u] << 32)
        at = start
        while at < len(run) and run[at] >> 32 == users[u]:
            at += 1
        free = ends[u] + at - start
        last, ends[u] = ends[u] - 1, free
        while at > start:  # from behind, where there is room
            free -= 1
            item = run[at - 1] & _ITEM_BITS
            if last >= bounds[u] and items[last] > item:
                items[free] = items[last]
                last -= 1
            else:
                items[free] = item
                at -= 1
