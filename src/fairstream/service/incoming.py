"""Events and people on their way in: from JSON, JSON Lines or Arrow to tables that are fit to be stored.

A batch is taken whole or refused whole, with one sentence that names the first row at fault and its field.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from fairstream.data.tables import first_sentence
from fairstream.errors import DataError
from fairstream.service.fields import (
    FIRST_SECOND,
    Micros,
    Rows,
    check_ids,
    check_not_ahead,
    ids_from_column,
    ids_from_values,
    kind_of,
    times_from_column,
    times_from_values,
)
from fairstream.service.settings import Limits

NEEDED = ("user_id", "item_id", "time")
FIELDS = (*NEEDED, "event_id")
_IDS = ("event_id", "user_id", "item_id")
MADE = "~"
"""What an event id begins with that was made here and not by the client."""
_EARLIEST = FIRST_SECOND * 1000
MAX_ROWS = 5_000_000
"""Of an Arrow stream: a column of nulls takes no room, so that a few bytes could stand for any number of rows."""
_PEOPLE = pa.schema([("user_id", pa.string()), ("value", pa.string())])
_DICTIONARY, _RECORD_BATCH = 2, 3
"""Kinds of messages that carry data, as Arrow's format numbers them."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Events fit to be stored."""

    table: pa.Table
    """event_id, user_id, item_id: string; time: int64, microseconds since 1970. No nulls."""

    def __len__(self) -> int:
        return self.table.num_rows


def batch_from_json(objects: Any, limits: Limits, *, first: int = 1) -> Batch:
    """From a JSON list of objects with `user_id`, `item_id`, `time` and, if the client has one, `event_id`."""
    rows = Rows(first=first)
    columns = columns_of(objects, NEEDED, ("event_id",), rows)
    ids = {name: ids_from_values(columns[name], name, rows) for name in _IDS}
    return _batch(ids, times_from_values(columns["time"], rows), limits, rows)


def batch_from_json_lines(content: bytes, limits: Limits, *, first: int = 1) -> Batch:
    """From one JSON object a line; empty lines are passed over."""
    return batch_from_json(parse_json_lines(content, Rows(first=first)), limits, first=first)


def batch_from_ipc(content: bytes, limits: Limits) -> Batch:
    """From an Arrow IPC stream."""
    return batch_from_arrow(read_ipc(content), limits)


def batch_from_arrow(table: pa.Table, limits: Limits, *, first: int = 1) -> Batch:
    """From a table with the columns `user_id`, `item_id`, `time` and, where there is one, `event_id`."""
    rows = Rows(first=first)
    check_columns(table, NEEDED, ("event_id",))
    if len(table) > limits.max_open_events:  # before anything is written out: a column without values takes no room
        raise DataError(f"a batch may hold at most {limits.max_open_events} events, got {len(table)}; send several")
    if "event_id" not in table.column_names:
        table = table.append_column("event_id", pa.nulls(len(table)))
    try:
        table.validate(full=True)  # whoever sent it may have got its offsets or its UTF-8 wrong
        ids = {name: ids_from_column(table[name], name) for name in _IDS}
    except pa.ArrowException as error:
        raise DataError(f"the events cannot be read: {first_sentence(error)}") from None
    return _batch(ids, times_from_column(table["time"], rows), limits, rows)


def people_from_json(
    objects: Any, *, first: int = 1, value: str = "value", allowed: Collection[str] | None = None
) -> pa.Table:
    """From a JSON list of objects with `user_id` and, under the name that is given, `value`."""
    rows, names = Rows("user", first), ("user_id", value)
    columns = columns_of(objects, names, (), rows)
    return _people({name: ids_from_values(columns[name], name, rows) for name in names}, rows, allowed)


def people_from_arrow(
    table: pa.Table, *, first: int = 1, value: str = "value", allowed: Collection[str] | None = None
) -> pa.Table:
    """From a table with the columns `user_id` and, under the name that is given, `value`."""
    names = ("user_id", value)
    check_columns(table, names, ())
    try:
        table.validate(full=True)
        columns = {name: ids_from_column(table[name], name) for name in names}
    except pa.ArrowException as error:
        raise DataError(f"the users cannot be read: {first_sentence(error)}") from None
    return _people(columns, Rows("user", first), allowed)


def _people(columns: dict[str, pa.Array], rows: Rows, allowed: Collection[str] | None) -> pa.Table:
    for name, column in columns.items():
        check_ids(column, name, rows)
    if allowed is not None:
        name, values = list(columns.items())[1]
        unknown = pc.invert(pc.is_in(values, pa.array(allowed, pa.string())))
        rows.refuse_any(unknown.to_numpy(zero_copy_only=False), f"{name} must be one of {', '.join(allowed)}")
    return pa.table(list(columns.values()), schema=_PEOPLE)


