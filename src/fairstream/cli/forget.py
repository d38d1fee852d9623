"""`fairstream forget`: remove a person."""

from __future__ import annotations

from typing import Annotated

import typer

from fairstream.cli.workspaces import WorkspaceFolder, opened, who


def forget(
    folder: WorkspaceFolder,
    user: Annotated[str, typer.Argument(help="The user's id.", show_default=False)],
) -> None:
    """Remove a person's events, attribute and row from every table and every model, and check that it is so."""
    with opened(folder) as workspace:
        from fairstream.service.forget import forget as run_forget  # noqa: PLC0415 (an extra)

        done = run_forget(workspace, user, by=who())
    attribute = "the attribute" if done.had_attribute else "no attribute (there was none)"
    typer.echo(
        f"Removed: {done.n_events} events, {attribute}, the rows in {len(done.models)} models. "
        f"Checked: no table and no model of the workspace knows this user any more."
    )
