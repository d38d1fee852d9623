"""The record of every update and decision: each entry holds the hash of the one before it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, insert, select

from fairstream.errors import WorkspaceError
from fairstream.service.database import canonical, now
from fairstream.service.schema import audit

_BEGINNING = "0" * 64
_AT_ONCE = 1000


@dataclass(frozen=True)
class Entry:
    """One line of the record."""

    seq: int
    time: int
    kind: str
    body: str
    previous: str
    hash: str

    @property
    def expected_hash(self) -> str:
        content = "\n".join((self.previous, str(self.seq), str(self.time), self.kind, self.body))
        return hashlib.sha256(content.encode()).hexdigest()


def record(connection: Connection, kind: str, body: Mapping[str, Any]) -> None:
    """Add an entry, in the transaction of what it tells about: both are there or neither."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("LOCK TABLE audit IN EXCLUSIVE MODE")  # one entry after the other
    last = connection.execute(select(audit.c.seq, audit.c.hash).order_by(audit.c.seq.desc()).limit(1)).first()
    seq, previous = (last.seq + 1, last.hash) if last else (1, _BEGINNING)
    entry = Entry(seq, now(), kind, canonical(body), previous, "")
    connection.execute(insert(audit).values(**{**vars(entry), "hash": entry.expected_hash}))


def entries(engine: Engine, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
    """The record after an entry, oldest first, read a part at a time."""
    left = float("inf") if limit is None else limit
    while left > 0:
        n = int(min(left, _AT_ONCE))
        part = select(audit).where(audit.c.seq > after).order_by(audit.c.seq).limit(n)
        with engine.connect() as connection:
            found = [Entry(**row._mapping) for row in connection.execute(part)]
        yield from found
        if len(found) < n:
            return
        after, left = found[-1].seq, left - n


def verify(engine: Engine) -> int:
    """How many entries there are, each unchanged and in its place; raises where one is not."""
    previous, n = _BEGINNING, 0
    for n, entry in enumerate(entries(engine), start=1):
        if (entry.seq, entry.previous, entry.hash) != (n, previous, entry.expected_hash):
            raise WorkspaceError(f"the audit record was tampered with: entry {n} does not follow from the one before")
        previous = entry.hash
    return n
