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
from fairstream.data.datasets.sources import locate
from fairstream.data.datasets.synthetic import synthetic_stream
from fairstream.data.tables import find_file
from fairstream.errors import DataError

__all__ = ["Dataset", "locate", "open_dataset", "synthetic_stream"]


def open_dataset(source: Any) -> Dataset:
    """Return the data set behind a name or path; a plain file or a table has events only."""
    if not isinstance(source, str | Path):
        return Dataset(source)
    if source == "synthetic":
        stream = synthetic_stream()
        return Dataset(stream.events, stream.users)
    path = Path(source)
    if path.is_file():
        return read_modcloth(path) if is_modcloth(path) else Dataset(path)
    if not path.exists():
        raise DataError(f"there is no file or folder {path}; give a data folder, a file, or 'synthetic'")
    if is_movielens_1m(path):
        return read_movielens_1m(path)
    if is_movielens_100k(path):
        return read_movielens_100k(path)
    return _in_folder(path)


def _in_folder(folder: Path) -> Dataset:
    """Return the data set of a folder with `interactions` and maybe `users`, each a Parquet, CSV or Arrow file."""
    events = find_file(folder, "interactions")
    if events is None:
        inside = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
        raise DataError(
            f"{folder} must hold interactions.parquet or interactions.csv (and users.parquet or users.csv), "
            f"or be a raw MovieLens folder or one that fairstream.ingest wrote; it holds {inside}"
        )
    return Dataset(events, find_file(folder, "users"))
