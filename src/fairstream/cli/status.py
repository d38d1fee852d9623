"""`fairstream status`: what answers, how the last update ended, and what waits."""

from __future__ import annotations

from typing import Annotated

import typer

from fairstream.cli.workspaces import WorkspaceFolder, opened


def status(
    folder: WorkspaceFolder,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say which model answers, how the last update ended, how many were rejected in a row, and what waits."""
    with opened(folder) as workspace:
        from fairstream.service.status import Status  # noqa: PLC0415 (an extra)

        found = Status.of(workspace)
    if json:
        typer.echo(found.model_dump_json(indent=2))
        return
    for line in found.sentences():
        typer.echo(line)
