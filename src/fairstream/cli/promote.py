"""`fairstream promote` and `fairstream rollback`: say which model answers."""

from __future__ import annotations

from typing import Annotated

import typer

from fairstream.cli.console import check_json, make_console, print_lines, write_result
from fairstream.cli.options import Json, Quiet, WorkspaceFolder
from fairstream.cli.workspaces import opened, who


def promote(
    folder: WorkspaceFolder,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Its id, as `fairstream models` lists it.", show_default=False)
    ],
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Put a model into service that the gate has rejected, or that was there before."""
    check_json(json)
    with opened(folder) as workspace:
        from fairstream.service import registry  # noqa: PLC0415 (an extra)

        registry.promote(workspace, model, by=who())
    print_lines(make_console(quiet=quiet, json=json), f"Model {model} is in service.")
    write_result({"model": model}, json)


def rollback(folder: WorkspaceFolder, json: Json = None, quiet: Quiet = False) -> None:
    """Go back to the model that the present one was made from."""
    check_json(json)
    with opened(folder) as workspace:
        from fairstream.service import registry  # noqa: PLC0415 (an extra)

        model = registry.rollback(workspace, by=who())
    print_lines(make_console(quiet=quiet, json=json), f"Model {model} is in service again.")
    write_result({"model": model}, json)
