"""`fairstream data`: download the paper's data sets, describe a folder or file, ingest what exceeds the memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.console import Console

from fairstream.cli.console import Output, on_interrupt
from fairstream.cli.options import CommandGroup, Data, DataFolder, ReadOptions
from fairstream.cli.progress import DownloadProgress
from fairstream.data import Columns, EventLog, read_events
from fairstream.data import ingest as ingest_events
from fairstream.data.datasets.prepare import Prepared, get_dataset
from fairstream.data.datasets.sources import SOURCES, data_home, difference_from_paper, nearest, recognise
from fairstream.data.events import open_events
from fairstream.data.groups import MAX_GROUPS, Codes, GroupValues, encode_groups, n_values
from fairstream.data.log import note_on_ties
from fairstream.data.storage import is_log
from fairstream.display import Table
from fairstream.errors import DataError
from fairstream.periods import readable_times
from fairstream.text import counted

_MAX_SHOWN = 12
_ROLES = ("user", "item", "time", "rating")
data_app = CommandGroup(help="Download the paper's data sets; describe or ingest your data.", no_args_is_help=True)


@data_app.command()
def get(
    name: Annotated[
        Literal["movielens-1m", "movielens-100k", "modcloth"],
        typer.Argument(metavar="NAME", help=f"The data set: {', '.join(SOURCES)}."),
    ],
    data: DataFolder = None,
    url: Annotated[
        str | None, typer.Option(help="Another address of the same file.", show_default="where it is published")
    ] = None,
    sha256: Annotated[
        str | None, typer.Option(help="Checksum that the file must have.", show_default="the published one, if any")
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="Use this file instead of downloading it.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a data set that was prepared before.")] = False,
    *,
    output: Output,
) -> None:
    """Download a data set, check it, and prepare it for `fairstream run NAME`.

    Events with a rating above 2 are kept, one per user and item, in chronological order. The
    result is compared with the paper's counts. The data sets are for research; their terms are shown.
    """
    with (
        on_interrupt("nothing was kept, and nothing was replaced"),
        DownloadProgress(name, quiet=output.quiet) as progress,
    ):
        prepared = get_dataset(name, to=data, url=url, sha256=sha256, archive=from_, force=force, progressbar=progress)
    output.print(*_sentences(prepared, is_elsewhere=data not in (None, data_home())))
    output.write({"folder": str(prepared.folder), "is_new": prepared.is_new, **prepared.about})
    if prepared.difference is not None:
        warning = f"fairstream: warning: {prepared.difference}"
        Console(stderr=True).print(warning, style="yellow", highlight=False, markup=False, soft_wrap=True)


def _sentences(prepared: Prepared, *, is_elsewhere: bool) -> list[str]:
    about, source = prepared.about, prepared.source
    counts = about["counts"]
    is_papers = bool(source.counts) and prepared.difference is None
    where = prepared.folder if is_elsewhere else source.name
    run = f"fairstream run {where} --group {source.group} --advantaged {source.advantaged}"
    return [
        f"{'Prepared' if prepared.is_new else 'Exists already:'} {prepared.folder}",
        f"{counts['n_events']:,} events, {counts['n_users']:,} users, {counts['n_items']:,} items"
        + (", as in the paper" if is_papers else ""),
        f"From {about['from']}, {about['size']:,} bytes, sha256 {about['sha256']} ({about['checksum']})",
        f"{about['terms']}.",
        f"Next: {run}",
    ]


@data_app.command()
def check(data: Data, *, output: Output) -> None:
    """Describe a folder or file: events, users, items, times, groups, and whether it is the paper's data."""
    description = describe(data)
    output.print(*summary(description))
    if any(column.values for column in description.group_columns):
        output.print(group_table(description))
    output.write(asdict(description))


@data_app.command()
def ingest(
    data: Data,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the log.", show_default=False)],
    *,
    reading: ReadOptions,
    memory_limit: Annotated[
        str, typer.Option(metavar="AMOUNT", help="Memory that sorting may use, such as 500MB; the rest goes to disk.")
    ] = "2GB",
    output: Output,
) -> None:
    """Write events that do not fit into memory as a log in a new folder, for `fairstream run DIR`."""
    with on_interrupt("nothing was kept"):
        log = ingest_events(data, folder, **asdict(reading), memory_limit=memory_limit)
    counts = {"n_events": len(log), "n_users": log.n_users, "n_items": log.n_items}
    about = f"{folder}: {len(log):,} events, {log.n_users:,} users, {log.n_items:,} items"
    output.print(about, *log.notes, f"Next: fairstream run {folder}")
    output.write({"folder": str(folder), **counts, "notes": list(log.notes)})


@dataclass(frozen=True)
class Size:
    """How many users a group has, and how many events they have."""

    n_users: int = 0
    n_events: int = 0


@dataclass(frozen=True)
class GroupColumn:
    """A column of the users, and whether it can make groups."""

    name: str
    values: dict[str, Size] = field(default_factory=dict)  # the sizes of the groups, the largest first
    unknown: Size = Size()  # those without a value
    problem: str | None = None  # why no groups can be made of it; `values` is then empty


@dataclass(frozen=True)
class Ratings:
    """The ratings of all events, including those too low to count."""

    column: str
    n_rated: int
    lowest: float | None
    highest: float | None
    mean: float | None
    above: float  # only events with a rating above this are kept
    n_above: int


