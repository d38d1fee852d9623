"""The audit record of updates and decisions: each entry holds the keyed hash of the one before it.

The key comes from the workspace's secret, so write access to the database alone cannot forge a record that verifies.
Entries that are missing at the end are found by a hash that was noted elsewhere (`fairstream audit --expect`).
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, insert, select

from fairstream.errors import WorkspaceError
from fairstream.service.database import canonical, now, reading
from fairstream.service.schema import audit

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
    """Check that every entry is unchanged and in its place; returns the number of entries.

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


def _hash(entry: Entry, key: bytes) -> str:
    content = "\n".join((entry.previous, str(entry.seq), str(entry.time), entry.kind, entry.body))
    return hmac.digest(key, content.encode(), "sha256").hex()
