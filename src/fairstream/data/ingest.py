"""Events that do not fit into memory: the same log as `read_events`, written to disk.

The reader and `EventParser` give checked events a block at a time. DuckDB numbers the ids, sorts the events and drops
repeated pairs, within a memory limit and otherwise on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fairstream.data.events import EventParser, describe, open_events, read_group_values
from fairstream.data.groups import GroupValues, check_users, intersection
from fairstream.data.history import append_run
from fairstream.data.log import EventLog, is_chronological, notes_on_order, require_events
from fairstream.data.reading import MAX_ROWS, Columns, Repeats, Source, combined, concat, first_sentence, is_text
from fairstream.data.storage import check_new, writing_to
from fairstream.data.vocabulary import Vocabulary, id_column
from fairstream.errors import ConfigurationError, DataError
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
) -> EventLog:
    """Read events that do not fit into memory into a new folder, and open the log there.

    The log equals that of `read_events` for the same source and options. Needs DuckDB:
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
        The memory that DuckDB may use, such as "500MB"; the rest goes to temporary files next to `folder`.

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
    events, people = open_events(source, users, columns)
    values = read_group_values(people, group, advantaged, columns)
    in_events = group if people is None else None
    with ExitStack() as stack:
        stack.enter_context(writing_to(folder))
        work = stack.enter_context(sibling_tempdir(folder, "work"))
        parser = EventParser(events.like, columns, in_events)
        log, own_values = _sort(events, parser, stack.enter_context(_connect_duckdb(memory_limit, work)), work)
        log = describe(log, values or own_values, advantaged, items, columns, in_events=people is None)
        log.save(folder)
    log = EventLog.open(folder)
    report(log.notes)
    return log


def _connect_duckdb(memory_limit: str, folder: Path) -> duckdb.DuckDBPyConnection:
    try:
        import duckdb  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError:
        raise ConfigurationError("ingest needs DuckDB; install it with: pip install 'fairstream[ingest]'") from None
    options: dict[str, Any] = {"memory_limit": memory_limit, "temp_directory": str(folder / "spilled")}
    try:
        return duckdb.connect(folder / "events.duckdb", config=options)
    except (duckdb.Error, TypeError) as error:
        raise ConfigurationError(
            f"memory_limit must be an amount such as '2GB', got {memory_limit!r}: {first_sentence(error)}"
        ) from None


def _sort(
    events: Source, parser: EventParser, database: duckdb.DuckDBPyConnection, work: Path
) -> tuple[EventLog, GroupValues | None]:
    """Return the log without groups, and the group values if they are columns of the events."""
    user, n_rows, n_missing = parser.names["user"], 0, 0
    runs: tuple[pa.Table, ...] = ()  # the distinct (user, value) pairs of groups that are columns of the events
    kind, latest, is_sorted = np.dtype(np.int64), None, True
    for table in events.tables(parser.used):
        if parser.group:
            n_rows, n_missing = n_rows + len(table), n_missing + table[user].null_count
            values = intersection([table[name] for name in parser.group])
            runs = append_run(runs, _distinct(pa.table({"user": table[user], "value": values})), _distinct)
        user_ids, item_ids, times, _ = parser.parse(table)
        if len(times) == 0:
            continue
        if latest is not None and (kind.kind == "M") != (times.dtype.kind == "M"):
            raise DataError("the times must be of one kind, but some are timestamps and some numbers; convert them")
        is_sorted &= is_chronological(times) and (latest is None or bool(latest <= times[0]))
        kind = times.dtype if latest is None else np.promote_types(kind, times.dtype)
        latest = times[-1]
        numbers = times.view(np.int64) if kind.kind == "M" else times
        _insert(database, {"user_id": id_column(user_ids), "item_id": id_column(item_ids), "time": numbers})
    notes = parser.notes()
    require_events(0 if latest is None else 1)
    log = _number(database, work, is_sorted=is_sorted, kind=kind, repeats=parser.columns.repeats)
    log = replace(log, columns=parser.columns, notes=notes + log.notes)
    if not parser.group:
        return log, None
    check_users(n_missing, n_rows, user)
    pairs = concat(runs, "the events")
    return log, GroupValues.from_pairs(",".join(parser.group), combined(pairs["user"]), pairs["value"])


