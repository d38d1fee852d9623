"""The interactions up to a moment, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fairstream.compiled import njit
from fairstream.data.runs import append_run
from fairstream.data.seen import SeenItems
from fairstream.data.vocabulary import Rows

Positions = range | Rows
"""Where events are in the log, in ascending order."""
Floats = np.ndarray[Any, np.dtype[np.float64]]
HALF_LIFE = 0.1
"""Of recent popularity, as a share of all events."""
_EVENTS_AT_ONCE = 1 << 20


@dataclass(frozen=True, eq=False)
class _Run:
    """Consecutive events of the log."""

    users: Rows
    items: Rows

    def __len__(self) -> int:
        return len(self.users)

    @cached_property
    def by_user(self) -> Rows:
        """The events as `user << 32 | place in this run`, sorted: a user's events lie together, in order."""
        return np.sort((self.users << 32) | np.arange(len(self.users)))

    def followed_by(self, other: _Run) -> _Run:
        if not len(self):
            return other
        return _Run(np.concatenate([self.users, other.users]), np.concatenate([self.items, other.items]))


@dataclass(frozen=True, eq=False)
class History:
    """The events up to a moment, in the order in which they came in, and nothing after it.

    Immutable: `after` returns the longer history, at a cost that follows the new events.

    >>> history = History.of(np.array([0, 1]), np.array([0, 1])).after(np.array([0]), np.array([2]))
    >>> history.n_users, history.n_items, history.n_items_before
    (2, 3, 2)
    >>> history.latest(np.array([0, 1]), 3)
    (array([[-1,  0,  2],
           [-1, -1,  1]]), array([2, 1]))
    """

    runs: tuple[_Run, ...]
    seen: SeenItems
    n_users: int
    n_items: int
    n_items_before: int = 0
    """Items that were known before the last events came in; later rows are new."""
    ends: tuple[int, ...] = ()
    """How many events there were at the end of each period."""

    @classmethod
    def of(
        cls,
        users: Rows,
        items: Rows,
        *,
        n_items_before: int = 0,
        n_users: int = 0,
        n_items: int = 0,
        ends: tuple[int, ...] | None = None,
    ) -> History:
        """The history of one batch of events, with at least so many users and items."""
        seen = SeenItems.from_pairs(users, items)
        n_users, n_items = max(n_users, _n_rows(users)), max(n_items, _n_rows(items))
        return cls(
            (_Run(users, items),), seen, n_users, n_items, n_items_before, (len(users),) if ends is None else ends
        )

    @classmethod
    def empty(cls) -> History:
        """No events at all."""
        nothing: Rows = np.empty(0, dtype=np.int64)
        return cls((), SeenItems.from_pairs(nothing, nothing), 0, 0)

    def after(self, users: Rows, items: Rows, *, ends_period: bool = True, n_items: int = 0) -> History:
        """The history followed by these events, which end a period or belong to one that is still open.

        At least `n_items` items are known then: there can be some without events.
        """
        n_events = len(self) + len(users)
        return History(
            append_run(self.runs, _Run(users, items), _Run.followed_by),
            self.seen.union(SeenItems.from_pairs(users, items)),
            max(self.n_users, _n_rows(users)),
            max(self.n_items, _n_rows(items), n_items),
            self.n_items,
            (*self.ends, n_events) if ends_period else self.ends,
        )

    def keep(self, positions: Rows, gone: Rows) -> History:
        """The history of the events at these positions, without the users `gone`, who have none of them.

        Later users move up to their rows. All items and periods stay known.
        """
        users = self.users_at(positions)
        return History.of(
            users - np.searchsorted(gone, users),
            self.items_at(positions),
            n_items_before=self.n_items_before,
            n_users=self.n_users - len(gone),
            n_items=self.n_items,
            ends=tuple(np.searchsorted(positions, self.ends).tolist()),
        )

    def only(self, positions: Positions) -> History:
        """The history of the events at these positions alone; all users and items stay known."""
        if len(positions) == len(self):
            return self
        return History.of(
            self.users_at(positions),
            self.items_at(positions),
            n_items_before=self.n_items_before,
            n_users=self.n_users,
            n_items=self.n_items,
        )

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def index(self) -> None:
        """Sort the events by user now, so that copies of this history need not."""
        for run in self.runs:
            _ = run.by_user

    @property
    def users(self) -> Rows:
        """The users of all events; copied where the events came in several runs."""
        return _together([run.users for run in self.runs])

    @property
    def items(self) -> Rows:
        """The items of all events; copied where the events came in several runs."""
        return _together([run.items for run in self.runs])

    def users_at(self, positions: Positions) -> Rows:
        """The users of the events at these sorted positions."""
        return self._at("users", positions)

    def items_at(self, positions: Positions) -> Rows:
        """The items of the events at these sorted positions."""
        return self._at("items", positions)

    def _at(self, column: str, positions: Positions) -> Rows:
        parts, first = [], 0
        for run in self.runs:
            values = getattr(run, column)
            if isinstance(positions, range):  # a view, which matters where the log is a mapped file
                parts.append(values[max(0, positions.start - first) : max(0, positions.stop - first)])
            else:
                begin, end = np.searchsorted(positions, [first, first + len(run)])
                parts.append(values[positions[begin:end] - first])
            first += len(run)
        return _together(parts)

    def latest(self, users: Rows, length: int, before: Rows | None = None) -> tuple[Rows, Rows]:
        """The latest items of each user.

        Parameters
        ----------
        users
            (B,) user rows; rows that do not exist have no items.
        length
            How many items at most.
        before
            (B,) only events before these positions count; None: all events.

        Returns
        -------
        items
            (B, length) the latest last, padded with −1 at the front.
        n_events
            (B,) how many events of the user there were.

        """
        places, counts = self._latest(users, length, before)
        is_event = places >= 0
        order = np.sort(places[is_event])
        items = np.full_like(places, -1)
        items[is_event] = self.items_at(order)[np.searchsorted(order, places[is_event])]
        return items, counts

    def latest_positions(self, users: Rows, length: int, before: Rows | None = None) -> Rows:
        """The positions of the same events: (B, length), −1 where there is none."""
        return self._latest(users, length, before)[0]

    def _latest(self, users: Rows, length: int, before: Rows | None) -> tuple[Rows, Rows]:
        latest = np.full((len(users), length), -1, dtype=np.int64)
        counts = np.zeros(len(users), dtype=np.int64)
        first = len(self)
        for run in reversed(self.runs):
            first -= len(run)
            limit = np.full(len(users), len(run)) if before is None else np.clip(before - first, 0, len(run))
            _fill_latest(run.by_user, first, users, limit, latest, counts)
        return latest, counts

    def items_of(self, users: Rows, before: Rows | None = None) -> tuple[Rows, Rows]:
        """The sorted items of each of `users`: those of `users[i]` are `items[bounds[i] : bounds[i + 1]]`.

        With `before` (B,) only events before these positions count.
        """
        if before is None:
            return self.seen.lists(users)
        bounds = np.zeros(len(users) + 1, dtype=np.int64)
        starts = np.cumsum([0, *map(len, self.runs)])
        limits = [np.clip(before - start, 0, len(run)) for start, run in zip(starts, self.runs, strict=False)]
        for run, limit in zip(self.runs, limits, strict=True):
            _count_before(run.by_user, users, limit, bounds[1:])
        np.cumsum(bounds, out=bounds)
        items, ends = np.empty(bounds[-1], dtype=np.int64), bounds[:-1].copy()
        for run, limit in zip(self.runs, limits, strict=True):
            _add_before(run.by_user, run.items, users, limit, ends, items)
        _sort_each(bounds, items)
        return bounds, items

    @property
    def has_repeats(self) -> bool:
        """Whether some user has several events with one item."""
        return len(self) > len(self.seen)

    def firsts(self, positions: Positions) -> Positions:
        """Those of the positions at which a user has an item for the first time."""
        if not self.has_repeats:
            return positions
        chosen, users = np.asarray(positions, dtype=np.int64), self.users
        is_asked = np.zeros(self.n_users, dtype=np.bool_)
        is_asked[users[chosen]] = True
        places = np.flatnonzero(is_asked[users])  # an update asks about few users: only their events are sorted
        _, earliest = np.unique((users[places] << 32) | self.items_at(places), return_index=True)
        is_first = np.zeros(len(self), dtype=np.bool_)
        is_first[places[earliest]] = True
        return chosen[is_first[chosen]]

    def users_with_rare_items(self, is_counted: np.ndarray[Any, np.dtype[np.bool_]], n_users: int) -> Rows:
        """The users who have had an item that fewer than `n_users` of the users `is_counted` (n_users,) have had."""
        users, items = self.seen.users, self.seen.items
        counts = np.bincount(items, is_counted[users], minlength=self.n_items)
        return np.unique(users[counts[items] < n_users])

    @cached_property
    def recent_popularity(self) -> Floats:
        """Σ 2^(−age / h) over each item's events: age in events, half-life h a tenth of all events."""
        popularity = self.faded_counts()
        popularity.flags.writeable = False
        return popularity

    def faded_counts(self, weights: Floats | None = None, share: float = HALF_LIFE) -> Floats:
        """The same sums with the events of each user counted `weights` (n_users,) times; None: once.

        The half-life is a `share` of all events.
        """
        n = len(self)
        half_life, popularity = max(1.0, share * n), np.zeros(self.n_items)
        for run in self.runs:
            for start in range(0, len(run), _EVENTS_AT_ONCE):
                at = slice(start, start + _EVENTS_AT_ONCE)
                items = run.items[at]
                age = np.arange(n - 1, n - 1 - len(items), -1, dtype=np.float64)
                faded = np.exp2(-age / half_life)
                _add(popularity, items, faded if weights is None else faded * weights[run.users[at]])
                n -= len(items)
        return popularity


