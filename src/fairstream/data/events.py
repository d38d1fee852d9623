"""Events: from tables of raw events to an `EventLog`, with the groups of its users and the features of its items."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.data.datasets import MODCLOTH_COLUMNS, open_dataset, split_modcloth
from fairstream.data.features import ItemFeatures
from fairstream.data.groups import UNKNOWN, Groups, GroupValues, group_parts, only_two_valued, read_more_groups
from fairstream.data.kinds import Marks
from fairstream.data.log import EventLog
from fairstream.data.reading import (
    TIME_UNITS,
    Columns,
    Repeats,
    Source,
    combined,
    first_sentence,
    is_address,
    is_glob,
    is_text,
    open_source,
)
from fairstream.data.storage import is_log
from fairstream.data.vocabulary import Vocabulary
from fairstream.errors import DataError
from fairstream.reporting import report

_EVENTS_TABLE, _USERS_TABLE = "the events table", "the users table"


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
    kind_column: str | None = None,
    kinds: Mapping[str, float] | None = None,
    returning: Sequence[str] = (),
    judge_by: Sequence[str] = (),
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
        A table or file, as for `source`, with a user column and the group column; without it, the group is
        a column of the events.
    items
        A table or file with an item column and others that describe the items, for models that read
        features: strings (each word is a feature), lists of strings (each element), integers and
        booleans (categories).
    group
        The column that makes the groups; several ("gender,age", or a list) make their
        intersections. Without it, the only column of `users` with two values.
    advantaged
        The value of the advantaged group; by default the larger of two groups, and none of three or more.
    user_column, item_column, time_column, rating_column
        Names of the columns; by default the usual names.
    rating_above
        If there are ratings, keep only events with a rating above this (the paper: 2).
    time_unit
        Unit of times that are numbers ("s", "ms", "us" or "ns" since 1970); they then become
        timestamps. Without it they stay numbers, and periods by the calendar guess the unit.
    repeats
        "first" keeps the first event of each (user, item) pair, "all" keeps every event. Models then train
        on all of them; tests and recommendations still cover only items that are new to the user.
    kinds
        How many times an event of each kind counts in learning, such as {"view": 1, "purchase": 4}; those of a kind
        with a weight of 0 or less are left out. A repeated pair has the largest weight of its events. Closed forms,
        the popularity models and the softmax loss of sequence models read weights; other losses do not.
    kind_column
        Name of the column with the kind; by default a usual name.
    returning
        The kinds whose items may be recommended again: each of their events is learned and tested.
    judge_by
        The kinds that evaluations and targets test; by default all. A pair is tested at its first event.

    Returns
    -------
    EventLog
        The events in chronological order; `EventLog.notes` says what was left out or moved.

    Raises
    ------
    DataError
        If the source cannot be read, a column is missing, an event lacks a user, item or time, no column of
        `items` describes items, two rows of an item differ, or `users` names none of the users.

    Examples
    --------
    >>> import pyarrow as pa
    >>> events = pa.table({"user": ["a", "b", "a"], "item": [5, 5, 9], "time": [1, 2, 3]})
    >>> people = pa.table({"user": ["a", "b"], "gender": ["F", "M"]})
    >>> log = read_events(events, users=people, group="gender", advantaged="M")
    >>> len(log), log.n_users, log.n_items, log.groups.names
    (3, 2, 2, ('M', 'F'))
    """
    columns = Columns(
        user_column,
        item_column,
        time_column,
        rating_column,
        rating_above,
        time_unit,
        repeats,
        kind=kind_column,
        kinds=kinds or {},
        returning=tuple(returning),
        judge_by=tuple(judge_by),
    )
    if is_log(source):
        log = _reopen(source, columns, users=users, items=items, group=group, advantaged=advantaged)
    else:
        events, people = open_events(source, users, columns)
        values = read_group_values(people, group, advantaged, columns)
        parser = EventParser(events.like, columns, group if people is None else None)
        table = events.read(parser.used)
        log = parser.log(table)
        if parser.group:
            values = GroupValues.from_table(table, parser.group, columns, what=_EVENTS_TABLE)
        log = describe(log, values, advantaged, items, columns, in_events=people is None)
    report(log.notes)
    return log


