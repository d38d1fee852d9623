"""The record of every update and decision: each entry holds the keyed hash of the one before it.

The key comes from the workspace's secret, so that nobody who can only write to the database can make a
record that verifies. The hash of the last entry is written beside the database after each commit, so that
entries missing at the end are found. What the record says of models, periods and keys must be in the tables.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, insert, select

from fairstream.errors import WorkspaceError
from fairstream.service import schema
from fairstream.service.database import HEAD, canonical, now
from fairstream.service.schema import audit

UPGRADE = "upgrade"
"""The kind of the first keyed entry of a record that an earlier version began without a key."""
_BEGINNING = "0" * 64
_AT_ONCE = 1000
_OF_MODEL = ("t", "parent", "state", "decision", "about")


@dataclass(frozen=True)
class Entry:
    """One line of the record."""

    seq: int
    time: int
    kind: str
    body: str
    previous: str
    hash: str


def audited(engine: Engine, secret: bytes, heads: tuple[Path, ...]) -> Engine:
    """The engine with the key of the record, and the files that its last hash is written to."""
    return engine.execution_options(audit_key=_key(secret), audit_heads=heads)


def record(connection: Connection, kind: str, body: Mapping[str, Any]) -> None:
    """Add an entry, in the transaction of what it tells about: both are there or neither."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("LOCK TABLE audit IN EXCLUSIVE MODE")  # one entry after the other
    last = connection.execute(select(audit.c.seq, audit.c.hash).order_by(audit.c.seq.desc()).limit(1)).first()
    seq, previous = (last.seq + 1, last.hash) if last else (1, _BEGINNING)
    entry = Entry(seq, now(), kind, canonical(body), previous, "")
    digest = _hash(entry, connection.get_execution_options()["audit_key"])
    connection.execute(insert(audit).values(**{**vars(entry), "hash": digest}))
    connection.info[HEAD] = f"{seq} {digest}\n"  # written when the transaction has ended


