"""Every event once, in the order of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, func, select

from fairstream.service.database import insert_rows, reachable, select_rows, writing
from fairstream.service.incoming import Batch
from fairstream.service.people import forgotten_until, in_parts
from fairstream.service.schema import events, events_of_user, of_users, periods
from fairstream.service.workspace import Workspace

_READ = pa.schema([("seq", pa.int64()), ("user_id", pa.string()), ("item_id", pa.string()), ("time", pa.int64())])
_ROWS_OF_A_PART = 1_000_000
_WRITERS = 0x66616972
"""The number of PostgreSQL's lock that writers of events hold, one after the other."""
_KNOWN = "SELECT event_id FROM events WHERE event_id = ANY ((SELECT string_to_array(%s, chr(10)))::text[])"
_KNOWN_AT_ONCE = 100_000
"""Ids in no order are looked up in half of the time of ten statements; more of them would take much memory."""
_SQLITE_CACHE_KIB = 32 << 10
"""Of each connection that has written events; ids in no order are stored no faster with more."""


class Receipt(NamedTuple):
    """What became of a batch."""

    accepted: int
    repeated: int
    forgotten: int

    def plus(self, other: Receipt) -> Receipt:
        """Both together."""
        return Receipt(*(one + another for one, another in zip(self, other, strict=True)))

    def __str__(self) -> str:
        return f"{self.accepted:,} accepted, {self.repeated:,} repeated, {self.forgotten:,} of forgotten users"


class EventStore:
    """The events of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._engine, self._secret = workspace.engine, workspace.secret

    def append(self, batch: Batch) -> Receipt:
        """Store a batch whole, on disk when this returns; of events with the same id the first one counts."""
        return self.append_all([batch])[0]

    def append_all(self, batches: list[Batch]) -> list[Receipt]:
        """Store several batches in one transaction, in their order: all of them or none."""
        with reachable(self._engine), writing(self._engine) as connection:
            one_writer(connection)
            return [self._insert(connection, batch) for batch in batches]

    def _insert(self, connection: Connection, batch: Batch) -> Receipt:
        rows = self._without_forgotten(connection, batch.table)
        insert = _insert_new if connection.dialect.name == "postgresql" else _insert_each
        accepted = insert(connection, rows)
        return Receipt(accepted, len(rows) - accepted, len(batch) - len(rows))

    def n_open(self) -> int:
        """How many events wait for the next update; a few more where numbers were left out."""
        with reachable(self._engine), self._engine.connect() as connection:
            closed = connection.scalar(select(func.max(periods.c.last_seq))) or 0
            return max(0, _last_seq(connection) - closed)

    def read(self, after: int, until: int | None = None, limit: int | None = None) -> pa.Table:
        """seq, user_id, item_id and time of the events with after < seq <= until, by seq; the first `limit` of them."""
        end = "" if until is None else f" AND seq <= {int(until)}"
        most = "" if limit is None else f" LIMIT {int(limit)}"
        query = f"SELECT seq, user_id, item_id, time FROM events WHERE seq > {int(after)}{end} ORDER BY seq{most}"  # noqa: S608
        with reachable(self._engine), self._engine.connect() as connection:
            return select_rows(connection, query, _READ)

    def parts(self) -> Iterator[pa.Table]:
        """All events, a million at a time."""
        after = 0
        while len(part := self.read(after, limit=_ROWS_OF_A_PART)):
            yield part
            after = part["seq"][-1].as_py()

    def last_seq(self) -> int:
        """The number of the last event, 0 where there is none.

        No event with a smaller one can still appear: writers wait for each other before they are given numbers.
        """
        with reachable(self._engine), self._engine.connect() as connection:
            return _last_seq(connection)

    def items_of(self, user_id: str) -> list[str]:
        """The items that a user has had, the first time of each counting."""
        query = select(events.c.item_id).where(of_users(self._engine.dialect, [user_id])).order_by(events.c.seq)
        with reachable(self._engine), self._engine.connect() as connection:
            return list(dict.fromkeys(connection.scalars(query)))

    def _without_forgotten(self, connection: Connection, rows: pa.Table) -> pa.Table:
        """Leave out events of forgotten users from before they were forgotten, so that a replay brings nobody back."""
        users = rows["user_id"].combine_chunks().dictionary_encode()
        names = users.dictionary.to_pylist()
        known = forgotten_until(connection, self._secret, names)
        if not known:
            return rows
        until = np.array([known.get(name, np.iinfo(np.int64).min) for name in names], dtype=np.int64)
        return rows.filter(pc.greater(rows["time"], pa.array(until).take(users.indices)))


def one_writer(connection: Connection) -> None:
    """Wait for whoever writes events, until the end of the transaction; whoever deletes some waits here too."""
    if connection.dialect.name == "postgresql":
        # Many events take long to copy; that the server has stopped answering the connection finds out by itself.
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = 0; SELECT pg_advisory_xact_lock({_WRITERS})")
    else:  # a transaction that writes is alone anyway; it needs only room to work in
        connection.exec_driver_sql(f"PRAGMA main.cache_size = -{_SQLITE_CACHE_KIB}")


def _last_seq(connection: Connection) -> int:
    return connection.scalar(select(func.max(events.c.seq))) or 0


def _insert_new(connection: Connection, rows: pa.Table) -> int:
    """PostgreSQL: look up which events are there already, and add the others without looking at each.

    Other writers wait, so that nothing comes in between.
    """
    ids = rows["event_id"].combine_chunks().dictionary_encode()
    if len(ids.dictionary) < len(ids):  # some are there twice; the dictionary has the order of the first ones
        rows = rows.take(np.unique(ids.indices, return_index=True)[1])
    # The server takes any list for a short one, and would compare each event of a small table with all of its ids.
    connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
    known: list[str] = []
    for part in in_parts(ids.dictionary.to_pylist(), _KNOWN_AT_ONCE):
        known += connection.exec_driver_sql(_KNOWN, ("\n".join(part),)).scalars()  # ids hold no control characters
    if known:
        rows = rows.filter(pc.invert(pc.is_in(rows["event_id"], pa.array(known, pa.string()))))
    return insert_rows(connection, "events", rows)


def _insert_each(connection: Connection, rows: pa.Table) -> int:
    """SQLite: insert each that is not there already."""
    before = connection.exec_driver_sql("SELECT seq FROM sqlite_sequence WHERE name = 'events'").scalar() or 0
    accepted = insert_rows(connection, "events", rows, "ON CONFLICT (event_id) DO NOTHING")
    new = select(events.c.user_id, events.c.seq).where(events.c.seq > before)
    in_order = new.order_by(events.c.user_id, events.c.seq)
    connection.execute(events_of_user.insert().from_select(["user_id", "seq"], in_order))
    if accepted < len(rows):  # those used up numbers, and a stream sent again and again would look like a flood
        last = max(before, _last_seq(connection))  # a number of an event that has been deleted since stays used
        connection.exec_driver_sql("UPDATE sqlite_sequence SET seq = ? WHERE name = 'events'", (last,))
    return accepted
