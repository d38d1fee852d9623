"""The event log: who, what, when, and which group."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fairstream.data.columns import Columns
from fairstream.data.groups import Groups
from fairstream.data.storage import StoredLog, write_log
from fairstream.data.vocabulary import Rows, Vocabulary
from fairstream.errors import DataError

_IDS_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False)
class EventLog:
    """Interactions in chronological order, as dense rows, one per (user, item) pair.

    Rows are given in the order of first appearance, so the users and items known after the
    first n events are exactly the rows below `n_users_after(n)` and `n_items_after(n)`.

    Make one with `fairstream.read_events`.

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
    """What reading did to the events: one sentence for each thing left out or moved."""

    @classmethod
    def from_columns(cls, user_ids: Any, item_ids: Any, times: np.ndarray[Any, Any]) -> EventLog:
        """Order the events, drop repeated pairs, and give rows to the ids."""
        require_events(len(times))
        was_sorted = is_chronological(times)
        if not was_sorted:
            order = np.argsort(times, kind="stable")
            user_ids, item_ids, times = user_ids.take(order), item_ids.take(order), times[order]
        users, items = Vocabulary(), Vocabulary()
        user_rows, item_rows = users.extend(user_ids), items.extend(item_ids)
        first = first_of_each(pair_keys(user_rows, item_rows))
        notes = notes_on_order(was_sorted=was_sorted, n_repeated=len(times) - len(first))
        if len(first) < len(times):
            user_rows, item_rows, times = user_rows[first], item_rows[first], times[first]
        return cls(user_rows, item_rows, times, users, items, notes=notes)

    def save(self, folder: str | Path) -> None:
        """Write the log into a new folder, as `fairstream.ingest` does; `read_events` opens it again.

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
            kept = ("attribute", "names", "choice", "ahead")
            about["groups"] = {name: getattr(self.groups, name) for name in kept}
        write_log(Path(folder), arrays, about)

    @classmethod
    def open(cls, folder: str | Path) -> EventLog:
        """A log that was saved. Its columns stay in their files; only what is used is read into memory."""
        stored = StoredLog(Path(folder))
        with stored.sound():
            users, items, times = (stored.column(name) for name in ("users", "items", "times"))
            user_ids, item_ids = (Vocabulary.of_distinct(stored.ids(name)) for name in ("user_ids", "item_ids"))
            about, groups = stored.about, stored.about["groups"]
            if groups is not None:
                codes = stored.column("codes")
                groups = Groups(
                    groups["attribute"], tuple(groups["names"]), codes, groups["choice"], tuple(groups["ahead"])
                )
                stored.need(len(codes) == len(user_ids))
            stored.need(len(users) == len(items) == len(times) > 0)
            return cls(
                users, items, times, user_ids, item_ids, groups, Columns(**about["columns"]), tuple(about["notes"])
            )

    def __len__(self) -> int:
        return len(self.users)

    @property
    def n_users(self) -> int:
        """Users in the whole log."""
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        """Items in the whole log."""
        return len(self.item_ids)

    def n_users_after(self, n_events: int) -> int:
        """Users that the first `n_events` events have shown."""
        return int(self.users[:n_events].max(initial=-1)) + 1

    def n_items_after(self, n_events: int) -> int:
        """Items that the first `n_events` events have shown."""
        return int(self.items[:n_events].max(initial=-1)) + 1

    def require_groups(self) -> Groups:
        """The groups, at least two of them present, or a sentence that says how to get them."""
        if self.groups is None:
            raise DataError(
                "the log has no groups, so no disparity can be judged; "
                "read it with a users table and group=COLUMN (on the command line: --group COLUMN)"
            )
        if self.groups.n_occurring() < 2:
            there = self.groups.codes.max(initial=-1)
            found = "nobody's is known" if there < 0 else f"everybody's that is known is {self.groups.names[there]!r}"
            raise DataError(
                f"groups are compared, but among the users with events {self.groups.attribute} does not differ: "
                f"{found}; use events of two groups at least"
            )
        return self.groups

    def fingerprint(self) -> str:
        """A SHA-256 of the events, their order, and who is in which group: equal logs, equal hashes."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for ids in (self.user_ids.ids, self.item_ids.ids):
            for part in _as_json(ids):
                digest.update(part)
        columns = [self.users, self.items, self.times]
        if self.groups is not None:
            # By name, not by code: whose advantage is looked at does not make it other data.
            order = sorted(self.groups.names)
            place = np.array([*(order.index(name) for name in self.groups.names), -1], dtype=np.int16)
            digest.update(repr((self.groups.attribute, order)).encode())
            columns.append(place[self.groups.codes])
        for column in columns:
            digest.update(np.ascontiguousarray(column).view(np.uint8).data)
        return digest.hexdigest()


def _as_json(ids: pa.Array) -> Iterator[bytes]:
    """The ids as one JSON list, a piece at a time: as Python objects all at once they would fill the memory."""
    yield b"["
    for start in range(0, len(ids), _IDS_AT_ONCE):
        part = json.dumps(ids.slice(start, _IDS_AT_ONCE).to_pylist())[1:-1]
        yield (", " + part if start else part).encode()
    yield b"]"


def require_events(n_events: int) -> None:
    """A log has one event at least."""
    if n_events == 0:
        raise DataError("the log has no events; at least one is needed")


def is_chronological(times: np.ndarray[Any, Any]) -> bool:
    """Whether no event comes before an earlier one."""
    return bool(np.all(times[:-1] <= times[1:]))


def notes_on_order(*, was_sorted: bool, n_repeated: int) -> tuple[str, ...]:
    """What putting the events in order has done to them."""
    notes = {
        "the events were not in chronological order and have been sorted by time": not was_sorted,
        f"{n_repeated} repeated (user, item) pair(s) left out: the first event of a pair counts": n_repeated > 0,
    }
    return tuple(note for note, is_so in notes.items() if is_so)


def first_of_each(keys: Rows) -> Rows:
    """The positions, in order, at which a key is seen for the first time."""
    _, first = np.unique(keys, return_index=True)
    return np.sort(first)


def pair_keys(users: Rows, items: Rows) -> Rows:
    """One integer per (user, item) pair, ordered by user and then by item."""
    keys = users << 32
    keys |= items
    return keys
