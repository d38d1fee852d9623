"""What a folder or file holds, in words and as a table for a person."""

from __future__ import annotations

from rich.table import Table

from fairstream.cli.tables import new_table
from fairstream.data.datasets.describe import Description, GroupColumn, Ratings, Size

_MOST_SHOWN = 12


def summary(found: Description) -> list[str]:
    """One line for each thing worth knowing."""
    is_papers = f": the counts of the paper's {found.paper_dataset}" if found.paper_dataset else ""
    lines = [
        f"{found.n_events:,} events, {found.n_users:,} users, {found.n_items:,} items{is_papers}",
        f"Time: from {found.first_time} to {found.last_time}",
        "Ratings: none, every event counts" if found.ratings is None else _rated(found.ratings),
        *_repeated(found.n_repeated),
        *(f"Note: {note}" for note in found.notes),
    ]
    if found.difference is not None:
        lines.append(f"Not quite the paper's: {found.difference}")
    if unusable := [f"{column.name} ({column.problem})" for column in found.group_columns if column.problem]:
        lines.append(f"Columns that make no groups: {', '.join(unusable)}")
    if not any(column.values for column in found.group_columns):
        lines.append("Groups: no column to make them of, so no disparity can be judged")
    return lines


def _rated(ratings: Ratings) -> str:
    ends = "" if ratings.mean is None else f"from {ratings.lowest:g} to {ratings.highest:g}, mean {ratings.mean:.2f}; "
    return f"Ratings: {ends}{ratings.n_above:,} of {ratings.n_rated:,} are above {ratings.above:g} and count"


def _repeated(n_repeated: int | None) -> list[str]:
    return [] if n_repeated is None else [f"Repeated pairs of user and item: {n_repeated:,}"]


def group_table(found: Description) -> Table:
    """Each column that can make groups, with its values."""
    table = new_table("What can make groups")
    table.add_column("column", no_wrap=True)
    table.add_column("value", no_wrap=True)
    for heading in ("users", "events"):
        table.add_column(heading, justify="right", no_wrap=True)
    for column in found.group_columns:
        for row, (value, size) in enumerate(_rows(column)):
            table.add_row(column.name if row == 0 else "", value, f"{size.n_users:,}", f"{size.n_events:,}")
    return table


def _rows(column: GroupColumn) -> list[tuple[str, Size]]:
    """The largest groups, the smaller ones together where they are many, and those who are in none."""
    rows = list(column.values.items())
    if len(rows) > _MOST_SHOWN:
        rest = [size for _, size in rows[_MOST_SHOWN:]]
        together = Size(sum(size.n_users for size in rest), sum(size.n_events for size in rest))
        rows = [*rows[:_MOST_SHOWN], (f"{len(rest)} more", together)]
    return [*rows, ("not known", column.unknown)] if column.unknown.n_users else rows
