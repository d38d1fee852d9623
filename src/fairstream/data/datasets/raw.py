"""The original files of the paper's data sets: MovieLens as GroupLens publishes it, ModCloth of marketBias."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from fairstream.data.inputs import to_table
from fairstream.data.tables import first_sentence, native_reader, read_csv
from fairstream.errors import DataError

_EVENTS = ["user_id", "item_id", "rating", "timestamp"]
_USERS_1M = ["user_id", "gender", "age", "occupation", "zip"]
_USERS_100K = ["user_id", "age", "gender", "occupation", "zip"]
_TYPES = {
    "user_id": pa.int64(),
    "item_id": pa.int64(),
    "rating": pa.float64(),
    "timestamp": pa.int64(),
    "age": pa.int64(),
    "gender": pa.string(),
    "zip": pa.string(),
}


_MODCLOTH_COLUMNS = {"user_id", "item_id", "rating", "timestamp", "user_attr", "model_attr"}


@dataclass(frozen=True, eq=False)
class Dataset:
    """The events of a data set and, if it has them, its users: each a table, or a file that has not been read yet."""

    events: Any
    users: Any = None


def is_movielens_1m(folder: Path) -> bool:
    """Return whether the folder is laid out like MovieLens-1M."""
    return (folder / "ratings.dat").is_file() and (folder / "users.dat").is_file()


def is_movielens_100k(folder: Path) -> bool:
    """Return whether the folder is laid out like MovieLens-100K."""
    return (folder / "u.data").is_file() and (folder / "u.user").is_file()


def read_movielens_1m(folder: Path) -> Dataset:
    """Read `ratings.dat` and `users.dat`, whose fields are separated by double colons."""
    return Dataset(
        _read_delimited(folder / "ratings.dat", _EVENTS, "::"),
        _read_delimited(folder / "users.dat", _USERS_1M, "::"),
    )


def read_movielens_100k(folder: Path) -> Dataset:
    """Read `u.data`, separated by tabs, and `u.user`, separated by bars."""
    return Dataset(
        _read_delimited(folder / "u.data", _EVENTS, "\t"),
        _read_delimited(folder / "u.user", _USERS_100K, "|"),
    )


def _read_delimited(path: Path, names: list[str], delimiter: str) -> pa.Table:
    content = path.read_bytes().replace(delimiter.encode(), b"\t")  # Arrow takes one-byte delimiters only
    try:
        return read_csv(
            native_reader([content]),
            types={name: _TYPES[name] for name in names if name in _TYPES},
            read_options=pyarrow.csv.ReadOptions(column_names=names),
            parse_options=pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False),
        )
    except pa.ArrowException as error:
        raise DataError(
            f"{path} must have the fields {', '.join(names)} between {delimiter!r}: {first_sentence(error)}"
        ) from None


def is_modcloth(path: Path) -> bool:
    """Return whether the file's header is ModCloth's."""
    if path.suffix != ".csv":
        return False
    with path.open("rb") as file:
        header = file.readline().decode("utf-8", "replace").strip().split(",")
    return set(header) >= _MODCLOTH_COLUMNS


def read_modcloth(path: Path) -> Dataset:
    """Read the events of users whose body shape is known.

    `user_attr` (Small or Large) becomes the group column `body_shape`; the paper leaves out
    users without it.
    """
    table = to_table(path, what="the ModCloth file")
    table = table.filter(pc.and_(pc.is_valid(table["user_id"]), pc.is_valid(table["user_attr"])))
    if len(table) == 0:
        raise DataError(f"{path} has no events of users whose user_attr is known; use the whole ModCloth file")
    events = table.select(["user_id", "item_id", "rating", "timestamp"])
    if not pa.types.is_timestamp(events["timestamp"].type):
        events = events.set_column(3, "timestamp", _modcloth_times(events["timestamp"], path))
    people = table.group_by("user_id", use_threads=False).aggregate([("user_attr", "first")])
    return Dataset(events, people.rename_columns(["user_id", "body_shape"]))


def _modcloth_times(column: pa.ChunkedArray, path: Path) -> pa.ChunkedArray:
    try:
        seconds = pc.utf8_slice_codeunits(pc.cast(column, pa.string()), 0, 19)
        return pc.strptime(seconds, "%Y-%m-%d %H:%M:%S", "us")
    except pa.ArrowException as error:
        raise DataError(f"{path} must have times like 2010-01-21 08:00:00+00:00: {first_sentence(error)}") from None
