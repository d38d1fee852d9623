"""`fairstream compare`: finished runs side by side."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from fairstream.cli.console import Output
from fairstream.cli.options import Metric, Task
from fairstream.errors import ConfigurationError
from fairstream.experiments import Comparison
from fairstream.experiments import compare as compare_runs
from fairstream.pages.score_tables import difference_table


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Stores (`--store`), their run files, JSON files (`--json`), in any mix."),
    ],
    metric: Metric = None,
    task: Task = None,
    part: Annotated[
        Literal["all", "warm", "cold"],
        typer.Option(
            help="Users to compare on: all, warm (seen before) or cold (not seen before).", case_sensitive=False
        ),
    ] = "all",
    against: Annotated[
        str | None, typer.Option(help="Method that the others are compared with.", show_default="the first")
    ] = None,
    *,
    output: Output,
) -> None:
    """Compare methods, paired on the same users, periods and seeds.

    Runs that differ in nothing but the seed count as one method. Reports which method has the best
    performance, which the smallest regret (how much less any group gets than its best among the compared methods
    and their levels), which the smallest disparity, and which are on the Pareto front of performance and disparity.
    """
    comparison = compare_runs(runs, metric=metric, task=task, part=part)
    reference = _reference(comparison, against)
    tables = (comparison.table(), comparison.regret_table(), difference_table(comparison, reference))
    output.print(*(table for table in tables if table is not None))
    output.print(*comparison.verdicts(), *comparison.notes)
    output.write({**asdict(comparison), "verdicts": comparison.verdicts()})


def _reference(comparison: Comparison, against: str | None) -> str:
    """The label that the option names: a whole label, or a method with one set of settings."""
    labels = [contender.label for contender in comparison.contenders]
    if against is None or against in labels:
        return against or labels[0]
    matching = [label for label in labels if label.split()[0] == against]
    if len(matching) != 1:
        raise ConfigurationError(f"against must be one of {', '.join(labels)}, got {against!r}")
    return matching[0]
