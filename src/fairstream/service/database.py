"""One engine for SQLite and PostgreSQL: connections, transactions, migrations, JSON, and many rows at once."""

from __future__ import annotations

import io
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
from sqlalchemy import Connection, Engine, Text, create_engine, event, inspect, text
from sqlalchemy.engine import Dialect, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.types import TypeDecorator

from fairstream.data.tables import native_reader
from fairstream.errors import ConfigurationError, WorkspaceError
from fairstream.files import replace_file

EVENTS_FILE, PEOPLE_FILE = "events.sqlite", "people.sqlite"
HEAD = "audit head"
"""Under which name a transaction notes the last entry of the audit record."""
_WAIT_SECONDS = 5
"""How long a writer waits for another one before it gives up."""
_ROWS_OF_A_STATEMENT = 200
_ROWS_OF_A_READ = 50_000
_MIGRATIONS = Path(__file__).parent / "migrations"
_SQL_TYPES = {pa.string(): "text", pa.int64(): "bigint"}


class DatabaseUnavailableError(WorkspaceError):
    """The database cannot be used: it is away, or refuses a statement."""


class DatabaseDownError(DatabaseUnavailableError):
    """The database cannot be reached, is locked, does not answer or cannot be written to, whatever is asked of it."""


def now() -> int:
    """The clock, in microseconds since 1970."""
    return time.time_ns() // 1000


