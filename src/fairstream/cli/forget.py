"""`fairstream forget` and `fairstream export`: what a workspace holds of people."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from fairstream.cli.console import check_json, make_console, print_error, print_lines, write_result
from fairstream.cli.options import IdsFile, Json, Quiet, UserIds, WorkspaceFolder
from fairstream.cli.workspaces import opened, read_ids, who
from fairstream.errors import ConfigurationError

if TYPE_CHECKING:
    from fairstream.service.forgetting import Forgotten

NOT_PROVED, UNKNOWN = 3, 4


def forget(
    folder: WorkspaceFolder,
    users: UserIds = None,
    ids: IdsFile = None,
    pending: Annotated[
        bool, typer.Option("--pending", help="Complete what was requested over HTTP or was cut short.")
    ] = False,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Remove people from the events, the attributes and every model, and check that it is so.

    Any number of people is one pass. What was sent of them before does not come back with a replay; what they do
    from now on is that of a new person. Exits with 3 where something could not be removed for good yet (it stays
    pending), with 4 where an id is unknown.
    """
    check_json(json)
    people = read_ids(users, ids)
    if bool(people) == pending:
        raise ConfigurationError("give ids of users, or --ids FILE with ids, or --pending alone")
    with opened(folder) as workspace:
        from fairstream.service import forgetting  # noqa: PLC0415 (an extra)

        if people:
            done = forgetting.forget(workspace, people, by=who())
        else:
            with workspace.updating():
                done = forgetting.complete_forgetting(workspace)
        on_postgres = workspace.engine.dialect.name == "postgresql"
    for user_id in done.unknown:
        print_error(f"{user_id} is unknown: no event, no attribute and no model is theirs; nothing was done")
    for problem in done.problems:
        print_error(f"not removed for good yet: {problem}; run `fairstream forget DIR --pending`")
    print_lines(make_console(quiet=quiet, json=json), *_sentences(done, on_postgres=on_postgres))
    write_result(asdict(done), json)
    if done.problems:
        raise typer.Exit(NOT_PROVED)
    if done.unknown:
        raise typer.Exit(UNKNOWN)


def export(
    folder: WorkspaceFolder,
    user: Annotated[str | None, typer.Argument(metavar="[USER]", help="Id of the user.", show_default=False)] = None,
    ids: IdsFile = None,
    json: Json = "-",
) -> None:
    """Write what the workspace holds of a person, as JSON; exits with 4 where it holds nothing."""
    check_json(json)
    people = read_ids([] if user is None else [user], ids)
    if len(people) != 1:
        raise ConfigurationError(f"export is of one person, got {len(people)} ids; give one, or --ids FILE with one")
    with opened(folder) as workspace:
        from fairstream.service.export import export as export_person  # noqa: PLC0415 (an extra)

        document = export_person(workspace, people[0])
    if document is None:
        print_error("this user is unknown: no event, no attribute and no model is theirs")
        raise typer.Exit(UNKNOWN)
    write_result(document, json)


def _sentences(done: Forgotten, *, on_postgres: bool) -> list[str]:
    if not done.n_users:
        return [] if done.unknown else ["Nothing is pending."]
    lines = [
        f"Forgot {done.n_users} user(s): removed {done.n_events} events and {done.n_attributes} attribute(s), "
        f"wrote {len(done.models)} model(s) anew.",
        *(
            f"Model {model} was damaged, so that nobody can tell whom it knows: its files were removed."
            for model in done.damaged
        ),
    ]
    if done.problems:
        return lines
    where = "no table and no model" if on_postgres else "no table, no file and no model"
    lines.append(f"Checked: {where} of the workspace knows them any more.")
    if on_postgres:
        lines.append(
            "What PostgreSQL's own files, log and backups still hold of deleted rows is the server's to expire."
        )
    return lines
