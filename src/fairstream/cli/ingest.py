"""`fairstream ingest`: events and users from files."""

from __future__ import annotations

import json as json_module
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairstream.cli.console import make_console
from fairstream.cli.workspaces import WorkspaceFolder, opened
from fairstream.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from fairstream.service.people import PeopleReceipt
    from fairstream.service.workspace import Workspace


def ingest(
    folder: WorkspaceFolder,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE…", help="Events: Parquet, CSV, Arrow or JSON Lines files.", show_default=False),
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option(
            help="File with the users and their group, the same formats; - reads Arrow IPC or JSON from stdin.",
            show_default=False,
        ),
    ] = None,
    user: Annotated[str, typer.Option(help="Column with the user's id.")] = "user_id",
    item: Annotated[str, typer.Option(help="Column with the item's id.")] = "item_id",
    time_: Annotated[
        str, typer.Option("--time", help="Column with the time: seconds since 1970, ISO 8601 or timestamps.")
    ] = "time",
    event_id: Annotated[
        str | None,
        typer.Option(help="Column with the event's id.", show_default="event_id, or made from user, item and time"),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Column of the users that makes the groups.", show_default="as configured")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object with the counts instead.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Store events, each once however often it is sent, and the groups of users.

    A file is read in parts, and each part is stored whole or not at all. Where one is refused the parts before it
    stay; the same file, once it is put right, can be ingested from its beginning.
    """
    if not files and users is None:
        raise ConfigurationError("give files with events, or --users FILE, or both")
    console = make_console(quiet=quiet or json)
    with opened(folder) as workspace:
        from fairstream.service.event_store import EventStore, Receipt  # noqa: PLC0415 (an extra)
        from fairstream.service.files_in import batches_from_file  # noqa: PLC0415

        def say(line: str) -> None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

        counts = {}
        if users is not None:
            names = {"user_id": user, "value": group or workspace.config.group}
            receipt = _put_users(workspace, users, names)
            say(f"{users}: {receipt}")
            counts["users"] = receipt._asdict()
        columns = {"user_id": user, "item_id": item, "time": time_, "event_id": event_id or "event_id"}
        store, total, begin = EventStore(workspace), Receipt(0, 0, 0), time.perf_counter()
        for file in files or []:
            stored = Receipt(0, 0, 0)
            try:
                for batch in batches_from_file(file, columns, workspace.config.limits, need_ids=event_id is not None):
                    stored = stored.plus(store.append(batch))
            except DataError as error:
                before = total.plus(stored)
                raise DataError(f"{error}; before that, {before.accepted:,} new events were stored") from None
            say(f"{file}: {stored}")
            total = total.plus(stored)
        if files:
            counts["events"] = total._asdict()
            seconds = time.perf_counter() - begin
            say(f"Together: {total}; {sum(total) / seconds:,.0f} events a second")
        if json:
            typer.echo(json_module.dumps(counts))


def _put_users(workspace: Workspace, users: Path, names: dict[str, str]) -> PeopleReceipt:
    from fairstream.service.files_in import people_from_bytes, people_from_file  # noqa: PLC0415 (an extra)
    from fairstream.service.people import PeopleReceipt  # noqa: PLC0415

    if users == Path("-"):
        limit = workspace.config.limits.max_body_bytes
        content = sys.stdin.buffer.read(limit + 1)
        if len(content) > limit:
            raise DataError(f"standard input may hold at most {limit} bytes (limits.max_body_bytes); give a file")
        parts = people_from_bytes(content, names, workspace.config.groups)
    else:
        parts = people_from_file(users, names, workspace.config.groups)
    receipt = PeopleReceipt(0, 0)
    with workspace.people() as people:
        for part in parts:
            receipt = receipt.plus(people.put(part))
    return receipt
