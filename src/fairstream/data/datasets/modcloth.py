"""The raw ModCloth file of the marketBias collection."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from fairstream.data.datasets.dataset import Dataset
from fairstream.data.tables import first_sentence, to_table
from fairstream.errors import DataError

_COLUMNS = {"user_id", "item_id", "rating", "timestamp", "user_attr", "model_attr"}


def is_modcloth(path: Path) -> bool:
    """Whether the file's header is ModCloth's."""
    if path.suffix != ".csv":
        return False
    with path.open("rb") as file:
        header = file.readline().decode("utf-8", "replace").strip().split(",")
    return set(header) >= _COLUMNS


def read_modcloth(path: Path) -> Dataset:
    """Events of users whose body shape is known, in the order of time.

    `user_attr` (Small or Large) becomes the group column `body_shape`; the paper leaves out
    users without it.
    """
    table = to_table(path, what="the ModCloth file")
    table = table.filter(pc.and_(pc.is_valid(table["user_id"]), pc.is_valid(table["user_attr"])))
    if len(table) == 0:
        raise DataError(f"{path} has no events of users whose user_attr is known; use the whole ModCloth file")
    events = table.select(["user_id", "item_id", "rating", "timestamp"])
    if not pa.types.is_timestamp(events["timestamp"].type):
        events = events.set_column(3, "timestamp", _times(events["timestamp"], path))
    people = table.group_by("user_id", use_threads=False).aggregate([("user_attr", "first")])
    return Dataset(events, people.rename_columns(["user_id", "body_shape"]))


def _times(column: pa.ChunkedArray, path: Path) -> pa.ChunkedArray:
    try:
        seconds = pc.utf8_slice_codeunits(pc.cast(column, pa.string()), 0, 19)
        return pc.strptime(seconds, "%Y-%m-%d %H:%M:%S", "us")
    except pa.ArrowException as error:
        raise DataError(f"{path} must have times like 2010-01-21 08:00:00+00:00: {first_sentence(error)}") from None
