"""Many rows at once, in each database's fastest way."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.csv
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

_ROWS_OF_A_STATEMENT = 200
_ROWS_OF_A_READ = 50_000
_SQL_TYPES = {pa.string(): "text", pa.int64(): "bigint"}


def insert_rows(connection: Connection, into: str, rows: pa.Table, on_conflict: str) -> int:
    """Insert in the order of the rows, and say how many were; columns are strings and int64 without nulls."""
    insert = _postgres_insert if connection.dialect.name == "postgresql" else _sqlite_insert
    with _told(connection) as raw:
        return insert(raw, into, rows, on_conflict)


def select_rows(connection: Connection, query: str, schema: pa.Schema) -> pa.Table:
    """The rows of a query, which holds its parameters already, as a table."""
    select = _postgres_select if connection.dialect.name == "postgresql" else _sqlite_select
    with _told(connection) as raw:
        return select(raw, query, schema)


@contextmanager
def _told(connection: Connection) -> Iterator[Any]:
    """The driver's own connection; what it raises becomes what SQLAlchemy would have made of it."""
    dbapi = connection.dialect.loaded_dbapi
    try:
        yield connection.connection.driver_connection
    except dbapi.Error as error:
        raise OperationalError(None, None, error) from None


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
    """COPY beside the table, then into it: COPY itself knows no conflicts."""
    names = ",".join(rows.column_names)
    columns = ",".join(f"{field.name} {_SQL_TYPES[field.type]}" for field in rows.schema)
    beside = f"incoming_{into.replace('.', '_')}"
    lines = io.BytesIO()
    numbered = rows.add_column(0, "place", pa.array(range(len(rows)), pa.int64()))
    pyarrow.csv.write_csv(numbered, lines, pyarrow.csv.WriteOptions(include_header=False))
    with raw.cursor() as cursor:
        cursor.execute(f"CREATE TEMP TABLE IF NOT EXISTS {beside} (place bigint,{columns}) ON COMMIT DELETE ROWS")
        with cursor.copy(f"COPY {beside} FROM STDIN (FORMAT csv)") as copy:
            copy.write(lines.getbuffer())
        cursor.execute(
            f"INSERT INTO {into} ({names}) SELECT {names} FROM {beside} ORDER BY place {on_conflict}"  # noqa: S608
        )
        inserted: int = cursor.rowcount
        cursor.execute(f"TRUNCATE {beside}")  # a second insert may follow in this transaction
    return inserted


def _postgres_select(raw: Any, query: str, schema: pa.Schema) -> pa.Table:
    lines = io.BytesIO()
    with raw.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv)") as copy:
        for part in copy:
            lines.write(part)
    if not lines.tell():
        return schema.empty_table()
    lines.seek(0)
    return pyarrow.csv.read_csv(
        lines,
        read_options=pyarrow.csv.ReadOptions(column_names=schema.names),
        convert_options=pyarrow.csv.ConvertOptions(column_types=schema),
    )
