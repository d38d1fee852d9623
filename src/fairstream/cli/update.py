"""`fairstream update`: close the period, learn it, and let the gate decide."""

from __future__ import annotations

from typing import Annotated

import typer

from fairstream.cli.console import Quiet, make_console
from fairstream.cli.workspaces import WorkspaceFolder, opened, who

EXIT_CODES = {"promoted": 0, "rejected": 3, "skipped": 4, "failed": 5}


def update(
    folder: WorkspaceFolder,
    update_id: Annotated[
        str | None, typer.Option("--id", help="An update that was requested before.", show_default="a new one")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Evaluate the model in service on the events since the last update, learn them, and let the gate decide.

    Exit codes: 0 promoted, 3 rejected by the gate, 4 skipped (too little to judge by), 5 failed.
    """
    console = make_console(quiet=quiet)
    with opened(folder) as workspace:
        from fairstream.service import updates  # noqa: PLC0415 (an extra)

        done = updates.run(
            workspace,
            update_id,
            lambda sentence: console.print(sentence, markup=False, highlight=False, soft_wrap=True),
            by=who(),
        )
    if not quiet or done.state != "promoted":
        typer.echo(f"Update {done.id} {done.state}: {done.reason}", err=quiet)
    raise typer.Exit(EXIT_CODES[done.state])