def read_ipc(content: bytes) -> pa.Table:
    """The table of an Arrow IPC stream, read batch by batch until it has too many rows.

    It must not be compressed: Arrow cannot be told how much memory a batch may take, and a few bytes of a
    compressed one can stand for gigabytes. Whether it is stands only in the messages' metadata.
    """
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(content)):
            if _is_compressed(message.metadata.to_pybytes()):
                raise DataError("the Arrow stream must not be compressed; send it without")
        with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
            batches, n_rows = [], 0
            for batch in reader:
                n_rows += batch.num_rows
                if n_rows > MAX_ROWS:
                    raise DataError(f"the Arrow stream must have at most {MAX_ROWS} rows; send several")
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)
    except (pa.ArrowException, OSError, UnicodeDecodeError, struct.error, IndexError) as error:
        raise DataError(f"this is not an Arrow IPC stream: {first_sentence(error)}") from None


def _is_compressed(message: bytes) -> bool:
    """Whether a message says that its buffers are compressed; Arrow gives no other way to know beforehand."""
    root = _number("<I", message, 0)
    kind, header = _field(message, root, 1), _field(message, root, 2)
    if kind is None or header is None or message[kind] not in (_DICTIONARY, _RECORD_BATCH):
        return False
    rows = header + _number("<I", message, header)
    if message[kind] == _DICTIONARY:
        inner = _field(message, rows, 1)
        if inner is None:
            return False
        rows = inner + _number("<I", message, inner)
    return _field(message, rows, 3) is not None


def _field(message: bytes, table: int, n: int) -> int | None:
    """Where the n-th field of a FlatBuffers table is, None where it is left out."""
    directory = table - _number("<i", message, table)
    place = 4 + 2 * n
    offset = _number("<H", message, directory + place) if place < _number("<H", message, directory) else 0
    return table + offset if offset else None


def _number(form: str, message: bytes, at: int) -> int:
    number: int = struct.unpack_from(form, message, at)[0]
    return number


def parse_json(content: bytes | str, what: str) -> Any:
    """Any JSON value, or one sentence that it is none."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number of too many digits, too deep
        where = f" at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{what}: this is not JSON{where}") from None


def parse_json_lines(content: bytes, rows: Rows) -> list[Any]:
    """The JSON value of each line; empty lines are passed over."""
    lines = [line for line in content.split(b"\n") if line.strip()]
    return [parse_json(line, f"{rows.noun} {number}") for number, line in enumerate(lines, start=rows.first)]


def columns_of(objects: Any, needed: tuple[str, ...], others: tuple[str, ...], rows: Rows) -> dict[str, list[Any]]:
    """The fields of a list of JSON objects, each as a list; a field that is not there is None."""
    if not isinstance(objects, list):
        raise DataError(f"expected a JSON list of objects, one for each {rows.noun}, got {kind_of(objects)}")
    known = {*needed, *others}
    for row, found in enumerate(objects):
        if not isinstance(found, dict):
            raise rows.error(row, f"expected a JSON object, got {kind_of(found)}")
        if not found.keys() <= known:
            unknown = min(map(str, found.keys() - known))
            raise rows.error(row, f"{unknown[:40]!r} is not a field; the fields are {', '.join((*needed, *others))}")
    return {name: [found.get(name) for found in objects] for name in (*needed, *others)}


def check_columns(table: pa.Table, needed: tuple[str, ...], others: tuple[str, ...]) -> None:
    """Refuse columns that are missing, not known, or there twice."""
    try:
        names = table.column_names
    except UnicodeDecodeError:
        raise DataError("the names of the columns are not valid Unicode") from None
    for name in needed:
        if name not in names:
            raise DataError(f"the column {name} is missing; the columns are {', '.join((*needed, *others))}")
    for name in names:
        if name not in (*needed, *others) or names.count(name) > 1:
            problem = "there more than once" if name in (*needed, *others) else "not known"
            raise DataError(f"the column {name[:40]!r} is {problem}; the columns are {', '.join((*needed, *others))}")


def _batch(ids: dict[str, pa.Array], times: Micros, limits: Limits, rows: Rows) -> Batch:
    given = ids["event_id"]
    for name in ("user_id", "item_id"):
        check_ids(ids[name], name, rows)
    check_not_ahead(times, limits.max_future_seconds, rows)
    taken = pc.starts_with(given, MADE).fill_null(False).to_numpy(zero_copy_only=False)
    rows.refuse_any(taken, f"event_id must not begin with {MADE}, which marks ids that are made here")
    if given.null_count:
        ids["event_id"] = _with_made_ids(ids, times, given.is_null())
    check_ids(ids["event_id"], "event_id", rows)
    return Batch(pa.table({**ids, "time": times}))


def _with_made_ids(ids: dict[str, pa.Array], times: Micros, missing: pa.Array) -> pa.Array:
    users, items = (ids[name].filter(missing).to_pylist() for name in ("user_id", "item_id"))
    when = times[missing.to_numpy(zero_copy_only=False)].tolist()
    made = [made_id(*event) for event in zip(users, items, when, strict=True)]
    return pc.replace_with_mask(ids["event_id"], missing, pa.array(made, pa.string()))


def made_id(user_id: str, item_id: str, time: int) -> str:
    """The id of an event that came without one: the same event, sent again, gets the same.

    It begins with the time, so that events of one time lie together in the database's index, which
    would otherwise be written all over for each batch.
    """
    content = f"{user_id}\n{item_id}\n{time}"  # ids hold no control characters, so no two events read alike
    since = time // 1000 - _EARLIEST
    return f"{MADE}{since:012x}{hashlib.sha256(content.encode()).hexdigest()[:20]}"
