"""The events of a workspace: each is stored once, in the order of arrival.

An event belongs to the period that is open when it arrives, whatever its own time. An update orders the events of a
period by time and holds some out (see `hold_out`): they judge the candidate that has learned the others, and the next
update learns them.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from time import sleep

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Engine, case, delete, func, select, update

from fairstream.service import schema
from fairstream.service.audit import record
from fairstream.service.database import (
    OF_SCHEMA,
    PAUSE_SECONDS,
    add_to,
    canonical,
    insert_rows,
    now,
    reading,
    select_rows,
    writing,
)
from fairstream.service.hold_out import Split, split
from fairstream.service.people import forgotten_until, in_parts
from fairstream.service.records import Period
from fairstream.service.schema import events, events_of_user, of_users, open_events, periods
from fairstream.service.settings import Limits
from fairstream.service.workspace import Workspace

_COLUMNS = (events.c.seq, events.c.user_id, events.c.item_id, events.c.time, events.c.kind)
_ROWS_OF_A_PART = 1_000_000
_WRITERS = 0x66616972  # the number of PostgreSQL's lock that writers of events hold, one after the other
_KNOWN = {  # which of a JSON list of ids are stored: a look at the index for each, no join
    "postgresql": "SELECT event_id FROM events WHERE event_id = ANY (ARRAY(SELECT json_array_elements_text(%s::json)))",
    "sqlite": "SELECT value FROM json_each(?) WHERE value IN (SELECT event_id FROM events)",
}
_KNOWN_AT_ONCE = 100_000  # ids in no order: twice as fast as ten statements; more would take much memory
_SQLITE_CACHE_KIB = 32 << 10  # of a connection that has written events; with more, ids in no order are no faster
_PRUNED_AT_ONCE = 5_000  # few: an update has a low priority and must not hold the lock of writers for seconds
_FULL = 0.9
_DAY = 86_400_000_000


@dataclass(frozen=True)
class EventsReceipt:
    """The numbers of events of a batch that are new, known by their ids, or of forgotten people."""

    accepted: int
    repeated: int
    forgotten: int

    def plus(self, other: EventsReceipt) -> EventsReceipt:
        return EventsReceipt(*map(add, vars(self).values(), vars(other).values()))

    def __str__(self) -> str:
        return f"{self.accepted:,} accepted, {self.repeated:,} repeated, {self.forgotten:,} of forgotten users"


class EventStore:
    """The events of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._engine, self._secret = workspace.engine, workspace.secret
        self._learned = pa.array(workspace.config.events.learned, pa.string())

    def append(self, batch: pa.Table) -> EventsReceipt:
        """Store a batch whole, on disk when this returns; of events with the same id the first one counts."""
        return self.append_all([batch])[0]

    def append_all(self, batches: list[pa.Table], keys: Sequence[str | None] = ()) -> list[EventsReceipt]:
        """Store several batches in one transaction, in their order: all of them or none.

        `keys` names the ingest key of each batch, whose events are counted until an update closes the period.
        """
        with writing(self._engine) as connection:
            one_writer(connection)
            receipts = [self._insert(connection, batch) for batch in batches]
            sent = Counter[str]()
            for key, receipt in zip(keys, receipts, strict=False):
                if key is not None:
                    sent[key] += receipt.accepted
            for key, n in sorted(sent.items()):
                add_to(connection, open_events.c.n, key, n)
            return receipts

    def _insert(self, connection: Connection, batch: pa.Table) -> EventsReceipt:
        rows = self._without_forgotten(connection, batch)
        new, before = _without_known(connection, rows), last_seq(connection)
        insert_rows(connection, events, new)
        if connection.dialect.name == "sqlite":
            added = select(events.c.user_id, events.c.seq).where(events.c.seq > before)
            in_order = added.order_by(events.c.user_id, events.c.seq)
            connection.execute(events_of_user.insert().from_select(["user_id", "seq"], in_order))
        return EventsReceipt(len(new), len(rows) - len(new), len(batch) - len(rows))

    def n_open(self) -> int:
        """Return how many events wait for the next update; gaps in their numbers count, too."""
        with reading(self._engine) as connection:
            closed = connection.scalar(select(func.max(periods.c.last_seq))) or 0
            return max(0, last_seq(connection) - closed)

    def open_by_key(self) -> tuple[dict[str, int], int]:
        """Return how many open events each ingest key has sent, and the number of valid ingest keys."""
        valid = select(func.count()).where(schema.keys.c.scope == "ingest", schema.keys.c.revoked.is_(None))
        with reading(self._engine) as connection:
            return dict(connection.execute(select(open_events)).all()), connection.scalar(valid) or 0

    def pairs_of(self, kinds: Collection[str], until: int) -> list[tuple[str, str]]:
        """Return the users and items of all events of some kinds up to a number."""
        query = select(events.c.user_id, events.c.item_id).where(events.c.kind.in_(kinds))
        pairs = list[tuple[str, str]]()
        for start in range(0, until, _ROWS_OF_A_PART):  # each part ends before the server would end the statement
            part = query.where(events.c.seq > start, events.c.seq <= min(until, start + _ROWS_OF_A_PART))
            with reading(self._engine) as connection:
                pairs += [(row.user_id, row.item_id) for row in connection.execute(part)]
        return pairs

    def read(self, after: int, until: int | None = None, limit: int | None = None) -> pa.Table:
        """Return the events with after < seq <= until, by seq; the first `limit` of them."""
        query = select(*_COLUMNS).where(events.c.seq > after).order_by(events.c.seq).limit(limit)
        if until is not None:
            query = query.where(events.c.seq <= until)
        with reading(self._engine) as connection:
            return select_rows(connection, query)

    def learned(self, after: int, until: int) -> pa.Table:
        """Return the events with after < seq <= until of the kinds that models learn."""
        events = self.read(after, until)
        return events.filter(pc.is_in(events["kind"], self._learned))

    def parts(self) -> Iterator[pa.Table]:
        """Yield all events, a million at a time."""
        after = 0
        while len(part := self.read(after, limit=_ROWS_OF_A_PART)):
            yield part
            after = part["seq"][-1].as_py()

    def last_seq(self) -> int:
        """Return the number of the last event, 0 if there is none.

        No event with a smaller number appears later: only one transaction at a time takes numbers.
        """
        with reading(self._engine) as connection:
            return last_seq(connection)

    def items_of(self, user_id: str) -> list[str]:
        """Return the items of a user's events, each once, in the order of the first events."""
        query = select(events.c.item_id).where(of_users(self._engine.dialect, [user_id])).order_by(events.c.seq)
        with reading(self._engine) as connection:
            return list(dict.fromkeys(connection.scalars(query)))

    def _without_forgotten(self, connection: Connection, rows: pa.Table) -> pa.Table:
        """Drop events of forgotten users from before they were forgotten: a replay brings nobody back."""
        users = rows["user_id"].combine_chunks().dictionary_encode()
        names = users.dictionary.to_pylist()
        known = forgotten_until(connection, self._secret, names)
        if not known:
            return rows
        until = np.array([known.get(name, np.iinfo(np.int64).min) for name in names], dtype=np.int64)
        return rows.filter(pc.greater(rows["time"], pa.array(until).take(users.indices)))


