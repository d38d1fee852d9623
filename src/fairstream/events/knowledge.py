"""What is known as of some moment: the events so far, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairstream.events.seen import SeenItems
from fairstream.events.vocabulary import Rows

_HALF_LIFE = 0.1


@dataclass(frozen=True, eq=False)
class Knowledge:
    """The events up to a moment, in chronological order, and nothing after it.

    >>> known = Knowledge.of(np.array([0, 1]), np.array([0, 1])).after(np.array([0]), np.array([2]))
    >>> known.n_users, known.n_items, known.n_items_before
    (2, 3, 2)
    """

    users: Rows
    items: Rows
    seen: SeenItems
    n_users: int
    n_items: int
    n_items_before: int = 0
    """Items that were known before the last events came in; the rows from here on are new."""

    @classmethod
    def of(cls, users: Rows, items: Rows) -> Knowledge:
        """What one batch of events tells."""
        return cls(users, items, SeenItems.from_pairs(users, items), _n_rows(users), _n_rows(items))

    def after(self, users: Rows, items: Rows) -> Knowledge:
        """What is known once these events have come in too."""
        return Knowledge(
            np.concatenate([self.users, users]),
            np.concatenate([self.items, items]),
            self.seen.union(SeenItems.from_pairs(users, items)),
            max(self.n_users, _n_rows(users)),
            max(self.n_items, _n_rows(items)),
            self.n_items,
        )

    def popularity(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """How popular each known item is, recent events counting more: the fallback for newcomers.

        Σ 2^(−age / h) over the item's events, the age counted in events and the half-life h a
        tenth of all events so far: free of the unit of time, and of the size of the log.
        """
        n = len(self.items)
        age = np.arange(n - 1, -1, -1, dtype=np.float64)
        weight = np.exp2(-age / max(1.0, _HALF_LIFE * n))
        return np.bincount(self.items, weight, minlength=self.n_items).astype(np.float64)


def _n_rows(rows: Rows) -> int:
    return int(rows.max(initial=-1)) + 1
