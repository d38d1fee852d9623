"""Who belongs to which group, and who was forgotten.

An id that was forgotten gets no attribute again: the next import of all users cannot tell a new person from the old.

Groups are kept apart from everything else: SQLite has them in a second file, PostgreSQL in a separate schema.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import sleep

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Engine, select
from sqlalchemy.dialects import postgresql, sqlite

from fairstream.service.database import OF_SCHEMA, PAUSE_SECONDS, reading, select_rows, writing
from fairstream.service.schema import attributes, forgotten

_WRITERS = 0x70656F70  # the number of PostgreSQL's lock that writers of attributes hold, one after the other
_AT_ONCE = 10_000
_ROWS_OF_A_TRANSACTION = 50_000  # some tenths of a second, for which SQLite keeps writers of events waiting


@dataclass(frozen=True)
class UsersReceipt:
    """How many users were stored."""

    stored: int
    forgotten: int  # users who were forgotten: their values are not stored

    def plus(self, other: UsersReceipt) -> UsersReceipt:
        return UsersReceipt(self.stored + other.stored, self.forgotten + other.forgotten)

    def __str__(self) -> str:
        return f"{self.stored:,} users" + (f", {self.forgotten:,} forgotten ones left out" if self.forgotten else "")


class PeopleStore:
    """The groups of people."""

    def __init__(self, engine: Engine, secret: bytes) -> None:
        self._engine, self._secret = engine, secret

    def put(self, people: pa.Table) -> UsersReceipt:
        """Store the value of each user of a checked table, the last one where there are several."""
        place = pa.array(np.arange(len(people)))
        last = people.append_column("place", place).group_by("user_id").aggregate([("place", "max")])
        rows, receipt = people.take(last["place_max"].sort()), UsersReceipt(0, 0)
        for start in range(0, len(rows), _ROWS_OF_A_TRANSACTION):
            if start:
                sleep(PAUSE_SECONDS)  # lets writers of events in
            receipt = receipt.plus(self._put(rows.slice(start, _ROWS_OF_A_TRANSACTION)))
        return receipt

    def _put(self, rows: pa.Table) -> UsersReceipt:
        with writing(self._engine) as connection:
            _one_writer(connection)  # a forgetting that comes now removes them after this
            forgotten_users = forgotten_until(connection, self._secret, rows["user_id"].to_pylist())
            remaining = rows.filter(pc.invert(pc.is_in(rows["user_id"], pa.array(list(forgotten_users), pa.string()))))
            if len(remaining):
                new = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(attributes)
                changed = new.on_conflict_do_update(index_elements=["user_id"], set_={"value": new.excluded.value})
                connection.execute(changed, remaining.to_pylist())
        return UsersReceipt(len(remaining), len(rows) - len(remaining))

    def values(self) -> pa.Table:
        """Return the columns user_id and value of everyone who has a value, by user_id."""
        with reading(self._engine) as connection:
            return select_rows(connection, select(attributes).order_by(attributes.c.user_id))

    def values_of(self, user_ids: Collection[str]) -> dict[str, str]:
        """Return the values of those of the users who have one."""
        values: dict[str, str] = {}
        with reading(self._engine) as connection:
            for part in in_parts(list(user_ids)):
                values |= dict(connection.execute(select(attributes).where(attributes.c.user_id.in_(part))).all())
        return values

    def remove(self, user_ids: Collection[str]) -> int:
        """Remove the values of users; return how many there were."""
        n_removed = 0
        with writing(self._engine) as connection:
            _one_writer(connection)
            for part in in_parts(list(user_ids)):
                n_removed += connection.execute(attributes.delete().where(attributes.c.user_id.in_(part))).rowcount
        return n_removed


def _one_writer(connection: Connection) -> None:
    """Let one transaction at a time write groups; on SQLite a transaction that writes is alone anyway."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS}, {OF_SCHEMA})")


def digests(secret: bytes, user_ids: Iterable[str]) -> list[str]:
    """Return the HMAC-SHA256 of each id, which identifies nobody without the workspace's secret."""
    return [hmac.digest(secret, user_id.encode(), "sha256").hex() for user_id in user_ids]


def forgotten_until(connection: Connection, secret: bytes, user_ids: Iterable[str]) -> dict[str, int]:
    """Return the users who were forgotten, each with the time up to which their events are rejected."""
    if connection.execute(select(forgotten.c.digest).limit(1)).first() is None:
        return {}
    names = list(user_ids)
    user_of = dict(zip(digests(secret, names), names, strict=True))
    until = dict[str, int]()
    for part in in_parts(list(user_of)):
        rows = connection.execute(select(forgotten.c.digest, forgotten.c.until).where(forgotten.c.digest.in_(part)))
        until |= {user_of[digest]: time for digest, time in rows}
    return until


def in_parts(values: Sequence[str], most: int = _AT_ONCE) -> Iterator[Sequence[str]]:
    """Split ids into parts that one statement can name."""
    return (values[start : start + most] for start in range(0, len(values), most))
