"""`fairstream sweep`: any grid over any option."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fairstream.cli.config_options import Set
from fairstream.cli.console import Output, on_interrupt
from fairstream.cli.options import Cluster, Data, Device, Metric, Plugins, ReadOptions, Seed, Seeds, Task, Workers
from fairstream.cli.options import Store as StoreFolder
from fairstream.cli.progress import WorkProgress
from fairstream.cli.workers import choose_workers, exit_on_failures, finished_runs, on_cluster
from fairstream.errors import ConfigurationError
from fairstream.experiments import RunConfig, Source, Store, compare, execute_runs, plan_runs
from fairstream.experiments.sweep import combinations, parse_settings, parsed
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
    *,
    set: Set = None,  # noqa: A002 (the name of the option)
    reading: ReadOptions,
    seed: Seed = 0,
    seeds: Seeds = 1,
    metric: Metric = None,
    task: Task = None,
    store: StoreFolder = Path("sweep"),
    plugin: Plugins = None,
    device: Device = "auto",
    workers: Workers = None,
    cluster: Cluster = None,
    output: Output,
) -> None:
    """Evaluate every combination of the grids in parallel, and show which are on the Pareto front.

    Each finished run is a file in the store: called again, only missing runs are computed, and a
    larger grid reuses the runs of a smaller one. Runs with the same beginning share their pre-training.

    `fairstream sweep DATA --grid method=FADE,FADE-Abs --grid fairness-weight=0.5,1,2 --seeds 3`
    """
    n_workers = choose_workers(workers, device, cluster)
    plugins = list(plugin or ())
    load_plugins(plugins)
    options = {"device": device, "n_resamples": 0, **parse_settings(set or ()), "plugins": plugins}
    configs = combinations(dict(map(parsed, grid)), range(seed, seed + seeds), **options)
    _check_task(task, configs)
    source = Source.of(data, **asdict(reading))
    folder = Store(store)
    with (
        on_interrupt(lambda: finished_runs(store)),
        folder.writing(),
        on_cluster(cluster, workers),
        WorkProgress(quiet=output.quiet) as progress,
    ):
        runs, on_start = plan_runs(source, configs), partial(progress.job_bar, "sweep")
        errors = execute_runs(folder, runs, device=device, n_workers=n_workers, on_start=on_start)
    records = [folder.read(name) for name in dict.fromkeys(run.id for run in runs) if name in folder]
    if len({str(record.settings) for record in records}) > 1:
        comparison = compare(records, metric=metric, task=task)
        output.print(comparison.table(), *comparison.verdicts(), *comparison.notes)
        output.write({**asdict(comparison), "verdicts": comparison.verdicts(), "store": str(store)})
    else:
        what = "one combination" if records else "no combination"
        verdict = f"{what} finished: there is nothing to compare; runs are in {store}"
        output.print(verdict)
        output.write({"contenders": [], "differences": [], "verdicts": [verdict], "store": str(store)})
    exit_on_failures(errors)


def _check_task(task: str | None, configs: Sequence[RunConfig]) -> None:
    """Raise now, not after the runs, if they cannot be compared on this task."""
    for config in configs:
        if task is not None and task not in config.resolved_tasks:
            raise ConfigurationError(
                f"task must be one that every run is evaluated on, for {config.method} under {config.protocol} one of "
                f"{', '.join(config.resolved_tasks)}, got {task!r}; choose one of these, or --set tasks=NAME"
            )
