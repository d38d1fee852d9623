"""From whatever holds the events to an `EventLog`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.errors import DataError
from fairstream.events.columns import Columns
from fairstream.events.datasets import Dataset, open_dataset
from fairstream.events.groups import UNKNOWN, Groups
from fairstream.events.log import EventLog
from fairstream.events.people import read_groups, read_more_groups
from fairstream.events.tables import first_sentence, in_one_piece, to_table


def read_events(
    source: Any,
    *,
    users: Any = None,
    group: str | Sequence[str] | None = None,
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
    only column with two values is taken; several columns ("gender,age", or a list) make their
    intersections. Where `advantaged` is not given it is the larger group; "auto" lets each update
    find out from the period before it who is ahead.

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
    return _with_groups(log, read_groups(log, tables, columns, group, advantaged))


def read_more_events(source: Any, groups: Groups, columns: Columns, *, users: Any = None) -> EventLog:
    """Read events as earlier ones were, into groups that are settled already."""
    tables = _open(source, users)
    log = _read_log(tables.events, columns)
    return _with_groups(log, read_more_groups(log, tables, columns, groups))


def _open(source: Any, users: Any) -> Dataset:
    dataset = open_dataset(source) or Dataset(to_table(source, what="the events"), None)
    return dataset if users is None else replace(dataset, users=to_table(users, what="the users"))


def _with_groups(log: EventLog, groups: Groups | None) -> EventLog:
    if groups is None:
        return log
    n_unknown = int((groups.codes == UNKNOWN).sum())
    note = f"{n_unknown} of {log.n_users} users have no {groups.attribute}: they count overall and in no group"
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
    log = EventLog.from_columns(in_one_piece(events[user]), in_one_piece(events[item]), _times(events[time], time))
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
