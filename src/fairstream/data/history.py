"""The interactions up to a point in time, by position and by user."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, TypeVar

import numpy as np

from fairstream.compiled import njit
from fairstream.data.kinds import Mask, Weights
from fairstream.data.log import distinct_pair_keys, pair_keys
from fairstream.data.vocabulary import Rows
from fairstream.periods import minutes_of

Positions = range | Rows  # where events are in the log, in ascending order
Floats = np.ndarray[Any, np.dtype[np.float64]]
_MISSING = {"times": np.nan, "weights": np.float32(1), "returns": False}  # of a run without the column
Run = TypeVar("Run", bound=Sized)
HALF_LIFE = 0.1  # of recent popularity, as a share of all events
_EVENTS_AT_ONCE = 1 << 20
_SIZE_RATIO = 4
_ITEM_BITS = 0xFFFF_FFFF  # the lower half of a key: an item, or a place in a run
_NOTHING: Rows = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class SeenItems:
    """For each user row a sorted list of item rows; memory depends only on the number of pairs.

    >>> seen = SeenItems.from_pairs(np.array([1, 0, 1]), np.array([7, 3, 2]))
    >>> seen.lists(np.array([1, 0, 5]))
    (array([0, 2, 3, 3]), array([2, 7, 3]))
    """

    runs: tuple[Rows, ...]  # sorted `pair_keys`, each once
    n_items: int  # every item row is below this

    @classmethod
    def from_pairs(cls, users: Rows, items: Rows) -> SeenItems:
        keys = distinct_pair_keys(users, items)
        return cls((keys,) if len(keys) else (), _n_rows(items))

    def union(self, other: SeenItems) -> SeenItems:
        """Return the pairs of both; the cost depends on the size of `other`."""
        new = other.keys
        new = new[~self._hold(new)] if self.runs else new
        return SeenItems(append_run(self.runs, new, merged), max(self.n_items, other.n_items))

    def below(self, n_items: int) -> SeenItems:
        """Return the pairs with one of the first `n_items` items."""
        if self.n_items <= n_items:
            return self
        runs = (run[(run & _ITEM_BITS) < n_items] for run in self.runs)
        return SeenItems(tuple(run for run in runs if len(run)), n_items)

    def has(self, users: Rows, items: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        keys = pair_keys(users, items)
        order = np.argsort(keys)
        is_member = np.empty(len(keys), dtype=np.bool_)
        is_member[order] = self._hold(keys[order])
        return is_member

    def _hold(self, keys: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return whether each of the sorted keys is in any run."""
        is_member = np.zeros(len(keys), dtype=np.bool_)
        for run in self.runs:
            _mark(run, keys, is_member)
        return is_member

    def lists(self, users: Rows) -> tuple[Rows, Rows]:
        """The sorted items of each of `users`: those of `users[i]` are `items[bounds[i] : bounds[i + 1]]`."""
        limit = np.full(len(users), self.n_items)
        return sorted_lists([(run, _NOTHING, limit) for run in self.runs], users)

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def without(self, other: SeenItems) -> SeenItems:
        keys = self.keys
        is_other = other._hold(keys)
        return SeenItems((keys[~is_other],), self.n_items) if is_other.any() else self

    def distinct_users(self) -> Rows:
        users = self.users
        return users[np.diff(users, prepend=-1) > 0]

    @property
    def keys(self) -> Rows:
        """All pairs as one sorted array of `pair_keys`, merged from all runs."""
        return reduce(merged, reversed(self.runs)) if self.runs else _NOTHING

    @property
    def users(self) -> Rows:
        return self.keys >> 32

    @property
    def items(self) -> Rows:
        return self.keys & _ITEM_BITS


