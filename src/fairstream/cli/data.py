"""`fairstream data`: download the paper's data sets, describe a folder or file, ingest what exceeds the memory."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from fairstream.cli.console import check_json, make_console, on_interrupt, print_lines, write_result
from fairstream.cli.data_description import describe, group_table, summary
from fairstream.cli.options import (
    Advantaged,
    Cluster,
    Data,
    DataFolder,
    Group,
    ItemColumn,
    Items,
    Json,
    Quiet,
    RatingAbove,
    RatingColumn,
    Repeats,
    TimeColumn,
    TimeUnit,
    UserColumn,
    Users,
)
from fairstream.cli.progress import DownloadProgress
from fairstream.data import ingest as ingest_events
from fairstream.data.datasets.prepare import Prepared, get_dataset
from fairstream.data.datasets.sources import SOURCES, data_home

data_app = typer.Typer(
    help="Download and prepare the paper's data sets; describe or ingest a folder or file of your own.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)


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
        str | None,
        typer.Option(help="Checksum that the file must have.", show_default="the published one, if any"),
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="Use this file, downloaded before.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what was prepared before.")] = False,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Download a data set, check it, and prepare it for `fairstream run NAME`.

    Events with a rating above 2 are kept, one per user and item, in chronological order. The
    result is compared with the paper's counts. The data sets are for research; their terms are shown.
    """
    check_json(json)
    with on_interrupt("nothing was kept, and nothing was replaced"), DownloadProgress(name, quiet=quiet) as progress:
        prepared = get_dataset(name, to=data, url=url, sha256=sha256, archive=from_, force=force, progressbar=progress)
    print_lines(make_console(quiet=quiet, json=json), *_summary(prepared, is_elsewhere=data not in (None, data_home())))
    write_result({"folder": str(prepared.folder), "is_new": prepared.is_new, **prepared.about}, json)
    if prepared.difference is not None:
        warning = f"fairstream: warning: {prepared.difference}"
        Console(stderr=True).print(warning, style="yellow", highlight=False, markup=False, soft_wrap=True)


def _summary(prepared: Prepared, *, is_elsewhere: bool) -> list[str]:
    about, source = prepared.about, prepared.source
    counts = about["counts"]
    is_papers = prepared.is_in_paper and prepared.difference is None
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
def check(
    data: Data,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Describe a folder or file: events, users, items, times, groups, and whether it is the paper's data."""
    check_json(json)
    description = describe(data)
    console = make_console(quiet=quiet, json=json)
    print_lines(console, *summary(description))
    if any(column.values for column in description.group_columns):
        console.print(group_table(description))
    write_result(asdict(description), json)


@data_app.command()
def ingest(
    data: Data,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the log.", show_default=False)],
    *,
    group: Group = None,
    advantaged: Advantaged = None,
    users: Users = None,
    items: Items = None,
    user_column: UserColumn = None,
    item_column: ItemColumn = None,
    time_column: TimeColumn = None,
    rating_column: RatingColumn = None,
    rating_above: RatingAbove = 2.0,
    time_unit: TimeUnit = None,
    repeats: Repeats = "first",
    memory_limit: Annotated[
        str, typer.Option(metavar="AMOUNT", help="Memory that sorting may use, such as 500MB; the rest goes to disk.")
    ] = "2GB",
    cluster: Cluster = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Write events that do not fit into memory as a log in a new folder, for `fairstream run DIR`.

    With `--cluster` the tasks of Ray read the files and sort the events; the log is the same.
    """
    check_json(json)
    with on_interrupt("nothing was kept"):
        log = ingest_events(
            data,
            folder,
            users=users,
            items=items,
            group=group,
            advantaged=advantaged,
            user_column=user_column,
            item_column=item_column,
            time_column=time_column,
            rating_column=rating_column,
            rating_above=rating_above,
            time_unit=time_unit,
            repeats=repeats,
            memory_limit=memory_limit,
            cluster=cluster,
        )
    counts = {"n_events": len(log), "n_users": log.n_users, "n_items": log.n_items}
    about = f"{folder}: {len(log):,} events, {log.n_users:,} users, {log.n_items:,} items"
    print_lines(make_console(quiet=quiet, json=json), about, *log.notes, f"Next: fairstream run {folder}")
    write_result({"folder": str(folder), **counts, "notes": list(log.notes)}, json)
