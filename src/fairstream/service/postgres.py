"""PostgreSQL connections with bounded waits.

The server bounds what it can notice: locks, statements, transactions that their client has left idle, lost machines.
A server that is frozen, or behind a network that drops packets, bounds nothing, so a connection for requests also
gives up by itself.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import URL, Engine, create_engine, event

from fairstream.errors import ConfigurationError
from fairstream.service.database import canonical, read_text
from fairstream.service.schema import PEOPLE

CONNECT_SECONDS, WAIT_SECONDS, STATEMENT_SECONDS, SILENCE_SECONDS = 3, 5, 8, 10
"""For requests: to connect, to wait for a lock or a free connection, to run a statement, to hear from the server."""
JOB_SECONDS = 3600  # for updates, migrations and other jobs: to run a statement, and to hear from the server
_SCHEMA = re.compile(r"[a-z][a-z0-9_]{0,49}")  # a name that needs no quotes
IDLE_SECONDS = 30  # then the server ends an idle transaction: a frozen process would keep its locks
_NETWORK = {  # what the client's system does about a lost server
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that closes when the server is silent for `max_silence` seconds."""

    max_silence: float = JOB_SECONDS

    def wait(self, gen: Any, *options: Any, **more: Any) -> Any:
        return super().wait(self._bounded(gen), *options, **more)

    def _bounded(self, gen: Any) -> Generator[Any, Any, Any]:
        """Pass on what the driver waits for, ten times a second, until the server has been silent for too long."""
        try:
            state, last = next(gen), time.monotonic()
            while True:
                if ready := (yield state):
                    last = time.monotonic()
                elif time.monotonic() - last > self.max_silence:
                    self.close()  # a later answer would be taken for that of the next statement
                    raise psycopg.OperationalError(f"the server has not answered for {self.max_silence:g} s")
                state = gen.send(ready)
        except StopIteration as ended:
            return ended.value


def postgres(address: URL, *, for_requests: bool) -> Engine:
    """Return an engine whose waits end: after seconds for requests, after an hour for jobs.

    `?schema=NAME` in the address puts all tables into that schema, and people's groups into NAME_people.
    """
    schema = address.query.get("schema", "public")
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema):
        raise ConfigurationError(
            f"a schema must be named by at most 50 lower-case letters, digits and _, the first a letter, got {schema!r}"
        )
    password_file = os.environ.get("FAIRSTREAM_DATABASE_PASSWORD_FILE")
    if password_file is not None and address.password is None:
        address = address.set(password=read_text(Path(password_file)))
    engine = create_engine(
        address.difference_update_query(["schema"]).set(drivername="postgresql+psycopg"),
        pool_pre_ping=True,
        pool_timeout=WAIT_SECONDS,
        json_serializer=canonical,
        connect_args={name: value for name, value in _NETWORK.items() if name not in address.query},
    )
    of_people = PEOPLE if schema == "public" else f"{schema}_{PEOPLE}"
    settings: dict[str, int | str] = {
        "search_path": f"{schema}, {of_people}",
        "tcp_keepalives_idle": 30,  # by default the server waits two hours for a machine that lost its power
        "tcp_keepalives_interval": 10,
        "tcp_keepalives_count": 3,
        "idle_in_transaction_session_timeout": 1000 * IDLE_SECONDS,
        "statement_timeout": 1000 * (STATEMENT_SECONDS if for_requests else JOB_SECONDS),
        "lock_timeout": 1000 * (WAIT_SECONDS if for_requests else JOB_SECONDS),
    }
    setting = "; ".join(f"SET {name} = {value}" for name, value in settings.items())

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, arguments: Any, options: Any) -> BoundedConnection:
        connection = BoundedConnection.connect(*arguments, **options)
        connection.max_silence = SILENCE_SECONDS if for_requests else JOB_SECONDS
        connection.execute(setting)  # not as options of the connection, which a pool such as pgbouncer refuses
        connection.commit()
        return connection

    return engine.execution_options(schema=schema, people_schema=of_people)