@dataclass(frozen=True, eq=False)
class _Run:
    """Consecutive events of the log."""

    users: Rows
    items: Rows
    times: Floats | None = None
    weights: Weights | None = None
    returns: Mask | None = None

    def __len__(self) -> int:
        return len(self.users)

    @cached_property
    def by_user(self) -> Rows:
        """The events as `user << 32 | place in this run`, sorted: a user's events lie together, in order."""
        return np.sort((self.users << 32) | np.arange(len(self.users)))

    @cached_property
    def final_by_user(self) -> Rows:
        """`by_user` without events whose items may return."""
        return self.by_user if self.returns is None else self.by_user[~self.returns[self.by_user & _ITEM_BITS]]

    @cached_property
    def latest_time(self) -> float:
        return _latest(self.column("times"))

    def column(self, name: str) -> Any:
        """A column that not every run has, with its default where it is missing."""
        values = getattr(self, name)
        return np.full(len(self), _MISSING[name]) if values is None else values

    def followed_by(self, other: _Run) -> _Run:
        if not len(self):
            return other
        optional: dict[str, Any] = dict.fromkeys(_MISSING)
        for name in _MISSING:
            if getattr(self, name) is not None or getattr(other, name) is not None:
                optional[name] = np.concatenate([self.column(name), other.column(name)])
        return _Run(np.concatenate([self.users, other.users]), np.concatenate([self.items, other.items]), **optional)


