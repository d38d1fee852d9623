"""Reading events, and the groups of their users, into an `EventLog`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fairstream.data.datasets import open_dataset
from fairstream.data.features import ItemFeatures
from fairstream.data.groups import UNKNOWN, Groups, GroupValues, only_two_valued, read_more_groups
from fairstream.data.inputs import to_table
from fairstream.data.log import EventLog
from fairstream.data.storage import is_log
from fairstream.data.tables import Columns, EventParser, Repeats
from fairstream.errors import DataError
from fairstream.reporting import report


def read_events(
    source: Any,
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
) -> EventLog:
    """Read events, and the groups of their users, into an `EventLog`.

    Parameters
    ----------
    source
        A table (pandas, Polars, also lazy, DuckDB, Arrow), columns by name, an iterable of tables or of
        dictionaries; a Parquet, CSV, TSV, JSON Lines or Arrow file, text also compressed; a folder of
        such files as parts of one table, a glob, a list of paths, an address (s3://…) where fsspec is
        installed; a folder with `interactions` and `users` files, a folder that `ingest` or
        `EventLog.save` wrote, the raw MovieLens-1M or -100K folder, the raw ModCloth file, or "synthetic".
    users
        A table or file, as for `source`, with a user column and the group column; without it, the group
        column is looked for among the events.
    items
        A table or file with an item column and others that describe the items, for models that read
        features: strings (each word is a feature), lists of strings (each element), integers and
        booleans (categories).
    group
        The column that makes the groups; several ("gender,age", or a list) make their
        intersections. Without it, the only column of `users` with two values.
    advantaged
        The value of the advantaged group; without it, of two groups the larger one, and of more none: nobody
        guesses. "auto" measures before each update which groups are ahead; a group with that very name is
        written "=auto".
    user_column, item_column, time_column, rating_column
        Names of the columns; usual names are recognised.
    rating_above
        Where there are ratings, only events with a rating above this are kept (the paper: 2).
    time_unit
        Unit of times that are numbers ("s", "ms", "us" or "ns" since 1970); they then become
        timestamps. Without it they stay numbers, and periods by the calendar guess the unit.
    repeats
        Of the events of one user with one item, "first" keeps the first alone, "all" keeps all: models
        learn and read each of them, while tests and recommendations are about items that are new to
        the user.

    Returns
    -------
    EventLog
        The events in chronological order; `EventLog.notes` says what was left out or moved.

    Raises
    ------
    DataError
        If the source cannot be read, a column is missing, an event lacks a user, item or time, or `items`
        holds columns of another kind, or rows of one item that differ; if `users` names none of the users.

    Examples
    --------
    >>> import pyarrow as pa
    >>> events = pa.table({"user": ["a", "b", "a"], "item": [5, 5, 9], "time": [1, 2, 3]})
    >>> people = pa.table({"user": ["a", "b"], "gender": ["F", "M"]})
    >>> log = read_events(events, users=people, group="gender", advantaged="M")
    >>> len(log), log.n_users, log.n_items, log.groups.names
    (3, 2, 2, ('M', 'F'))
    """
    columns = Columns(user_column, item_column, time_column, rating_column, rating_above, time_unit, repeats)
    log = _read(source, columns, users=users, items=items, group=group, advantaged=advantaged)
    report(log.notes)
    return log


def _read(
    source: Any, columns: Columns, *, users: Any, items: Any, group: str | Sequence[str] | None, advantaged: object
) -> EventLog:
    if is_log(source):
        return _reopened(source, columns, users=users, items=items, group=group, advantaged=advantaged)
    events, people = _tables(source, users, columns)
    log, _ = _read_log(events, columns)
    if items is not None:
        log = log.with_features(ItemFeatures.read(items, columns))
    values = None
    if people is not None:
        values = _group_values(people, group, columns)
    elif group is not None:
        values = GroupValues.from_table(events, group, columns, what="the events table")
    elif advantaged is not None:
        raise DataError("advantaged says which group is meant, but there are no groups; give group=COLUMN too")
    if values is None:
        return log
    ids = log.user_ids.ids
    return log.with_groups(values.groups(ids, advantaged), 0 if people is None else values.n_unmatched(ids))


def read_more_events(
    source: Any,
    groups: Groups,
    columns: Columns,
    *,
    users: Any = None,
    items: Any = None,
    last_time: np.generic | None = None,
) -> EventLog:
    """Read events as earlier ones were, into the groups of the earlier ones.

    Parameters
    ----------
    source, users, items
        As for `read_events`.
    groups, columns
        Those of the earlier events.
    last_time
        The time of the latest known event (`EventLog.last_time`). With it, a note counts the
        events that are older, and another kind of time is an error.

    Returns
    -------
    EventLog
        With groups in the codes of `groups`, or None where the tables do not have their column.

    Raises
    ------
    DataError
        As `read_events`, and where earlier times were timestamps and these are numbers, or the reverse.
    """
    notes: tuple[str, ...] = ()
    if is_log(source):
        log = EventLog.open(source)
        people = None if users is None else to_table(users, what="the users", columns=columns)
    else:
        events, people = _tables(source, users, columns)
        log, used = _read_log(events, columns)
        beside_events = people is None
        people = events if people is None else people
        if beside_events:
            used |= {*groups.attribute.split(","), groups.attribute}
        if unused := [name for name in events.column_names if name not in used]:
            notes += (f"columns of the events that are not used: {', '.join(unused)}",)
    if people is not None:
        found = read_more_groups(log.user_ids.ids, people, columns, groups)
        if groups.is_empty:
            notes += () if users is None else ("there were no groups from the first fit on: users have no effect",)
        elif found is None:
            notes += (f"the tables have no column {groups.attribute!r}: users who are new are in no group",)
        else:
            log = log.with_groups(found)
            if users is not None and (found.codes == UNKNOWN).all():
                notes += (
                    f"the users table has a {groups.attribute} for none of the {log.n_users} users of these events",
                )
    if last_time is not None:
        notes += log.notes_after(last_time)
    if {log.columns.time_zone, columns.time_zone} == {True, False}:
        has = "have a time zone" if log.columns.time_zone else "have no time zone"
        notes += (f"these times {has}, unlike the earlier ones: those without one are taken to be UTC",)
    if items is not None:
        log = replace(log, features=ItemFeatures.read(items, columns))
    return replace(log, notes=log.notes + notes)


def _tables(source: Any, users: Any, columns: Columns) -> tuple[pa.Table, pa.Table | None]:
    """Return the table of the events, and that of the users where there is one."""
    if isinstance(source, str | Path):
        dataset = open_dataset(source)
        source, users = dataset.events, dataset.users if users is None else users
    events = to_table(source, what="the events", columns=columns)
    return events, None if users is None else to_table(users, what="the users", columns=columns)


def _read_log(events: pa.Table, columns: Columns) -> tuple[EventLog, set[str]]:
    """Return the log without groups, and the columns that it was read from."""
    parser = EventParser(events, columns)
    parsed = parser.parse(events)
    notes = parser.notes()
    log = EventLog.from_columns(*parsed, columns.repeats)
    return replace(log, columns=parser.columns, notes=notes + log.notes), parser.used


def _group_values(users: pa.Table, group: str | Sequence[str] | None, columns: Columns) -> GroupValues:
    what = "the users table"
    group = only_two_valued(users, columns, what=what) if group is None else group
    return GroupValues.from_table(users, group, columns, what=what)


def _reopened(
    folder: Any, columns: Columns, *, users: Any, items: Any, group: str | Sequence[str] | None, advantaged: object
) -> EventLog:
    """Open a stored log: how its events were read cannot change, its groups and features can."""
    log = EventLog.open(folder)
    of_tables = Columns(
        user=columns.user if users is not None else None, item=columns.item if items is not None else None
    )
    if columns not in (Columns(), of_tables, replace(log.columns, time_zone=None)):
        raise DataError(
            f"{folder} holds a log, whose columns, ratings, repeats and time unit are fixed; omit those options"
        )
    if items is not None:
        log = log.with_features(ItemFeatures.read(items, columns))
    if users is not None:
        values = _group_values(to_table(users, what="the users"), group, columns)
        ids = log.user_ids.ids
        return log.with_groups(values.groups(ids, advantaged), values.n_unmatched(ids))
    attribute = group if group is None or isinstance(group, str) else ",".join(group)
    if attribute is not None and (log.groups is None or attribute != log.groups.attribute):
        stored = "no groups" if log.groups is None else f"the groups of {log.groups.attribute!r}"
        raise DataError(f"{folder} holds a log with {stored}; for other groups, give a users table too")
    if advantaged is None:
        return log
    return replace(log, groups=log.require_groups().declared(advantaged))
