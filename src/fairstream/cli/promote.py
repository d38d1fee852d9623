"""`fairstream promote` and `fairstream rollback`: say which model answers."""

from __future__ import annotations

from typing import Annotated

import typer

from fairstream.cli.workspaces import WorkspaceFolder, opened, who


def promote(
    folder: WorkspaceFolder,
    model: Annotated[str, typer.Argument(help="The model, by its name.", show_default=False)],
) -> None:
    """Put a model into service that the gate has rejected, or that was there before."""
    with opened(folder) as workspace:
        from fairstream.service import registry  # noqa: PLC0415 (an extra)

        registry.promote(workspace, model, by=who())
    typer.echo(f"Model {model} is in service.")


def rollback(folder: WorkspaceFolder) -> None:
    """Go back to the model that the present one was made from."""
    with opened(folder) as workspace:
        from fairstream.service import registry  # noqa: PLC0415 (an extra)

        model = registry.rollback(workspace, by=who())
    typer.echo(f"Model {model} is in service again.")