@dataclass(frozen=True, eq=False)
class History:
    """The events up to a point in time, in order of arrival.

    Immutable: `after` returns a longer history, at a cost that depends on the number of new events.

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
    """The number of items known before the last events; later rows are new."""
    ends: tuple[int, ...] = ()
    """The number of events at the end of each period."""

    @classmethod
    def of(
        cls,
        users: Rows,
        items: Rows,
        times: Floats | None = None,
        *,
        weights: Weights | None = None,
        returns: Mask | None = None,
        n_items_before: int = 0,
        n_users: int = 0,
        n_items: int = 0,
        ends: tuple[int, ...] | None = None,
    ) -> History:
        """The history of one batch of events, with at least `n_users` users and `n_items` items.

        `times` are seconds since 1970, NaN where unknown; None: no event has a time. `weights` are how many times each
        event counts, None: once; and `returns` says whether its item may be recommended again, None: never.
        """
        final = slice(None) if returns is None else ~returns
        seen = SeenItems.from_pairs(users[final], items[final])
        n_users, n_items = max(n_users, _n_rows(users)), max(n_items, _n_rows(items))
        return cls(
            (_Run(users, items, times, weights, returns),),
            seen,
            n_users,
            n_items,
            n_items_before,
            (len(users),) if ends is None else ends,
        )

    @classmethod
    def empty(cls) -> History:
        """No events at all."""
        return cls((), SeenItems((), 0), 0, 0)

    def after(
        self,
        users: Rows,
        items: Rows,
        times: Floats | None = None,
        *,
        weights: Weights | None = None,
        returns: Mask | None = None,
        raised: tuple[Rows, Weights] | None = None,
        ends_period: bool = True,
        n_items: int = 0,
    ) -> History:
        """Return the history with these events at its end; they end a period or belong to an open one.

        At least `n_items` items are known afterwards, some perhaps without events. `raised` gives events at some
        positions of this history other weights.
        """
        n_events, runs = len(self) + len(users), self.runs if raised is None else self._raised(*raised)
        final = slice(None) if returns is None else ~returns
        longer = History(
            append_run(runs, _Run(users, items, times, weights, returns), _Run.followed_by),
            self.seen.union(SeenItems.from_pairs(users[final], items[final])),
            max(self.n_users, _n_rows(users)),
            max(self.n_items, _n_rows(items), n_items),
            self.n_items,
            (*self.ends, n_events) if ends_period else self.ends,
        )
        if "_decayed" in vars(self) and longer._n_decayed == self._n_decayed and raised is None:
            # Only these events were added.
            observed = np.bincount(items, weights, minlength=longer.n_items).astype(np.float64)
            observed[: self.n_items] += self._observed
            vars(longer).update(_decayed=self._decayed, _observed=observed)
        return longer

    def _raised(self, positions: Rows, weights: Weights) -> tuple[_Run, ...]:
        """The runs with other weights of the events at these sorted positions."""
        runs, first = [], 0
        for run in self.runs:
            begin, end = np.searchsorted(positions, [first, first + len(run)])
            if begin < end:
                own = np.array(run.column("weights"), np.float32)
                own[positions[begin:end] - first] = weights[begin:end]
                run = replace(run, weights=own)  # noqa: PLW2901
            runs.append(run)
            first += len(run)
        return tuple(runs)

    def keep(self, positions: Rows, gone: Rows) -> History:
        """Return the events at these positions, without the users `gone` (sorted rows), who have none of them.

        The rows of later users move up. All items and periods stay known.
        """
        users = self.users_at(positions)
        return History.of(
            users - np.searchsorted(gone, users),
            self.items_at(positions),
            **self.columns_at(positions),
            n_items_before=self.n_items_before,
            n_users=self.n_users - len(gone),
            n_items=self.n_items,
            ends=tuple(np.searchsorted(positions, self.ends).tolist()),
        )

    def subset(self, positions: Positions) -> History:
        """Return only the events at these positions; all users and items stay known."""
        if len(positions) == len(self):
            return self
        return History.of(
            self.users_at(positions),
            self.items_at(positions),
            **self.columns_at(positions),
            n_items_before=self.n_items_before,
            n_users=self.n_users,
            n_items=self.n_items,
        )

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def index(self) -> None:
        """Sort the events by user now, so that copies of this history do not have to."""
        for run in self.runs:
            _ = run.final_by_user

    @property
    def users(self) -> Rows:
        """The users of all events; copied where the events came in several runs."""
        return _concatenate([run.users for run in self.runs])

    @property
    def items(self) -> Rows:
        """The items of all events; copied where the events came in several runs."""
        return _concatenate([run.items for run in self.runs])

    def users_at(self, positions: Positions) -> Rows:
        """The users of the events at these sorted positions."""
        return self._at("users", positions)

    def items_at(self, positions: Positions) -> Rows:
        """The items of the events at these sorted positions."""
        return self._at("items", positions)

    @property
    def has_times(self) -> bool:
        """Whether any event has a time."""
        return any(run.times is not None for run in self.runs)

    def times_at(self, positions: Positions) -> Floats | None:
        """The times of the events at these sorted positions, NaN where unknown; None if no event has a time."""
        return np.asarray(self._at("times", positions), np.float64) if self.has_times else None

    @property
    def is_weighted(self) -> bool:
        """Whether any event may count more or less than once."""
        return any(run.weights is not None for run in self.runs)

    def weights_at(self, positions: Positions) -> Weights | None:
        """How many times the events at these sorted positions count; None: once, all of them."""
        return np.asarray(self._at("weights", positions), np.float32) if self.is_weighted else None

    def columns_at(self, positions: Positions) -> dict[str, Any]:
        """The times, weights and returns of the events at these sorted positions, as `History.of` takes them."""
        returns = any(run.returns is not None for run in self.runs)
        return {
            "times": self.times_at(positions),
            "weights": self.weights_at(positions),
            "returns": np.asarray(self._at("returns", positions), np.bool_) if returns else None,
        }

    @cached_property
    def pairs(self) -> SeenItems:
        """All pairs of a user and an item, also those that may return to the user's lists."""
        if all(run.returns is None for run in self.runs):
            return self.seen
        return SeenItems.from_pairs(self.users, self.items)

    def latest_time(self, n_events: int | None = None) -> float:
        """The latest time of the first `n_events` (None: all) events, in seconds since 1970; NaN: none is known."""
        latest, first = [np.nan], 0
        for run in self.runs:
            n = len(run) if n_events is None else min(len(run), n_events - first)
            if run.times is not None and n > 0:
                latest.append(run.latest_time if n == len(run) else _latest(run.times[:n]))
            first += len(run)
        return _latest(np.array(latest))

    def _at(self, column: str, positions: Positions) -> Any:
        parts: list[Any] = []
        first = 0
        for run in self.runs:
            values = run.column(column) if column in _MISSING else getattr(run, column)
            if isinstance(positions, range):  # a view, which matters where the log is a mapped file
                parts.append(values[max(0, positions.start - first) : max(0, positions.stop - first)])
            else:
                begin, end = np.searchsorted(positions, [first, first + len(run)])
                parts.append(values[positions[begin:end] - first])
            first += len(run)
        return _concatenate(parts)

    def latest(self, users: Rows, length: int, before: Rows | None = None) -> tuple[Rows, Rows]:
        """Return the latest items (B, length) of each user, the latest last, and the number of the user's events (B,).

        Items are padded with −1 at the front; rows that do not exist have none. With `before` (B,) only events before
        these positions count.
        """
        places, counts = self.latest_positions(users, length, before)
        return self.items_of_events(places), counts

    def items_of_events(self, positions: Rows) -> Rows:
        """The items of the events at these positions, in any order and shape; −1 where there is none."""
        return self._of_events(self.items_at, positions)

    def minutes_of_events(self, positions: Rows) -> Rows:
        """As `items_of_events`, whole minutes since 1970; −1 where unknown."""
        return self._of_events(lambda order: minutes_of(self._at("times", order)), positions)

    def returns_of_events(self, positions: Rows) -> Mask:
        """As `items_of_events`, whether the item may be recommended again; False where there is none."""
        return self._of_events(lambda order: np.asarray(self._at("returns", order), np.int64), positions) > 0

    def _of_events(self, read: Callable[[Rows], Rows], positions: Rows) -> Rows:
        is_event = (positions >= 0) & (positions < len(self))
        order = np.sort(positions[is_event])
        values = np.full_like(positions, -1)
        values[is_event] = read(order)[np.searchsorted(order, positions[is_event])]
        return values

    def latest_positions(self, users: Rows, length: int, before: Rows | None = None) -> tuple[Rows, Rows]:
        """As `latest`, with the positions of the events in place of their items."""
        latest = np.full((len(users), length), -1, dtype=np.int64)
        counts = np.zeros(len(users), dtype=np.int64)
        for run, first, limit in reversed(self._limits(users, before)):
            _fill_latest(run.by_user, first, users, limit, latest, counts)
        return latest, counts

    def n_events_of(self, users: Rows, before: Rows | None = None) -> Rows:
        """The number of events of each of `users`; with `before` (B,) of those before these positions."""
        return count_entries([(run.by_user, run.items, limit) for run, _, limit in self._limits(users, before)], users)

    def positions_of(self, users: Rows) -> tuple[Rows, Rows]:
        """The positions of the events of each of `users`: of `users[i]` in `positions[bounds[i] : bounds[i + 1]]`."""
        bounds = np.append(0, np.cumsum(self.n_events_of(users)))
        positions, ends, first = np.empty(bounds[-1], dtype=np.int64), bounds[:-1].copy(), 0
        for run in self.runs:
            _add_positions(run.by_user, first, users, ends, positions)
            first += len(run)
        return bounds, positions

    def items_of(self, users: Rows, before: Rows | None = None) -> tuple[Rows, Rows]:
        """The sorted items of each of `users`: those of `users[i]` are `items[bounds[i] : bounds[i + 1]]`.

        With `before` (B,) only events before these positions count. Items that may return are left out.
        """
        if before is None:
            return self.seen.lists(users)
        limits = self._limits(users, before)
        return sorted_lists([(run.final_by_user, run.items, limit) for run, _, limit in limits], users)

    def _limits(self, users: Rows, before: Rows | None) -> list[tuple[_Run, int, Rows]]:
        """Each run, the position of its first event, and how many of its events count for each of `users`."""
        runs, first = [], 0
        for run in self.runs:
            limit = np.full(len(users), len(run)) if before is None else np.clip(before - first, 0, len(run))
            runs.append((run, first, limit))
            first += len(run)
        return runs

    def first_interactions(self, positions: Positions) -> Positions:
        """Return the positions at which a user has an item for the first time."""
        if len(self) == len(self.seen):  # no user has several events with one item
            return positions
        chosen, users = np.asarray(positions, dtype=np.int64), self.users
        has_chosen = np.zeros(self.n_users, dtype=np.bool_)
        has_chosen[users[chosen]] = True
        places = np.flatnonzero(has_chosen[users])  # an update has few users: sort only their events
        _, earliest = np.unique((users[places] << 32) | self.items_at(places), return_index=True)
        is_first = np.zeros(len(self), dtype=np.bool_)
        is_first[places[earliest]] = True
        return chosen[is_first[chosen]]

    def users_with_rare_items(self, is_counted: np.ndarray[Any, np.dtype[np.bool_]], n_users: int) -> Rows:
        """The users who have had an item that fewer than `n_users` of the users `is_counted` (n_users,) have had."""
        keys = self.pairs.keys  # merged once for both
        users, items = keys >> 32, keys & _ITEM_BITS
        counts = np.bincount(items, is_counted[users], minlength=self.n_items)
        return np.unique(users[counts[items] < n_users])

    @property
    def recent_popularity(self) -> Floats:
        """Σ 2^(−age / h) over each item's events: age in events, half-life h a tenth of all events.

        Observed events, those after the end of the last period, count 1 each, so that a new event needs no pass over
        all events. Each time they have grown by 1 % of the log, the sums are computed again with their decay.
        """
        decayed, counts = self._decayed, np.zeros(self.n_items)
        counts[: len(decayed)] = decayed
        counts[: len(self._observed)] += self._observed
        return counts

    @property
    def _n_decayed(self) -> int:
        """The number of events that count with their decay: it depends on the history, not on earlier calls."""
        n = self.ends[-1] if self.ends else len(self)
        while n + n // 100 + 1 <= len(self):
            n += n // 100 + 1
        return n

    @cached_property
    def _decayed(self) -> Floats:
        """The decayed counts of the first `_n_decayed` events."""
        return self.decayed_counts(n_events=self._n_decayed)

    @cached_property
    def _observed(self) -> Floats:
        """The number of the other events of each item."""
        others = range(self._n_decayed, len(self))
        return np.bincount(self.items_at(others), self.weights_at(others), minlength=self.n_items).astype(np.float64)

    def decayed_counts(
        self, weights: Floats | None = None, share: float = HALF_LIFE, n_events: int | None = None
    ) -> Floats:
        """Σ w 2^(−age / h) over each item's events, with the `weights` (n_users,) w of their users; None: 1.

        An event of weight v counts v times. The half-life h is a `share` of the events, of which the first `n_events`
        count; None: all.
        """
        n = len(self) if n_events is None else n_events
        half_life, popularity = max(1.0, share * n), np.zeros(self.n_items)
        for run in self.runs:
            for start in range(0, len(run), _EVENTS_AT_ONCE):
                at = slice(start, min(start + _EVENTS_AT_ONCE, start + n))
                items = run.items[at]
                age = np.arange(n - 1, n - 1 - len(items), -1, dtype=np.float64)  # the last event that counts has 0
                decay = np.exp2(-age / half_life)
                decay = decay if run.weights is None else decay * run.weights[at]
                np.add.at(popularity, items, decay if weights is None else decay * weights[run.users[at]])
                n -= len(items)
        return popularity


