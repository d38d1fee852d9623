"""The event log: users, items, times and groups."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fairstream.data.features import ItemFeatures, notes_on_undescribed
from fairstream.data.groups import UNKNOWN, Groups
from fairstream.data.kinds import Marks, first_choices
from fairstream.data.reading import Columns, Repeats
from fairstream.data.storage import StoredLog, write_log
from fairstream.data.vocabulary import Rows, Vocabulary, same_kind
from fairstream.display import Summary, Tabular
from fairstream.errors import DataError
from fairstream.periods import UNIT_NAMES, notes_on_times, seconds_of, unix_unit
from fairstream.plotting import area_chart
from fairstream.text import percent

Mask = np.ndarray[Any, np.dtype[np.bool_]]
_MARKS = {"weights": np.float32, "returns": np.bool_, "judged": np.bool_}
_IDS_AT_ONCE = 1 << 16
MIN_SHARE_OF_TIES = 0.01  # of the tested events, for a note of a run
_IN_NO_GROUP = ": they count overall and in no group"


@dataclass(frozen=True, eq=False, repr=False)
class EventLog(Tabular):
    """Interactions in chronological order, as dense rows; one per (user, item) pair unless all repeats are kept.

    Rows are numbered in the order of first appearance, so the users and items known after the
    first n events are exactly the rows below `n_users_after(n)` and `n_items_after(n)`.

    Make one with `fairstream.read_events`.

    Examples
    --------
    >>> from fairstream import read_events
    >>> import pyarrow as pa
    >>> log = read_events(pa.table({"user": ["a", "b", "a"], "item": [5, 5, 9], "time": [3, 1, 2]}))
    >>> log.users.tolist(), log.items.tolist(), log.n_items_after(1)
    ([0, 1, 1], [0, 1, 0], 1)
    >>> log.notes
    ('the events were not in chronological order and have been sorted by time',)
    """

    users: Rows
    items: Rows
    times: np.ndarray[Any, Any]
    user_ids: Vocabulary
    item_ids: Vocabulary
    groups: Groups | None = None
    columns: Columns = field(default_factory=Columns)
    """How the events were read."""
    notes: tuple[str, ...] = ()
    """What reading did to the events: one sentence for each thing left out, moved or assumed."""
    features: ItemFeatures | None = None
    """The features of the items, also of items without events."""
    marks: Marks | None = None
    """What the kinds say of each event; None: there are no kinds."""

    @classmethod
    def from_columns(
        cls,
        user_ids: Any,
        item_ids: Any,
        times: np.ndarray[Any, Any],
        repeats: Repeats = "first",
        marks: Marks | None = None,
    ) -> EventLog:
        """Sort the events, number the ids, and keep the first event of a repeated pair or all of them."""
        require_events(len(times))
        was_sorted = is_chronological(times)
        if not was_sorted:
            order = np.argsort(times, kind="stable")
            user_ids, item_ids, times = user_ids.take(order), item_ids.take(order), times[order]
            marks = None if marks is None else marks.at(order)
        users, items = Vocabulary(), Vocabulary()
        user_rows, item_rows = users.extend(user_ids), items.extend(item_ids)
        keys = pair_keys(user_rows, item_rows)
        first, first_marks = (first_of_each(keys), None) if marks is None else first_choices(keys, marks)
        n_repeated = len(times) - len(first)
        if n_repeated and repeats == "first":
            user_rows, item_rows, times, marks = user_rows[first], item_rows[first], times[first], first_marks
        notes = notes_on_order(times, was_sorted=was_sorted, n_repeated=n_repeated, repeats=repeats)
        return cls(user_rows, item_rows, times, users, items, notes=notes, marks=marks)

    def save(self, folder: str | Path) -> None:
        """Write the log into a new folder, as `fairstream.ingest` does; `read_events` opens it again.

        Raises
        ------
        DataError
            If the folder exists and is not empty, or cannot be written.

        Examples
        --------
        >>> import tempfile
        >>> from fairstream import read_events, synthetic_stream
        >>> log = read_events(synthetic_stream(n_users=20, n_items=30, n_events=100).events)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log.save(f"{folder}/log")
        ...     read_events(f"{folder}/log").fingerprint() == log.fingerprint()
        True
        """
        columns = {"users": self.users, "items": self.items, "times": self.times}
        arrays = {name: pa.array(np.ascontiguousarray(column)) for name, column in columns.items()}
        arrays |= {"user_ids": self.user_ids.ids, "item_ids": self.item_ids.ids}
        about: dict[str, Any] = {"columns": asdict(self.columns), "notes": self.notes, "groups": None}
        if self.groups is not None:
            arrays["codes"] = pa.array(self.groups.codes)
            fields = ("attribute", "names", "choice")
            about["groups"] = {name: getattr(self.groups, name) for name in fields}
        if self.features is not None:
            arrays |= {"described_ids": self.features.ids.ids, "features": pa.array(self.features.codes.reshape(-1))}
            about["features"] = {"shape": self.features.codes.shape, "notes": self.features.notes}
        if self.marks is not None:
            arrays |= {name: pa.array(column.astype(np.float32)) for name, column in self.marks._asdict().items()}
        write_log(Path(folder), arrays, about)

    @classmethod
    def open(cls, folder: str | Path) -> EventLog:
        """Open a saved log. Its columns stay in their files; pages that are used are read into memory."""
        stored = StoredLog(Path(folder))
        with stored.checked():
            users, items, times = (stored.column(name) for name in ("users", "items", "times"))
            user_ids, item_ids = (Vocabulary.of_distinct(stored.ids(name)) for name in ("user_ids", "item_ids"))
            about, groups = stored.about, stored.about["groups"]
            if groups is not None:
                codes = stored.column("codes")
                groups = Groups(groups["attribute"], tuple(groups["names"]), codes, groups["choice"])
                stored.check(len(codes) == len(user_ids))
            stored.check(len(users) == len(items) == len(times) > 0)
            columns, notes = Columns(**about["columns"]), tuple(about["notes"])
            features = None
            if about.get("features") is not None:
                ids = Vocabulary.of_distinct(stored.ids("described_ids"))
                codes = stored.column("features").reshape(about["features"]["shape"])
                stored.check(len(codes) == len(ids))
                features = ItemFeatures(ids, codes, tuple(about["features"]["notes"]))
            marks = None
            if columns.kinds:
                marks = Marks(*(np.asarray(stored.column(name), kind) for name, kind in _MARKS.items()))
                stored.check(all(len(column) == len(users) for column in marks))
            return cls(users, items, times, user_ids, item_ids, groups, columns, notes, features, marks)

    def __len__(self) -> int:
        return len(self.users)

    def _summary(self) -> Summary:
        is_moment = self.times.dtype.kind == "M"
        first, last = (str(time)[:16] if is_moment else str(time.round(4)) for time in (self.times[0], self.times[-1]))
        title = (
            f"EventLog: {len(self):,} events of {self.n_users:,} users with {self.n_items:,} items, "
            f"from {first} to {last}"
        )
        if self.groups is None:
            return Summary(title, notes=(*self.notes, "there are no groups"))
        codes = self.groups.codes.astype(np.int64) + 1
        n_users = np.bincount(codes, minlength=len(self.groups.names) + 1)
        n_events = np.bincount(codes[self.users], minlength=len(n_users))
        names = ["not known", *self.groups.names]
        order = [*range(1, len(names)), *([0] if n_users[0] else [])]
        rows = [[names[code], f"{n_users[code]:,}", f"{n_events[code]:,}"] for code in order]
        return Summary(title, [self.groups.attribute, "users", "events"], rows, self.notes)

    def to_arrow(self) -> pa.Table:
        """As an Arrow table: user_id, item_id, time, and group where there are groups.

        >>> from fairstream import read_events
        >>> read_events(pa.table({"user": ["a", "b"], "item": [5, 9], "time": [1, 2]})).to_arrow().to_pylist()
        [{'user_id': 'a', 'item_id': 5, 'time': 1}, {'user_id': 'b', 'item_id': 9, 'time': 2}]
        """
        columns = {
            "user_id": self.user_ids.ids.take(pa.array(self.users)),
            "item_id": self.item_ids.ids.take(pa.array(self.items)),
            "time": pa.array(self.times),
        }
        if self.groups is not None:
            codes = self.groups.codes[self.users]
            columns["group"] = pa.array(self.groups.names, pa.string()).take(pa.array(codes, mask=codes == UNKNOWN))
        return pa.table(columns)

    def plot(self, n_bins: int = 40) -> Any:
        """Draw the number of events in `n_bins` stretches of time, by group; needs altair (`fairstream[report]`)."""
        is_moment = self.times.dtype.kind == "M"
        numbers = self.times.astype("datetime64[ms]").astype(np.int64) if is_moment else self.times
        edges = np.linspace(float(numbers[0]), float(numbers[-1]), n_bins + 1)
        names = ["all"] if self.groups is None else [*self.groups.names, "not known"]
        codes = np.zeros(len(self), np.int64) if self.groups is None else self.groups.codes[self.users] % len(names)
        values = [
            {"time": float(start), "events": int(n), "group": name}
            for code, name in enumerate(names)
            for start, n in zip(edges, np.histogram(numbers[codes == code], edges)[0], strict=False)
        ]
        names = [name for name in names if any(row["events"] for row in values if row["group"] == name)]
        return area_chart(values, names, is_moment=is_moment)

    @property
    def n_users(self) -> int:
        """Users in the whole log."""
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        """Items in the whole log."""
        return len(self.item_ids)

    @cached_property
    def seconds(self) -> np.ndarray[Any, np.dtype[np.float64]] | None:
        """The times as seconds since 1970; None if they only order the events."""
        return seconds_of(self.times)

    @property
    def last_time(self) -> np.generic:
        """The time of the latest event; its dtype says which kind of time the log has."""
        return self.times[-1]

    def notes_after(self, last_time: np.generic) -> tuple[str, ...]:
        """Return notes on these events as an update of a log that ended at `last_time`.

        >>> from fairstream import read_events
        >>> log = read_events(pa.table({"user": [1, 2], "item": [1, 2], "time": [3, 9]}))
        >>> log.notes_after(np.int64(5))
        ('1 of 2 events are older than the latest known event: they are added after it',)
        """
        if (self.times.dtype.kind == "M") != (last_time.dtype.kind == "M"):
            kinds = {True: "timestamps", False: "numbers"}
            raise DataError(
                f"the earlier events have {kinds[last_time.dtype.kind == 'M']} as times, these have "
                f"{kinds[self.times.dtype.kind == 'M']}; convert the column, or name its unit with time_unit"
            )
        units = unix_unit(np.array([last_time])), unix_unit(self.times)
        if units[0] != units[1]:
            return (
                f"the earlier times look like {UNIT_NAMES[units[0]]} since 1970, these like {UNIT_NAMES[units[1]]}: "
                f"check the unit of the times",
            )
        n_older = int(np.searchsorted(self.times, last_time))
        if n_older == 0:
            return ()
        return (f"{n_older} of {len(self)} events are older than the latest known event: they are added after it",)

    @cached_property
    def _is_tied(self) -> Mask:
        return tied_events(self.users, self.times)

    def n_tied(self, span: slice = slice(None)) -> int | None:
        """Return how many events at these positions have the same time as the user's previous event.

        None if no event has and the times are numbers that only order the events.

        >>> from fairstream import read_events
        >>> read_events(pa.table({"user": [1, 2, 1], "item": [1, 2, 3], "time": [4, 4, 4]})).n_tied()
        1
        """
        n = int(self._is_tied[span].sum())
        return None if n == 0 and self.seconds is None else n

    def n_users_after(self, n_events: int) -> int:
        """Return the number of users among the first `n_events` events."""
        return int(self.users[:n_events].max(initial=-1)) + 1

    def n_items_after(self, n_events: int) -> int:
        """Return the number of items among the first `n_events` events."""
        return int(self.items[:n_events].max(initial=-1)) + 1

    def with_groups(self, groups: Groups, n_unmatched: int = 0) -> EventLog:
        """Return the log with the groups of its users, and a note on users without one.

        `n_unmatched` of those are not in the users table.
        """
        notes = [note for note in self.notes if not note.endswith(_IN_NO_GROUP)]
        if n_unknown := int((groups.codes == UNKNOWN).sum()):
            unmatched = f" ({n_unmatched} of them are not in the users table)" if n_unmatched else ""
            notes += [f"{n_unknown} of {len(groups.codes)} users have no {groups.attribute}{unmatched}{_IN_NO_GROUP}"]
        return replace(self, groups=groups, notes=tuple(notes))

    def with_features(self, features: ItemFeatures) -> EventLog:
        """Return the log with the features of its items, and a note on items without any."""
        notes = tuple(note for note in self.notes if note not in self._notes_on_features())
        ids, described_ids = same_kind(self.item_ids.ids, features.ids.ids)
        features = replace(features, ids=Vocabulary.of_distinct(described_ids))
        described = replace(self, item_ids=Vocabulary.of_distinct(ids), features=features, notes=notes)
        return replace(described, notes=notes + described._notes_on_features())

    def _notes_on_features(self) -> tuple[str, ...]:
        if self.features is None:
            return ()
        return (*self.features.notes, *notes_on_undescribed(self.features.of(self.item_ids)))

    def require_groups(self) -> Groups:
        """Return the groups; raise DataError unless at least two have users."""
        if self.groups is None:
            raise DataError(
                "the log has no groups, so no disparity can be computed; "
                "read it with a users table and group=COLUMN (on the command line: --group COLUMN)"
            )
        if self.groups.n_occurring() < 2:
            highest = self.groups.codes.max(initial=-1)
            values = "no value is known" if highest < 0 else f"every known value is {self.groups.names[highest]!r}"
            raise DataError(
                f"groups are compared, but among the users with events {self.groups.attribute} does not differ: "
                f"{values}; use events of at least two groups"
            )
        return self.groups

    def fingerprint(self) -> str:
        """Return a SHA-256 of the events, their order, the groups of the users and the features of the items."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for ids in (self.user_ids.ids, self.item_ids.ids):
            digest.update(b"[")  # a JSON list, a piece at a time: all ids as Python objects would fill the memory
            for start in range(0, len(ids), _IDS_AT_ONCE):
                part = json.dumps(ids.slice(start, _IDS_AT_ONCE).to_pylist())[1:-1]
                digest.update((", " + part if start else part).encode())
            digest.update(b"]")
        columns = [self.users, self.items, self.times]
        if self.groups is not None:
            # By name, not by code: the advantaged group is no part of the data.
            order = sorted(self.groups.names)
            place = np.array([*(order.index(name) for name in self.groups.names), -1], dtype=np.int16)
            digest.update(repr((self.groups.attribute, order)).encode())
            columns.append(place[self.groups.codes])
        if self.features is not None:
            codes = self.features.of(self.item_ids)
            digest.update(repr(codes.shape).encode())
            columns.append(codes.reshape(-1))
        columns += [] if self.marks is None else list(self.marks)
        for column in columns:
            digest.update(np.ascontiguousarray(column).view(np.uint8).data)
        return digest.hexdigest()


