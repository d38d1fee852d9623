"""Who belongs to which group, and who was forgotten.

An id that was forgotten gets no attribute again: the next import of all users cannot tell a new person from the old.

Groups have a separate store. SQLite keeps it in a second file. PostgreSQL keeps it in a separate schema, which another
role may own: the address of that role is then in the workspace's file `people-database`.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Engine, select
from sqlalchemy.dialects import postgresql, sqlite

from fairstream.service.database import OF_SCHEMA, people_schema, reading, select_rows, writing
from fairstream.service.schema import PEOPLE, attributes, forgotten

_SCHEMA = pa.schema([("user_id", pa.string()), ("value", pa.string())])
_WRITERS = 0x70656F70  # the number of PostgreSQL's lock that writers of attributes hold, one after the other
_AT_ONCE = 10_000


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
    """The attributes of people, with what is known of those who were forgotten."""

    def __init__(self, engine: Engine, service: Engine, secret: bytes) -> None:
        is_sqlite = engine.dialect.name == "sqlite"
        # One table under two names: in a schema of PostgreSQL, or alone in a file.
        self.engine = engine.execution_options(schema_translate_map={PEOPLE: None}) if is_sqlite else engine
        schema = people_schema(self.engine)
        self._table = attributes.name if schema is None else f"{schema}.{attributes.name}"
        self._service, self._secret = service, secret

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.dispose()

    def put(self, people: pa.Table) -> UsersReceipt:
        """Store the value of each user of a checked table, the last one where there are several."""
        place = pa.array(np.arange(len(people)))
        last = people.append_column("place", place).group_by("user_id").aggregate([("place", "max")])
        rows = people.take(last["place_max"].sort())
        with writing(self.engine) as connection:
            self._wait_for_others(connection)  # a forgetting that comes now removes them after this
            with reading(self._service) as service:
                gone = forgotten_until(service, self._secret, rows["user_id"].to_pylist())
            remaining = rows.filter(pc.invert(pc.is_in(rows["user_id"], pa.array(list(gone), pa.string()))))
            if len(remaining):
                new = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(attributes)
                changed = new.on_conflict_do_update(index_elements=["user_id"], set_={"value": new.excluded.value})
                connection.execute(changed, remaining.to_pylist())
        return UsersReceipt(len(remaining), len(rows) - len(remaining))

    def values(self) -> pa.Table:
        """user_id and value of everybody who has one, by user_id."""
        query = f"SELECT user_id, value FROM {self._table} ORDER BY user_id"  # noqa: S608
        with reading(self.engine) as connection:
            return select_rows(connection, query, _SCHEMA)

    def values_of(self, user_ids: Collection[str]) -> dict[str, str]:
        """The values of those of the users who have one."""
        found: dict[str, str] = {}
        with reading(self.engine) as connection:
            for part in in_parts(list(user_ids)):
                query = select(attributes.c.user_id, attributes.c.value).where(attributes.c.user_id.in_(part))
                found |= dict(connection.execute(query).all())
        return found

    def remove(self, user_ids: Collection[str]) -> int:
        n_removed, wanted = 0, list(user_ids)
        with writing(self.engine) as connection:
            self._wait_for_others(connection)
            for part in in_parts(wanted):
                n_removed += connection.execute(attributes.delete().where(attributes.c.user_id.in_(part))).rowcount
        return n_removed

    def _wait_for_others(self, connection: Connection) -> None:
        """Until the end of the transaction no other one writes attributes; on SQLite that is so anyway."""
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS}, {OF_SCHEMA})")


def digests(secret: bytes, user_ids: Iterable[str]) -> list[str]:
    """HMAC-SHA256 of each id: without the workspace's secret it tells nobody who it was."""
    return [hmac.digest(secret, user_id.encode(), "sha256").hex() for user_id in user_ids]


def forgotten_until(connection: Connection, secret: bytes, user_ids: Iterable[str]) -> dict[str, int]:
    """Those of the users who were forgotten, each with the time up to which their events are not taken again."""
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
