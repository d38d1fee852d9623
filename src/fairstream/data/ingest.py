"""Reading events that do not fit into memory into a log on disk, with DuckDB.

Arrow reads and `EventParser` checks the source a batch at a time; DuckDB numbers the ids, orders
the events and drops repeated pairs, within a limit of memory and otherwise on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fairstream.cluster import connect
from fairstream.data.datasets import open_dataset
from fairstream.data.divided_ingest import read_divided
from fairstream.data.features import ItemFeatures
from fairstream.data.groups import GroupValues, check_users, group_parts, intersection, only_two_valued
from fairstream.data.inputs import to_table
from fairstream.data.log import EventLog, is_chronological, notes_on_order, require_events
from fairstream.data.source_parts import ROWS_AT_ONCE, Source, connect_duckdb
from fairstream.data.storage import check_new, writing_to
from fairstream.data.tables import Columns, EventParser, Repeats, combined, is_text
from fairstream.data.vocabulary import Vocabulary, id_column
from fairstream.errors import DataError
from fairstream.files import sibling_tempdir
from fairstream.reporting import report

if TYPE_CHECKING:
    import duckdb


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
    cluster: str | None = None,
) -> EventLog:
    """Read events that do not fit into memory into a new folder, and open the log there.

    The log is what `read_events` would make of the same source and options. Needs DuckDB:
    `pip install 'fairstream[ingest]'`.

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
    cluster
        "local" or HOST:PORT: let the tasks of a Ray cluster (`pip install 'fairstream[cluster,ingest]'`) read files
        and sort their events, which gives the same log byte for byte; the files and `folder` must lie on storage that
        all nodes see. None: this process.

    Returns
    -------
    EventLog
        The log, whose columns stay in the folder's files.

    Raises
    ------
    DataError
        As `read_events`, and where `folder` exists already or cannot be written.
    ConfigurationError
        If DuckDB is not installed, `memory_limit` is not an amount of memory, or the cluster cannot do it.

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
    with ExitStack() as stack:
        there = None if cluster is None else stack.enter_context(connect(cluster))
        stack.enter_context(writing_to(folder))
        work = stack.enter_context(sibling_tempdir(folder, "work"))
        if there is None:
            staging = _Staging(stack.enter_context(connect_duckdb(memory_limit, work)), work)
            log = staging.read(source, columns, in_events)
            values = values or staging.group_values()
        else:
            log, beside = read_divided(source, columns, in_events, work=work, cluster=there, memory_limit=memory_limit)
            values = values or beside
        if values is not None:
            ids = log.user_ids.ids
            log = log.with_groups(values.groups(ids, advantaged), 0 if users is None else values.n_unmatched(ids))
        if features is not None:
            log = log.with_features(features)
        log.save(folder)
    log = EventLog.open(folder)
    report(log.notes)
    return log


class _Staging:
    """The events and group values of one source in DuckDB tables."""

    def __init__(self, database: duckdb.DuckDBPyConnection, work: Path) -> None:
        self._database, self._work = database, work
        self._attribute: str | None = None
        self._user_column = ""
        self._n_rows = self._n_missing = 0

    def read(self, source: Any, columns: Columns, group: str | Sequence[str] | None) -> EventLog:
        """Read the events, and the group values where they stand beside them."""
        # Cursors, because the connection has other queries to run while a file is read.
        opened = Source(source, self._database.cursor)
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
        for column, kind, *_ in self._database.execute(f"DESCRIBE {name}").fetchall():
            if kind == "BIGINT" and is_text(batch[column].type):  # ids of another file that are written 007
                self._database.execute(f"ALTER TABLE {name} ALTER {column} TYPE VARCHAR")
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
        for batch in events.to_arrow_reader(ROWS_AT_ONCE):
            arrays = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
            types = [array.dtype for array in arrays]
            for path, array in zip(paths, arrays, strict=True):
                with path.open("ab") as file:
                    array.tofile(file)
        return [np.asarray(np.memmap(path, kind, "r")) for path, kind in zip(paths, types, strict=True)]

    def _vocabulary(self, column: str) -> Vocabulary:
        ids = self._database.sql(f"SELECT {column} FROM {column}s ORDER BY row_number").to_arrow_table()  # noqa: S608
        return Vocabulary.of_distinct(id_column(ids[column]))