def require_events(n_events: int) -> None:
    """Raise DataError for a log without events."""
    if n_events == 0:
        raise DataError("the log has no events; at least one is needed")


def is_chronological(times: np.ndarray[Any, Any]) -> bool:
    """Return whether no event comes before an earlier one."""
    return bool(np.all(times[:-1] <= times[1:]))


def tied_events(users: Rows, times: np.ndarray[Any, Any]) -> Mask:
    """(N,) whether each event has the same time as the user's previous one; the events are in chronological order.

    >>> tied_events(np.array([0, 1, 0, 0]), np.array([5, 5, 5, 6])).tolist()
    [False, False, True, False]
    """
    order = np.argsort(users, kind="stable")
    users, times = users[order], times[order]
    is_tied = np.zeros(len(users), np.bool_)
    is_tied[order[1:]] = (users[1:] == users[:-1]) & (times[1:] == times[:-1])
    return is_tied


def note_on_ties(n_tied: int, n_events: int, events: str = "events") -> str:
    """Say how many events have the same time as the user's previous one, and what that means.

    >>> note_on_ties(0, 10)
    "0.0 % of the events have the same time as the user's previous one"
    """
    share = f"{percent(n_tied / n_events)} of the {events} have the same time as the user's previous one"
    if not n_tied:
        return share
    return f"{share}: the order among them may be that of a file; the task moment counts them as one request"


