"""`backup`, `restore` and `doctor` of a workspace."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from fairstream.cli.console import Output
from fairstream.cli.options import Database, Schema, WorkspaceFolder, in_schema
from fairstream.cli.workspaces import opened, who
from fairstream.service import backup as backups
from fairstream.service.doctor import examine
from fairstream.service.forgetting import forgotten_since
from fairstream.text import counted

File = Annotated[Path, typer.Argument(metavar="FILE.tar.zst", help="The backup.", show_default=False)]


def backup(folder: WorkspaceFolder, file: File, *, output: Output) -> None:
    """Write everything of a workspace into one file, while the service runs.

    It holds every event that was acknowledged before, and the workspace's secret: only the owner may read it.
    """
    begin = time.monotonic()
    with opened(folder) as workspace:
        contents = backups.backup(workspace, file)
    size = file.stat().st_size
    output.print(
        f"{file}: {_words(contents)} in {size / 1e6:,.1f} MB, "
        f"{time.monotonic() - begin:.1f} s. It holds the secret of the workspace: keep it private."
    )
    output.write({"file": str(file), "bytes": size, **vars(contents)})


def restore(
    file: File,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.", show_default=False)],
    forgotten: Annotated[
        str,
        typer.Option(
            metavar="FILE|DIR|none",
            help="Who was forgotten since the backup: the folder of the old workspace, or its `forgotten.log`; "
            "`none` if it is certain that nobody was.",
            show_default=False,
        ),
    ],
    database: Database = None,
    schema: Schema = None,
    *,
    output: Output,
) -> None:
    """Make a workspace of a backup, in a new folder and, with --database, an empty database or schema.

    People who were forgotten since the backup are forgotten again before the workspace opens.
    """
    begin, since = time.monotonic(), None
    if forgotten != "none":
        since = forgotten_since(Path(forgotten))
    contents = backups.restore(file, folder, since, database=in_schema(database, schema), by=who())
    output.print(
        f"{folder}: the workspace of {contents.created} with {_words(contents)}, {time.monotonic() - begin:.1f} s."
    )
    output.write({"folder": str(folder), **vars(contents)})


def _words(contents: backups.Contents) -> str:
    return f"{counted(contents.n_events, 'event')} and {counted(len(contents.models), 'model')}"


def doctor(
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="The workspace.", show_default="none")] = None,
    *,
    output: Output,
) -> None:
    """Examine this installation and a workspace: what is right, what to watch, and what to mend.

    Exits with 2 if there is a problem.
    """
    findings = list(examine(folder))
    width = max(len(finding.what) for finding in findings)
    output.print(*(f"{each.state:7}  {each.what:{width}}  {each.sentence}" for each in findings))
    output.write({"findings": [each._asdict() for each in findings]})
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(2)
