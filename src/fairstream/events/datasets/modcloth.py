"""The raw ModCloth file of the marketBias collection."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from fairstream.events.datasets.dataset import Dataset
from fairstream.events.tables import read_file

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
    table = read_file(path, what="the ModCloth file")
    shape = pc.cast(table["user_attr"], pa.string())
    known = pc.and_(pc.is_valid(table["user_id"]), pc.and_(pc.is_valid(shape), pc.not_equal(shape, "")))
    table = table.filter(known)
    events = table.select(["user_id", "item_id", "rating", "timestamp"])
    if pa.types.is_string(events["timestamp"].type):
        times = pc.strptime(pc.utf8_slice_codeunits(events["timestamp"], 0, 19), "%Y-%m-%d %H:%M:%S", "us")
        events = events.set_column(3, "timestamp", times)
    people = table.group_by("user_id", use_threads=False).aggregate([("user_attr", "first")])
    return Dataset(events, people.rename_columns(["user_id", "body_shape"]))
