"""One engine for SQLite and PostgreSQL, with the tables as this version wants them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from fairstream.errors import ConfigurationError, WorkspaceError
from fairstream.service.schema import PEOPLE

_WAIT_SECONDS = 60
"""How long a writer waits for another one before it gives up."""


class DatabaseUnavailableError(WorkspaceError):
    """The database cannot be reached, is locked, or cannot be written to."""


def now() -> int:
    """The clock, in microseconds since 1970."""
    return time.time_ns() // 1000


def connect(folder: Path, url: str | None = None) -> Engine:
    """SQLite in the folder, or PostgreSQL at a `postgresql://` address."""
    if url is None:
        return _sqlite(folder)
    try:
        address = make_url(url)
    except ArgumentError:
        address = None
    if address is None or address.get_backend_name() != "postgresql":
        raise ConfigurationError("the database must be given as postgresql://USER@HOST/NAME, or not at all for SQLite")
    return create_engine(address.set(drivername="postgresql+psycopg"), pool_pre_ping=True)


def _sqlite(folder: Path) -> Engine:
    engine = create_engine(f"sqlite:///{folder / 'events.sqlite'}", connect_args={"timeout": _WAIT_SECONDS})

    @event.listens_for(engine, "connect")
    def _begin(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver
        connection.execute(f"ATTACH DATABASE ? AS {PEOPLE}", (str(folder / "people.sqlite"),))
        for name in ("main", PEOPLE):
            connection.execute(f"PRAGMA {name}.journal_mode = WAL")
            connection.execute(f"PRAGMA {name}.synchronous = FULL")  # a commit that was answered survives a power cut
            connection.execute(f"PRAGMA {name}.secure_delete = ON")  # what is deleted is overwritten
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _transaction(connection: Any) -> None:
        # A reader that becomes a writer half way would be refused; one that begins as a writer waits.
        wants_to_write = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if wants_to_write else "BEGIN")

    return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Any]:
    """A transaction that writes: all of it or nothing."""
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        yield connection


def upgrade(engine: Engine) -> None:
    """Bring the tables to what this version wants."""
    with reachable(engine), engine.connect() as connection:
        config = _migrations()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def revision(engine: Engine) -> str | None:
    """Of which version the tables are, None where there are none."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def need_current(engine: Engine) -> None:
    """Refuse to work on tables of another version."""
    with reachable(engine):
        found = revision(engine)
    wanted = ScriptDirectory.from_config(_migrations()).get_current_head()
    if found != wanted:
        raise WorkspaceError(
            f"the workspace's tables are of revision {found or 'none'}, this version of fairstream wants {wanted}; "
            f"run `fairstream init DIR` on it once more to bring them up"
        )


@contextmanager
def reachable(engine: Engine) -> Iterator[None]:
    """Say in a sentence that the database cannot be reached."""
    try:
        yield
    except DBAPIError as error:
        where = engine.url.render_as_string(hide_password=True)
        raise DatabaseUnavailableError(
            f"the database {where} cannot be used: {str(error.orig).splitlines()[0]}"
        ) from None


def _migrations() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config