def notes_on_order(
    times: np.ndarray[Any, Any], *, was_sorted: bool, n_repeated: int, repeats: Repeats
) -> tuple[str, ...]:
    """Return notes on sorted events, repeated pairs and unknown times."""
    notes = [] if was_sorted else ["the events were not in chronological order and have been sorted by time"]
    if n_repeated and repeats == "first":
        left_out = f"{n_repeated} repeated (user, item) pair(s) left out"
        notes.append(f"{left_out}: the first event of a pair counts (repeats='all' keeps all)")
    elif n_repeated:
        notes.append(
            f"{n_repeated} events repeat a (user, item) pair and are kept: they are learned and known, not tested"
        )
    return (*notes, *notes_on_times(times))


def first_of_each(keys: Rows) -> Rows:
    """Return the positions, in order, at which a key is seen for the first time."""
    _, first = np.unique(keys, return_index=True)
    return np.sort(first)


def pair_keys(users: Rows, items: Rows) -> Rows:
    """Return one integer per (user, item) pair, ordered by user and then by item."""
    keys = users << 32
    keys |= items
    return keys


def distinct_pair_keys(users: Rows, items: Rows) -> Rows:
    """Return the keys of the (user, item) pairs, sorted, each once.

    `np.unique` builds a hash table, which takes up to 60 times as long if few keys repeat.
    """
    keys = np.sort(pair_keys(users, items))
    is_first = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    return keys[is_first]