@dataclass(frozen=True)
class Description:
    """The events that a run would use, and how many reading dropped."""

    n_events: int
    n_users: int
    n_items: int
    first_time: str
    last_time: str
    ratings: Ratings | None
    n_repeated: int | None  # left out because they repeat a pair; None for a stored log, which does not record it
    n_tied: int | None  # that have the time of the user's previous event; None if the times only order the events
    group_columns: tuple[GroupColumn, ...]
    notes: tuple[str, ...]
    paper_dataset: str | None  # the paper's data set with these counts
    difference: str | None  # how it differs from the paper's data set that it resembles


def describe(source: str | Path) -> Description:
    """Describe the events of `source`, a name or path that `read_events` accepts.

    >>> description = describe("synthetic")
    >>> column = description.group_columns[0]
    >>> description.n_events, column.name, list(column.values)
    (60000, 'community', ['majority', 'minority'])
    """
    ratings: Ratings | None = None
    n_repeated: int | None = None
    if is_log(source):
        log = EventLog.open(source)
        groups = log.groups
        columns = [] if groups is None else [_sized(groups.attribute, groups.names, groups.codes, log)]
    else:
        opened, people = open_events(source, None, Columns())
        events = opened.read()
        log = read_events(events)
        ratings = _ratings(events, log.columns)
        n_repeated = (len(events) if ratings is None else ratings.n_above) - len(log)
        # Columns that describe users: those of the users' table, or else those of the events.
        table = events if people is None else people.read()
        roles = [log.columns.find_optional(role, table, what="the table") for role in _ROLES]
        columns = [_group_column(table, name, log) for name in table.column_names if name not in roles]
    counts = (len(log), log.n_users, log.n_items)
    known, near = recognise(log), nearest(*counts)
    first, last = readable_times(log.times[[0, -1]])
    return Description(
        *counts,
        first,
        last,
        ratings,
        n_repeated,
        log.n_tied(),
        tuple(columns),
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


def _group_column(table: pa.Table, name: str, log: EventLog) -> GroupColumn:
    n = n_values(table[name])
    if not 2 <= n <= MAX_GROUPS:
        return GroupColumn(name, problem=counted(n, "value"))
    try:
        values = GroupValues.from_table(table, name, log.columns, what="the table")
    except DataError:
        return GroupColumn(name, problem=f"{n:,} values, some users have several of them")
    names, codes = encode_groups(values.of(log.user_ids.ids), ())
    return _sized(name, names, codes, log)


def _sized(attribute: str, names: tuple[str, ...], codes: Codes, log: EventLog) -> GroupColumn:
    n_users = np.bincount(codes + 1, minlength=len(names) + 1).tolist()
    n_events = np.bincount(codes[log.users] + 1, minlength=len(names) + 1).tolist()
    unknown, *sizes = map(Size, n_users, n_events)
    largest_first = sorted(zip(names, sizes, strict=True), key=lambda pair: -pair[1].n_users)
    return GroupColumn(attribute, dict(largest_first), unknown)


def summary(description: Description) -> list[str]:
    """Return the description as lines of text."""
    is_papers = f": the counts of the paper's {description.paper_dataset}" if description.paper_dataset else ""
    rated, ratings = description.ratings, "none, every event counts"
    if rated is not None:
        ends = "" if rated.mean is None else f"from {rated.lowest:g} to {rated.highest:g}, mean {rated.mean:.2f}; "
        ratings = f"{ends}{rated.n_above:,} of {rated.n_rated:,} are above {rated.above:g} and count"
    n_repeated, n_tied, unlike = description.n_repeated, description.n_tied, description.difference
    unusable = [f"{column.name} ({column.problem})" for column in description.group_columns if column.problem]
    has_groups = any(column.values for column in description.group_columns)
    return [
        f"{description.n_events:,} events, {description.n_users:,} users, {description.n_items:,} items{is_papers}",
        f"Time: from {description.first_time} to {description.last_time}",
        f"Ratings: {ratings}",
        *([] if n_repeated is None else [f"Repeated pairs of user and item: {n_repeated:,}"]),
        *([] if n_tied is None else [f"Equal times: {note_on_ties(n_tied, description.n_events)}"]),
        *(f"Note: {note}" for note in description.notes),
        *([] if unlike is None else [f"Not the paper's: {unlike}"]),
        *([f"Columns that make no groups: {', '.join(unusable)}"] if unusable else []),
        *([] if has_groups else ["Groups: no column can make them, so no disparity can be computed"]),
    ]


def group_table(description: Description) -> Table:
    """Return a table of the columns that can make groups, with their values: the largest, and the others together."""
    rows = []
    for column in description.group_columns:
        sizes = list(column.values.items())
        if others := [size for _, size in sizes[_MAX_SHOWN:]]:
            together = Size(sum(size.n_users for size in others), sum(size.n_events for size in others))
            sizes = [*sizes[:_MAX_SHOWN], (f"{len(others)} more", together)]
        if column.unknown.n_users:
            sizes.append(("not known", column.unknown))
        cells = [[value, f"{size.n_users:,}", f"{size.n_events:,}"] for value, size in sizes]
        rows += [["" if row else column.name, *each] for row, each in enumerate(cells)]
    return Table(["column", "value", "users", "events"], rows, "Columns that can make groups", align="ll")
