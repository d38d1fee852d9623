"""From whatever holds the events to an `EventLog`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from fairstream.data.columns import Columns
from fairstream.data.datasets import Dataset, open_dataset
from fairstream.data.event_parser import EventParser
from fairstream.data.group_collector import GroupCollector, only_two_valued, read_more_groups
from fairstream.data.groups import UNKNOWN, Groups
from fairstream.data.log import EventLog
from fairstream.data.storage import is_log
from fairstream.data.tables import to_table
from fairstream.errors import DataError

EVENTS, USERS = "the events", "the users"


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

    `source` is a table (pandas, Polars, DuckDB, Arrow), a Parquet, CSV or Arrow file, a folder
    with `interactions` and `users` files, a folder that `ingest` or `EventLog.save` wrote, the
    raw MovieLens-1M or -100K folder, the raw ModCloth file, or "synthetic". `users` is a table or
    file with a user column and the group column; without it, the group column is looked for among
    the events. Where `group` is not given, the only column with two values is taken; several
    columns ("gender,age", or a list) make their intersections. Where `advantaged` is not given it
    is the larger group; "auto" lets each update find out from the period before it who is ahead.

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
    if is_log(source):
        return _reopened(source, columns, users=users, group=group, advantaged=advantaged)
    tables = open_tables(source, users)
    events = to_table(tables.events, what=EVENTS)
    log = _read_log(events, columns)
    people = find_people(events, tables.users, columns, group=group, advantaged=advantaged)
    if people is not None and tables.users is None:
        people.add(events)
    return with_groups(log, None if people is None else people.groups(log.user_ids.ids, advantaged))


def read_more_events(source: Any, groups: Groups, columns: Columns, *, users: Any = None) -> EventLog:
    """Read events as earlier ones were, into groups that are settled already."""
    if is_log(source):
        log = EventLog.open(source)
        if users is None:
            return log
        table = to_table(users, what=USERS)
    else:
        tables = open_tables(source, users)
        events = to_table(tables.events, what=EVENTS)
        log = _read_log(events, columns)
        table = events if tables.users is None else tables.users
    return with_groups(log, read_more_groups(log.user_ids.ids, table, columns, groups))


def open_tables(source: Any, users: Any) -> Dataset:
    """The data set behind `source`, with the table of its users, or of those given in their place, read."""
    dataset = open_dataset(source)
    users = dataset.users if users is None else users
    return replace(dataset, users=None if users is None else to_table(users, what=USERS))


def find_people(
    events: pa.Table, users: pa.Table | None, columns: Columns, *, group: str | Sequence[str] | None, advantaged: object
) -> GroupCollector | None:
    """Who tells of the groups: the users, all of whom are heard here, or the events, which are still to be heard."""
    if users is not None:
        what = "the users table"
        people = GroupCollector(
            users, only_two_valued(users, columns, what=what) if group is None else group, columns, what=what
        )
        people.add(users)
        return people
    if group is not None:
        return GroupCollector(events, group, columns, what="the events table")
    if advantaged is not None:
        raise DataError("advantaged says which group is meant, but there are no groups; give group=COLUMN too")
    return None


def with_groups(log: EventLog, groups: Groups | None) -> EventLog:
    """The log with its users in groups, and a note on those who are in none."""
    if groups is None:
        return log
    notes = tuple(note for note in log.notes if note not in _on_unknown(log.groups))
    return replace(log, groups=groups, notes=notes + _on_unknown(groups))


def _on_unknown(groups: Groups | None) -> tuple[str, ...]:
    if groups is None or not (groups.codes == UNKNOWN).any():
        return ()
    n_unknown, n_users = int((groups.codes == UNKNOWN).sum()), len(groups.codes)
    return (f"{n_unknown} of {n_users} users have no {groups.attribute}: they count overall and in no group",)


def _read_log(events: pa.Table, columns: Columns) -> EventLog:
    intake = EventParser(events, columns)
    taken = intake.take(events)
    notes = intake.notes()
    log = EventLog.from_columns(*taken)
    return replace(log, columns=columns, notes=notes + log.notes)


def _reopened(
    folder: Any, columns: Columns, *, users: Any, group: str | Sequence[str] | None, advantaged: object
) -> EventLog:
    """A log that was written before: how its events are read is settled, who is advantaged is not."""
    log = EventLog.open(folder)
    if columns not in (Columns(), Columns(user=columns.user if users is not None else None), log.columns):
        raise DataError(f"{folder} holds a log, which has its columns and ratings already; leave those options away")
    if users is not None:
        people = find_people(pa.table({}), to_table(users, what=USERS), columns, group=group, advantaged=advantaged)
        assert people is not None
        return with_groups(log, people.groups(log.user_ids.ids, advantaged))
    wanted = group if group is None or isinstance(group, str) else ",".join(group)
    if wanted is not None and (log.groups is None or wanted != log.groups.attribute):
        there = "no groups" if log.groups is None else f"the groups of {log.groups.attribute!r}"
        raise DataError(f"{folder} holds a log with {there}; to group its users anew, give a users table too")
    if advantaged is None:
        return log
    return replace(log, groups=log.require_groups().declared(advantaged))