def is_full(n_open: int, limits: Limits) -> bool:
    """Return whether ingest refuses more events, or may soon: a tenth is left for one large batch."""
    return n_open >= _FULL * limits.max_open_events


def close_by_key(connection: Connection, closed: Mapping[str, int]) -> None:
    """Subtract the events of a closed period from the counts of their keys."""
    for key, n in closed.items():
        left = case((open_events.c.n > n, open_events.c.n - n), else_=0)
        connection.execute(update(open_events).where(open_events.c.key == key).values(n=left))


def one_writer(connection: Connection) -> None:
    """Let one transaction at a time write or delete events."""
    if connection.dialect.name == "postgresql":
        # Copying many events takes long; `BoundedConnection` notices a server that stops answering.
        lock = f"SELECT pg_advisory_xact_lock({_WRITERS}, {OF_SCHEMA})"
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = 0; {lock}")
    else:  # a transaction that writes is alone anyway; it needs only memory
        connection.exec_driver_sql(f"PRAGMA main.cache_size = -{_SQLITE_CACHE_KIB}")


def last_seq(connection: Connection) -> int:
    """Return the number of the last event."""
    return connection.scalar(select(func.max(events.c.seq))) or 0


def _without_known(connection: Connection, rows: pa.Table) -> pa.Table:
    """Drop events that are stored, and all but the first with the same id; other writers wait meanwhile."""
    ids = rows["event_id"].combine_chunks().dictionary_encode()
    if len(ids.dictionary) < len(ids):  # the dictionary has the order of the first ones
        rows = rows.take(np.unique(ids.indices, return_index=True)[1])
    if connection.dialect.name == "postgresql":
        # The server takes any list for a short one, and would compare each event of a small table with all of its ids.
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
    known: list[str] = []
    for part in in_parts(ids.dictionary.to_pylist(), _KNOWN_AT_ONCE):
        known += connection.exec_driver_sql(_KNOWN[connection.dialect.name], (canonical(part),)).scalars()
    return rows.filter(pc.invert(pc.is_in(rows["event_id"], pa.array(known, pa.string())))) if known else rows