def open_events(source: Any, users: Any, columns: Columns) -> tuple[Source, Source | None]:
    """Open the events, and the given users or those of the data set."""
    own_users = None
    is_path = isinstance(source, str | Path) and not is_address(source) and not is_glob(source)
    if is_path and not Path(source).is_file():
        source, own_users = open_dataset(source)
    events = open_source(source, "the events", columns)
    if isinstance(source, str | Path) and set(events.like.column_names) >= MODCLOTH_COLUMNS:
        table, own_users = split_modcloth(events)
        events = open_source(table, "the events")
    users = own_users if users is None else users
    return events, None if users is None else open_source(users, "the users", columns)


def read_group_values(
    people: Source | None, group: str | Sequence[str] | None, advantaged: object, columns: Columns
) -> GroupValues | None:
    """Return the group values of a users table; None without one."""
    if people is None:
        if group is None and advantaged is not None:
            raise DataError("advantaged says which group is meant, but there are no groups; give group=COLUMN too")
        return None
    names = None
    if group is not None:
        names = group_parts(people.like, group, what=_USERS_TABLE)
        names += [columns.find("user", people.like, what=_USERS_TABLE)]
    table = people.read(names)
    group = only_two_valued(table, columns, what=_USERS_TABLE) if group is None else group
    return GroupValues.from_table(table, group, columns, what=_USERS_TABLE)


def describe(
    log: EventLog, values: GroupValues | None, advantaged: object, items: Any, columns: Columns, *, in_events: bool
) -> EventLog:
    """Return the log with the groups of its users and the features of its items."""
    if items is not None:
        log = log.with_features(ItemFeatures.read(items, columns))
    if values is None:
        return log
    ids = log.user_ids.ids
    return log.with_groups(values.groups(ids, advantaged), 0 if in_events else values.n_unmatched(ids))


def _reopen(
    folder: Any, columns: Columns, *, users: Any, items: Any, group: str | Sequence[str] | None, advantaged: object
) -> EventLog:
    """Open a stored log; only its groups and features can change."""
    log = EventLog.open(folder)
    of_tables = Columns(user=columns.user if users is not None else None, item=None if items is None else columns.item)
    if columns not in (Columns(), of_tables, replace(log.columns, time_zone=None)):
        raise DataError(
            f"{folder} holds a log, whose columns, ratings, repeats and time unit are fixed; omit those options"
        )
    if users is None:
        attribute = group if group is None or isinstance(group, str) else ",".join(group)
        if attribute is not None and (log.groups is None or attribute != log.groups.attribute):
            stored = "no groups" if log.groups is None else f"the groups of {log.groups.attribute!r}"
            raise DataError(f"{folder} holds a log with {stored}; for other groups, give a users table too")
        if advantaged is not None:
            log = replace(log, groups=log.require_groups().declared(advantaged))
        return describe(log, None, None, items, columns, in_events=False)
    values = read_group_values(open_source(users, "the users", columns), group, advantaged, columns)
    return describe(log, values, advantaged, items, columns, in_events=False)


def read_more_events(
    source: Any,
    groups: Groups,
    columns: Columns,
    *,
    users: Any = None,
    items: Any = None,
    last_time: np.generic | None = None,
) -> EventLog:
    """Read later events with the `groups` and `columns` of the earlier ones; without a source, read only `items`.

    The result has no groups if the tables lack their column. With `last_time`, the time of the latest known event, a
    note counts the older events, and another kind of time is an error.
    """
    notes: tuple[str, ...] = ()
    table = None
    if source is None and items is not None:
        features, nothing = ItemFeatures.read(items, columns), np.empty(0, np.int64)
        return EventLog(nothing, nothing, nothing, Vocabulary(), Vocabulary(), None, columns, features.notes, features)
    if is_log(source):
        log = EventLog.open(source)
        people = None if users is None else open_source(users, "the users", columns)
    else:
        events, people = open_events(source, users, columns)
        parser = EventParser(events.like, columns)
        used = {*parser.used, *(_group_columns(events.like, groups) if people is None else ())}
        table = events.read(used)
        log = parser.log(table)
        if unused := [name for name in events.like.column_names if name not in used]:
            notes += (f"columns of the events that are not used: {', '.join(unused)}",)
    if people is not None:
        user = columns.find_optional("user", people.like, what=_USERS_TABLE)
        table = people.read([*_group_columns(people.like, groups), *([user] if user else [])] or None)
    if table is not None:
        more = read_more_groups(log.user_ids.ids, table, columns, groups)
        if more is not None and not groups.is_empty:
            log = log.with_groups(more)
        notes += _notes_on_groups(groups, more, has_users=users is not None)
    if last_time is not None:
        notes += log.notes_after(last_time)
    if {log.columns.time_zone, columns.time_zone} == {True, False}:
        has = "have a time zone" if log.columns.time_zone else "have no time zone"
        notes += (f"these times {has}, unlike the earlier ones: those without one are taken to be UTC",)
    if items is not None:
        log = replace(log, features=ItemFeatures.read(items, columns))
    return replace(log, notes=log.notes + notes)


