"""`fairstream audit`: the record of every update and decision."""

from __future__ import annotations

import json as json_module
from datetime import UTC, datetime
from typing import Annotated

import typer

from fairstream.cli.workspaces import WorkspaceFolder, opened


def audit(
    folder: WorkspaceFolder,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line, with everything.")] = False,
    expect: Annotated[
        str | None, typer.Option(metavar="HASH", help="A hash noted before, which an entry must have.")
    ] = None,
) -> None:
    """Verify the database's files, the record and the tables that it speaks of, and print it, oldest first.

    Each entry holds the hash of the one before it, keyed with the workspace's secret; the file audit-head holds the
    last one. Note a hash elsewhere, and --expect tells later that the record up to it is as it was. Leaves with 2
    where a file is damaged, or the record or the tables were changed.
    """
    with opened(folder) as workspace:
        from fairstream.service.audit import entries, verify  # noqa: PLC0415 (an extra)

        workspace.check_files()
        n, last = verify(workspace.engine, expect), ""
        for entry in entries(workspace.engine):
            last = entry.hash
            when = datetime.fromtimestamp(entry.time / 1e6, UTC)
            if json:
                line = {**vars(entry), "time": when.isoformat(), "body": json_module.loads(entry.body)}
                typer.echo(json_module.dumps(line, ensure_ascii=False))
            else:
                typer.echo(f"{entry.seq:5}  {when:%Y-%m-%d %H:%M:%S} UTC  {entry.kind:10}  {_short(entry.body)}")
    if not json:
        typer.echo(f"{n} entries, each unchanged and in its place; the last hash is {last}")


def _short(body: str) -> str:
    """What an entry is about: its words and numbers, not the tables in it."""
    found = json_module.loads(body)
    plain = {name: value for name, value in found.items() if isinstance(value, str | int | float)}
    reason = found.get("decision", {}).get("reason") if isinstance(found.get("decision"), dict) else None
    about = found.get("about")
    sentences = (about.get("control") or {}).get("sentences", ()) if isinstance(about, dict) else ()
    words = [*(f"{name} {value}" for name, value in plain.items()), *([reason] if reason else [])]
    return "; ".join([", ".join(words), *sentences])
