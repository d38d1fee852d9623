"""Who belongs to which group: written by whoever ingests, read by updates alone, never given out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Engine

from fairstream.data.tables import first_sentence
from fairstream.errors import DataError
from fairstream.service.bulk import insert_rows, select_rows
from fairstream.service.database import reachable, writing
from fairstream.service.ids import check_ids, ids_from_column, ids_from_values
from fairstream.service.incoming import check_columns, columns_of
from fairstream.service.rows import Rows

FIELDS = ("user_id", "value")
_TABLE = "people.attributes"
_SCHEMA = pa.schema([(name, pa.string()) for name in FIELDS])


def people_from_json(objects: Any, *, first: int = 1, value: str = "value") -> pa.Table:
    """From a JSON list of objects with `user_id` and, under the name that is given, `value`."""
    rows, names = Rows("user", first), ("user_id", value)
    columns = columns_of(objects, names, (), rows)
    return _people({name: ids_from_values(columns[name], name, rows) for name in names}, rows)


def people_from_arrow(table: pa.Table, *, first: int = 1, value: str = "value") -> pa.Table:
    """From a table with the columns `user_id` and, under the name that is given, `value`."""
    names = ("user_id", value)
    check_columns(table, names, ())
    try:
        table.validate(full=True)
        columns = {name: ids_from_column(table[name], name) for name in names}
    except pa.ArrowException as error:
        raise DataError(f"the users cannot be read: {first_sentence(error)}") from None
    return _people(columns, Rows("user", first))


def _people(columns: dict[str, pa.Array], rows: Rows) -> pa.Table:
    for name, column in columns.items():
        check_ids(column, name, rows)
    return pa.table(list(columns.values()), schema=_SCHEMA)


def put_people(engine: Engine, table: pa.Table) -> int:
    """Store the value of each user of a checked table, the last one where there are several; says how many users."""
    place = pa.array(np.arange(len(table)))
    last = table.append_column("place", place).group_by("user_id").aggregate([("place", "max")])
    rows = table.take(last["place_max"].sort())
    with reachable(engine), writing(engine) as connection:
        insert_rows(connection, _TABLE, rows, "ON CONFLICT (user_id) DO UPDATE SET value = excluded.value")
    return len(rows)


def values_of(engine: Engine, user_ids: Iterable[str] | None = None) -> pa.Table:
    """user_id and value of the users that have one, for updates only."""
    with reachable(engine), engine.connect() as connection:
        everybody = select_rows(connection, f"SELECT user_id, value FROM {_TABLE} ORDER BY user_id", _SCHEMA)  # noqa: S608
    if user_ids is None:
        return everybody
    wanted = pa.array(list(user_ids), pa.string())
    return everybody.filter(pc.is_in(everybody["user_id"], value_set=wanted))
