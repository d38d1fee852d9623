"""`fairstream update`: close the period, learn it, and let the gate decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairstream.cli.console import check_json, make_console, on_interrupt, print_error, print_lines, write_result
from fairstream.cli.options import Json, Quiet, WorkspaceFolder
from fairstream.cli.progress import reporting_compilation
from fairstream.cli.workspaces import opened, who

if TYPE_CHECKING:
    from fairstream.service.workspace import Workspace

EXIT_CODES = {"promoted": 0, "rejected": 3, "skipped": 4, "failed": 5}


def update(
    folder: WorkspaceFolder,
    update_id: Annotated[
        str | None, typer.Option("--id", help="An update that was requested before.", show_default="a new one")
    ] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Evaluate the model in service on the events since the last update, learn them, and let the gate decide.

    Exit codes: 0 promoted, 3 rejected by the gate, 4 skipped (too little to judge by), 5 failed.
    """
    check_json(json)
    console = make_console(quiet=quiet, json=json)
    with opened(folder) as workspace:
        from fairstream.service import updates  # noqa: PLC0415 (an extra)

        with on_interrupt(lambda: _kept(workspace)), reporting_compilation(quiet=quiet):
            done = updates.run(workspace, update_id, lambda sentence: print_lines(console, sentence), by=who())
    outcome = f"Update {done.id} {done.state}: {done.reason}"
    print_lines(console, outcome)
    if (quiet or json == "-") and done.state != "promoted":
        print_error(outcome)
    write_result(done.model_dump(mode="json"), json)
    raise typer.Exit(EXIT_CODES[done.state])


def _kept(workspace: Workspace) -> str:
    """What an interrupted update leaves."""
    from fairstream.service import updates  # noqa: PLC0415 (an extra)

    last = updates.listed(workspace.engine, limit=1)
    if last and last[0].state in ("promoted", "rejected", "skipped"):
        return f"update {last[0].id} had ended already: {last[0].state}"
    return "the model in service is the one before, and the events wait for the next update"