def entries(engine: Engine, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
    """The record after an entry, oldest first, read a part at a time."""
    left = float("inf") if limit is None else limit
    while left > 0:
        n = int(min(left, _AT_ONCE))
        with engine.connect() as connection:
            found = _part(connection, after, n)
        yield from found
        if len(found) < n:
            return
        after, left = found[-1].seq, left - n


def verify(engine: Engine, expect: str | None = None) -> int:
    """Check the record and the tables that it speaks of; gives the number of entries.

    `expect` is a hash that was noted before: the record must hold it.
    """
    heads = _read_heads(engine.get_execution_options()["audit_heads"])  # first: entries may be added meanwhile
    options: dict[str, Any] = {}
    if engine.dialect.name == "postgresql":
        options["isolation_level"] = "REPEATABLE READ"  # the record and the tables as of one moment
    with engine.connect().execution_options(**options) as connection:
        reader = _Reader(engine.get_execution_options()["audit_key"])
        while part := _part(connection, len(reader.hashes), _AT_ONCE):
            for entry in part:
                reader.read(entry)
        if not reader.is_keyed:
            raise WorkspaceError(
                "the audit record was tampered with: no entry of it has the key of this workspace; "
                "if its tables were never brought up, run `fairstream upgrade DIR`"
            )
        reader.check_heads(heads)
        if expect is not None and expect not in reader.hashes:
            raise WorkspaceError(
                f"the audit record was tampered with: none of its {len(reader.hashes)} entries has the hash {expect}"
            )
        reader.check_tables(connection)
    return len(reader.hashes)


def is_last_entry_of(connection: Connection, secret: bytes) -> bool:
    """Whether the last entry has the key of this secret, or no entry has any: there are none, or they are of 0.1.0."""
    last = connection.execute(select(audit).order_by(audit.c.seq.desc()).limit(1)).first()
    if last is None:
        return True
    entry = Entry(**last._mapping)
    return entry.hash in (_hash(entry, _key(secret)), _hash(entry, None))


def baseline(connection: Connection) -> dict[str, Any]:
    """What the tables say when a record gets its key, so that later changes can be told."""
    keys = schema.keys.c
    return {
        "models": dict(connection.execute(select(schema.models.c.id, schema.models.c.state)).all()),
        "service": connection.scalar(select(schema.service.c.model)),
        "n_periods": len(connection.execute(select(schema.periods.c.t)).all()),
        "keys": {
            row.name: {"scope": row.scope, "digest": row.digest, "revoked": row.revoked is not None}
            for row in connection.execute(select(keys.name, keys.scope, keys.digest, keys.revoked))
        },
    }


def _part(connection: Connection, after: int, n: int) -> list[Entry]:
    query = select(audit).where(audit.c.seq > after).order_by(audit.c.seq).limit(n)
    return [Entry(**row._mapping) for row in connection.execute(query)]


def _key(secret: bytes) -> bytes:
    return hmac.digest(secret, b"audit record", "sha256")


def _hash(entry: Entry, key: bytes | None) -> str:
    content = "\n".join((entry.previous, str(entry.seq), str(entry.time), entry.kind, entry.body)).encode()
    return hashlib.sha256(content).hexdigest() if key is None else hmac.digest(key, content, "sha256").hex()


def _read_heads(paths: tuple[Path, ...]) -> dict[Path, str]:
    """Number and hash in each file; a machine that has written no entry has none."""
    return {path: path.read_text().strip() for path in paths if path.exists()}


class _Reader:
    """Reads entries in their order, and what each says of the tables."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.is_keyed = False
        self.hashes: dict[str, int] = {}
        """The number of each entry, by its hash."""
        self._last = _BEGINNING
        self._models: dict[str, dict[str, Any]] = {}
        self._periods: dict[int, dict[str, Any]] = {}
        self._keys: dict[str, dict[str, Any]] = {}
        self._service: str | None = None
        self._n_before = 0

    def read(self, entry: Entry) -> None:
        seq = len(self.hashes) + 1
        is_keyed = self.is_keyed or seq == 1 or entry.kind == UPGRADE
        follows = (entry.seq, entry.previous) == (seq, self._last)
        if follows and is_keyed and entry.hash == _hash(entry, self._key):
            self.is_keyed = True
        elif not follows or self.is_keyed or entry.hash != _hash(entry, None):
            raise WorkspaceError(f"the audit record was tampered with: entry {seq} does not follow from the one before")
        self.hashes[entry.hash], self._last = seq, entry.hash
        if self.is_keyed:
            self._take(entry.kind, json.loads(entry.body))

    def _take(self, kind: str, body: dict[str, Any]) -> None:
        if kind == "update":
            self._models[body["id"]] = {name: body[name] for name in _OF_MODEL}
            self._periods[body["t"]] = body["period"]
            if body["state"] == "promoted":
                self._service = body["id"]
        elif kind in ("promote", "rollback"):
            self._models.setdefault(body["model"], {})["state"] = "promoted"
            self._service = body["model"]
        elif kind == "key":
            self._keys[body["name"]] = {name: body[name] for name in ("scope", "digest") if name in body}
            self._keys[body["name"]]["revoked"] = body["action"] == "revoked"
        elif kind == UPGRADE:
            self._models = {name: {"state": state} for name, state in body["models"].items()}
            self._keys, self._service, self._n_before = body["keys"], body["service"], body["n_periods"]

    def check_heads(self, heads: Mapping[Path, str]) -> None:
        """What was written beside the database must be in the record; entries after it may be there already."""
        for path, head in heads.items():
            seq, _, digest = head.partition(" ")
            if str(self.hashes.get(digest)) != seq:
                raise WorkspaceError(
                    f"the audit record was tampered with: entry {seq}, which {path} names, is not in it; "
                    f"it has {len(self.hashes)} entries"
                )

    def check_tables(self, connection: Connection) -> None:
        """Compare the tables with what the record says of them."""
        models = {row["id"]: dict(row) for row in connection.execute(select(schema.models)).mappings()}
        periods = {row["t"]: dict(row) for row in connection.execute(select(schema.periods)).mappings()}
        keys = {
            row["name"]: {**row, "revoked": row["revoked"] is not None}
            for row in connection.execute(select(schema.keys)).mappings()
        }
        service = connection.scalar(select(schema.service.c.model))
        _compare("model", self._models, models)
        _compare("period", self._periods, {t: row for t, row in periods.items() if t >= self._n_before})
        _compare("API key", self._keys, keys)
        if service != self._service:
            raise WorkspaceError(
                f"the tables were changed: model {service} is in service, the audit record says {self._service}"
            )


def _compare(what: str, said: Mapping[Any, Mapping[str, Any]], found: Mapping[Any, Mapping[str, Any]]) -> None:
    for name in sorted({*said, *found}, key=str):
        if name not in found or name not in said:
            lacks = "the table" if name not in found else "the audit record"
            raise WorkspaceError(f"the tables were changed: {what} {name} is not in {lacks}")
        for field, value in said[name].items():
            if canonical(value) != canonical(found[name][field]):
                raise WorkspaceError(f"the tables were changed: {field} of {what} {name} is not what the record says")
