"""`fairstream forget` and `fairstream export`: what a workspace holds of people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairstream.cli.workspaces import WorkspaceFolder, opened, who
from fairstream.errors import ConfigurationError

if TYPE_CHECKING:
    from fairstream.service.forgetting import Forgotten

NOT_PROVED, UNKNOWN = 3, 4


def forget(
    folder: WorkspaceFolder,
    users: Annotated[
        list[str] | None, typer.Argument(metavar="USER…", help="Ids of the users.", show_default=False)
    ] = None,
    file: Annotated[Path | None, typer.Option(help="File with one id on each line.", show_default=False)] = None,
    pending: Annotated[
        bool, typer.Option("--pending", help="Complete what was requested over HTTP or was cut short.")
    ] = False,
) -> None:
    """Remove people from the events, the attributes and every model, and check that it is so.

    Any number of people is one pass. What was sent of them before does not come back with a replay; what they do
    from now on is that of a new person. Leaves with 3 where something could not be removed for good yet (it stays
    pending), with 4 where an id is unknown.
    """
    ids = [*(users or []), *(_ids_of(file) if file is not None else [])]
    if bool(ids) == pending:
        raise ConfigurationError("give ids of users, or --file FILE with ids, or --pending alone")
    with opened(folder) as workspace:
        from fairstream.service import forgetting  # noqa: PLC0415 (an extra)

        if ids:
            done = forgetting.forget(workspace, ids, by=who())
        else:
            with workspace.updating():
                done = forgetting.complete_forgetting(workspace)
        on_postgres = workspace.engine.dialect.name == "postgresql"
    _report(done, on_postgres=on_postgres)
    if done.problems:
        raise typer.Exit(NOT_PROVED)
    if done.unknown:
        raise typer.Exit(UNKNOWN)


def export(
    folder: WorkspaceFolder, user: Annotated[str, typer.Argument(help="Id of the user.", show_default=False)]
) -> None:
    """Print what the workspace holds of a person, as JSON; leaves with 4 where it holds nothing."""
    with opened(folder) as workspace:
        from fairstream.service.export import export as export_person  # noqa: PLC0415 (an extra)

        document = export_person(workspace, user)
    if document is None:
        typer.echo("This user is unknown: no event, no attribute and no model is theirs.", err=True)
        raise typer.Exit(UNKNOWN)
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _ids_of(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text(encoding="utf-8").splitlines() if line]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from None


def _report(done: Forgotten, *, on_postgres: bool) -> None:
    for user_id in done.unknown:
        typer.echo(f"{user_id} is unknown: no event, no attribute and no model is theirs; nothing was done.", err=True)
    if not done.n_users:
        if not done.unknown:
            typer.echo("Nothing is pending.")
        return
    typer.echo(
        f"Forgot {done.n_users} user(s): removed {done.n_events} events and {done.n_attributes} attribute(s), "
        f"wrote {len(done.models)} model(s) anew."
    )
    for model in done.damaged:
        typer.echo(f"Model {model} was damaged, so that nobody can tell whom it knows: its files were removed.")
    for problem in done.problems:
        typer.echo(f"Not removed for good yet: {problem}; run `fairstream forget DIR --pending`.", err=True)
    if done.problems:
        return
    where = "no table, no file and no model of the workspace"
    if on_postgres:
        where = "no table and no model of the workspace"
    typer.echo(f"Checked: {where} knows them any more.")
    if on_postgres:
        typer.echo("What PostgreSQL's own files, log and backups still hold of deleted rows is the server's to expire.")
