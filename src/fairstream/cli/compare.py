"""`fairstream compare`: stored runs side by side."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fairstream.cli.comparison_tables import contender_table, difference_table
from fairstream.cli.console import make_console
from fairstream.errors import ConfigurationError, DataError
from fairstream.experiments import Record, check_writable, write_json
from fairstream.experiments import compare as compare_records


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Files that `fairstream run --json` wrote, or folders with such files.")
    ],
    metric: Annotated[
        str | None, typer.Option(help="Metric to compare by.", show_default="ndcg at the runs' k")
    ] = None,
    task: Annotated[str, typer.Option(help="remain: everything after each period; next: the next period.")] = "remain",
    users: Annotated[str, typer.Option(help="all, warm (seen before) or cold (served by the fallback).")] = "all",
    against: Annotated[
        str | None, typer.Option(help="Method that the others are compared with.", show_default="the first")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the comparison to this file.", show_default=False)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Compare methods, paired on the same users, periods and seeds.

    Runs that differ in nothing but the seed count as one method. Says who wins on performance, who on
    disparity, and who is on the Pareto front of the two.
    """
    if json is not None:
        check_writable(json)
    comparison = compare_records([Record.read(path) for path in _files(runs)], metric=metric, task=task, part=users)
    labels = [contender.label for contender in comparison.contenders]
    meant = [label for label in labels if against in (None, label)]
    meant = meant or [label for label in labels if label.split()[0] == against]
    if not meant or (against is not None and len(meant) > 1):
        raise ConfigurationError(f"against must be one of {', '.join(labels)}, got {against!r}")
    console = make_console(quiet=quiet)
    console.print(contender_table(comparison))
    console.print(difference_table(comparison, meant[0]))
    for verdict in comparison.verdicts():
        console.print(verdict, highlight=False)
    if json is not None:
        write_json({**asdict(comparison), "verdicts": comparison.verdicts()}, json)


def _files(paths: list[Path]) -> list[Path]:
    files = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(path.glob("*.json"))
        if not inside:
            raise DataError(f"{path} holds no .json files; give a folder that `fairstream run --json` wrote to")
        files += inside
    return list(dict.fromkeys(files))
