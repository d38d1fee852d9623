"""`fairstream init` and `fairstream upgrade`: create a workspace, or bring an old one up to date."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairstream.cli.console import check_json, make_console, on_interrupt, print_lines, write_result
from fairstream.cli.options import Every, Json, Quiet, WorkspaceFolder
from fairstream.cli.workspaces import needing_live
from fairstream.errors import ConfigurationError

if TYPE_CHECKING:
    from fairstream.service.settings import LiveConfig
    from fairstream.service.workspace import Workspace

_QUALITY = 0.1
"""A mean NDCG that shops have, for an example."""


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
        typer.Option(
            help="Value of the advantaged group; `auto`: found from the period before each update.",
            show_default="the larger of two groups, of more none",
        ),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="postgresql://USER@HOST/NAME; with a password, give it by the variable.",
            envvar="FAIRSTREAM_DATABASE",
            show_default="SQLite in the folder",
        ),
    ] = None,
    every: Every = None,
    max_disparity: Annotated[
        float | None,
        typer.Option(
            help="The largest gap between a group and the rest that is accepted; 0.02, say: each update sets how much "
            "the groups' events count to hold it.",
            show_default="none: fairness_weight",
        ),
    ] = None,
    min_quality: Annotated[
        float | None,
        typer.Option(help="The least quality of everyone that is accepted for it.", show_default="none"),
    ] = None,
    max_group_loss: Annotated[
        float | None,
        typer.Option(
            help="The largest share of its quality that any group may lose to it; 0.05, say.", show_default="none"
        ),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Fill it with a synthetic stream, to see how it works.")] = False,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Create a workspace: a folder with its configuration, its models and, without --database, its events.

    Prints an API key with the scope admin, once, even if quiet: only its hash is kept.
    """
    check_json(json)
    options = {"group": group, "groups": _values(groups), "advantaged": advantaged, "every": every}
    given = {name: value for name, value in options.items() if value is not None}
    target = {"max_disparity": max_disparity, "min_quality": min_quality, "max_group_loss": max_group_loss}
    learning = {name: value for name, value in target.items() if value is not None}
    with needing_live():
        from fairstream.service.settings import FILE  # noqa: PLC0415 (an extra)
    if (folder / FILE).is_file():
        raise ConfigurationError(
            f"{folder} is a workspace already; its options are in {folder / FILE}, and `fairstream upgrade {folder}` "
            f"brings its tables up to date"
        )
    console = make_console(quiet=quiet, json=json)
    with needing_live():
        made = _made(folder, given, learning, database, demo=demo)
    with made as workspace:
        from fairstream.service.keys import make_key  # noqa: PLC0415
        from fairstream.service.privacy import readable_from  # noqa: PLC0415

        config, epsilon = workspace.config, workspace.config.privacy.epsilon
        noise = []
        if epsilon != "off":
            size = readable_from(epsilon, _QUALITY)
            noise = [
                f"Numbers of groups will carry noise, for privacy (epsilon = {epsilon:g}): at an NDCG of {_QUALITY:g} "
                f"a group is shown from about {size:,} of its users tested in a period."
            ]
        where = "SQLite, in the folder" if database is None else workspace.engine.url.render_as_string()
        print_lines(
            console,
            f"Created the workspace {folder}",
            f"  groups of    {config.group}"
            + (f" ({', '.join(config.groups)})" if config.groups else "")
            + (f", {config.advantaged} ahead" if config.advantaged else ""),
            f"  database     {where}",
            *([f"  accepted gap {max_disparity:g}"] if max_disparity is not None else []),
            f"  options      {folder / FILE}",
            *(_undirected(config) if max_disparity is None and not config.has_advantaged else ()),
            *noise,
        )
        key = make_key(workspace.engine, "admin", "admin")
        if demo:
            from fairstream.service.demo import fill  # noqa: PLC0415

            with on_interrupt(f"{folder} is a workspace with what was learned so far; its key is {key}"):
                fill(workspace, lambda sentence: print_lines(console, sentence))
        print_lines(console, "The API key, shown this once (scope admin, name admin):")
        if json is None:
            typer.echo(key)
        place = shlex.quote(str(folder))
        follow = f"fairstream serve {place}" if demo else f"fairstream ingest {place} EVENTS --users USERS"
        print_lines(console, f"Next: {follow}")
        about = {"group": config.group, "groups": config.groups, "advantaged": config.advantaged}
        write_result({"folder": str(folder), **about, "database": where, "key": key, "scope": "admin"}, json)


def upgrade(folder: WorkspaceFolder, json: Json = None, quiet: Quiet = False) -> None:
    """Bring a workspace's tables to what this version of fairstream needs; stop its service first."""
    check_json(json)
    with needing_live():
        from fairstream.service.workspace import Workspace  # noqa: PLC0415 (an extra)
    is_changed = Workspace.upgrade(folder)
    state = "were brought to what this version needs" if is_changed else "are up to date"
    print_lines(make_console(quiet=quiet, json=json), f"The tables of {folder} {state}.")
    write_result({"folder": str(folder), "upgraded": is_changed}, json)


def _undirected(config: LiveConfig) -> tuple[str]:
    """What it means that nobody has said which of three groups or more is better served."""
    return (
        f"{len(config.groups or ())} groups of {config.group} and no advantaged one named: a signed fairness loss will "
        f"not be applied; name the best-served group with --advantaged, or accept a gap with --max-disparity",
    )


def _values(groups: str | None) -> list[str] | None:
    return None if groups is None else [value.strip() for value in groups.split(",")]


def _made(
    folder: Path, given: dict[str, Any], learning: dict[str, Any], database: str | None, *, demo: bool
) -> Workspace:
    from fairstream.service.learning import Learning  # noqa: PLC0415 (an extra)
    from fairstream.service.settings import LiveConfig  # noqa: PLC0415
    from fairstream.service.workspace import Workspace  # noqa: PLC0415

    if not demo:
        return Workspace.create(folder, LiveConfig(**given, learning=Learning(**learning)), database)
    if own := given.keys() & {"group", "groups", "advantaged"}:
        raise ConfigurationError(f"the demonstration has its own groups; omit --{min(own)} with --demo")
    from fairstream.service.demo import DEMO  # noqa: PLC0415

    config = DEMO.with_options(**given, learning=DEMO.learning.with_options(**learning))
    return Workspace.create(folder, config, database)
