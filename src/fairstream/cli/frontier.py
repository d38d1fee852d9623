"""`fairstream frontier`: the cost of each level of disparity, on past events."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from fairstream.cli.config_options import with_config_options
from fairstream.cli.console import Output, on_interrupt
from fairstream.cli.options import Cluster, Data, MinGroupSize, ReadOptions, metric_option, task_option
from fairstream.cli.progress import WorkProgress
from fairstream.cli.workers import on_cluster
from fairstream.data import read_events
from fairstream.experiments import RunConfig, versions
from fairstream.files import check_writable, write_file
from fairstream.methods import TARGET_OPTIONS, MethodConfig
from fairstream.pages.frontier import picture, picture_format
from fairstream.pages.score_tables import change_table
from fairstream.recommender import FairRecommender
from fairstream.registry import load_plugins
from fairstream.text import anything, plain
from fairstream.training import RuntimeConfig

if TYPE_CHECKING:
    from fairstream.experiments.frontier import LeverName

_DECIDED_HERE = {"group_weight", "weighted_group", "fairness_weight", *TARGET_OPTIONS}
_FIELDS = {*MethodConfig.model_fields, *RuntimeConfig.model_fields, "plugins"} - _DECIDED_HERE
_OPTIONS = {name: field for name, field in RunConfig.model_fields.items() if name in _FIELDS}


@with_config_options(_OPTIONS)
def frontier(
    data: Data,
    *,
    reading: ReadOptions,
    lever: Annotated[
        Literal["level", "group-weight", "fairness-weight"],
        typer.Option(
            help="What is varied: how many times the events of the group furthest behind count in popularity (level) "
            "or in training (group-weight), or λ of the fairness loss; the others are off.",
            case_sensitive=False,
        ),
    ] = "level",
    levels: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE,…",
            help="Its values, including the one without an effect (1; of λ 0).",
            show_default="1,1.5,2,3,5,8,13,20,50,alone; group weights 1,1.5,2,3,5,8; of λ 0,0.5,1,2,4,8",
        ),
    ] = None,
    max_gap: Annotated[
        float | None,
        typer.Option(
            help="The largest accepted gap between a group and the rest; the best quality within it is recommended.",
            show_default=False,
        ),
    ] = None,
    max_loss: Annotated[
        float | None,
        typer.Option(
            help="The share of the quality that may be lost.",
            show_default="0.01, and none where --max-gap can be met",
        ),
    ] = None,
    n_updates: Annotated[
        int, typer.Option(help="Updates after pre-training, each tested on the period that follows it.")
    ] = 5,
    pretrain_ratio: Annotated[float, typer.Option(help="Share of the events to pre-train on.")] = 0.7,
    task: Annotated[Literal["event", "moment", "next"], task_option()] = "next",
    metric: Annotated[str, metric_option()] = "ndcg@20",
    min_group_size: MinGroupSize = 20,
    n_resamples: Annotated[
        int, typer.Option(help="Bootstrap samples and permutations behind every interval and p-value.")
    ] = 1000,
    figure: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png|.svg|.html",
            help="Also write the picture; needs `pip install fairstream[report]`.",
            show_default=False,
        ),
    ] = None,
    cluster: Cluster = None,
    output: Output,
    options: dict[str, Any],
) -> None:
    """Show what each level of disparity would have cost on your own past, before you choose one.

    The model is pre-trained once on the first part of the log, without a lever. From there,
    for each level of the lever, the model trains on a period and is tested on the next, to the end of the log.
    The levels of popularity need no training of their own: one run tests them all.

    `fairstream frontier DATA --group gender --advantaged M --max-gap 0.02 --figure frontier.png`
    """
    if figure is not None:
        picture_format(figure)
        check_writable(figure)
    load_plugins(options.pop("plugins", ()))
    config = RunConfig(**options)
    recommender = FairRecommender.from_config(config, **config.model_dump(include={"seed", "device", "engine"}))
    log = read_events(data, **asdict(reading))
    outcome = "nothing was kept; fewer --levels or --n-updates take less time"
    with on_interrupt(outcome), on_cluster(cluster), WorkProgress(quiet=output.quiet) as progress:
        result = recommender.frontier(
            log,
            lever=cast("LeverName", lever.replace("-", "_")),
            levels=None if levels is None else levels.split(","),
            n_periods=n_updates,
            pretrain_ratio=pretrain_ratio,
            task=task,
            metric=metric,
            max_gap=max_gap,
            max_loss=max_loss,
            min_group_size=min_group_size,
            n_resamples=n_resamples,
            on_progress=progress.bar("frontier"),
        )
    output.print(*result.notes)
    output.print(result.table(), change_table(result))
    setting = " ".join(f"--{name.replace('_', '-')} {anything(value, plain)}" for name, value in result.setting.items())
    output.print(*result.verdicts(), f"As options: {setting}")
    about = {
        "config": config.model_dump(mode="json", include={*MethodConfig.model_fields, "seed"}),
        "data": {"sha256": log.fingerprint(), "n_events": len(log), "n_users": log.n_users, "n_items": log.n_items},
        "versions": versions(),
    }
    output.write({**result.to_dict(), **about})
    if figure is not None:
        write_file(figure, picture(result, picture_format(figure)))
        output.print(f"Written to {figure}")