def prune(workspace: Workspace) -> int:
    """Delete events older than `retention.events_days`; return how many there were.

    Events from the first period of a kept model on stay: a rollback learns from them.
    """
    days = workspace.config.retention.events_days
    if days is None:
        return 0
    models, periods, events = schema.models.c, schema.periods.c, schema.events.c
    first_needed = (
        select(func.min(periods.first_seq))
        .join_from(schema.models, schema.periods, periods.t == models.t)
        .where(
            models.folder.in_(workspace.models.names())
            | (models.id == select(schema.service.c.model).scalar_subquery())
        )
    )
    before, n_deleted = now() - days * _DAY, 0
    with reading(workspace.engine) as connection:
        first_kept = connection.scalar(first_needed) or 0
    old = select(events.seq).where(events.seq < first_kept, events.time < before).order_by(events.seq)
    while True:
        with writing(workspace.engine) as connection:
            one_writer(connection)
            part = delete(schema.events).where(events.seq.in_(old.limit(_PRUNED_AT_ONCE)))
            n_deleted += (n := connection.execute(part).rowcount)
            if n < _PRUNED_AT_ONCE:
                if n_deleted:
                    record(connection, "prune", {"n_events": n_deleted, "before": before})
                return n_deleted
        sleep(PAUSE_SECONDS)  # lets writers of events in


def closed_periods(
    engine: Engine, *, after: int | None = None, before: int | None = None, limit: int | None = None
) -> list[Period]:
    """Return closed periods, the earliest first: up to `limit`, the first ones after a period, else the last ones."""
    t = periods.c.t
    page = select(periods).order_by(t if after is not None else t.desc()).limit(limit)
    if after is not None:
        page = page.where(t > after)
    if before is not None:
        page = page.where(t < before)
    with reading(engine) as connection:
        rows = connection.execute(page).mappings()
        return sorted((Period(**row) for row in rows), key=lambda period: period.t)


def in_order(events: pa.Table) -> pa.Table:
    """Sort events by time, those of one time by arrival."""
    return events.sort_by([("time", "ascending"), ("seq", "ascending")])


def split_events(workspace: Workspace, events: pa.Table, t: int, held_out: float, max_of_user: int) -> Split:
    """Split the events of period t, in order, into learned and held-out ones."""
    key = hmac.digest(workspace.secret, f"hold out {t}".encode(), "sha256")
    return split(events, key, share=held_out, max_of_user=max_of_user)


def split_of(workspace: Workspace, period: Period) -> Split:
    """Split the events of a closed period, without those of users forgotten since, as its update did."""
    events = in_order(EventStore(workspace).learned(period.first_seq - 1, period.last_seq))
    return split_events(workspace, events, period.t, period.held_out, period.max_of_user)
