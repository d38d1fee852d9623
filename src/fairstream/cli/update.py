"""`fairstream update`: close the period, learn it, and let the gate decide."""

from __future__ import annotations

from typing import Annotated

import typer

from fairstream.cli.console import make_console
from fairstream.cli.workspaces import WorkspaceFolder, opened

HELD = 3
"""The exit code where a candidate was not promoted: no error, but somebody may want to look."""


def update(
    folder: WorkspaceFolder,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Judge the model in service by the events since the last update, learn them, and promote the result if it is fit.

    Leaves with 0 if a model was promoted or there was too little to judge by, with 3 if one was held.
    """
    console = make_console(quiet=quiet)
    with opened(folder) as workspace:
        from fairstream.service.updater import update as run_update  # noqa: PLC0415 (an extra)

        outcome = run_update(workspace, lambda sentence: console.print(sentence, markup=False, highlight=False))
    if outcome.kind == "skipped":
        console.print(f"Nothing was done: {outcome.reason}.", markup=False, highlight=False, soft_wrap=True)
    if outcome.kind in ("rejected", "failed"):
        raise typer.Exit(HELD)