def append_run(runs: tuple[Run, ...], new: Run, merge: Callable[[Run, Run], Run]) -> tuple[Run, ...]:
    """Return the runs with a new one at the end, as in a log-structured merge.

    `merge` makes one run of two neighbours whose sizes differ little: N entries are in about log N runs, and each is
    copied about log N times. Runs never change, so readers of older runs keep their state.

    >>> runs = ()
    >>> for letter in "abcdefghij":
    ...     runs = append_run(runs, letter, str.__add__)
    >>> runs
    ('abcdefgh', 'ij')
    """
    while runs and len(runs[-1]) < _SIZE_RATIO * len(new):
        runs, new = runs[:-1], merge(runs[-1], new)
    return (*runs, new) if len(new) else runs


def merged(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return two sorted arrays as one."""
    return np.sort(np.concatenate([first, second]), kind="stable")  # Timsort: linear where two runs are sorted


@njit
def _mark(run: Any, keys: Any, is_member: Any) -> None:
    """Mark the sorted keys that are in the run, by galloping: from one key to the next in steps that double.

    A user's items lie close together, so most steps stay in the cache.
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
        is_member[n] |= run[at] == keys[n]


def sorted_lists(runs: Sequence[tuple[Rows, Rows, Rows]], users: Rows) -> tuple[Rows, Rows]:
    """Return a sorted list for each of `users`: that of `users[i]` is `entries[bounds[i] : bounds[i + 1]]`.

    A run holds sorted keys `user << 32 | n`, values, and the limit of each user: the entries are `values[n]` of the
    user's keys with n below the limit, or n itself where there are no values.
    """
    bounds = np.zeros(len(users) + 1, dtype=np.int64)
    np.cumsum(count_entries(runs, users), out=bounds[1:])
    entries, ends = np.empty(bounds[-1], dtype=np.int64), bounds[:-1].copy()
    for keys, values, limit in runs:
        _add_entries(keys, values, users, limit, ends, entries)
    if len(runs) > 1 or any(len(values) for _, values, _ in runs):
        _sort_each(bounds, entries)
    return bounds, entries


def count_entries(runs: Sequence[tuple[Rows, Rows, Rows]], users: Rows) -> Rows:
    """Return the number of entries of each of `users` in all runs; see `sorted_lists`."""
    counts = np.zeros(len(users), dtype=np.int64)
    for keys, _, limit in runs:
        _count_below(keys, users, limit, counts)
    return counts


@njit
def _count_below(keys: Any, users: Any, limit: Any, counts: Any) -> None:
    """Add how many keys of each user are below its limit."""
    for u in range(len(users)):
        begin = np.searchsorted(keys, users[u] << 32)
        counts[u] += np.searchsorted(keys[begin:], (users[u] << 32) + limit[u])


@njit
def _add_entries(keys: Any, values: Any, users: Any, limit: Any, ends: Any, entries: Any) -> None:
    for u in range(len(users)):
        begin = np.searchsorted(keys, users[u] << 32)
        for at in range(begin, begin + np.searchsorted(keys[begin:], (users[u] << 32) + limit[u])):
            entry = keys[at] & _ITEM_BITS
            entries[ends[u]] = values[entry] if len(values) else entry
            ends[u] += 1


@njit
def _add_positions(by_user: Any, first: int, users: Any, ends: Any, positions: Any) -> None:
    for u in range(len(users)):
        begin = np.searchsorted(by_user, users[u] << 32)
        for at in range(begin, np.searchsorted(by_user, (users[u] + 1) << 32)):
            positions[ends[u]] = first + (by_user[at] & _ITEM_BITS)
            ends[u] += 1


@njit
def _sort_each(bounds: Any, entries: Any) -> None:
    for u in range(len(bounds) - 1):
        entries[bounds[u] : bounds[u + 1]].sort()


@njit
def _fill_latest(by_user: Any, first: int, users: Any, limit: Any, latest: Any, counts: Any) -> None:
    """Fill each row of `latest` from its end with the events of one run, in front of `counts` events of later runs."""
    length = latest.shape[1]
    for b in range(len(users)):
        begin = np.searchsorted(by_user, users[b] << 32)
        end = begin + np.searchsorted(by_user[begin:], (users[b] << 32) | limit[b])
        at = end
        for place in range(length - counts[b] - 1, -1, -1):
            if at == begin:
                break
            at -= 1
            latest[b, place] = first + (by_user[at] & _ITEM_BITS)
        counts[b] += end - begin


def _concatenate(parts: list[Rows]) -> Rows:
    parts = [part for part in parts if len(part)]
    return parts[0] if len(parts) == 1 else np.concatenate([_NOTHING, *parts])


def _latest(times: Floats) -> float:
    return float(np.fmax.reduce(times, initial=np.nan))  # NaN only if no time is known


def _n_rows(rows: Rows) -> int:
    return int(rows.max(initial=-1)) + 1
