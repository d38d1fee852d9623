"""One engine for SQLite and PostgreSQL: connections, transactions, migrations, JSON, and many rows at once."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.csv
from sqlalchemy import Column, Connection, Engine, Select, Table, create_engine, event, inspect, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from fairstream.errors import ConfigurationError, WorkspaceError
from fairstream.service.schema import PEOPLE, changes

EVENTS_FILE, PEOPLE_FILE = "events.sqlite", "people.sqlite"
OF_SCHEMA = "hashtext(current_schema())"  # the second number of PostgreSQL's locks: each schema has separate ones
_WAIT_SECONDS = 5  # how long a writer waits for another one before it gives up
PAUSE_SECONDS = 0.15  # between two long transactions: SQLite lets a writer that waits sleep for less
_ROWS_OF_A_STATEMENT = 200
_ROWS_OF_A_READ = 50_000
_MIGRATIONS = Path(__file__).parent / "migrations"


class DatabaseUnavailableError(WorkspaceError):
    """The database is unreachable or refuses a statement."""


class DatabaseDownError(DatabaseUnavailableError):
    """The database is unreachable, locked, frozen or read-only: no statement would succeed."""


def now() -> int:
    """Return the time of this machine, in microseconds since 1970."""
    return time.time_ns() // 1000


def now_of(connection: Connection) -> int:
    """Return the time of the database's clock, which all machines share; SQLite has that of this machine."""
    if connection.dialect.name != "postgresql":
        return now()
    return int(connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp()) * 1000000").scalar_one())


def connect(file: Path, url: str | None = None, *, for_requests: bool = False) -> Engine:
    """Connect to SQLite in a file, or to PostgreSQL at a `postgresql://` address.

    `for_requests` limits how long PostgreSQL may take.
    """
    if url is None:
        return _sqlite(file)
    try:
        address = make_url(url)
    except ArgumentError:
        address = None
    if address is None or address.get_backend_name() != "postgresql":
        raise ConfigurationError("the database must be given as postgresql://USER@HOST/NAME, or not at all for SQLite")
    from fairstream.service.postgres import postgres  # noqa: PLC0415 (the driver, which SQLite does not need)

    return postgres(address, for_requests=for_requests)


def _sqlite(file: Path) -> Engine:
    is_read_only = file.exists() and not os.access(file.parent, os.W_OK)

    def _connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri_of(file, is_read_only), uri=True, timeout=_WAIT_SECONDS, check_same_thread=False, isolation_level=None
        )
        try:
            connection.execute(f"ATTACH DATABASE ? AS {PEOPLE}", (uri_of(file.with_name(PEOPLE_FILE), is_read_only),))
        except sqlite3.Error:
            connection.close()
            raise
        if is_read_only:
            return connection
        connection.execute("PRAGMA journal_mode = WAL")
        for name in ("main", PEOPLE):
            connection.execute(f"PRAGMA {name}.synchronous = FULL")  # a commit that was answered survives a power cut
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    engine = create_engine(
        f"sqlite:///{file}",
        creator=_connect,
        pool_timeout=_WAIT_SECONDS,
        pool_use_lifo=True,  # the next writer takes the connection that wrote last, whose cache is warm
        json_serializer=canonical,
        execution_options={"people_schema": PEOPLE},
    )

    @event.listens_for(engine, "begin")
    def _transaction(connection: Any) -> None:
        # SQLite refuses a reader that becomes a writer; one that begins as a writer waits.
        wants_to_write = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if wants_to_write else "BEGIN")

    return engine


def uri_of(file: Path, is_read_only: bool) -> str:
    """Return the address of a SQLite database, also on a disk that cannot be written to."""
    address = f"file:{quote(str(file))}?mode={'ro' if is_read_only else 'rw'}"
    log = file.with_name(f"{file.name}-wal")
    if not os.access(file.parent, os.W_OK) and not (log.exists() and log.stat().st_size):
        address += "&immutable=1"  # otherwise SQLite wants to write a file beside it
    return address


