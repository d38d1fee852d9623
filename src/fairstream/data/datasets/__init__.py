"""Data sets by name or folder: MovieLens as GroupLens publishes it, ModCloth of marketBias, prepared folders."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from fairstream.data.datasets.sources import SOURCES, locate
from fairstream.data.datasets.synthetic import synthetic_stream
from fairstream.data.reading import EMPTY_IS_MISSING, Source, find_file, find_files, first_sentence, native_reader
from fairstream.errors import DataError

__all__ = ["MODCLOTH_COLUMNS", "locate", "open_dataset", "split_modcloth", "synthetic_stream"]

MODCLOTH_COLUMNS = {"user_id", "item_id", "rating", "timestamp", "user_attr", "model_attr"}
_EVENTS = ["user_id", "item_id", "rating", "timestamp"]
_MOVIELENS = (
    ("ratings.dat", "::", "users.dat", "::", ["user_id", "gender", "age", "occupation", "zip"]),
    ("u.data", "\t", "u.user", "|", ["user_id", "age", "gender", "occupation", "zip"]),
)
"""MovieLens-1M and -100K: both files with their separators, and the columns of the users."""
_TYPES = {
    "user_id": pa.int64(),
    "item_id": pa.int64(),
    "rating": pa.float64(),
    "timestamp": pa.int64(),
    "age": pa.int64(),
    "gender": pa.string(),
    "zip": pa.string(),
}


def open_dataset(source: str | Path) -> tuple[Any, Any]:
    """Return the events and the users, or None, of a data set: a folder or, if there is none, a name."""
    folder = Path(source)
    if not folder.exists():
        if str(source) == "synthetic":
            stream = synthetic_stream()
            return stream.events, stream.users
        if str(source) not in SOURCES:
            raise DataError(
                f"there is no file or folder {source}; give a data folder, a file, 'synthetic', or a data set that "
                f"`fairstream data get` prepares ({', '.join(SOURCES)})"
            )
        folder = locate(str(source))
    if (tables := _read_movielens(folder)) is not None:
        return tables
    events, users = find_file(folder, "interactions"), find_file(folder, "users")
    if events is None:
        with suppress(DataError):  # the message below says more
            parts = find_files(folder, "the events")
            if parts := [file for file in parts if users is None or file.path != users.absolute()]:
                return parts, users
        content = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
        raise DataError(
            f"{folder} must hold interactions.parquet or interactions.csv (and users.parquet or users.csv), parts of a "
            f"table, or be a raw MovieLens folder or one that fairstream.ingest wrote; it holds {content}"
        )
    return events, users


def _read_movielens(folder: Path) -> tuple[pa.Table, pa.Table] | None:
    """Return the events and the users of a raw MovieLens-1M or -100K folder; None for another folder."""
    for events, separator, users, separator_of_users, columns in _MOVIELENS:
        if (folder / events).is_file() and (folder / users).is_file():
            return (
                _read_delimited(folder / events, _EVENTS, separator),
                _read_delimited(folder / users, columns, separator_of_users),
            )
    return None


def _read_delimited(path: Path, names: list[str], separator: str) -> pa.Table:
    content = path.read_bytes().replace(separator.encode(), b"\t")  # Arrow takes one-byte separators only
    try:
        return pyarrow.csv.read_csv(
            native_reader([content]),
            read_options=pyarrow.csv.ReadOptions(column_names=names),
            parse_options=pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={name: _TYPES[name] for name in names if name in _TYPES}, **EMPTY_IS_MISSING
            ),
        )
    except pa.ArrowException as error:
        raise DataError(
            f"{path} must have the fields {', '.join(names)} between {separator!r}: {first_sentence(error)}"
        ) from None


def split_modcloth(source: Source) -> tuple[pa.Table, pa.Table]:
    """Return the events of users whose body shape is known, and the users.

    `user_attr` (Small or Large) becomes the group column `body_shape`; the paper leaves out users without it.
    """
    table = source.read([*_EVENTS, "user_attr"])
    table = table.filter(pc.and_(pc.is_valid(table["user_id"]), pc.is_valid(table["user_attr"])))
    if len(table) == 0:
        raise DataError("no event is of a user whose user_attr is known; use the whole ModCloth file")
    people = table.group_by("user_id", use_threads=False).aggregate([("user_attr", "first")])
    events, people = table.select(_EVENTS), people.rename_columns(["user_id", "body_shape"])
    for kind in (pa.timestamp("ns", "UTC"), pa.timestamp("ns")):
        with suppress(pa.ArrowException):
            return events.set_column(3, "timestamp", events["timestamp"].cast(kind)), people
    try:
        seconds = pc.utf8_slice_codeunits(pc.cast(events["timestamp"], pa.string()), 0, 19)
        events = events.set_column(3, "timestamp", pc.strptime(seconds, "%Y-%m-%d %H:%M:%S", "us"))
    except pa.ArrowException as error:
        raise DataError(f"ModCloth has times like 2010-01-21 08:00:00+00:00: {first_sentence(error)}") from None
    return events, people
