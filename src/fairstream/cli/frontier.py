"""`fairstream frontier`: what each level of disparity costs on one's own past."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fairstream.cli.config_options import with_config_options
from fairstream.cli.console import check_json, make_console, on_interrupt, print_lines, write_result
from fairstream.cli.frontier_tables import change_table, level_table, text_picture
from fairstream.cli.options import (
    Advantaged,
    Cluster,
    Data,
    Group,
    ItemColumn,
    Items,
    Json,
    MinGroupSize,
    Quiet,
    RatingAbove,
    RatingColumn,
    Repeats,
    TimeColumn,
    TimeUnit,
    UserColumn,
    Users,
    metric_option,
    task_option,
)
from fairstream.cli.progress import ShareProgress
from fairstream.data import read_events
from fairstream.errors import ConfigurationError
from fairstream.experiments import RunConfig, check_writable, versions, write_file
from fairstream.methods import CONTROLLER_OPTIONS, MethodConfig
from fairstream.pages.frontier import picture, picture_format
from fairstream.recommender import FairRecommender
from fairstream.registry import load_plugins
from fairstream.training import RuntimeConfig

_DECIDED_HERE = {"group_weight", "fairness_weight", *CONTROLLER_OPTIONS}
_OF_OTHER_METHODS = {"rerank_tolerance", "adversary_weight"}
_OPTIONS = [
    name
    for name in (*MethodConfig.model_fields, *RuntimeConfig.model_fields, "plugins")
    if name not in _DECIDED_HERE | _OF_OTHER_METHODS
]


@with_config_options(RunConfig, _OPTIONS)
def frontier(
    data: Data,
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
    lever: Annotated[
        Literal["group-weight", "fairness-weight"] | None,
        typer.Option(
            help="What is varied: how many times the events of the groups behind count, or λ of the fairness loss; "
            "the other one is off.",
            show_default="group-weight where the model takes weights",
            case_sensitive=False,
        ),
    ] = None,
    levels: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE,…",
            help="Its values, among them the one that does nothing (1; of λ 0).",
            show_default="1,1.5,2,3,5,8; of λ 0,0.5,1,2,4,8",
        ),
    ] = None,
    max_disparity: Annotated[
        float | None,
        typer.Option(
            help="The largest gap between a group and the rest that is accepted; the best quality within it is "
            "recommended.",
            show_default=False,
        ),
    ] = None,
    max_loss: Annotated[
        float | None,
        typer.Option(
            help="The share of the quality that may be lost.",
            show_default="0.01, and none where --max-disparity can be met",
        ),
    ] = None,
    n_updates: Annotated[
        int, typer.Option(help="Updates after pre-training, each tested on the period that follows it.")
    ] = 5,
    pretrain_ratio: Annotated[float, typer.Option(help="Share of the events to pre-train on.")] = 0.7,
    task: Annotated[Literal["event", "next"], task_option()] = "next",
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
    json: Json = None,
    quiet: Quiet = False,
    options: dict[str, Any],
) -> None:
    """Show what each level of disparity would have cost on your own past, before you choose one.

    The model is pre-trained once on the first part of the log, without a lever. From there each level of the lever goes
    through the rest: the model learns a period and is tested on the next. Nothing but this log is looked at.

    `fairstream frontier DATA --group gender --advantaged M --max-disparity 0.02 --figure frontier.png`
    """
    check_json(json)
    if figure is not None:
        picture_format(figure)
        check_writable(figure)
    load_plugins(options.pop("plugins", ()))
    recommender = FairRecommender(**options)
    log = read_events(
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
    console = make_console(quiet=quiet, json=json)
    kept = "nothing was kept; fewer --levels or --n-updates take less time"
    with on_interrupt(kept), ShareProgress(quiet=quiet) as progress:
        found = recommender.frontier(
            log,
            lever=None if lever is None else "group_weight" if lever == "group-weight" else "fairness_weight",
            levels=None if levels is None else _numbers(levels),
            n_periods=n_updates,
            pretrain_ratio=pretrain_ratio,
            task=task,
            metric=metric,
            max_disparity=max_disparity,
            max_loss=max_loss,
            min_group_size=min_group_size,
            n_resamples=n_resamples,
            on_progress=progress.on_progress,
            cluster=cluster,
        )
    print_lines(console, *found.notes)
    console.print(level_table(found))
    console.print(change_table(found))
    print_lines(console, *text_picture(found), "", *found.verdicts(), _how_to_set(found.setting))
    about = {
        "config": {**recommender.config.model_dump(mode="json"), "seed": options.get("seed", 0)},
        "data": {"sha256": log.fingerprint(), "n_events": len(log), "n_users": log.n_users, "n_items": log.n_items},
        "versions": versions(),
    }
    write_result({**found.to_dict(), **about}, json)
    if figure is not None:
        write_file(figure, picture(found, picture_format(figure)))
        print_lines(console, f"Written to {figure}")


def _numbers(levels: str) -> list[float]:
    try:
        return [float(level) for level in levels.split(",")]
    except ValueError:
        raise ConfigurationError(
            f"--levels takes numbers with commas between them, such as 1,2,4, got {levels!r}"
        ) from None


def _how_to_set(setting: dict[str, float]) -> str:
    options = " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in setting.items())
    return f"As options: {options}"