@njit
def _fill_latest(by_user: Any, first: int, users: Any, limit: Any, latest: Any, counts: Any) -> None:
    """Fill each row of `latest` from behind with what one run has, behind `counts` events of later runs."""
    length = latest.shape[1]
    for b in range(len(users)):
        begin = np.searchsorted(by_user, users[b] << 32)
        end = begin + np.searchsorted(by_user[begin:], (users[b] << 32) | limit[b])
        at = end
        for place in range(length - counts[b] - 1, -1, -1):
            if at == begin:
                break
            at -= 1
            latest[b, place] = first + (by_user[at] & 0xFFFFFFFF)
        counts[b] += end - begin


@njit
def _count_before(by_user: Any, users: Any, limit: Any, counts: Any) -> None:
    """Add how many events before `limit` each user has in one run."""
    for b in range(len(users)):
        begin = np.searchsorted(by_user, users[b] << 32)
        counts[b] += np.searchsorted(by_user[begin:], (users[b] << 32) | limit[b])


@njit
def _add_before(by_user: Any, run_items: Any, users: Any, limit: Any, ends: Any, items: Any) -> None:
    """Add the items of these events at each user's end, which moves on."""
    for b in range(len(users)):
        begin = np.searchsorted(by_user, users[b] << 32)
        n = np.searchsorted(by_user[begin:], (users[b] << 32) | limit[b])
        for at in range(n):
            items[ends[b] + at] = run_items[by_user[begin + at] & 0xFFFFFFFF]
        ends[b] += n


@njit
def _sort_each(bounds: Any, items: Any) -> None:
    for b in range(len(bounds) - 1):
        items[bounds[b] : bounds[b + 1]].sort()


@njit
def _add(sums: Any, items: Any, weights: Any) -> None:
    for at in range(len(items)):
        sums[items[at]] += weights[at]


def _together(parts: list[Rows]) -> Rows:
    parts = [part for part in parts if len(part)]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _n_rows(rows: Rows) -> int:
    return int(rows.max(initial=-1)) + 1
