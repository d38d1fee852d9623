"""The audit record of updates and decisions: each entry contains the keyed hash of the one before it.

The key comes from the workspace's secret, so write access to the database alone cannot forge a record that verifies.
Entries that are missing at the end are found by a hash that was noted elsewhere (`fairstream audit --expect`).
"""

from __future__ import annotations

import hmac
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, func, insert, select

from fairstream.errors import WorkspaceError
from fairstream.service.database import canonical, now, reading
from fairstream.service.schema import audit, events, forgotten, models, periods

if TYPE_CHECKING:
    from fairstream.service.workspace import Workspace

_BEGINNING = "0" * 64
_PART_SIZE = 1000


@dataclass(frozen=True)
class Entry:
    """One line of the record."""

    seq: int
    time: int
    kind: str
    body: str
    previous: str
    hash: str


def audited(engine: Engine, secret: bytes) -> Engine:
    """Return the engine with the key of the audit record."""
    return engine.execution_options(audit_key=hmac.digest(secret, b"audit record", "sha256"))


def record(connection: Connection, kind: str, body: Mapping[str, Any]) -> None:
    """Add an entry in the transaction of the change that it records."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("LOCK TABLE audit IN EXCLUSIVE MODE")  # one entry after the other
    last = connection.execute(select(audit.c.seq, audit.c.hash).order_by(audit.c.seq.desc()).limit(1)).first()
    seq, previous = (last.seq + 1, last.hash) if last else (1, _BEGINNING)
    entry = Entry(seq, now(), kind, canonical(body), previous, "")
    digest = _hash(entry, connection.get_execution_options()["audit_key"])
    connection.execute(insert(audit).values(**{**vars(entry), "hash": digest}))


def entries(engine: Engine, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
    """Yield the entries after one, oldest first, read in parts."""
    left = float("inf") if limit is None else limit
    while left > 0:
        n = int(min(left, _PART_SIZE))
        query = select(audit).where(audit.c.seq > after).order_by(audit.c.seq).limit(n)
        with reading(engine) as connection:
            part = [Entry(**row._mapping) for row in connection.execute(query)]
        yield from part
        if len(part) < n:
            return
        after, left = part[-1].seq, left - n


def verify(engine: Engine, expect: str | None = None) -> int:
    """Check that every entry is unchanged and in its place; return the number of entries.

    `expect` is a hash that somebody noted before: an entry must have it.
    """
    key, previous, n = engine.get_execution_options()["audit_key"], _BEGINNING, 0
    is_expected = expect is None
    for n, entry in enumerate(entries(engine), start=1):
        if (entry.seq, entry.previous, entry.hash) != (n, previous, _hash(entry, key)):
            raise WorkspaceError(f"the audit record was tampered with: entry {n} does not follow from the one before")
        is_expected |= entry.hash == expect
        previous = entry.hash
    if n == 0:  # `init` writes the first entry
        raise WorkspaceError("the audit record was tampered with: it is empty")
    if not is_expected:
        raise WorkspaceError(f"the audit record was tampered with: none of its {n} entries has the hash {expect}")
    return n


def differences(workspace: Workspace) -> Iterator[str]:
    """Compare the files of models, forgotten people and events with the record; yield a sentence for each finding."""
    files, gone, n = dict[str, str](), set[str](), Counter[str]()
    for entry in entries(workspace.engine):
        body = json.loads(entry.body)
        if entry.kind == "update":
            files[body["id"]] = body["files"]
            n["closed"] += body["period"]["n_events"]
        elif entry.kind == "forget":
            gone.update(body["users"])
        elif entry.kind == "forgotten":
            files |= body["models"]
        n[entry.kind] += body.get("n_events", 0)
    with reading(workspace.engine) as connection:
        rows = connection.execute(select(models.c.id, models.c.folder)).all()
        missing = gone - set(connection.scalars(select(forgotten.c.digest)))
        last_closed = select(func.coalesce(func.max(periods.c.last_seq), 0)).scalar_subquery()
        n_events = connection.execute(select(func.count()).where(events.c.seq <= last_closed)).scalar_one()
    for row in rows:
        if any(each != files.get(row.id) for each in workspace.models.hashes(row.folder)):
            yield f"the files of model {row.id} are not those that the record has"
    if missing:
        yield f"{len(missing)} people whom the record has as forgotten are missing in the table of the forgotten"
    stored = n["closed"] - n["prune"]  # people who are forgotten take events with them that no update has closed yet
    if not stored - n["forget"] <= n_events <= stored:
        yield f"{n_events:,} events of closed periods are stored, and by the record there must be {stored:,}" + (
            f" but for up to {n['forget']:,} of forgotten people" if n["forget"] else ""
        )


def _hash(entry: Entry, key: bytes) -> str:
    content = "\n".join((entry.previous, str(entry.seq), str(entry.time), entry.kind, entry.body))
    return hmac.digest(key, content.encode(), "sha256").hex()
