"""`fairstream items`: the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fairstream.cli.console import Output
from fairstream.cli.options import ItemColumn, WorkspaceFolder
from fairstream.cli.progress import LineProgress
from fairstream.cli.workspaces import opened, who
from fairstream.data import Columns
from fairstream.display import Table
from fairstream.errors import ConfigurationError, DataError
from fairstream.service import items as catalogue
from fairstream.service.incoming import parse_json
from fairstream.service.items import items_from_file
from fairstream.service.rules import rules_from_json
from fairstream.service.rules import store as store_rules


def items(
    folder: WorkspaceFolder,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE…",
            help="Items with their properties: any table that `fairstream ingest` reads.",
            show_default=False,
        ),
    ] = None,
    item_column: ItemColumn = None,
    *,
    rules: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Replace the rules of lists by those of a JSON file.", show_default=False),
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List the catalogue, after storing the files.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Rows of a page.")] = 20,
    cursor: Annotated[
        str, typer.Option(help="Start after this item; the last of the previous page.", show_default="the first page")
    ] = "",
    output: Output,
) -> None:
    """Store items and their properties from files; list the catalogue.

    The columns are item_id, available and the properties that `[items]` of fairstream.toml declares. An empty cell
    removes a property; columns that the file does not have stay as they are.
    """
    if not files and not show and rules is None:
        raise ConfigurationError("give files with items, --rules FILE, or --list")
    result: dict[str, Any] = {}
    with opened(folder) as workspace:
        n_stored, progress = 0, LineProgress(quiet=output.quiet)
        for file in files or []:
            try:
                for part in items_from_file(file, Columns(item=item_column), workspace.config.items.properties):
                    n_stored += catalogue.store(workspace.engine, part).stored
                    progress.say(f"{file}: {n_stored:,} items so far")
            except DataError as error:
                raise DataError(f"{error}; before that, {n_stored:,} items were stored") from None
        if files:
            output.print(f"{n_stored:,} items were stored")
            result["stored"] = n_stored
        if rules is not None:
            wanted = rules_from_json(_read_json(rules), workspace.config.items.properties)
            store_rules(workspace.engine, wanted, by=who())
            output.print(f"{len(wanted)} rules shape every list from now on")
            result["rules"] = len(wanted)
        if show:
            page = catalogue.listed(workspace.engine, None, cursor, limit + 1)
            following = page[limit - 1].item_id if len(page) > limit else None
            cells = [_cells(item) for item in page[:limit]]
            output.print(Table(["item", "available", "changed (UTC)", "properties"], cells, "Items", align="lllL"))
            if following is not None:
                output.print(f"There are more: --cursor {following} shows the next page.")
            result |= {"items": [item.model_dump(mode="json") for item in page[:limit]], "next": following}
    output.write(result)


def _read_json(path: Path) -> Any:
    try:
        return parse_json(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None


def _cells(item: catalogue.Item) -> list[str]:
    properties = ", ".join(f"{name} = {value}" for name, value in (item.model_extra or {}).items())
    return [item.item_id, "yes" if item.available else "no", f"{item.changed:%Y-%m-%d %H:%M:%S}", properties]
