"""`fairstream init`: make a live workspace, or bring an old one up to date."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairstream.cli.console import make_console
from fairstream.cli.workspaces import needing_live
from fairstream.errors import ConfigurationError

if TYPE_CHECKING:
    from fairstream.service.workspace import Workspace


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The workspace to make.", show_default=False)],
    group: Annotated[
        str | None, typer.Option(help="Name of the attribute whose groups are compared.", show_default="group")
    ] = None,
    advantaged: Annotated[
        str | None, typer.Option(help="Its value for the group that is better served.", show_default="the larger group")
    ] = None,
    database: Annotated[
        str | None, typer.Option(help="postgresql://USER@HOST/NAME.", show_default="SQLite in the folder")
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            help='When the service updates by itself: "1d", "6h", "30m" or "10000 events".',
            show_default="when asked to",
        ),
    ] = None,
    max_disparity: Annotated[
        float | None,
        typer.Option(
            help="The largest gap between a group and the rest that is accepted, e.g. 0.02; each update sets how much "
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
            help="The largest share of its quality that any group may lose to it, e.g. 0.05.", show_default="none"
        ),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Fill it with a synthetic stream, to see how it works.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the key, and errors.")] = False,
) -> None:
    """Make a workspace: a folder with its configuration, its models and, without --database, its events.

    Prints a key for the HTTP interface, once. On a workspace that is there already its tables are brought to
    what this version wants, and nothing else is done.
    """
    options = {"group": group, "advantaged": advantaged, "every": every}
    given = {name: value for name, value in options.items() if value is not None}
    target = {"max_disparity": max_disparity, "min_quality": min_quality, "max_group_loss": max_group_loss}
    learning = {name: value for name, value in target.items() if value is not None}
    with needing_live():
        from fairstream.service.settings import FILE  # noqa: PLC0415 (an extra)
        from fairstream.service.workspace import Workspace  # noqa: PLC0415
    say = make_console(quiet=quiet)
    if (folder / FILE).is_file():
        if given or learning or demo or database is not None:
            raise ConfigurationError(
                f"{folder} is a workspace already; its options are in {folder / FILE}, give init none for it"
            )
        changed = Workspace.upgrade(folder)
        state = "its tables were brought to what this version wants" if changed else "its tables are up to date"
        say.print(f"{folder} is a workspace already: {state}.", markup=False, highlight=False, soft_wrap=True)
        return
    with _made(folder, given, learning, database, demo=demo) as workspace:
        from fairstream.service.keys import make_key  # noqa: PLC0415

        where = "SQLite, in the folder" if database is None else workspace.engine.url.render_as_string()
        for line in (
            f"Made the workspace {folder}",
            f"  groups of    {workspace.config.group}"
            + (f", {workspace.config.advantaged} ahead" if workspace.config.advantaged else ""),
            f"  database     {where}",
            *([f"  accepted gap {max_disparity:g}"] if max_disparity is not None else []),
            f"  options      {folder / FILE}",
        ):
            say.print(line, markup=False, highlight=False, soft_wrap=True)
        key = make_key(workspace.engine, "admin", "admin")
        if demo:
            from fairstream.service.demo import fill  # noqa: PLC0415

            fill(workspace, lambda sentence: say.print(sentence, markup=False, highlight=False, soft_wrap=True))
        say.print("The key of the HTTP interface, shown this once (scope admin, name admin):", highlight=False)
        typer.echo(key)
        place = shlex.quote(str(folder))
        follow = f"fairstream serve {place}" if demo else f"fairstream ingest {place} EVENTS --users USERS"
        say.print(f"Next: {follow}", markup=False, highlight=False, soft_wrap=True)


def _made(
    folder: Path, given: dict[str, Any], learning: dict[str, Any], database: str | None, *, demo: bool
) -> Workspace:
    from fairstream.service.settings import Learning, LiveConfig  # noqa: PLC0415 (an extra)
    from fairstream.service.workspace import Workspace  # noqa: PLC0415

    if not demo:
        return Workspace.create(folder, LiveConfig(**given, learning=Learning(**learning)), database)
    if given.keys() & {"group", "advantaged"}:
        raise ConfigurationError("the demonstration has its own group and advantaged; leave them away with --demo")
    from fairstream.service.demo import DEMO  # noqa: PLC0415

    config = DEMO.with_options(**given, learning=DEMO.learning.with_options(**learning))
    return Workspace.create(folder, config, database)
