"""What a folder or a file holds, as far as a run would care."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.data.columns import Columns
from fairstream.data.datasets.published import difference_from_paper, nearest, recognise
from fairstream.data.group_collector import GroupCollector, n_values
from fairstream.data.groups import MOST_GROUPS, Codes, encode_groups
from fairstream.data.log import EventLog
from fairstream.data.readers import EVENTS, open_tables, read_events
from fairstream.data.storage import is_log
from fairstream.data.tables import to_table
from fairstream.errors import DataError
from fairstream.periods import to_moments

_EARLIEST_UNIX_TIME, _LATEST_UNIX_TIME = 1e8, 4e18  # 1973 in seconds, 2096 in nanoseconds; else it is some count


@dataclass(frozen=True)
class Size:
    """How many users a group has, and how many events they."""

    n_users: int
    n_events: int


@dataclass(frozen=True)
class GroupColumn:
    """A column that tells something of the users, and whether it can make groups."""

    name: str
    values: dict[str, Size]
    """The sizes of the groups, the largest first."""
    unknown: Size
    """Those without a value."""
    problem: str | None = None
    """Why no groups can be made of it, where that is so; it then has no values here."""


@dataclass(frozen=True)
class Ratings:
    """The ratings of all events, those that are too low to count too."""

    column: str
    n_rated: int
    lowest: float | None
    highest: float | None
    mean: float | None
    above: float
    n_above: int
    """Only events with a rating above this are kept."""


@dataclass(frozen=True)
class Description:
    """The events that a run would see, and what reading them left out."""

    n_events: int
    n_users: int
    n_items: int
    first_time: str
    last_time: str
    ratings: Ratings | None
    n_repeated: int | None
    """Events left out because their user had had the item before; None where a stored log no longer tells."""
    group_columns: tuple[GroupColumn, ...]
    notes: tuple[str, ...]
    paper_dataset: str | None
    """The paper's data set that has these counts."""
    difference: str | None
    """How it differs from the paper's data set that it seems meant to be."""


def describe(source: str | Path) -> Description:
    """What `source`, anything that `read_events` reads by its path, holds.

    >>> found = describe("synthetic")
    >>> found.n_events, found.group_columns[0].name, list(found.group_columns[0].values)
    (60000, 'community', ['majority', 'minority'])
    """
    if is_log(source):
        log = EventLog.open(source)
        return _described(log, _stored_groups(log), ratings=None, n_repeated=None)
    tables = open_tables(source, None)
    events = to_table(tables.events, what=EVENTS)
    log = read_events(events)
    ratings = _ratings(events, log.columns)
    n_counted = len(events) if ratings is None else ratings.n_above
    groups = _group_columns(events if tables.users is None else tables.users, log)
    return _described(log, groups, ratings=ratings, n_repeated=n_counted - len(log))


def _described(
    log: EventLog, groups: tuple[GroupColumn, ...], *, ratings: Ratings | None, n_repeated: int | None
) -> Description:
    counts = (len(log), log.n_users, log.n_items)
    known, near = recognise(log), nearest(*counts)
    first, last = _span(log)
    return Description(
        *counts,
        first,
        last,
        ratings,
        n_repeated,
        groups,
        log.notes,
        known.name if known else None,
        difference_from_paper(near.name, *counts) if near else None,
    )


def _span(log: EventLog) -> tuple[str, str]:
    """The first and the last time: a date where it is one, else the number."""
    ends = log.times[[0, -1]]
    if ends.dtype.kind == "M" or _EARLIEST_UNIX_TIME <= ends[0] <= ends[1] <= _LATEST_UNIX_TIME:
        first, last = to_moments(ends).astype("datetime64[s]")
        return str(first).replace("T", " "), str(last).replace("T", " ")
    form = ",.6g" if ends.dtype.kind == "f" else ","
    return format(ends[0], form), format(ends[1], form)


def _ratings(events: pa.Table, columns: Columns) -> Ratings | None:
    name = columns.find_optional("rating", events, what="the events table")
    if name is None:
        return None
    rated = events[name].cast(pa.float64())
    n_above = pc.sum(pc.greater(rated, columns.rating_above)).as_py()
    rated = rated.filter(pc.is_finite(rated))
    ends, mean = pc.min_max(rated).as_py(), pc.mean(rated).as_py()
    return Ratings(name, len(rated), ends["min"], ends["max"], mean, columns.rating_above, n_above)


def _group_columns(table: pa.Table, log: EventLog) -> tuple[GroupColumn, ...]:
    """What the users' table says of them; where there is none, what the events say and no user contradicts."""
    roles = [log.columns.find_optional(role, table, what="the table") for role in ("user", "item", "time", "rating")]
    return tuple(_group_column(table, name, log) for name in table.column_names if name not in roles)


def _group_column(table: pa.Table, name: str, log: EventLog) -> GroupColumn:
    n = n_values(table[name])
    if not 2 <= n <= MOST_GROUPS:
        return GroupColumn(name, {}, Size(0, 0), f"{n:,} value{'' if n == 1 else 's'}")
    people = GroupCollector(table, name, log.columns, what="the table")
    try:
        people.add(table)
    except DataError:
        return GroupColumn(name, {}, Size(0, 0), f"{n:,} values, some users have several of them")
    names, codes = encode_groups(people.values(log.user_ids.ids), ())
    return _sized(name, names, codes, log)


def _stored_groups(log: EventLog) -> tuple[GroupColumn, ...]:
    groups = log.groups
    return () if groups is None else (_sized(groups.attribute, groups.names, groups.codes, log),)


def _sized(attribute: str, names: tuple[str, ...], codes: Codes, log: EventLog) -> GroupColumn:
    n_users = np.bincount(codes + 1, minlength=len(names) + 1).tolist()
    n_events = np.bincount(codes[log.users] + 1, minlength=len(names) + 1).tolist()
    unknown, *sizes = map(Size, n_users, n_events)
    largest_first = sorted(zip(names, sizes, strict=True), key=lambda pair: -pair[1].n_users)
    return GroupColumn(attribute, dict(largest_first), unknown)
