"""From a file, a frame or a reader to tables of bounded size, one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from fairstream.data.tables import csv_conversion, plain, readable

# What Arrow tries one after the other when it infers the type of a whole CSV column.
_CSV_TYPES = (
    pa.null(),
    pa.int64(),
    pa.bool_(),
    pa.date32(),
    pa.time32("s"),
    pa.timestamp("s"),
    pa.timestamp("s", "UTC"),
    pa.timestamp("ns"),
    pa.timestamp("ns", "UTC"),
    pa.float64(),
    pa.string(),
    pa.binary(),
)
_BYTES_PER_ROW, _LEAST_BLOCK = 32, 1 << 20
"""A guess at a line of CSV, to read about as many rows at a time as are asked for; Arrow's usual block."""


class TableStream:
    """What `to_table` would give, a piece at a time; a source that can be read only once, only once.

    >>> stream = TableStream(pa.table({"user": [1, 2, 3], "age": [30, 40, 50]}), what="the users")
    >>> stream.like.column_names
    ['user', 'age']
    >>> [piece.to_pydict() for piece in stream.pieces(["age"], n_rows=2)]
    [{'age': [30, 40]}, {'age': [50]}]
    """

    def __init__(self, source: Any, *, what: str) -> None:
        self._source, self._what = source, what
        with readable(source, what) as path:
            if path is None:
                self._source = pa.RecordBatchReader.from_stream(source)
                schema = self._source.schema
            elif path.suffix.lower() == ".parquet":
                schema = pyarrow.parquet.read_schema(path)
            elif path.suffix.lower() == ".csv":
                schema = pyarrow.csv.open_csv(path, convert_options=csv_conversion()).schema
            else:
                schema = pa.ipc.open_file(pa.memory_map(str(path))).schema
            self.like = plain(schema.empty_table(), what)
            """A table of the same columns, without rows."""

    def pieces(self, names: list[str], n_rows: int) -> Iterator[pa.Table]:
        """The named columns in tables of about `n_rows` rows."""
        with readable(self._source, self._what) as path:
            for piece in _pieces(self._batches(path, names, n_rows), n_rows):
                yield plain(piece.select(names), self._what)

    def _batches(self, path: Path | None, names: list[str], n_rows: int) -> Iterator[pa.RecordBatch]:
        if path is None:
            yield from self._source
        elif path.suffix.lower() == ".parquet":
            file = pyarrow.parquet.ParquetFile(path)
            yield from file.iter_batches(batch_size=n_rows, columns=names, use_threads=False)
        elif path.suffix.lower() == ".csv":
            block = pyarrow.csv.ReadOptions(block_size=max(_LEAST_BLOCK, n_rows * _BYTES_PER_ROW))
            types = _csv_types(path, self.like.column_names, names, block)
            yield from pyarrow.csv.open_csv(path, read_options=block, convert_options=csv_conversion(types, names))
        else:
            file = pa.ipc.open_file(pa.memory_map(str(path)))
            yield from (file.get_batch(n) for n in range(file.num_record_batches))


def _csv_types(path: Path, in_file: list[str], names: list[str], block: Any) -> dict[str, pa.DataType]:
    """The type of each column that all its fields have, as when the file is read at once.

    A file that is streamed has its types from the first block; where a later one does not fit,
    the next wider type is tried, from the beginning.
    """
    types: dict[str, pa.DataType] = {}
    while True:
        reader = pyarrow.csv.open_csv(path, read_options=block, convert_options=csv_conversion(types, names))
        types = {field.name: field.type for field in reader.schema}
        try:
            for _ in reader:
                pass
        except pa.ArrowInvalid as error:
            column = re.match(r"In CSV column #(\d+): CSV conversion error", str(error))
            if column is None:
                raise
            name = in_file[int(column[1])]
            types[name] = _CSV_TYPES[_CSV_TYPES.index(types[name]) + 1]
        else:
            return types


def _pieces(batches: Iterator[pa.RecordBatch], n_rows: int) -> Iterator[pa.Table]:
    """Large batches cut, small ones put together."""
    waiting: list[pa.RecordBatch] = []
    n_waiting = 0
    for batch in batches:
        for start in range(0, batch.num_rows, n_rows):
            waiting.append(batch.slice(start, n_rows))
            n_waiting += len(waiting[-1])
            if n_waiting >= n_rows:
                yield pa.Table.from_batches(waiting)
                waiting, n_waiting = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)
