"""Which items each user has had, as sorted lists behind each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairstream.events.log import pair_keys
from fairstream.events.vocabulary import Rows

_ITEM_BITS = 0xFFFF_FFFF


@dataclass(frozen=True, eq=False)
class SeenItems:
    """For each user row a sorted list of item rows: memory grows with the pairs alone.

    >>> seen = SeenItems.from_pairs(np.array([1, 0, 1]), np.array([7, 3, 2]))
    >>> seen.of(np.array([1, 0, 5]))
    (array([0, 0, 1]), array([2, 7, 3]))
    """

    keys: Rows
    """Sorted and distinct `pair_keys`."""

    @classmethod
    def from_pairs(cls, users: Rows, items: Rows) -> SeenItems:
        return cls(np.unique(pair_keys(users, items)))

    def union(self, other: SeenItems) -> SeenItems:
        """Both together, by a merge of what is sorted already."""
        new = other.keys[~self._holds(other.keys)]
        return SeenItems(np.insert(self.keys, np.searchsorted(self.keys, new), new))

    def below(self, n_items: int) -> SeenItems:
        """Only the pairs whose item row is one of the first `n_items`."""
        return SeenItems(self.keys[(self.keys & _ITEM_BITS) < n_items])

    def has(self, users: Rows, items: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether each pair is among them."""
        return self._holds(pair_keys(users, items))

    def _holds(self, keys: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        at = np.searchsorted(self.keys, keys)
        found = np.zeros(len(keys), dtype=np.bool_)
        inside = at < len(self.keys)
        found[inside] = self.keys[at[inside]] == keys[inside]
        return found

    def bounds(self, n_users: int) -> Rows:
        """`bounds[u]` to `bounds[u + 1]` is where the list of user row u lies in `items`."""
        return np.searchsorted(self.keys, np.arange(n_users + 1, dtype=np.int64) << 32)

    @property
    def users(self) -> Rows:
        return self.keys >> 32

    @property
    def items(self) -> Rows:
        return self.keys & _ITEM_BITS

    def lists(self, users: Rows) -> tuple[Rows, Rows]:
        """The sorted items of each of `users` behind each other, and where each list begins and ends."""
        position, items = self.of(users)
        return np.append(0, np.cumsum(np.bincount(position, minlength=len(users)))), items

    def of(self, users: Rows) -> tuple[Rows, Rows]:
        """The items of `users`, as (position in `users`, item row) pairs."""
        start = np.searchsorted(self.keys, users << 32)
        count = np.searchsorted(self.keys, (users + 1) << 32) - start
        position = np.repeat(np.arange(len(users)), count)
        within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        return position, self.keys[np.repeat(start, count) + within] & _ITEM_BITS
