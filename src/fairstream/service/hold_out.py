"""Which events of a period a candidate learns, and which judge it.

A keyed hash draws a share of the period's users; the latest events of each of them in the period are held out. Without
the workspace's secret nobody can predict who is drawn, and nobody's events decide which events of another user are held
out. So an attacker who sends a fifth of the events decides a fifth of the test.

A user's events from a certain number on are surplus: neither learned nor held out.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from fairstream.evaluation.resampling import Array

_LATEST = 0.4  # of a drawn user's events in the period; at least one


class Split(NamedTuple):
    """The events of a period."""

    learned: pa.Table
    held_out: pa.Table  # learned with the next period
    n_surplus: int

    @property
    def counted(self) -> pa.Table:
        """All but the surplus, by time."""
        return pa.concat_tables([self.learned, self.held_out]).sort_by([("time", "ascending"), ("seq", "ascending")])


def split(events: pa.Table, key: bytes, *, share: float, max_of_user: int) -> Split:
    """Split events that are sorted by time; the key draws this share of their users.

    A user's held-out events come after all learned events of the user.
    """
    users = events["user_id"].combine_chunks().dictionary_encode()
    rows, names = users.indices.to_numpy(), users.dictionary.to_pylist()
    counts = np.bincount(rows, minlength=len(names))
    position = np.empty(len(rows), np.int64)  # of each event among those of its user
    position[np.argsort(rows, kind="stable")] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    counts = np.minimum(counts, max_of_user)
    n_held_out = np.where(_is_drawn(names, key, share), np.maximum(1, (_LATEST * counts).astype(int)), 0)
    is_surplus, is_late = position >= max_of_user, position >= (counts - n_held_out)[rows]
    learned, held_out = (events.filter(pa.array(part & ~is_surplus)) for part in (~is_late, is_late))
    return Split(learned, held_out, int(is_surplus.sum()))


def max_events_of_user(counts: Array, share: float) -> int:
    """Return how many events of one user count, so that no user makes up more than a share of those that count.

    At least one counts. `counts` are the users' numbers of events.

    >>> max_events_of_user(np.array([320, *[5] * 500]), 0.1), max_events_of_user(np.array([9, *[5] * 500]), 0.1)
    (277, 9)
    """
    limit = int(counts.max(initial=1))
    while limit > 1 and limit > (allowed := share * int(np.minimum(counts, limit).sum())):
        limit = max(1, int(allowed))
    return limit


def _is_drawn(names: Sequence[str], key: bytes, share: float) -> Array:
    numbers = (int.from_bytes(hmac.digest(key, name.encode(), "sha256")[:7], "big") for name in names)
    return np.fromiter((number < share * 2**56 for number in numbers), np.bool_, len(names))
