"""What is known as of some moment: the events so far, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fairstream.compiled import njit
from fairstream.data.runs import append_run
from fairstream.data.seen import SeenItems
from fairstream.data.vocabulary import Rows

_HALF_LIFE = 0.1
_EVENTS_AT_ONCE = 1 << 20


@dataclass(frozen=True, eq=False)
class History:
    """The events up to a moment, in chronological order, and nothing after it.

    >>> known = History.of(np.array([0, 1]), np.array([0, 1])).after(np.array([0]), np.array([2]))
    >>> known.n_users, known.n_items, known.n_items_before
    (2, 3, 2)
    """

    user_parts: tuple[Rows, ...]
    item_parts: tuple[Rows, ...]
    seen: SeenItems
    n_users: int
    n_items: int
    n_items_before: int = 0
    """Items that were known before the last events came in; the rows from here on are new."""

    @classmethod
    def of(cls, users: Rows, items: Rows, *, n_items_before: int = 0, n_users: int = 0, n_items: int = 0) -> History:
        """What one batch of events tells, of so many users and items at least."""
        seen = SeenItems.from_pairs(users, items)
        n_users, n_items = max(n_users, _n_rows(users)), max(n_items, _n_rows(items))
        return cls((users,), (items,), seen, n_users, n_items, n_items_before)

    def after(self, users: Rows, items: Rows) -> History:
        """What is known once these events have come in too, at a cost that follows them."""
        return History(
            append_run(self.user_parts, users, _joined),
            append_run(self.item_parts, items, _joined),
            self.seen.union(SeenItems.from_pairs(users, items)),
            max(self.n_users, _n_rows(users)),
            max(self.n_items, _n_rows(items)),
            self.n_items,
        )

    def without(self, user: int) -> History:
        """The same without this user, whose row the later ones move up to; items that only it had stay known."""
        users, items = self.users, self.items
        others = users != user
        users, items = users[others], items[others]
        return History.of(
            users - (users > user),
            items,
            n_items_before=self.n_items_before,
            n_users=self.n_users - 1,
            n_items=self.n_items,
        )

    @property
    def users(self) -> Rows:
        """The users of all events, put together anew where they came in parts."""
        return _together(self.user_parts)

    @property
    def items(self) -> Rows:
        """The items of all events, put together anew where they came in parts."""
        return _together(self.item_parts)

    def popularity(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """How popular each known item is, recent events counting more: the fallback for newcomers.

        Σ 2^(−age / h) over the item's events, the age counted in events and the half-life h a
        tenth of all events so far: free of the unit of time, and of the size of the log. It walks
        through all events, once.
        """
        return self._popularity

    @cached_property
    def _popularity(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        n = sum(map(len, self.item_parts))
        half_life, popularity = max(1.0, _HALF_LIFE * n), np.zeros(self.n_items)
        for part in self.item_parts:
            for start in range(0, len(part), _EVENTS_AT_ONCE):
                items = part[start : start + _EVENTS_AT_ONCE]
                age = np.arange(n - 1, n - 1 - len(items), -1, dtype=np.float64)
                _add(popularity, items, np.exp2(-age / half_life))
                n -= len(items)
        popularity.flags.writeable = False
        return popularity


@njit
def _add(sums: Any, items: Any, weights: Any) -> None:
    for at in range(len(items)):
        sums[items[at]] += weights[at]


def _joined(first: Rows, second: Rows) -> Rows:
    return np.concatenate([first, second]) if len(first) else second


def _together(parts: tuple[Rows, ...]) -> Rows:
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _n_rows(rows: Rows) -> int:
    return int(rows.max(initial=-1)) + 1
