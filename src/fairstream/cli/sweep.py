"""`fairstream sweep`: any grid over any option."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fairstream.cli.console import check_json, make_console, on_interrupt, print_lines, write_result
from fairstream.cli.options import (
    Advantaged,
    Cluster,
    Data,
    Device,
    Group,
    ItemColumn,
    Items,
    Json,
    Metric,
    Plugins,
    Quiet,
    RatingAbove,
    RatingColumn,
    Repeats,
    Seed,
    Seeds,
    Task,
    TimeColumn,
    TimeUnit,
    UserColumn,
    Users,
    Workers,
)
from fairstream.cli.options import Store as StoreFolder
from fairstream.cli.progress import JobProgress
from fairstream.cli.tables import contender_table
from fairstream.cli.workers import (
    check_device,
    default_workers,
    exit_on_failures,
    finished_runs,
    print_failures,
)
from fairstream.errors import ConfigurationError
from fairstream.experiments import RunConfig, Source, Store, compare
from fairstream.experiments.sweep import combinations, parsed
from fairstream.experiments.sweep import sweep as execute
from fairstream.registry import load_plugins


def sweep(
    data: Data,
    grid: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=VALUE,…",
            help="An option of `fairstream run` and its values, `fairness-weight=0.5,1,2`. Repeatable.",
            show_default=False,
        ),
    ],
    fixed: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="An option and its value; `protocol=paper`, for all runs. Repeatable.",
            show_default=False,
        ),
    ] = None,
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
    seed: Seed = 0,
    seeds: Seeds = 1,
    metric: Metric = None,
    task: Task = None,
    store: StoreFolder = Path("sweep"),
    plugin: Plugins = None,
    device: Device = "auto",
    workers: Workers = None,
    cluster: Cluster = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Evaluate every combination of the grids in parallel, and show which are on the Pareto front.

    Each finished run is a file in the store: called again, only missing runs are computed, and a
    larger grid reuses the runs of a smaller one. Runs with the same beginning share their pre-training.

    `fairstream sweep data --grid method=FADE,FADE-Abs --grid fairness-weight=0.5,1,2 --seeds 3`
    """
    check_json(json)
    check_device(device, cluster)
    plugins = list(plugin or ())
    load_plugins(plugins)
    fixed_values: dict[str, Any] = {name: _only(name, values) for name, values in map(parsed, fixed or [])}
    if "plugins" in RunConfig.model_fields:
        fixed_values["plugins"] = plugins
    configs = combinations(
        dict(map(parsed, grid)), range(seed, seed + seeds), **{"device": device, "n_resamples": 0, **fixed_values}
    )
    _check_task(task, configs)
    source = Source.of(
        data,
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
    )
    folder, console = Store(store), make_console(quiet=quiet, json=json)
    with on_interrupt(lambda: finished_runs(store)), folder.writing(), JobProgress(quiet=quiet) as progress:
        records, errors = execute(
            folder,
            source,
            configs,
            device=device,
            n_workers=workers or default_workers(device, cluster),
            cluster=cluster,
            on_start=partial(progress.stage, "sweep"),
        )
    print_failures(errors)
    if len({str(record.settings) for record in records}) > 1:
        comparison = compare(records, metric=metric, task=task)
        console.print(contender_table(comparison))
        print_lines(console, *comparison.verdicts())
        write_result({**asdict(comparison), "verdicts": comparison.verdicts(), "store": str(store)}, json)
    else:
        what = "one combination" if records else "no combination"
        verdict = f"{what} finished: there is nothing to compare; runs are in {store}"
        print_lines(console, verdict)
        write_result({"contenders": [], "differences": [], "verdicts": [verdict], "store": str(store)}, json)
    exit_on_failures(errors)


def _check_task(task: str | None, configs: Sequence[RunConfig]) -> None:
    """Say now, and not after the runs, that they cannot be compared on this task."""
    for config in configs:
        if task is not None and task not in config.resolved_tasks:
            raise ConfigurationError(
                f"task must be one that every run is evaluated on, for {config.method} under {config.protocol} one of "
                f"{', '.join(config.resolved_tasks)}, got {task!r}; choose one of these, or --set tasks=NAME"
            )


def _only(name: str, values: list[Any]) -> Any:
    if len(values) != 1:
        raise ConfigurationError(f"--set takes one value, {name} has {len(values)}; use --grid for several")
    return values[0]
