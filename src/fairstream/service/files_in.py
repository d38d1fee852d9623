"""Events and users from files, a part at a time: the largest file needs no more memory than a small one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from fairstream.data.tables import csv_conversion, decoded, open_source
from fairstream.errors import DataError
from fairstream.service.fields import Rows
from fairstream.service.incoming import (
    Batch,
    batch_from_arrow,
    batch_from_json,
    check_columns,
    parse_json,
    parse_json_lines,
    people_from_arrow,
    people_from_json,
    read_ipc,
)
from fairstream.service.settings import Limits

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

N_ROWS = 100_000
_LINES = (".jsonl", ".ndjson")
_SUFFIXES = (".parquet", ".csv", ".arrow", *_LINES)
_FORMATS = {".parquet": "parquet", ".arrow": "ipc"}
_MOST_LISTED = 20
_IPC_STREAM = b"\xff\xff\xff\xff"
"""What a stream begins with."""
_LINES_AT_ONCE, _CSV_BLOCK = 8 << 20, 8 << 20


def batches_from_file(
    path: Path, columns: Mapping[str, str], limits: Limits, *, need_ids: bool = False
) -> Iterator[Batch]:
    """The events of a file; `columns` says which of its columns is our `user_id`, `item_id`, `time`, `event_id`.

    Other columns are passed over; that of the event's id may be missing, unless it is needed.
    """
    n = 1
    with _named(path):
        if _is_lines(path):
            for objects in _objects(path, columns):
                yield batch_from_json(objects, limits, first=n)
                n += len(objects)
            return
        for table in _tables(path, columns, optional=() if need_ids else ("event_id",)):
            yield batch_from_arrow(table, limits, first=n)
            n += len(table)


def people_from_file(
    path: Path, columns: Mapping[str, str], allowed: Collection[str] | None = None
) -> Iterator[pa.Table]:
    """The users of a file that have a value; `columns` says which of its columns is our `user_id` and `value`."""
    n = 1
    with _named(path):
        if _is_lines(path):
            for objects in _objects(path, columns):
                yield people_from_json(objects, first=n, allowed=allowed)
                n += len(objects)
            return
        for table in _tables(path, columns):
            yield people_from_arrow(table.filter(pc.is_valid(table["value"])), first=n, allowed=allowed)
            n += len(table)


def people_from_bytes(
    content: bytes, columns: Mapping[str, str], allowed: Collection[str] | None = None
) -> Iterator[pa.Table]:
    """The users of an Arrow IPC stream, of a JSON list or of JSON Lines, all of them or none."""
    if content.startswith(_IPC_STREAM):
        table = read_ipc(content)
        names = list(columns.values())
        check_columns(table, tuple(names), tuple(name for name in table.column_names if name not in names))
        table = table.select(names).rename_columns(list(columns))
        yield people_from_arrow(table.filter(pc.is_valid(table["value"])), allowed=allowed)
        return
    is_list = content.lstrip().startswith(b"[")
    objects = parse_json(content, "the users") if is_list else parse_json_lines(content, Rows("user"))
    yield people_from_json(
        [_renamed(one, columns) if isinstance(one, dict) else one for one in objects], allowed=allowed
    )


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Say which file a complaint is about."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.suffix.lower() not in _SUFFIXES:
        raise DataError(f"{path} must end in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}")
    try:
        yield
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: the names of its columns are not valid Unicode") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _is_lines(path: Path) -> bool:
    return path.suffix.lower() in _LINES


def _objects(path: Path, columns: Mapping[str, str]) -> Iterator[list[object]]:
    """The objects of a JSON Lines file with the fields that are asked for, some lines at a time."""
    n = 1
    with path.open("rb") as file:
        while lines := file.readlines(_LINES_AT_ONCE):
            found = [parse_json(line, f"line {n + place}") for place, line in enumerate(lines) if line.strip()]
            n += len(lines)
            yield [_renamed(one, columns) if isinstance(one, dict) else one for one in found]


def _renamed(found: dict[str, object], columns: Mapping[str, str]) -> dict[str, object]:
    """The fields that are asked for, under our names."""
    return {name: found[column] for name, column in columns.items() if column in found}


def _tables(path: Path, columns: Mapping[str, str], *, optional: tuple[str, ...] = ()) -> Iterator[pa.Table]:
    """Tables with our names of the columns."""
    with open_source(path, "the file"):
        source = None if path.suffix.lower() == ".csv" else _dataset(path)
        schema = (
            pyarrow.csv.open_csv(path, convert_options=csv_conversion()).schema if source is None else source.schema
        )
        there = decoded(schema.empty_table(), "the file").column_names
    wanted = {name: column for name, column in columns.items() if column in there or name not in optional}
    for name, column in wanted.items():
        if column not in there:
            raise DataError(f"there is no column {column!r} for {name}; the columns are {_listed(there)}")
    chosen = list(dict.fromkeys(wanted.values()))
    pieces = _csv(path, chosen) if source is None else _pieces(path, source, chosen)
    for piece in pieces:
        table = pa.table(
            {name: _numbers(piece[column]) if name == "time" else piece[column] for name, column in wanted.items()}
        )
        yield table


def _listed(names: list[str]) -> str:
    """Names for a sentence: not so many that nobody reads it, and on one line whatever they hold."""
    shown = [name if name.isprintable() else repr(name) for name in names[:_MOST_LISTED]]
    return ", ".join([*shown, *(["…"] if len(names) > _MOST_LISTED else [])])


def _dataset(path: Path) -> Dataset:
    from pyarrow.dataset import dataset  # noqa: PLC0415 (it loads pandas, where that is installed)

    return dataset(path, format=_FORMATS[path.suffix.lower()])


def _pieces(path: Path, source: Dataset, columns: list[str]) -> Iterator[pa.Table]:
    with open_source(path, "the file"):
        for batch in source.to_batches(columns=columns, batch_size=N_ROWS):
            for start in range(0, batch.num_rows, N_ROWS):
                yield decoded(pa.Table.from_batches([batch.slice(start, N_ROWS)]), "the file")


def _csv(path: Path, columns: list[str]) -> Iterator[pa.Table]:
    """Everything as it is written: "007" is not 7."""
    with open_source(path, "the file"):
        types = dict.fromkeys(columns, pa.string())
        block = pyarrow.csv.ReadOptions(block_size=_CSV_BLOCK)
        for batch in pyarrow.csv.open_csv(path, read_options=block, convert_options=csv_conversion(types, columns)):
            yield decoded(pa.Table.from_batches([batch]), "the file")


def _numbers(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times that are written as numbers become numbers; others stay as they are."""
    if not pa.types.is_string(times.type):
        return times
    for kind in (pa.int64(), pa.float64()):
        try:
            return times.cast(kind)
        except pa.ArrowInvalid:
            continue
    return times
