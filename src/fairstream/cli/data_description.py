"""What `fairstream data check` reports of a folder or file, as data, as text and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.table import Table

from fairstream.cli.console import new_table
from fairstream.data import Columns, EventLog, read_events
from fairstream.data.datasets import open_dataset
from fairstream.data.datasets.published import difference_from_paper, nearest, recognise
from fairstream.data.groups import MOST_GROUPS, Codes, GroupValues, encode_groups, n_values
from fairstream.data.inputs import to_table
from fairstream.data.storage import is_log
from fairstream.errors import DataError
from fairstream.periods import readable_times

_MOST_SHOWN = 12


@dataclass(frozen=True)
class Size:
    """How many users a group has, and how many events they have."""

    n_users: int
    n_events: int


@dataclass(frozen=True)
class GroupColumn:
    """A column of the users, and whether it can make groups."""

    name: str
    values: dict[str, Size]
    """The sizes of the groups, the largest first."""
    unknown: Size
    """Those without a value."""
    problem: str | None = None
    """Why no groups can be made of it; `values` is then empty."""


@dataclass(frozen=True)
class Ratings:
    """The ratings of all events, including those too low to count."""

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
    """Events left out because they repeat a pair; None for a stored log, which does not record it."""
    group_columns: tuple[GroupColumn, ...]
    notes: tuple[str, ...]
    paper_dataset: str | None
    """The paper's data set with these counts."""
    difference: str | None
    """How it differs from the paper's data set that it resembles."""


def describe(source: str | Path) -> Description:
    """Return what `source`, a name or path that `read_events` accepts, holds.

    >>> description = describe("synthetic")
    >>> column = description.group_columns[0]
    >>> description.n_events, column.name, list(column.values)
    (60000, 'community', ['majority', 'minority'])
    """
    if is_log(source):
        log = EventLog.open(source)
        return _described(log, _stored_groups(log), ratings=None, n_repeated=None)
    dataset = open_dataset(source)
    events = to_table(dataset.events, what="the events")
    users = None if dataset.users is None else to_table(dataset.users, what="the users")
    log = read_events(events)
    ratings = _ratings(events, log.columns)
    n_counted = len(events) if ratings is None else ratings.n_above
    groups = _group_columns(events if users is None else users, log)
    return _described(log, groups, ratings=ratings, n_repeated=n_counted - len(log))


def _described(
    log: EventLog, groups: tuple[GroupColumn, ...], *, ratings: Ratings | None, n_repeated: int | None
) -> Description:
    counts = (len(log), log.n_users, log.n_items)
    known, near = recognise(log), nearest(*counts)
    first, last = readable_times(log.times[[0, -1]])
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
    """Return the columns that describe users: those of the users' table, or else those of the events."""
    roles = [log.columns.find_optional(role, table, what="the table") for role in ("user", "item", "time", "rating")]
    return tuple(_group_column(table, name, log) for name in table.column_names if name not in roles)


def _group_column(table: pa.Table, name: str, log: EventLog) -> GroupColumn:
    n = n_values(table[name])
    if not 2 <= n <= MOST_GROUPS:
        return GroupColumn(name, {}, Size(0, 0), f"{n:,} value{'' if n == 1 else 's'}")
    try:
        values = GroupValues.from_table(table, name, log.columns, what="the table")
    except DataError:
        return GroupColumn(name, {}, Size(0, 0), f"{n:,} values, some users have several of them")
    names, codes = encode_groups(values.of(log.user_ids.ids), ())
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


def summary(description: Description) -> list[str]:
    """Return the description as lines of text."""
    is_papers = f": the counts of the paper's {description.paper_dataset}" if description.paper_dataset else ""
    lines = [
        f"{description.n_events:,} events, {description.n_users:,} users, {description.n_items:,} items{is_papers}",
        f"Time: from {description.first_time} to {description.last_time}",
        "Ratings: none, every event counts" if description.ratings is None else _rated(description.ratings),
        *_repeated(description.n_repeated),
        *(f"Note: {note}" for note in description.notes),
    ]
    if description.difference is not None:
        lines.append(f"Not the paper's: {description.difference}")
    if unusable := [f"{column.name} ({column.problem})" for column in description.group_columns if column.problem]:
        lines.append(f"Columns that make no groups: {', '.join(unusable)}")
    if not any(column.values for column in description.group_columns):
        lines.append("Groups: no column can make them, so no disparity can be computed")
    return lines


def _rated(ratings: Ratings) -> str:
    ends = "" if ratings.mean is None else f"from {ratings.lowest:g} to {ratings.highest:g}, mean {ratings.mean:.2f}; "
    return f"Ratings: {ends}{ratings.n_above:,} of {ratings.n_rated:,} are above {ratings.above:g} and count"


def _repeated(n_repeated: int | None) -> list[str]:
    return [] if n_repeated is None else [f"Repeated pairs of user and item: {n_repeated:,}"]


def group_table(description: Description) -> Table:
    """Return a table of the columns that can make groups, with their values."""
    table = new_table("Columns that can make groups")
    table.add_column("column", no_wrap=True)
    table.add_column("value", no_wrap=True)
    for heading in ("users", "events"):
        table.add_column(heading, justify="right", no_wrap=True)
    for column in description.group_columns:
        for row, (value, size) in enumerate(_rows(column)):
            table.add_row(column.name if row == 0 else "", value, f"{size.n_users:,}", f"{size.n_events:,}")
    return table


def _rows(column: GroupColumn) -> list[tuple[str, Size]]:
    """Return the largest groups, the smaller ones together where they are many, and the users in none."""
    rows = list(column.values.items())
    if len(rows) > _MOST_SHOWN:
        rest = [size for _, size in rows[_MOST_SHOWN:]]
        together = Size(sum(size.n_users for size in rest), sum(size.n_events for size in rest))
        rows = [*rows[:_MOST_SHOWN], (f"{len(rest)} more", together)]
    return [*rows, ("not known", column.unknown)] if column.unknown.n_users else rows