def connect(file: Path, url: str | None = None, *, for_requests: bool = False) -> Engine:
    """SQLite in the file, or PostgreSQL at a `postgresql://` address, whose statements are short for requests."""
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
    # Whoever writes next takes the connection that wrote last, whose cache is warm; one cache is enough for all.
    waits = {"connect_args": {"timeout": _WAIT_SECONDS}, "pool_timeout": _WAIT_SECONDS}
    engine = create_engine(f"sqlite:///{file}", **waits, pool_use_lifo=True)

    @event.listens_for(engine, "connect")
    def _begin(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # a commit that was answered survives a power cut
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
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
    with engine.connect().execution_options(writes=True) as connection:
        connection.info.pop(HEAD, None)
        with connection.begin():
            yield connection
        if (head := connection.info.pop(HEAD, None)) is not None:
            for path in engine.get_execution_options()["audit_heads"]:
                with suppress(OSError):  # the entry is there; a head that lags behind is still part of the record
                    replace_file(path, head.encode())
                    path.chmod(0o600)


def upgrade(engine: Engine, to: str = "head") -> None:
    """Bring the tables to what this version wants, or to a revision."""
    from alembic import command  # noqa: PLC0415 (a fifth of the time that a command takes which only reads)
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    with reachable(engine), engine.connect() as connection:
        if engine.dialect.name == "sqlite":  # migrations alone see the people's file beside the events
            driver: Any = connection.connection.driver_connection
            driver.execute("ATTACH DATABASE ? AS people", (str(Path(str(engine.url.database)).with_name(PEOPLE_FILE)),))
            driver.execute("PRAGMA foreign_keys = OFF")  # a table is changed by putting another in its place
            connection.detach()
        config.attributes["connection"] = connection
        command.upgrade(config, to)


def revision(engine: Engine) -> str | None:
    """Of which version the tables are, as Alembic has noted; None where there are none."""
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def latest_revision() -> str:
    """What this version of fairstream wants: migrations are numbered, and so named."""
    return max(file.name for file in (_MIGRATIONS / "versions").glob("*.py")).partition("_")[0]


def need_current(engine: Engine) -> None:
    """Refuse to work on tables of another version."""
    with reachable(engine):
        found = revision(engine)
    wanted = latest_revision()
    if found != wanted:
        raise WorkspaceError(
            f"the workspace's tables are of revision {found or 'none'}, this version of fairstream wants {wanted}; "
            f"bring them up with `fairstream upgrade DIR`"
        )


@contextmanager
def reachable(engine: Engine) -> Iterator[None]:
    """Say in a sentence that the database cannot be reached."""
    try:
        yield
    except (DBAPIError, PoolTimeoutError) as error:
        where, why = engine.url.render_as_string(hide_password=True), str(getattr(error, "orig", error)).splitlines()[0]
        kind = DatabaseDownError if isinstance(error, OperationalError | PoolTimeoutError) else DatabaseUnavailableError
        raise kind(f"the database {where} cannot be used: {why}") from None


def canonical(value: Any) -> str:
    """One way to write a value; NaN is not JSON."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class Json(TypeDecorator[Any]):
    """A column of JSON documents."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else canonical(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


def insert_rows(connection: Connection, into: str, rows: pa.Table, on_conflict: str = "") -> int:
    """Insert in the order of the rows, and say how many were; columns are strings and int64 without nulls.

    PostgreSQL is much faster where it is not told what to do on a conflict; one is an error then.
    """
    insert = _postgres_insert if connection.dialect.name == "postgresql" else _sqlite_insert
    with driver_of(connection) as raw:
        return insert(raw, into, rows, on_conflict)


def select_rows(connection: Connection, query: str, schema: pa.Schema) -> pa.Table:
    """The rows of a query, which holds its parameters already, as a table."""
    select = _postgres_select if connection.dialect.name == "postgresql" else _sqlite_select
    with driver_of(connection) as raw:
        return select(raw, query, schema)


@contextmanager
def driver_of(connection: Connection) -> Iterator[Any]:
    """The driver's own connection; what it raises becomes what SQLAlchemy would have made of it."""
    dbapi = connection.dialect.loaded_dbapi
    try:
        yield connection.connection.driver_connection
    except dbapi.Error as error:
        raise DBAPIError.instance(None, None, error, dbapi.Error, dialect=connection.dialect) from None


def _sqlite_select(raw: sqlite3.Connection, query: str, schema: pa.Schema) -> pa.Table:
    cursor = raw.execute(query)
    parts = []
    while found := cursor.fetchmany(_ROWS_OF_A_READ):
        parts.append(pa.record_batch(_arrays(zip(*found, strict=True), schema), schema=schema))
    return pa.Table.from_batches(parts, schema)


def _arrays(columns: Iterable[Any], schema: pa.Schema) -> list[pa.Array]:
    return [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]


def _sqlite_insert(raw: sqlite3.Connection, into: str, rows: pa.Table, on_conflict: str) -> int:
    """Statements of many rows: half of the time of one row after the other."""
    width, before = rows.num_columns, raw.total_changes
    one = f"({','.join('?' * width)})"
    for start in range(0, len(rows), _ROWS_OF_A_STATEMENT):
        part = rows.slice(start, _ROWS_OF_A_STATEMENT)
        values = chain.from_iterable(zip(*(column.to_pylist() for column in part.columns), strict=True))
        raw.execute(
            f"INSERT INTO {into} ({','.join(rows.column_names)}) VALUES {','.join([one] * len(part))} {on_conflict}",  # noqa: S608
            tuple(values),
        )
    return raw.total_changes - before


def _postgres_insert(raw: Any, into: str, rows: pa.Table, on_conflict: str) -> int:
    """COPY; beside the table, and from there into it, where there may be conflicts: COPY itself knows none."""
    with raw.cursor() as cursor:
        if not on_conflict:
            return _copy(cursor, into, rows)
        names = ",".join(rows.column_names)
        columns = ",".join(f"{field.name} {_SQL_TYPES[field.type]}" for field in rows.schema)
        beside = f"incoming_{into.replace('.', '_')}"
        cursor.execute(f"CREATE TEMP TABLE IF NOT EXISTS {beside} (place bigint,{columns}) ON COMMIT DELETE ROWS")
        _copy(cursor, beside, rows.add_column(0, "place", pa.array(range(len(rows)), pa.int64())))
        cursor.execute(
            f"INSERT INTO {into} ({names}) SELECT {names} FROM {beside} ORDER BY place {on_conflict}"  # noqa: S608
        )
        inserted: int = cursor.rowcount
        cursor.execute(f"TRUNCATE {beside}")  # a second insert may follow in this transaction
    return inserted


def _copy(cursor: Any, into: str, rows: pa.Table) -> int:
    lines = io.BytesIO()
    pyarrow.csv.write_csv(rows, lines, pyarrow.csv.WriteOptions(include_header=False))
    with cursor.copy(f"COPY {into} ({','.join(rows.column_names)}) FROM STDIN (FORMAT csv)") as copy:
        copy.write(lines.getbuffer())
    return len(rows)


def _postgres_select(raw: Any, query: str, schema: pa.Schema) -> pa.Table:
    with raw.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv)") as copy:
        lines = native_reader(copy)
    if not lines.size():
        return schema.empty_table()
    return pyarrow.csv.read_csv(
        lines,
        read_options=pyarrow.csv.ReadOptions(column_names=schema.names),
        convert_options=pyarrow.csv.ConvertOptions(column_types=schema),
    )
