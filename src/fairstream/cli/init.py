"""`fairstream init`: create a workspace."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fairstream.cli.console import Output, on_interrupt
from fairstream.cli.options import Database, Every, Schema, WorkspaceFolder, in_schema
from fairstream.errors import ConfigurationError
from fairstream.service.demo import DEMO, fill
from fairstream.service.keys import make_key
from fairstream.service.learning import Learning
from fairstream.service.privacy import people_needed
from fairstream.service.settings import FILE, Gate, LiveConfig
from fairstream.service.workspace import Workspace

_QUALITY = 0.1  # a mean NDCG that shops have, for an example


def init(
    folder: WorkspaceFolder,
    group: Annotated[
        str | None, typer.Option(help="Column of the users that makes the groups.", show_default="group")
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE,…",
            help="Its values, with commas between them; others are refused.",
            show_default="whatever comes",
        ),
    ] = None,
    advantaged: Annotated[
        str | None,
        typer.Option(help="Value of the advantaged group.", show_default="the larger of two groups, of more none"),
    ] = None,
    database: Database = None,
    schema: Schema = None,
    every: Every = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Base recommender: blend, sasrec, item-item, mf … It brings its own options of training.",
            show_default="blend",
        ),
    ] = None,
    target: Annotated[
        Literal["least-regret", "none"] | None,
        typer.Option(
            help="What each update does for groups: least-regret tries how much their events should count, and serves "
            "what leaves every group closest to its best.",
            show_default="least-regret",
        ),
    ] = None,
    max_gap: Annotated[
        float | None,
        typer.Option(
            help="The largest accepted gap between a group and the rest; instead of --target.", show_default="none"
        ),
    ] = None,
    max_group_loss: Annotated[
        float | None,
        typer.Option(
            help="The largest share of its quality that least-regret may cost any group.", show_default="0.02"
        ),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Fill it with a synthetic stream, to see how it works.")] = False,
    *,
    output: Output,
) -> None:
    """Create a workspace: a folder with its configuration, its models and, without --database, its events.

    Prints an API key with the scope admin, once, even if quiet: only its hash is kept.
    """
    values = None if groups is None else [value.strip() for value in groups.split(",")]
    given = _given(group=group, groups=values, advantaged=advantaged, every=every)
    learning = _given(model=model, target=target, max_gap=max_gap, max_group_loss=max_group_loss)
    database = in_schema(database, schema)
    if (folder / FILE).is_file():
        raise ConfigurationError(
            f"{folder} is a workspace already; its options are in {folder / FILE}, and `fairstream upgrade {folder}` "
            f"brings its tables up to date"
        )
    with _create(folder, given, learning, database, demo=demo) as workspace:
        config, epsilon = workspace.config, workspace.config.privacy.epsilon_per_quarter
        notes = []
        if max_gap is not None:
            notes.append(
                f"A level that holds the gap takes from other groups: the gate accepts a loss of "
                f"{config.gate.max_group_fall:.0%} of any group at an update (max_group_fall in [gate])."
            )
        if not config.has_advantaged:
            notes.append(
                f"{len(config.groups or ())} groups of {config.group} and no advantaged one named: a signed fairness "
                f"loss will not be applied; name the best-served group with --advantaged"
            )
        if epsilon != "off":
            notes.append(
                f"Numbers of groups will carry noise, for privacy (epsilon = {epsilon:g} a quarter): at an NDCG of "
                f"{_QUALITY:g}, gaps between two equal groups are published about every month from "
                f"{people_needed(epsilon, _QUALITY, 30):,} tested people on, every quarter from "
                f"{people_needed(epsilon, _QUALITY, 91):,} on."
            )
        where = "SQLite, in the folder" if database is None else workspace.engine.url.render_as_string()
        output.print(
            f"Created the workspace {folder}",
            f"  groups of    {config.group}"
            + (f" ({', '.join(config.groups)})" if config.groups else "")
            + (f", {config.advantaged} ahead" if config.advantaged else ""),
            f"  database     {where}",
            f"  model        {config.learning.model}",
            *([f"  accepted gap {max_gap:g}"] if max_gap is not None else []),
            f"  options      {folder / FILE}",
            *notes,
        )
        key = make_key(workspace.engine, "admin", "admin")
        if demo:
            with on_interrupt(f"{folder} is a workspace with what was learned so far; its key is {key}"):
                fill(workspace, output.print)
        if output.json is None:
            output.print("The API key, shown this once (scope admin, name admin):")
            typer.echo(key)
        place = shlex.quote(str(folder))
        follow = f"fairstream serve {place}" if demo else f"fairstream ingest {place} EVENTS --users USERS"
        output.print(f"Next: {follow}")
        about = {"group": config.group, "groups": config.groups, "advantaged": config.advantaged}
        output.write({"folder": str(folder), **about, "database": where, "key": key, "scope": "admin"})


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _create(
    folder: Path, given: dict[str, Any], learning: dict[str, Any], database: str | None, *, demo: bool
) -> Workspace:
    if "max_gap" in learning:  # with the limit of least-regret the gate would reject most levels
        given["gate"] = Gate(max_group_fall=Gate().max_fall)
    if not demo:
        return Workspace.create(folder, LiveConfig(**given, learning=Learning(**learning)), database)
    if own := given.keys() & {"group", "groups", "advantaged"}:
        raise ConfigurationError(f"the demonstration has its own groups; omit --{min(own)} with --demo")
    config = DEMO.with_options(**given, learning=DEMO.learning.with_options(**learning))
    return Workspace.create(folder, config, database)