def read_text(path: Path) -> str:
    """Return the content of a small file without blanks around it, as editors and secret stores add them."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Yield a connection; raise `WorkspaceError` if the database cannot be used."""
    with reachable(engine), engine.connect() as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Begin a transaction that writes; it commits at the end, and rolls back after an error."""
    with reachable(engine), engine.connect().execution_options(writes=True) as connection, connection.begin():
        yield connection


def upgrade(engine: Engine) -> None:
    """Create the tables, or bring them to the latest revision."""
    from alembic import command  # noqa: PLC0415 (slow to import)
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    with reachable(engine), engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            driver: Any = connection.connection.driver_connection
            driver.execute("PRAGMA foreign_keys = OFF")  # Alembic changes a table by replacing it
            connection.detach()
        else:
            for name in ("schema", "people_schema"):
                connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {engine.get_execution_options()[name]}")
            connection.commit()
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError:  # an unknown revision
            raise WorkspaceError(
                f"another version of fairstream made this workspace (revision {revision(engine)} of its tables), and "
                f"this version cannot upgrade it; make a new one with `fairstream init` and ingest the events there"
            ) from None


def revision(engine: Engine) -> str | None:
    """Return the revision of the tables; None where there are none."""
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def latest_revision() -> str:
    """Return the revision that this version needs: the number of the last migration."""
    return max(file.name for file in (_MIGRATIONS / "versions").glob("*.py")).partition("_")[0]


def need_current(engine: Engine) -> None:
    """Raise a `WorkspaceError` if the tables are of another revision."""
    with reachable(engine):
        current = revision(engine)
    if current != (needed := latest_revision()):
        raise WorkspaceError(
            f"the workspace's tables are of revision {current or 'none'}, this version of fairstream needs {needed}; "
            f"upgrade them with `fairstream upgrade DIR`"
        )


@contextmanager
def reachable(engine: Engine) -> Iterator[None]:
    """Raise errors of the database as a `DatabaseUnavailableError` of one sentence."""
    try:
        yield
    except (DBAPIError, PoolTimeoutError) as error:
        where, why = engine.url.render_as_string(hide_password=True), str(getattr(error, "orig", error)).splitlines()[0]
        kind = DatabaseDownError if isinstance(error, OperationalError | PoolTimeoutError) else DatabaseUnavailableError
        raise kind(f"the database {where} cannot be used: {why}") from None


def bump(connection: Connection, name: str) -> int:
    """Count a change in the caller's transaction and return its version.

    The row is locked until the commit, so that versions become visible in their order.
    """
    return add_to(connection, changes.c.version, name, 1)


def add_to(connection: Connection, counter: Column[int], name: str, n: int) -> int:
    """Add to a counter in a table with one name for each row; return the sum."""
    (key,) = counter.table.primary_key
    insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(counter.table)
    counted = insert.values({key.name: name, counter.name: n}).on_conflict_do_update(
        index_elements=[key], set_={counter.name: counter + n}
    )
    return int(connection.execute(counted.returning(counter)).scalar_one())


def canonical(value: Any) -> str:
    """Return the only JSON text of a value; NaN is an error."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def select_rows(connection: Connection, query: Select[Any]) -> pa.Table:
    """Return the rows of a query as a table: numbers as 64 bits, everything else as text."""
    return pa.Table.from_batches(select_parts(connection, query), _schema_of(query))


def select_parts(connection: Connection, query: Select[Any]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in parts."""
    schema = _schema_of(query)
    for part in connection.execute(query, execution_options={"yield_per": _ROWS_OF_A_READ}).partitions():
        yield pa.record_batch(list(zip(*part, strict=True)), schema)


def _schema_of(query: Select[Any]) -> pa.Schema:
    types = {int: pa.int64(), float: pa.float64()}
    return pa.schema(
        [(column.name, types.get(column.type.python_type, pa.string())) for column in query.selected_columns]
    )


def insert_rows(connection: Connection, table: Table, rows: pa.Table) -> None:
    """Insert rows in their order; a conflict is an error."""
    (_copy if connection.dialect.name == "postgresql" else _insert)(connection, table.name, rows)


def _insert(connection: Connection, into: str, rows: pa.Table) -> None:
    """Insert many rows with each statement, which takes half of the time of a statement for each row."""
    names, one = ",".join(rows.column_names), f"({','.join('?' * rows.num_columns)})"
    for start in range(0, len(rows), _ROWS_OF_A_STATEMENT):
        part = rows.slice(start, _ROWS_OF_A_STATEMENT)
        values = chain.from_iterable(zip(*(column.to_pylist() for column in part.columns), strict=True))
        statement = f"INSERT INTO {into} ({names}) VALUES {','.join([one] * len(part))}"  # noqa: S608
        connection.exec_driver_sql(statement, tuple(values))


def _copy(connection: Connection, into: str, rows: pa.Table) -> None:
    lines, dbapi = io.BytesIO(), connection.dialect.loaded_dbapi
    pyarrow.csv.write_csv(rows, lines, pyarrow.csv.WriteOptions(include_header=False))
    statement = f"COPY {into} ({','.join(rows.column_names)}) FROM STDIN (FORMAT csv)"
    try:
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(lines.getbuffer())
    except dbapi.Error as error:  # as SQLAlchemy raises it
        raise DBAPIError.instance(None, None, error, dbapi.Error, dialect=connection.dialect) from None
