"""`fairstream audit`: the record of every update and decision."""

from __future__ import annotations

import json as json_module
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from fairstream.cli.console import check_json, make_console, print_lines, write_result
from fairstream.cli.options import Json, Quiet, WorkspaceFolder
from fairstream.cli.workspaces import opened


def audit(
    folder: WorkspaceFolder,
    expect: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="A hash noted before, which an entry must have.", show_default=False),
    ] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Verify the database's files, the record and the tables that it speaks of, and print it, oldest first.

    Each entry holds the hash of the one before it, keyed with the workspace's secret; the file audit-head holds the
    last one. Note a hash elsewhere, and --expect tells later that the record up to it is as it was. Exits with 2
    where a file is damaged, or the record or the tables were changed.
    """
    check_json(json)
    console, rows = make_console(quiet=quiet, json=json), []
    with opened(folder) as workspace:
        from fairstream.service.audit import entries, verify  # noqa: PLC0415 (an extra)

        workspace.check_files()
        n, last = verify(workspace.engine, expect), ""
        for entry in entries(workspace.engine):
            last, body = entry.hash, json_module.loads(entry.body)
            when = datetime.fromtimestamp(entry.time / 1e6, UTC)
            if json is not None:
                rows.append({**vars(entry), "time": when.isoformat(), "body": body})
            print_lines(console, f"{entry.seq:5}  {when:%Y-%m-%d %H:%M:%S} UTC  {entry.kind:10}  {_short(body)}")
    print_lines(console, f"{n} entries, each unchanged and in its place; the last hash is {last}")
    write_result({"n_entries": n, "last_hash": last, "entries": rows}, json)


def _short(body: dict[str, Any]) -> str:
    """What an entry is about: its words and numbers, not the tables in it."""
    plain = {name: value for name, value in body.items() if isinstance(value, str | int | float)}
    reason = body.get("decision", {}).get("reason") if isinstance(body.get("decision"), dict) else None
    about = body.get("about")
    sentences = (about.get("control") or {}).get("sentences", ()) if isinstance(about, dict) else ()
    words = [*(f"{name} {value}" for name, value in plain.items()), *([reason] if reason else [])]
    return "; ".join([", ".join(words), *sentences])
