"""From a file or a frame to an Arrow table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fairstream.errors import DataError

SUFFIXES = (".parquet", ".csv")


def to_table(source: Any, *, what: str) -> pa.Table:
    """Any table that speaks the Arrow PyCapsule interface, or a Parquet or CSV file."""
    if isinstance(source, str | Path):
        return read_file(Path(source), what=what)
    if isinstance(source, pa.Table):
        return source
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
        return pa.table(source)
    raise DataError(
        f"{what} must be a path or a table (pandas, Polars, DuckDB, Arrow: anything with the Arrow "
        f"PyCapsule interface), got {type(source).__name__}"
    )


def read_file(path: Path, *, what: str) -> pa.Table:
    """A Parquet or CSV file as a table, or one sentence that says why not."""
    if not path.is_file():
        raise DataError(f"{what}: there is no file {path}")
    try:
        if path.suffix == ".parquet":
            return pyarrow.parquet.read_table(path)
        if path.suffix == ".csv":
            return pyarrow.csv.read_csv(path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{what}: {path} cannot be read as {path.suffix[1:]}: {reason}") from None
    raise DataError(f"{what}: {path.name} must end in {' or '.join(SUFFIXES)}")


def find_file(folder: Path, stem: str) -> Path | None:
    """`stem`.parquet or `stem`.csv in `folder`, whichever is there."""
    return next((folder / (stem + suffix) for suffix in SUFFIXES if (folder / (stem + suffix)).is_file()), None)
