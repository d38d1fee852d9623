"""Reading a source of events part by part (a file, a frame, a stream), in tables of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fairstream.data.inputs import DataFile, frame_to_table, parts_of, sniff_csv
from fairstream.data.tables import decoded, first_sentence, reading
from fairstream.errors import ConfigurationError

if TYPE_CHECKING:
    import duckdb

EVENTS = "the events"
ROWS_AT_ONCE = 1 << 20
_CSV_OPTIONS: dict[str, Any] = {
    "header": True,
    "quotechar": '"',
    "sample_size": -1,  # all lines
    "auto_type_candidates": ["BIGINT", "DOUBLE", "BOOLEAN", "TIMESTAMP", "TIMESTAMPTZ", "VARCHAR"],  # as Arrow's
}
Connect = Callable[[], "duckdb.DuckDBPyConnection"]
"""Opens a new DuckDB connection, which reads text files."""


def connect_duckdb(memory_limit: str, folder: Path | None = None) -> duckdb.DuckDBPyConnection:
    """Connect to DuckDB with a memory limit, beyond which it spills into a folder; None: it does not spill.

    Raises
    ------
    ConfigurationError
        If DuckDB is not installed, or the limit is not an amount of memory.

    """
    try:
        import duckdb  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError:
        raise ConfigurationError("ingest needs DuckDB; install it with: pip install 'fairstream[ingest]'") from None
    options: dict[str, Any] = {"memory_limit": memory_limit}
    if folder is not None:
        options["temp_directory"] = str(folder / "spilled")
    try:
        return duckdb.connect(":memory:" if folder is None else folder / "events.duckdb", config=options)
    except (duckdb.Error, TypeError) as error:
        raise ConfigurationError(
            f"memory_limit must be an amount such as '2GB', got {memory_limit!r}: {first_sentence(error)}"
        ) from None


class Source:
    """What `read_events` takes, read in tables of bounded size."""

    def __init__(self, source: Any, connect: Connect) -> None:
        self._connect = connect
        self._parts = parts_of(source, EVENTS)
        self._first = SourcePart.opened(next(self._parts), connect)
        self.like = self._first.like
        """A table with the columns of the source, and no rows."""

    def tables(self, names: list[str]) -> Iterator[pa.Table]:
        """Yield the named columns, at most `ROWS_AT_ONCE` rows at a time."""
        yield from self._first.tables(names)
        for part in self._parts:
            yield from SourcePart.opened(part, self._connect).tables(names)


@dataclass(frozen=True)
class SourcePart:
    """A frame, a stream or a file, open for reading."""

    file: DataFile | None
    """None: a frame or a stream."""
    like: pa.Table
    """A table with its columns, and no rows."""
    batches: Callable[[list[str]], Iterable[pa.RecordBatch]]
    """Reads the named columns."""

    @classmethod
    def opened(cls, part: Any, connect: Connect, row_groups: Sequence[int] | None = None) -> SourcePart:
        """Open a frame or a file; `row_groups` selects some of a Parquet file."""
        if not isinstance(part, DataFile):
            return cls._frame(part)
        part.check(EVENTS)
        with part.reading(EVENTS):
            if row_groups is not None:
                return cls._row_groups(part, row_groups)
            if part.path is None or part.compression not in (None, ".gz", ".zst"):
                return cls._frame(part.read(EVENTS))
            if part.kind in ("csv", "json"):
                # Arrow's streaming reader takes the types from the first block; DuckDB looks at the whole file.
                relation = _text_relation(part, connect())
                like = decoded(relation.limit(0).to_arrow_table(), EVENTS)

                def of_relation(names: list[str]) -> Iterable[pa.RecordBatch]:
                    chosen = [name for name in names if name in like.column_names]
                    return relation.select(*(f'"{name}"' for name in chosen)).to_arrow_reader(ROWS_AT_ONCE)

                return cls(part, part.with_values(like), of_relation)
            from pyarrow.dataset import dataset  # noqa: PLC0415 (it loads pandas, where that is installed)

            rows = dataset(part.path, format="parquet" if part.kind == "parquet" else "ipc")
            like = decoded(rows.schema.empty_table(), EVENTS)

        def of_dataset(names: list[str]) -> Iterable[pa.RecordBatch]:
            return rows.to_batches([name for name in names if name in like.column_names], batch_size=ROWS_AT_ONCE)

        return cls(part, part.with_values(like), of_dataset)

    @classmethod
    def _row_groups(cls, part: DataFile, row_groups: Sequence[int]) -> SourcePart:
        file = part.parquet()
        like = decoded(file.schema_arrow.empty_table(), EVENTS)

        def of_groups(names: list[str]) -> Iterable[pa.RecordBatch]:
            chosen = [name for name in names if name in like.column_names]
            return file.iter_batches(ROWS_AT_ONCE, list(row_groups), chosen) if row_groups else ()

        return cls(part, part.with_values(like), of_groups)

    @classmethod
    def _frame(cls, frame: Any) -> SourcePart:
        with reading(EVENTS):
            try:
                reader = pa.RecordBatchReader.from_stream(frame)
            except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):  # a batch, or columns that Arrow does not know
                reader = frame_to_table(frame, EVENTS).to_reader()
            return cls(None, decoded(reader.schema.empty_table(), EVENTS), lambda names: reader)

    def tables(self, names: list[str]) -> Iterator[pa.Table]:
        """Yield the named columns, at most `ROWS_AT_ONCE` rows at a time."""
        with reading(EVENTS) if self.file is None else self.file.reading(EVENTS):
            for batch in self.batches(names):
                for start in range(0, batch.num_rows, ROWS_AT_ONCE):
                    piece = decoded(pa.Table.from_batches([batch.slice(start, ROWS_AT_ONCE)]), EVENTS)
                    yield (piece if self.file is None else self.file.with_values(piece)).select(names)


def _text_relation(file: DataFile, cursor: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
    if file.kind == "json":
        return cursor.read_json(file.name)
    with file.opened() as stream:
        layout = sniff_csv(stream)
    if layout.encoding != "utf-8":
        return cursor.from_arrow(file.read(EVENTS))
    return cursor.read_csv(file.name, sep=layout.separator, decimal=layout.decimal_point, **_CSV_OPTIONS)
