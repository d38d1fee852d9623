"""`fairstream status`: what answers, how the last update ended, and what waits."""

from __future__ import annotations

from fairstream.cli.console import check_json, make_console, print_lines, write_result
from fairstream.cli.options import Json, Quiet, WorkspaceFolder
from fairstream.cli.workspaces import opened


def status(folder: WorkspaceFolder, json: Json = None, quiet: Quiet = False) -> None:
    """Say which model answers, how the last update ended, how many were rejected in a row, and what waits."""
    check_json(json)
    with opened(folder) as workspace:
        from fairstream.service.status import Status  # noqa: PLC0415 (an extra)

        found = Status.of(workspace)
    print_lines(make_console(quiet=quiet, json=json), *found.sentences())
    write_result(found.model_dump(mode="json"), json)
