"""Reading events that do not fit into memory into a log on disk, with DuckDB.

Arrow reads and `EventParser` checks the source a batch at a time; DuckDB numbers the ids, orders
the events and drops repeated pairs, within a limit of memory and otherwise on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset

from fairstream.data.datasets import open_dataset
from fairstream.data.features import ItemFeatures
from fairstream.data.groups import GroupValues, check_users, group_parts, intersection, only_two_valued
from fairstream.data.inputs import DataFile, frame_to_table, parts_of, sniff_csv, to_table
from fairstream.data.log import EventLog, is_chronological, notes_on_order, require_events
from fairstream.data.storage import check_new, writing_to
from fairstream.data.tables import Columns, EventParser, Repeats, combined, decoded, first_sentence, reading
from fairstream.data.vocabulary import Vocabulary, id_column
from fairstream.errors import ConfigurationError, DataError
from fairstream.files import sibling_tempdir
from fairstream.reporting import report

if TYPE_CHECKING:
    import duckdb

_EVENTS = "the events"
_ROWS_AT_ONCE = 1 << 20
_CSV_OPTIONS: dict[str, Any] = {
    "header": True,
    "quotechar": '"',
    "sample_size": -1,  # all lines
    "auto_type_candidates": ["BIGINT", "DOUBLE", "BOOLEAN", "TIMESTAMP", "TIMESTAMPTZ", "VARCHAR"],  # as Arrow's
}


def ingest(
    source: Any,
    folder: str | Path,
    *,
    users: Any = None,
    items: Any = None,
    group: str | Sequence[str] | None = None,
    advantaged: object = None,
    user_column: str | None = None,
    item_column: str | None = None,
    time_column: str | None = None,
    rating_column: str | None = None,
    rating_above: float = 2.0,
    time_unit: str | None = None,
    repeats: Repeats = "first",
    memory_limit: str = "2GB",
) -> EventLog:
    """Read events that do not fit into memory into a new folder, and open the log there.

    The log is what `read_events` would make of the same source and options, with one exception:
    in a CSV file, a column of numbers with leading zeros ("007") stays a column of strings. Needs
    DuckDB: `pip install 'fairstream[ingest]'`.

    Parameters
    ----------
    source
        As for `read_events`, or a `pyarrow.RecordBatchReader`, which is read once.
    folder
        Where the log is written; `read_events(folder)` opens it again at once.
    users, items, group, advantaged, user_column, item_column, time_column, rating_column, rating_above
        As for `read_events`. The tables of the users and of the items are held in memory.
    time_unit, repeats
        As for `read_events`.
    memory_limit
        The memory that DuckDB may use, such as "500MB"; what exceeds it goes to disk beside `folder`.

    Returns
    -------
    EventLog
        The log, whose columns stay in the folder's files.

    Raises
    ------
    DataError
        As `read_events`, and where `folder` exists already or cannot be written.
    ConfigurationError
        If DuckDB is not installed, or `memory_limit` is not an amount of memory.

    Examples
    --------
    >>> import tempfile, pyarrow as pa
    >>> events = pa.table({"user": ["a", "b", "a"], "item": [5, 5, 9], "time": [3, 1, 2]})
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     log = ingest(events.to_reader(), f"{parent}/log")
    ...     print(log.users.tolist(), log.notes)
    [0, 1, 1] ('the events were not in chronological order and have been sorted by time',)
    """
    columns = Columns(user_column, item_column, time_column, rating_column, rating_above, time_unit, repeats)
    folder = Path(folder)
    check_new(folder)
    if isinstance(source, str | Path):
        dataset = open_dataset(source)
        source, users = dataset.events, dataset.users if users is None else users
    values, in_events = None, group if users is None else None
    if users is not None:
        people, what = to_table(users, what="the users"), "the users table"
        group = only_two_valued(people, columns, what=what) if group is None else group
        values = GroupValues.from_table(people, group, columns, what=what)
    elif group is None and advantaged is not None:
        raise DataError("advantaged says which group is meant, but there are no groups; give group=COLUMN too")
    features = None if items is None else ItemFeatures.read(items, columns)
    with writing_to(folder), sibling_tempdir(folder, "work") as work, _database(work, memory_limit) as database:
        staging = _Staging(database, work)
        log = staging.read(source, columns, in_events)
        values = values or staging.group_values()
        if values is not None:
            ids = log.user_ids.ids
            log = log.with_groups(values.groups(ids, advantaged), 0 if users is None else values.n_unmatched(ids))
        if features is not None:
            log = log.with_features(features)
        log.save(folder)
    log = EventLog.open(folder)
    report(log.notes)
    return log


def _database(work: Path, memory_limit: str) -> duckdb.DuckDBPyConnection:
    try:
        import duckdb  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError:
        raise ConfigurationError("ingest needs DuckDB; install it with: pip install 'fairstream[ingest]'") from None
    options: dict[str, Any] = {"memory_limit": memory_limit, "temp_directory": str(work / "spilled")}
    try:
        return duckdb.connect(work / "events.duckdb", config=options)
    except (duckdb.Error, TypeError) as error:
        raise ConfigurationError(
            f"memory_limit must be an amount such as '2GB', got {memory_limit!r}: {first_sentence(error)}"
        ) from None


class _Staging:
    """The events and group values of one source in DuckDB tables."""

    def __init__(self, database: duckdb.DuckDBPyConnection, work: Path) -> None:
        self._database, self._work = database, work
        self._attribute: str | None = None
        self._user_column = ""
        self._n_rows = self._n_missing = 0

    def read(self, source: Any, columns: Columns, group: str | Sequence[str] | None) -> EventLog:
        """Read the events, and the group values where they stand beside them."""
        opened = _Source(source, self._database)
        parser = EventParser(opened.like, columns)
        parts = [] if group is None else group_parts(opened.like, group, what="the events table")
        self._user_column, self._attribute = parser.names["user"], ",".join(parts) if parts else None
        names = [name for name in opened.like.column_names if name in parser.used.union(parts)]
        kind, latest, is_sorted = None, None, True
        for table in opened.tables(names):
            if parts:
                self._add_values(table[self._user_column], intersection([table[name] for name in parts]))
            user_ids, item_ids, times = parser.parse(table)
            if len(times) == 0:
                continue
            is_sorted &= is_chronological(times) and (latest is None or bool(latest <= times[0]))
            latest, kind = times[-1], times.dtype
            numbers = times.view(np.int64) if kind.kind == "M" else times
            self._insert("arrived", user_id=id_column(user_ids), item_id=id_column(item_ids), time=pa.array(numbers))
        notes = parser.notes()
        if kind is None:
            require_events(0)
        log = self._log(is_sorted=is_sorted, kind=kind, repeats=columns.repeats)
        return replace(log, columns=parser.columns, notes=notes + log.notes)

    def group_values(self) -> GroupValues | None:
        """Return the group values that stood beside the events, if any."""
        if self._attribute is None:
            return None
        check_users(self._n_missing, self._n_rows, self._user_column)
        pairs = self._database.sql("SELECT DISTINCT user_id, value FROM group_values").to_arrow_table()
        return GroupValues.from_pairs(self._attribute, combined(pairs["user_id"]), pairs["value"])

    def _add_values(self, user_ids: pa.ChunkedArray, values: Any) -> None:
        self._n_rows, self._n_missing = self._n_rows + len(user_ids), self._n_missing + user_ids.null_count
        if self._n_missing == 0:
            pairs = pa.table({"user_id": id_column(user_ids), "value": values.cast(pa.large_string())})
            pairs = pairs.group_by(["user_id", "value"]).aggregate([])
            self._insert("group_values", user_id=pairs["user_id"], value=pairs["value"])

    def _insert(self, name: str, **columns: Any) -> None:
        batch = pa.table(columns)
        self._database.register("batch", batch)
        self._database.execute(f"CREATE TABLE IF NOT EXISTS {name} AS SELECT * FROM batch LIMIT 0")  # noqa: S608
        self._database.execute(f"INSERT INTO {name} SELECT * FROM batch")  # noqa: S608 (the names are ours)

    def _log(self, *, is_sorted: bool, kind: np.dtype[Any] | None, repeats: Repeats) -> EventLog:
        """As `EventLog.from_columns`: order the events, number the ids, keep the first event of a pair or all."""
        run = self._database.execute
        if not is_sorted:  # the new rowid is the chronological position
            run("CREATE TABLE sorted AS SELECT * FROM arrived ORDER BY time, rowid")
            run("DROP TABLE arrived")
            run("ALTER TABLE sorted RENAME TO arrived")
        for column in ("user_id", "item_id"):
            firsts = f"SELECT {column}, min(rowid) AS first FROM arrived GROUP BY {column}"  # noqa: S608 (ours)
            numbered = f"SELECT {column}, row_number() OVER (ORDER BY first) - 1 AS row_number FROM ({firsts})"  # noqa: S608
            run(f"CREATE TABLE {column}s AS {numbered}")
        run(
            "CREATE TABLE numbered AS SELECT u.row_number AS user_row, i.row_number AS item_row, a.time AS time, "
            "a.rowid AS position FROM arrived a JOIN user_ids u USING (user_id) JOIN item_ids i USING (item_id)"
        )
        run("DROP TABLE arrived")
        firsts = (
            "SELECT user_row, item_row, min(position) AS position, arg_min(time, position) AS time "
            "FROM numbered GROUP BY user_row, item_row"
        )
        kept = f"({firsts})" if repeats == "first" else "numbered"
        events = self._database.sql(f"SELECT user_row, item_row, time FROM {kept} ORDER BY position")  # noqa: S608 (ours)
        users, items, times = self._written(events)
        ((n_events,),) = run("SELECT count(*) FROM numbered").fetchall()
        ((n_pairs,),) = run(f"SELECT count(*) FROM ({firsts})").fetchall()  # noqa: S608 (ours)
        notes = notes_on_order(was_sorted=is_sorted, n_repeated=n_events - n_pairs, repeats=repeats)
        user_ids, item_ids = (self._vocabulary(column) for column in ("user_id", "item_id"))
        return EventLog(users, items, times.view(kind), user_ids, item_ids, notes=notes)

    def _written(self, events: duckdb.DuckDBPyRelation) -> list[np.ndarray[Any, Any]]:
        """Write the columns to files, and return them as arrays over those."""
        paths = [self._work / name for name in events.columns]
        types: list[np.dtype[Any]] = []
        for batch in events.to_arrow_reader(_ROWS_AT_ONCE):
            arrays = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
            types = [array.dtype for array in arrays]
            for path, array in zip(paths, arrays, strict=True):
                with path.open("ab") as file:
                    array.tofile(file)
        return [np.asarray(np.memmap(path, kind, "r")) for path, kind in zip(paths, types, strict=True)]

    def _vocabulary(self, column: str) -> Vocabulary:
        ids = self._database.sql(f"SELECT {column} FROM {column}s ORDER BY row_number").to_arrow_table()  # noqa: S608
        return Vocabulary.of_distinct(id_column(ids[column]))


class _Source:
    """What `read_events` takes, read in tables of bounded size."""

    def __init__(self, source: Any, database: duckdb.DuckDBPyConnection) -> None:
        self._database = database
        self._parts = parts_of(source, _EVENTS)
        self._first = _Part.opened(next(self._parts), database)
        self.like = self._first.like
        """A table of the same columns, without rows."""

    def tables(self, names: list[str]) -> Iterator[pa.Table]:
        """Yield the named columns, so many rows at a time."""
        yield from self._first.tables(names)
        for part in self._parts:
            yield from _Part.opened(part, self._database).tables(names)


@dataclass(frozen=True)
class _Part:
    """A frame, a reader or a file."""

    file: DataFile | None
    like: pa.Table
    batches: Callable[[list[str]], Iterable[pa.RecordBatch]]
    """The named columns of it."""

    @classmethod
    def opened(cls, part: Any, database: duckdb.DuckDBPyConnection) -> _Part:
        if not isinstance(part, DataFile):
            return cls._frame(part)
        part.check(_EVENTS)
        with part.reading(_EVENTS):
            if part.path is None or part.compression not in (None, ".gz", ".zst"):
                return cls._frame(part.read(_EVENTS))
            if part.kind in ("csv", "json"):
                # Arrow's streaming reader takes the types from the first block; DuckDB looks at the whole file.
                # A cursor, because the connection has other queries to run while this one is read.
                relation = _text_relation(part, database.cursor())
                like = decoded(relation.limit(0).to_arrow_table(), _EVENTS)

                def of_relation(names: list[str]) -> Iterable[pa.RecordBatch]:
                    chosen = [name for name in names if name in like.column_names]
                    return relation.select(*(f'"{name}"' for name in chosen)).to_arrow_reader(_ROWS_AT_ONCE)

                return cls(part, part.with_values(like), of_relation)
            dataset = pyarrow.dataset.dataset(part.path, format="parquet" if part.kind == "parquet" else "ipc")
            like = decoded(dataset.schema.empty_table(), _EVENTS)

        def of_dataset(names: list[str]) -> Iterable[pa.RecordBatch]:
            return dataset.to_batches([name for name in names if name in like.column_names], batch_size=_ROWS_AT_ONCE)

        return cls(part, part.with_values(like), of_dataset)

    @classmethod
    def _frame(cls, frame: Any) -> _Part:
        with reading(_EVENTS):
            try:
                reader = pa.RecordBatchReader.from_stream(frame)
            except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):  # a batch, or columns that Arrow does not know
                reader = frame_to_table(frame, _EVENTS).to_reader()
            return cls(None, decoded(reader.schema.empty_table(), _EVENTS), lambda names: reader)

    def tables(self, names: list[str]) -> Iterator[pa.Table]:
        """Yield the named columns, so many rows at a time."""
        with reading(_EVENTS) if self.file is None else self.file.reading(_EVENTS):
            for batch in self.batches(names):
                for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                    piece = decoded(pa.Table.from_batches([batch.slice(start, _ROWS_AT_ONCE)]), _EVENTS)
                    yield (piece if self.file is None else self.file.with_values(piece)).select(names)


def _text_relation(file: DataFile, cursor: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
    if file.kind == "json":
        return cursor.read_json(file.name)
    with file.opened() as stream:
        layout = sniff_csv(stream)
    if layout.encoding != "utf-8":
        return cursor.from_arrow(file.read(_EVENTS))
    return cursor.read_csv(file.name, sep=layout.separator, decimal=layout.decimal_point, **_CSV_OPTIONS)
