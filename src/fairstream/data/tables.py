"""From a file or a frame to an Arrow table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from fairstream.errors import DataError

SUFFIXES = (".parquet", ".csv", ".arrow")
_EMPTY_IS_MISSING = {"strings_can_be_null": True, "quoted_strings_can_be_null": True, "null_values": [""]}


def to_table(source: Any, *, what: str) -> pa.Table:
    """Any table that speaks the Arrow PyCapsule interface, or a Parquet, CSV or Arrow file."""
    with readable(source, what) as path:
        if path is None:
            return plain(pa.table(source), what)
        if path.suffix.lower() == ".parquet":
            return plain(pyarrow.parquet.read_table(path), what)
        if path.suffix.lower() == ".csv":
            return plain(read_csv(path), what)
        return plain(pa.ipc.open_file(pa.memory_map(str(path))).read_all(), what)


@contextmanager
def readable(source: Any, what: str) -> Iterator[Path | None]:
    """The path of a file, or None for a table; what goes wrong with it in the block becomes one sentence."""
    if not isinstance(source, str | Path):
        if not (hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")):
            raise DataError(
                f"{what} must be a path or a table (pandas, Polars, DuckDB, Arrow: anything with the Arrow "
                f"PyCapsule interface), got {type(source).__name__}"
            )
        try:
            yield None
        except (pa.ArrowException, OSError) as error:  # such as a pandas column of mixed objects
            raise DataError(f"{what} cannot be read as an Arrow table: {first_sentence(error)}") from None
        return
    path = Path(source)
    if not path.is_file():
        raise DataError(f"{what}: there is no file {path}")
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{what}: {path.name} must end in {' or '.join(SUFFIXES)}")
    try:
        yield path
    except UnicodeDecodeError:  # of a column's name
        raise DataError(
            f"{what}: {path} cannot be read as {path.suffix[1:]}: its columns' names are not UTF-8"
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{what}: {path} cannot be read as {path.suffix[1:]}: {first_sentence(error)}") from None


def read_csv(source: Any, *, types: dict[str, pa.DataType] | None = None, **options: Any) -> pa.Table:
    """A CSV file in which an empty field is a missing value."""
    return pyarrow.csv.read_csv(source, convert_options=csv_conversion(types), **options)


def csv_conversion(types: dict[str, pa.DataType] | None = None, names: list[str] | None = None) -> Any:
    """How the fields of a CSV file are read; `names` are the columns wanted, where not all are."""
    return pyarrow.csv.ConvertOptions(column_types=types, include_columns=names, **_EMPTY_IS_MISSING)


def find_file(folder: Path, stem: str) -> Path | None:
    """`stem`.parquet, `stem`.csv or `stem`.arrow in `folder`, whichever is there."""
    return next((folder / (stem + suffix) for suffix in SUFFIXES if (folder / (stem + suffix)).is_file()), None)


def first_sentence(error: Exception) -> str:
    """What another library says, without the advice that it adds."""
    said = ", ".join(map(str, error.args))
    return said.splitlines()[0].split(". ")[0].rstrip(".")


def plain(table: pa.Table, what: str) -> pa.Table:
    """The same table with categories and string views as the strings that they stand for."""
    twice = next((name for name in table.column_names if table.column_names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{what} have the column {twice!r} more than once; keep one of them")
    return pa.table({name: _plain_column(table[name]) for name in table.column_names})


def _plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        parts = [_plain_strings(part.dictionary).take(part.indices) for part in column.chunks]
        return pa.chunked_array(parts, None if parts else pa.large_string())
    return _plain_strings(column)


def _plain_strings(values: Any) -> Any:
    return values.cast(pa.large_string()) if pa.types.is_string_view(values.type) else values


def in_one_piece(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array."""
    chunk = column.combine_chunks()
    return chunk if isinstance(chunk, pa.Array) else pa.concat_arrays(chunk.chunks)
