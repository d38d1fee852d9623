"""`fairstream run`: one method over one log."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fairstream.cli.console import make_console
from fairstream.cli.progress import RunProgress
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
from fairstream.cli.tables import Document, group_table, metric_table, ordered, period_table, recovery_line, slice_table
from fairstream.data import EventLog, read_events
from fairstream.errors import ConfigurationError
from fairstream.experiments import Record, Run, RunConfig, check_writable, pooled, run_seeds, write_json


def _option(field: str) -> Any:
    """An option whose help and default are those of the configuration's field."""
    info = RunConfig.model_fields[field]
    default = "" if info.default is None else str(info.default)
    return typer.Option(
        f"--{field.replace('_', '-')}",
        help=info.description,
        show_default=default or False,
        rich_help_panel="Method and protocol",
    )


def run(
    data: Data,
    group: Group = None,
    advantaged: Advantaged = None,
    users: Users = None,
    user_column: UserColumn = None,
    item_column: ItemColumn = None,
    time_column: TimeColumn = None,
    rating_column: RatingColumn = None,
    rating_above: RatingAbove = 2.0,
    time_unit: TimeUnit = None,
    method: Annotated[str | None, _option("method")] = None,
    model: Annotated[str | None, _option("model")] = None,
    protocol: Annotated[str | None, _option("protocol")] = None,
    fairness_weight: Annotated[float | None, _option("fairness_weight")] = None,
    surrogate: Annotated[str | None, _option("surrogate")] = None,
    adversary_weight: Annotated[float | None, _option("adversary_weight")] = None,
    temperature: Annotated[float | None, _option("temperature")] = None,
    n_negatives: Annotated[int | None, _option("n_negatives")] = None,
    n_fairness_negatives: Annotated[int | None, _option("n_fairness_negatives")] = None,
    pretrain_epochs: Annotated[int | None, _option("pretrain_epochs")] = None,
    update_epochs: Annotated[int | None, _option("update_epochs")] = None,
    pretrain_ratio: Annotated[float | None, _option("pretrain_ratio")] = None,
    pretrain_events: Annotated[int | None, _option("pretrain_events")] = None,
    period: Annotated[str | None, _option("period")] = None,
    n_periods: Annotated[int | None, _option("n_periods")] = None,
    n_blocks: Annotated[int | None, _option("n_blocks")] = None,
    restart: Annotated[str | None, _option("restart")] = None,
    restart_every: Annotated[int | None, _option("restart_every")] = None,
    rerank_tolerance: Annotated[float | None, _option("rerank_tolerance")] = None,
    optimizer: Annotated[str | None, _option("optimizer")] = None,
    embedding_dim: Annotated[int | None, _option("embedding_dim")] = None,
    batch_size: Annotated[int | None, _option("batch_size")] = None,
    learning_rate: Annotated[float | None, _option("learning_rate")] = None,
    l2: Annotated[float | None, _option("l2")] = None,
    k: Annotated[int | None, _option("k")] = None,
    min_group_size: Annotated[int | None, _option("min_group_size")] = None,
    n_resamples: Annotated[int | None, _option("n_resamples")] = None,
    seed: Annotated[int | None, _option("seed")] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="So many seeds from `--seed` on, each in a process of its own.")
    ] = 1,
    device: Annotated[str | None, _option("device")] = None,
    engine: Annotated[str | None, _option("engine")] = None,
    json: Annotated[
        Path | None,
        typer.Option(
            help="Write the whole result to this file; of several seeds, each to its own. It holds each tested "
            "user's group and hits: personal data.",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Carry one method through a log, period by period, and show how well and how fairly it does.

    The log is cut into pre-training data and periods; after each update the model is judged on
    what comes next, for each group of users. PD is the advantaged group's value minus that of
    the rest; what cannot be told from chance is marked.

    The paper's headline run: `fairstream run movielens-1m --group gender --advantaged M --method FADE --protocol paper`
    """
    asked = {name: value for name, value in locals().items() if name in RunConfig.model_fields and value is not None}
    config = RunConfig(**asked)
    files = _files(json, _seeds(config, seeds))
    for file in files.values():
        check_writable(file)
    log = read_events(
        data,
        users=users,
        group=group,
        advantaged=advantaged,
        user_column=user_column,
        item_column=item_column,
        time_column=time_column,
        rating_column=rating_column,
        rating_above=rating_above,
        time_unit=time_unit,
    )
    job = Run(log, config)
    console = make_console(quiet=quiet)
    _introduce(job, console)
    records = _records(job, log, seeds, files, quiet=quiet)
    _show(pooled(records), console)
    for file in files.values():
        console.print(f"Written to {file}", highlight=False)


def _records(job: Run, log: EventLog, n_seeds: int, files: dict[int, Path], *, quiet: bool) -> list[Record]:
    """The finished runs of all seeds, each written as soon as it is there."""
    config = job.config

    def keep(record: Record) -> None:
        if record.seed in files:
            _write(record.document, files[record.seed])

    with RunProgress(quiet=quiet) as progress:
        if n_seeds == 1:
            progress.follow(job)
            record = Record(job.document())
            keep(record)
            return [record]
        bars = {s: progress.bar(f"{config.method}, seed {s}", job.periods.last) for s in _seeds(config, n_seeds)}

        def done(record: Record) -> None:
            bars[record.seed](job.periods.last, 0, 0)
            keep(record)

        return run_seeds(
            log,
            list(bars),
            on_progress=lambda seed, *at: bars[seed](*at),
            on_record=done,
            **config.model_dump(exclude={"seed"}),
        )


def _seeds(config: RunConfig, n: int) -> range:
    return range(config.seed, config.seed + n)


def _files(json: Path | None, seeds: Sequence[int]) -> dict[int, Path]:
    """Where the result of each seed goes: result.json, or result-seed0.json, result-seed1.json …"""
    if json is None:
        return {}
    if len(seeds) == 1:
        return {seeds[0]: json}
    return {seed: json.with_name(f"{json.stem}-seed{seed}{json.suffix}") for seed in seeds}


def _show(document: Document, console: Console) -> None:
    for task in ("remain", "next"):
        console.print(period_table(document, task))
    if len(document["data"]["groups"]) > 2:
        console.print(group_table(document, "remain"))
    console.print(metric_table(document, "remain"))
    console.print(slice_table(document, "remain"))
    if (found := document.get("group_recovery")) is not None:
        console.print(recovery_line(found), highlight=False)


def _write(document: Document, file: Path) -> None:
    try:
        write_json(document, file)
    except ConfigurationError:
        typer.echo(dumps(document))  # so that a disk that has filled up does not cost the run
        raise


def _introduce(job: Run, console: Console) -> None:
    log, (first, *others) = job.log, job.groups.names
    name = f" (the paper's {job.dataset})" if job.dataset else ""
    how = {
        "declared": "advantaged",
        "larger": "advantaged, the larger group",
        "auto": "advantaged until found otherwise",
    }
    lines = [
        f"{len(log):,} events{name}, {log.n_users:,} users, {log.n_items:,} items; "
        f"{job.groups.attribute}: {first} ({how[job.groups.choice]}) against {', '.join(ordered(others))}",
        *log.notes,
        *job.periods.notes,
    ]
    for line in lines:
        console.print(line, highlight=False)
