"""From whatever holds the events to an `EventLog`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.errors import DataError
from fairstream.events.columns import Columns
from fairstream.events.datasets import Dataset, open_dataset
from fairstream.events.groups import UNKNOWN, Groups, encode_groups, name_groups
from fairstream.events.log import EventLog
from fairstream.events.tables import first_sentence, to_table
from fairstream.events.vocabulary import Vocabulary


def read_events(
    source: Any,
    *,
    users: Any = None,
    group: str | None = None,
    advantaged: object = None,
    user_column: str | None = None,
    item_column: str | None = None,
    time_column: str | None = None,
    rating_column: str | None = None,
    rating_above: float = 2.0,
) -> EventLog:
    """Read events, and the groups of their users, into an `EventLog`.

    `source` is a table (pandas, Polars, DuckDB, Arrow), a Parquet or CSV file, a folder with
    `interactions` and `users` files, the raw MovieLens-1M or -100K folder, the raw ModCloth
    file, or "synthetic". `users` is a table or file with a user column and the group column;
    without it, the group column is looked for among the events. Where `group` is not given, the
    only column with two values is taken; where `advantaged` is not given, the larger group.

    Usual column names are recognised, others are given. Where there are ratings, only events
    with rating > `rating_above` are kept (the paper binarises at 2).

    >>> import pyarrow as pa
    >>> events = pa.table({"user": ["a", "b", "a"], "item": [5, 5, 9], "time": [1, 2, 3]})
    >>> people = pa.table({"user": ["a", "b"], "gender": ["F", "M"]})
    >>> log = read_events(events, users=people, group="gender", advantaged="M")
    >>> len(log), log.n_users, log.n_items, log.groups.names
    (3, 2, 2, ('M', 'F'))
    """
    columns = Columns(user_column, item_column, time_column, rating_column, rating_above)
    tables = _open(source, users)
    log = _read_log(tables.events, columns)
    return _with_groups(log, _read_groups(log, tables, columns, group, advantaged))


def read_more_events(source: Any, groups: Groups, columns: Columns, *, users: Any = None) -> EventLog:
    """Read events as earlier ones were, into groups that are settled already."""
    tables = _open(source, users)
    log = _read_log(tables.events, columns)
    table = tables.events if tables.users is None else tables.users
    if groups.attribute not in table.column_names:
        return log
    values = _group_values(log, table, groups.attribute, columns)
    return _with_groups(log, groups.with_codes(encode_groups(groups.attribute, values, groups.names)))


def _open(source: Any, users: Any) -> Dataset:
    dataset = open_dataset(source) or Dataset(to_table(source, what="the events"), None)
    return dataset if users is None else replace(dataset, users=to_table(users, what="the users"))


def _with_groups(log: EventLog, groups: Groups | None) -> EventLog:
    if groups is None:
        return log
    n_unknown = int((groups.codes == UNKNOWN).sum())
    note = f"{n_unknown} of {log.n_users} users have no {groups.attribute}: they count overall and in neither group"
    return replace(log, groups=groups, notes=(*log.notes, note) if n_unknown else log.notes)


def _read_log(events: pa.Table, columns: Columns) -> EventLog:
    what = "the events table"
    user, item, time = (columns.find(role, events, what=what) for role in ("user", "item", "time"))
    rating = columns.find_optional("rating", events, what=what)
    notes: tuple[str, ...] = ()
    rating_above = columns.rating_above
    if rating is not None:
        kept = events.filter(pc.greater(_ratings(events[rating], rating), rating_above))
        notes = (f"{len(kept)} of {len(events)} events have {rating} > {rating_above:g} and are kept",)
        if len(events) > 0 == len(kept):
            raise DataError(f"none of the {len(events)} events has {rating} > {rating_above:g}; lower rating_above")
        events = kept
    for role, name in (("user", user), ("item", item), ("time", time)):
        if missing := events[name].null_count:
            raise DataError(f"every event needs a {role}, but {missing} of {len(events)} are missing in {name!r}")
    log = EventLog.from_columns(_one(events[user]), _one(events[item]), _times(events[time], time))
    return replace(log, columns=columns, notes=notes + log.notes)


def _ratings(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    try:
        return column.cast(pa.float64())
    except pa.ArrowException:
        raise DataError(f"ratings must be numbers, but {name!r} holds {column.type}; convert it first") from None


def _times(column: pa.ChunkedArray, name: str) -> np.ndarray[Any, Any]:
    """Integers, floats or timestamps as a NumPy array that sorts."""
    kind = column.type
    if len(column) == 0:
        return np.empty(0)
    if pa.types.is_date(kind):
        column = column.cast(pa.timestamp("us"))
    elif pa.types.is_timestamp(kind) or pa.types.is_integer(kind):
        wanted = pa.int64() if pa.types.is_integer(kind) else pa.timestamp("us", tz=kind.tz)
        try:
            column = pc.cast(column, options=pc.CastOptions(wanted, allow_time_truncate=True))
        except pa.ArrowInvalid as error:
            raise DataError(f"the times in {name!r} are out of range: {first_sentence(error)}") from None
    elif pa.types.is_floating(kind):
        column = column.cast(pa.float64())
    else:
        raise DataError(f"times must be integers, floats or timestamps, but {name!r} holds {kind}; convert it first")
    times: np.ndarray[Any, Any] = column.to_numpy()
    if times.dtype.kind == "f" and not np.isfinite(times).all():
        raise DataError(f"every event needs a time, but {name!r} holds NaN or infinity")
    return times


def _read_groups(
    log: EventLog, tables: Dataset, columns: Columns, group: str | None, advantaged: object
) -> Groups | None:
    table, what = (tables.events, "the events table") if tables.users is None else (tables.users, "the users table")
    if group is None:
        if tables.users is None:
            if advantaged is not None:
                raise DataError("advantaged says which group is meant, but there are no groups; give group=COLUMN too")
            return None
        group = _only_two_valued(table, skip=columns.find("user", table, what=what))
    elif group not in table.column_names:
        raise DataError(f"{what} has no column {group!r} to group by; its columns are {', '.join(table.column_names)}")
    # Of the users table all users count; among events only those who acted, each of them once.
    values = _group_values(log, table, group, columns)
    names = name_groups(group, table[group] if tables.users is not None else values, advantaged=advantaged)
    return Groups(group, names, encode_groups(group, values, names))


def _group_values(log: EventLog, table: pa.Table, group: str, columns: Columns) -> pa.Array:
    """The value of column `group` for each user row of `log`, null where `table` does not say."""
    user = columns.find("user", table, what="the users table")
    known = Vocabulary()
    if missing := table[user].null_count:
        raise DataError(f"every row of users needs a user, but {missing} of {len(table)} are missing in {user!r}")
    rows = known.extend(_one(table[user]))
    values = _one(table[group])
    _need_one_value_each(rows, values, group)
    if len(known) and log.user_ids.ids.type != known.ids.type:
        raise DataError(
            f"user ids must be of one kind in both tables: the events have {log.user_ids.ids.type}, "
            f"the users {known.ids.type}; convert one of the columns"
        )
    if not len(known):
        return pa.nulls(log.n_users, values.type)
    first_row = np.zeros(len(known), dtype=np.int64)
    first_row[rows[::-1]] = np.arange(len(rows))[::-1]
    at = known.lookup(log.user_ids.ids)
    return values.take(pa.array(first_row[np.maximum(at, 0)], mask=at < 0))


def _need_one_value_each(rows: np.ndarray[Any, Any], values: pa.Array, group: str) -> None:
    codes = pc.fill_null(values.dictionary_encode().indices, -1).to_numpy(zero_copy_only=False)
    pairs = np.unique(np.stack([rows, codes]), axis=1)
    if pairs.shape[1] > len(np.unique(rows)):
        raise DataError(f"a user has one group, but {group!r} gives some users several values; keep one row a user")


def _only_two_valued(table: pa.Table, *, skip: str) -> str:
    two_valued = [name for name in table.column_names if name != skip and _n_values(table[name]) == 2]
    if len(two_valued) != 1:
        raise DataError(
            f"say which column makes the groups with group=COLUMN (on the command line: --group COLUMN); "
            f"the columns with two values are {', '.join(two_valued) or 'none'}"
        )
    return two_valued[0]


def _n_values(column: pa.ChunkedArray) -> int:
    kind = column.type
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        return 0
    return int(pc.count_distinct(column, mode="only_valid").as_py())


def _one(column: pa.ChunkedArray) -> pa.Array:
    """The column in one piece."""
    chunk = column.combine_chunks()
    return chunk if isinstance(chunk, pa.Array) else pa.concat_arrays(chunk.chunks)
