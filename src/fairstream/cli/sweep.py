"""`fairstream sweep`: any grid over any option."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fairstream.cli.comparison_tables import contender_table
from fairstream.cli.console import make_console
from fairstream.cli.progress import JobProgress
from fairstream.cli.reading import (
    Advantaged,
    Data,
    Group,
    ItemColumn,
    RatingAbove,
    RatingColumn,
    TimeColumn,
    TimeUnit,
    UserColumn,
    Users,
)
from fairstream.cli.workers import as_device, default_workers, tell_failures
from fairstream.errors import ConfigurationError
from fairstream.experiments import check_writable, compare, write_json
from fairstream.experiments.jobs import Source
from fairstream.experiments.store import Store
from fairstream.experiments.sweep import combinations, parsed
from fairstream.experiments.sweep import sweep as execute


def sweep(
    data: Data,
    grid: Annotated[
        list[str],
        typer.Option(help="An option of `fairstream run` and its values, `fairness-weight=0.5,1,2`; repeatable."),
    ],
    fixed: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="An option that is the same for all, `protocol=paper`; repeatable.", show_default=False
        ),
    ] = None,
    group: Group = None,
    advantaged: Advantaged = None,
    users: Users = None,
    user_column: UserColumn = None,
    item_column: ItemColumn = None,
    time_column: TimeColumn = None,
    rating_column: RatingColumn = None,
    rating_above: RatingAbove = 2.0,
    time_unit: TimeUnit = None,
    seeds: Annotated[int, typer.Option(min=1, help="So many seeds of each combination.")] = 1,
    metric: Annotated[str | None, typer.Option(help="Metric of the Pareto front.", show_default="ndcg at k")] = None,
    task: Annotated[str, typer.Option(help="remain: everything after each period; next: the next period.")] = "remain",
    store: Annotated[Path, typer.Option(help="Folder that the results go into, and that is gone on with.")] = Path(
        "sweep"
    ),
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes at a time.", show_default="one a core, on GPUs one for each")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the comparison to this file.", show_default=False)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Run every combination of the grids, in parallel, and show which are on the Pareto front.

    Each finished run is a file in the store: called again, only what is missing is done, and a
    grid with more values goes on from a smaller one. Runs that begin alike share their pre-training.

    `fairstream sweep data --grid method=FADE,FADE-Abs --grid fairness-weight=0.5,1,2 --seeds 3`
    """
    if json is not None:
        check_writable(json)
    kind = as_device(device)
    same: dict[str, Any] = {name: _one(name, values) for name, values in map(parsed, fixed or [])}
    configs = combinations(dict(map(parsed, grid)), range(seeds), device=kind, n_resamples=0, **same)
    source = Source.of(
        data,
        users=users and str(users),
        group=group,
        advantaged=advantaged,
        user_column=user_column,
        item_column=item_column,
        time_column=time_column,
        rating_column=rating_column,
        rating_above=rating_above,
        time_unit=time_unit,
    )
    folder, console = Store(store), make_console(quiet=quiet)
    with folder.writing(), JobProgress(quiet=quiet) as progress:
        records, failed = execute(
            folder, source, configs, device=kind, n_workers=workers or default_workers(kind), on_stage=progress.stage
        )
    comparison = compare(records, metric=metric, task=task)
    console.print(contender_table(comparison))
    for verdict in comparison.verdicts():
        console.print(verdict, highlight=False)
    if json is not None:
        write_json({**asdict(comparison), "verdicts": comparison.verdicts()}, json)
    tell_failures(failed)


def _one(name: str, values: list[Any]) -> Any:
    if len(values) != 1:
        raise ConfigurationError(f"--set gives one value, {name} has {len(values)}; use --grid for several")
    return values[0]
