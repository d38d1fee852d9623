"""The raw MovieLens-1M and MovieLens-100K folders, as GroupLens lays them out."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from fairstream.data.datasets.dataset import Dataset
from fairstream.data.tables import first_sentence, read_csv
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


def is_movielens_1m(folder: Path) -> bool:
    """Whether the folder is laid out like MovieLens-1M."""
    return (folder / "ratings.dat").is_file() and (folder / "users.dat").is_file()


def is_movielens_100k(folder: Path) -> bool:
    """Whether the folder is laid out like MovieLens-100K."""
    return (folder / "u.data").is_file() and (folder / "u.user").is_file()


def read_movielens_1m(folder: Path) -> Dataset:
    """`ratings.dat` and `users.dat`: fields between double colons."""
    return Dataset(
        _read_delimited(folder / "ratings.dat", _EVENTS, "::"),
        _read_delimited(folder / "users.dat", _USERS_1M, "::"),
    )


def read_movielens_100k(folder: Path) -> Dataset:
    """`u.data`, fields between tabs, and `u.user`, fields between bars."""
    return Dataset(
        _read_delimited(folder / "u.data", _EVENTS, "\t"),
        _read_delimited(folder / "u.user", _USERS_100K, "|"),
    )


def _read_delimited(path: Path, names: list[str], delimiter: str) -> pa.Table:
    content = path.read_bytes().replace(delimiter.encode(), b"\t")  # Arrow takes one-byte delimiters only
    try:
        return read_csv(
            io.BytesIO(content),
            types={name: _TYPES[name] for name in names if name in _TYPES},
            read_options=pyarrow.csv.ReadOptions(column_names=names),
            parse_options=pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False),
        )
    except pa.ArrowException as error:
        raise DataError(
            f"{path} must have the fields {', '.join(names)} between {delimiter!r}: {first_sentence(error)}"
        ) from None
