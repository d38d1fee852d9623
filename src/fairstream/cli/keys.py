"""`fairstream keys`: who may use the HTTP interface."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

from fairstream.cli.console import check_json, make_console, new_table, print_lines, write_result
from fairstream.cli.options import Json, Quiet, WorkspaceFolder
from fairstream.cli.workspaces import opened

keys_app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True, rich_markup_mode="markdown")
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is, or what it is for.", show_default=False)]


@keys_app.command()
def add(
    folder: WorkspaceFolder,
    name: _Name,
    scope: Annotated[
        Literal["ingest", "attributes", "read", "admin"],
        typer.Option(help="What it may do; admin: everything.", show_default=False, case_sensitive=False),
    ],
    json: Json = None,
) -> None:
    """Create a key and print it, once: only its hash is kept."""
    check_json(json)
    with opened(folder) as workspace:
        from fairstream.service.keys import make_key  # noqa: PLC0415 (an extra)

        key = make_key(workspace.engine, name, scope)
    if json is None:
        typer.echo(key)
    write_result({"name": name, "scope": scope, "key": key}, json)


@keys_app.command("list")
def list_(folder: WorkspaceFolder, json: Json = None, quiet: Quiet = False) -> None:
    """List every key there ever was; not the keys themselves, which nobody has kept."""
    check_json(json)
    with opened(folder) as workspace:
        from fairstream.service.keys import list_keys  # noqa: PLC0415 (an extra)

        rows = [
            {
                "name": key.name,
                "scope": key.scope,
                "created": _moment(key.created),
                "revoked": None if key.revoked is None else _moment(key.revoked),
            }
            for key in list_keys(workspace.engine)
        ]
    table = new_table("Keys")
    for heading in ("name", "scope", "created", "revoked"):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*(row[heading] or "" for heading in ("name", "scope", "created", "revoked")))
    make_console(quiet=quiet, json=json).print(table, markup=False)
    write_result({"keys": rows}, json)


@keys_app.command()
def revoke(folder: WorkspaceFolder, name: _Name, json: Json = None, quiet: Quiet = False) -> None:
    """Revoke a key, from this moment on."""
    check_json(json)
    with opened(folder) as workspace:
        from fairstream.service.keys import revoke_key  # noqa: PLC0415 (an extra)

        revoke_key(workspace.engine, name)
    print_lines(make_console(quiet=quiet, json=json), f"The key {name!r} is revoked.")
    write_result({"name": name, "revoked": True}, json)


def _moment(micros: int) -> str:
    return f"{datetime.fromtimestamp(micros // 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"