def _distinct(*pairs: pa.Table) -> pa.Table:
    return concat(pairs, "the events").group_by(["user", "value"], use_threads=False).aggregate([])


def _insert(database: duckdb.DuckDBPyConnection, columns: dict[str, Any]) -> None:
    """Add events to the table `arrived`; widen its types if necessary."""
    batch = pa.table(columns)
    database.register("batch", batch)
    database.execute("CREATE TABLE IF NOT EXISTS arrived AS SELECT * FROM batch LIMIT 0")
    for column, kind, *_ in database.execute("DESCRIBE arrived").fetchall():
        wider = "VARCHAR" if is_text(batch[column].type) else str(batch[column].type).upper()
        if kind == "BIGINT" and wider in ("VARCHAR", "DOUBLE"):
            database.execute(f"ALTER TABLE arrived ALTER {column} TYPE {wider}")
    database.execute("INSERT INTO arrived SELECT * FROM batch")


def _number(
    database: duckdb.DuckDBPyConnection, work: Path, *, is_sorted: bool, kind: np.dtype[Any], repeats: Repeats
) -> EventLog:
    """As `EventLog.from_columns`: sort the events, number the ids, keep the first event of a pair or all."""
    run = database.execute
    if not is_sorted:  # the new rowid is the chronological position
        run("CREATE TABLE sorted AS SELECT * FROM arrived ORDER BY time, rowid")
        run("DROP TABLE arrived")
        run("ALTER TABLE sorted RENAME TO arrived")
    for column in ("user_id", "item_id"):
        firsts = f"SELECT {column}, min(rowid) AS first FROM arrived GROUP BY {column}"  # noqa: S608 (our names)
        numbered = f"SELECT {column}, row_number() OVER (ORDER BY first) - 1 AS row_number FROM ({firsts})"  # noqa: S608
        run(f"CREATE TABLE {column}s AS {numbered}")
    run(
        "CREATE TABLE numbered AS SELECT u.row_number AS user_row, i.row_number AS item_row, a.time AS time, "
        "a.rowid AS position FROM arrived a JOIN user_ids u USING (user_id) JOIN item_ids i USING (item_id)"
    )
    run("DROP TABLE arrived")
    pairs = (
        "SELECT user_row, item_row, min(position) AS position, arg_min(time, position) AS time "
        "FROM numbered GROUP BY user_row, item_row"
    )
    ((n_repeated,),) = run(f"SELECT (SELECT count(*) FROM numbered) - count(*) FROM ({pairs})").fetchall()  # noqa: S608
    chosen = f"({pairs})" if repeats == "first" else "numbered"
    events = database.sql(f"SELECT user_row, item_row, time FROM {chosen} ORDER BY position")  # noqa: S608
    users, items, times = _write_columns(events, work)
    ids = (
        database.sql(f"SELECT {name} FROM {name}s ORDER BY row_number").to_arrow_table()[name]  # noqa: S608
        for name in ("user_id", "item_id")
    )
    user_ids, item_ids = (Vocabulary.of_distinct(id_column(column)) for column in ids)
    times = times.view(kind)
    notes = notes_on_order(times, was_sorted=is_sorted, n_repeated=n_repeated, repeats=repeats)
    return EventLog(users, items, times, user_ids, item_ids, notes=notes)


def _write_columns(events: duckdb.DuckDBPyRelation, work: Path) -> list[np.ndarray[Any, Any]]:
    """Write the columns to files, and return them as memory-mapped arrays."""
    paths = [work / name for name in events.columns]
    types: list[np.dtype[Any]] = []
    for batch in events.to_arrow_reader(MAX_ROWS):
        arrays = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
        types = [array.dtype for array in arrays]
        for path, array in zip(paths, arrays, strict=True):
            with path.open("ab") as file:
                array.tofile(file)
    return [np.asarray(np.memmap(path, kind, "r")) for path, kind in zip(paths, types, strict=True)]
