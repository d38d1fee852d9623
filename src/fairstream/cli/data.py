"""`fairstream data get`: download the paper's data sets; `fairstream data check`: describe a folder or file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fairstream.cli.console import make_console
from fairstream.cli.data_description import describe, group_table, summary
from fairstream.cli.progress import DownloadProgress
from fairstream.data.datasets.prepare import Prepared, get_dataset
from fairstream.data.datasets.sources import SOURCES
from fairstream.files import check_writable, write_json

data_app = typer.Typer(
    help="Download and prepare the paper's data sets; describe a folder or file.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)


@data_app.command()
def get(
    name: Annotated[str, typer.Argument(help=f"The data set: {', '.join(SOURCES)}.")],
    to: Annotated[
        Path | None, typer.Option(help="Folder to make the folder NAME in.", show_default="~/.local/share/fairstream")
    ] = None,
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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but warnings and errors.")] = False,
) -> None:
    """Download a data set, check it, and prepare it for `fairstream run`.

    Events with a rating above 2 are kept, one per user and item, in chronological order. The
    result is compared with the paper's counts. The data sets are for research; their terms are shown.
    """
    with DownloadProgress(name, quiet=quiet) as progress:
        prepared = get_dataset(name, to=to, url=url, sha256=sha256, archive=from_, force=force, progressbar=progress)
    console = make_console(quiet=quiet)
    for line in _summary(prepared):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if prepared.difference is not None:
        warning = f"fairstream: warning: {prepared.difference}"
        Console(stderr=True).print(warning, style="yellow", highlight=False, markup=False, soft_wrap=True)


def _summary(prepared: Prepared) -> list[str]:
    about, source = prepared.about, prepared.source
    counts = about["counts"]
    is_papers = prepared.is_in_paper and prepared.difference is None
    run = f"fairstream run {prepared.folder} --group {source.group} --advantaged {source.advantaged}"
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
    data: Annotated[str, typer.Argument(help="Whatever `fairstream run` takes: a folder, a file, or `synthetic`.")],
    json: Annotated[
        Path | None, typer.Option(help="Also write the description to this JSON file.", show_default=False)
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Describe a folder or file: events, users, items, times, groups, and whether it is the paper's data."""
    if json is not None:
        check_writable(json)
    description = describe(data)
    console = make_console(quiet=quiet)
    for line in summary(description):
        console.print(line, highlight=False, markup=False)
    if any(column.values for column in description.group_columns):
        console.print(group_table(description))
    if json is not None:
        write_json(asdict(description), json)