def _notes_on_groups(groups: Groups, more: Groups | None, *, has_users: bool) -> tuple[str, ...]:
    if groups.is_empty:
        return ("there were no groups from the first fit on: users have no effect",) if has_users else ()
    if more is None:
        return (f"the tables have no column {groups.attribute!r}: users who are new are in no group",)
    if has_users and (more.codes == UNKNOWN).all():
        return (f"the users table has a {groups.attribute} for none of the {len(more.codes)} users of these events",)
    return ()


def _group_columns(like: pa.Table, groups: Groups) -> list[str]:
    return [name for name in like.column_names if name in {*groups.attribute.split(","), groups.attribute}]


class EventParser:
    """Parses tables of raw events: keeps events with a high enough rating, converts and checks their columns.

    It counts missing values over all tables, and `notes` reports them.
    """

    def __init__(self, like: pa.Table, columns: Columns, group: str | Sequence[str] | None = None) -> None:
        """`like` has the columns of all tables to parse; `group` names those that make the groups."""
        self.names = {role: columns.find(role, like, what=_EVENTS_TABLE) for role in ("user", "item", "time")}
        self.rating = columns.find_optional("rating", like, what=_EVENTS_TABLE)
        self.kind = columns.find("kind", like, what=_EVENTS_TABLE) if columns.kinds else None
        self.group = [] if group is None else group_parts(like, group, what=_EVENTS_TABLE)
        self._columns = columns
        self._n_events = self._n_kept = self._n_unrated = 0
        self._time_zone: bool | None = None
        self._n_missing = dict.fromkeys(self.names, 0)

    @property
    def used(self) -> set[str]:
        others = (name for name in (self.rating, self.kind) if name is not None)
        return {*self.names.values(), *self.group, *others}

    def log(self, events: pa.Table) -> EventLog:
        """Return the log of one table with all events, without groups."""
        users, items, times, marks = self.parse(events)
        notes = self.notes()
        log = EventLog.from_columns(users, items, times, self._columns.repeats, marks)
        return replace(log, columns=self.columns, notes=notes + log.notes)

    def parse(self, events: pa.Table) -> tuple[pa.Array, pa.Array, np.ndarray[Any, Any], Marks | None]:
        """Return the ids of the users, those of the items, the times, and what the kinds say, if there are kinds."""
        events = self.keep_rated(events)
        marks = None
        if self.kind is not None:
            marks = Marks.of(events[self.kind], self._columns)
            is_choice = marks.weights > 0
            events, marks = events.filter(pa.array(is_choice)), marks.at(is_choice)
        for role, name in self.names.items():
            self._n_missing[role] += events[name].null_count
        if any(self._n_missing.values()):
            events, marks = events.slice(0, 0), None  # `notes` will raise; count the missing values until then
        user, item, time = (events[name] for name in self.names.values())
        times = _times(self.to_times(time), self.names["time"], self._columns.time_unit)
        return combined(user), combined(item), times, marks

    def keep_rated(self, events: pa.Table) -> pa.Table:
        """Return the events whose rating is high enough; all of them without ratings."""
        self._n_events += len(events)
        if self.rating is not None:
            ratings = events[self.rating]
            try:
                ratings = ratings.cast(pa.float64())
            except pa.ArrowException:
                name, kind = self.rating, ratings.type
                raise DataError(f"ratings must be numbers, but {name!r} holds {kind}; convert it first") from None
            self._n_unrated += pc.sum(pc.is_null(ratings, nan_is_null=True)).as_py() or 0
            events = events.filter(pc.greater(ratings, self._columns.rating_above))
        self._n_kept += len(events)
        return events

    def to_times(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Parse times in text; raise DataError if tables differ in having a time zone."""
        column = _from_text(column, self.names["time"])
        if len(column) and pa.types.is_timestamp(column.type):
            has_zone = column.type.tz is not None
            if self._time_zone not in (None, has_zone):
                raise DataError(
                    f"all times need a time zone or none, but {self.names['time']!r} holds both; convert it first"
                )
            self._time_zone = has_zone
        return column

    @property
    def columns(self) -> Columns:
        """How to read later events."""
        return replace(self._columns, time_zone=self._time_zone)

    def notes(self) -> tuple[str, ...]:
        """Return what was left out; raise DataError where an event lacks a user, an item or a time."""
        n, n_kept, rated = self._n_events, self._n_kept, f"{self.rating} > {self._columns.rating_above:g}"
        if self.rating is not None and n > 0 == n_kept:
            raise DataError(f"none of the {n} events has {rated}; lower rating_above")
        for role, name in self.names.items():
            if missing := self._n_missing[role]:
                needed = "an item" if role == "item" else f"a {role}"
                raise DataError(f"every event needs {needed}, but {missing} of {n_kept} are missing in {name!r}")
        unrated = f" ({self._n_unrated} have no rating)" if self._n_unrated else ""
        return () if self.rating is None else (f"{n_kept} of {n} events have {rated} and are kept{unrated}",)


def _from_text(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Parse times in text as integers or timestamps; return other columns unchanged."""
    if not is_text(column.type) or len(column) == 0:
        return column
    times, misfits = _parse_text(column)
    if times is not None:
        return times
    misfits.sort(key=_is_timestamp)
    shown = f", {misfits[0]!r} for one" if misfits else ""
    raise DataError(
        f"times that are text must be ISO 8601, all with a time zone or all without, such as 2024-05-01T12:30:00Z, but "
        f"{name!r} holds others{shown}; convert it first"
    )


def _parse_text(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray | None, list[str]]:
    """Return integers or timestamps; or None, and for each kind of them a text that does not fit."""
    misfits = list[str]()
    stamps = (pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC"))
    for kind in (pa.int64(), *stamps):
        try:
            return column.cast(kind), []
        except pa.ArrowInvalid as error:
            misfits += re.findall(r"string: '(.*?)' as", str(error))
    return None, misfits


def _is_timestamp(text: str) -> bool:
    times, _ = _parse_text(pa.chunked_array([[text]]))
    return times is not None and pa.types.is_timestamp(times.type)


def _times(column: pa.ChunkedArray, name: str, unit: str | None) -> np.ndarray[Any, Any]:
    """Return times as a NumPy array of integers, floats or timestamps; numbers with a unit become timestamps."""
    kind, test = column.type, pa.types
    if len(column) == 0:
        return np.empty(0)
    if not (test.is_date(kind) or test.is_timestamp(kind) or test.is_integer(kind) or test.is_floating(kind)):
        raise DataError(f"times must be integers, floats or timestamps, but {name!r} holds {kind}; convert it first")
    target = pa.int64() if test.is_integer(kind) else pa.float64() if test.is_floating(kind) else pa.timestamp("us")
    try:
        column = pc.cast(column, options=pc.CastOptions(target, allow_time_truncate=True))
    except pa.ArrowInvalid as error:
        raise DataError(f"the times in {name!r} are out of range: {first_sentence(error)}") from None
    times: np.ndarray[Any, Any] = column.to_numpy()
    if times.dtype.kind == "f" and not np.isfinite(times).all():
        raise DataError(f"every event needs a time, but {name!r} holds NaN or infinity")
    if unit is None or times.dtype.kind == "M":
        return times
    if (np.abs(times.astype(np.float64)) * TIME_UNITS[unit] >= 2**63).any():
        raise DataError(f"the times in {name!r} are out of range for time_unit={unit!r}")
    if times.dtype.kind == "f":
        return np.floor(times * TIME_UNITS[unit]).astype(np.int64).astype("datetime64[us]")
    return times.astype(f"datetime64[{unit}]").astype("datetime64[us]")
