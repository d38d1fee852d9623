"""Data sets by name or path: original files, prepared folders, and the synthetic stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairstream.data.datasets.raw import (
    Dataset,
    is_modcloth,
    is_movielens_1m,
    is_movielens_100k,
    read_modcloth,
    read_movielens_1m,
    read_movielens_100k,
)
from fairstream.data.datasets.sources import SOURCES, locate
from fairstream.data.datasets.synthetic import synthetic_stream
from fairstream.data.inputs import files_within, find_file, is_address, is_glob
from fairstream.errors import DataError

__all__ = ["Dataset", "locate", "open_dataset", "synthetic_stream"]


def open_dataset(source: Any) -> Dataset:
    """Return the data set behind a name or path; a plain file or a table has events only."""
    if not isinstance(source, str | Path) or is_address(source) or is_glob(source):
        return Dataset(source)
    if source == "synthetic":
        stream = synthetic_stream()
        return Dataset(stream.events, stream.users)
    path = Path(source)
    if path.is_file():
        return read_modcloth(path) if is_modcloth(path) else Dataset(path)
    if not path.exists():
        return _named(str(source))
    return _in_folder(path)


def _named(name: str) -> Dataset:
    """Return a data set of the paper that was prepared before."""
    if name not in SOURCES:
        raise DataError(
            f"there is no file or folder {name}; give a data folder, a file, 'synthetic', or a data set that "
            f"`fairstream data get` prepares ({', '.join(SOURCES)})"
        )
    return _in_folder(locate(name))


def _in_folder(folder: Path) -> Dataset:
    """Return the data set of a folder: `interactions` and maybe `users` files, a raw one, or the parts of one table."""
    if is_movielens_1m(folder):
        return read_movielens_1m(folder)
    if is_movielens_100k(folder):
        return read_movielens_100k(folder)
    events = find_file(folder, "interactions")
    users = find_file(folder, "users")
    if events is None and (parts := [file for file in files_within(folder) if file.path != users]):
        return Dataset(parts, users)
    if events is None:
        inside = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
        raise DataError(
            f"{folder} must hold interactions.parquet or interactions.csv (and users.parquet or users.csv), parts of a "
            f"table, or be a raw MovieLens folder or one that fairstream.ingest wrote; it holds {inside}"
        )
    return Dataset(events, users)
