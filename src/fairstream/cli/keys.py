"""`fairstream keys`: who may use the HTTP interface."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from fairstream.cli.console import make_console
from fairstream.cli.tables import new_table
from fairstream.cli.workspaces import WorkspaceFolder, opened

keys_app = typer.Typer(
    help="Make, list and revoke the keys of the HTTP interface.", no_args_is_help=True, rich_markup_mode="markdown"
)
_Name = Annotated[str, typer.Argument(help="Whose key it is, or what it is for.", show_default=False)]


@keys_app.command()
def add(
    folder: WorkspaceFolder,
    name: _Name,
    scope: Annotated[
        str, typer.Option(help="ingest, attributes, read, or admin, which may do everything.", show_default=False)
    ],
) -> None:
    """Make a key and print it, once: only its hash is kept."""
    with opened(folder) as workspace:
        from fairstream.service.keys import make_key  # noqa: PLC0415 (an extra)

        typer.echo(make_key(workspace.engine, name, scope))


@keys_app.command("list")
def list_(folder: WorkspaceFolder) -> None:
    """Show every key there ever was; not the keys themselves, which nobody has kept."""
    with opened(folder) as workspace:
        from fairstream.service.keys import list_keys  # noqa: PLC0415 (an extra)

        found = list_keys(workspace.engine)
    table = new_table("Keys")
    for heading in ("name", "scope", "made", "revoked"):
        table.add_column(heading, no_wrap=True)
    for key in found:
        table.add_row(key.name, key.scope, _moment(key.created), "" if key.revoked is None else _moment(key.revoked))
    make_console(quiet=False).print(table, markup=False)


@keys_app.command()
def revoke(folder: WorkspaceFolder, name: _Name) -> None:
    """Make a key useless, from this moment."""
    with opened(folder) as workspace:
        from fairstream.service.keys import revoke_key  # noqa: PLC0415 (an extra)

        revoke_key(workspace.engine, name)
    typer.echo(f"The key {name!r} is revoked.")


def _moment(micros: int) -> str:
    return f"{datetime.fromtimestamp(micros // 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
