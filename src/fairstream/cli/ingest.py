"""`fairstream ingest`: events and users from files."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairstream.cli.console import check_json, make_console, on_interrupt, print_lines, write_result
from fairstream.cli.options import Json, Quiet, WorkspaceFolder
from fairstream.cli.progress import LineProgress
from fairstream.cli.workspaces import opened
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
            metavar="FILE|-",
            help="Table with the users and their groups; the same formats, or with - Arrow IPC or JSON from standard "
            "input.",
            show_default=False,
        ),
    ] = None,
    user_column: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the user's id.")] = "user_id",
    item_column: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the item's id.")] = "item_id",
    time_column: Annotated[
        str, typer.Option(metavar="COLUMN", help="Column with the time; seconds since 1970, ISO 8601 or timestamps.")
    ] = "time",
    event_id_column: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column with the event's id.",
            show_default="event_id, or made from user, item and time",
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Column of the users that makes the groups.", show_default="as configured")
    ] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Store events, each once however often it is sent, and the groups of users.

    A file is read in parts, and each part is stored whole or not at all. Where one is refused the parts before it
    stay; the same file, once it is put right, can be ingested from its beginning.
    """
    if not files and users is None:
        raise ConfigurationError("give files with events, or --users FILE, or both")
    check_json(json)
    console = make_console(quiet=quiet, json=json)
    n_stored = 0
    with on_interrupt(lambda: _kept(n_stored)), opened(folder) as workspace:
        from fairstream.service.event_store import EventStore, Receipt  # noqa: PLC0415 (an extra)
        from fairstream.service.files_in import batches_from_file  # noqa: PLC0415

        counts = {}
        if users is not None:
            names = {"user_id": user_column, "value": group or workspace.config.group}
            receipt = _put_users(workspace, users, names)
            print_lines(console, f"{users}: {receipt}")
            counts["users"] = receipt._asdict()
        columns = {
            "user_id": user_column,
            "item_id": item_column,
            "time": time_column,
            "event_id": event_id_column or "event_id",
        }
        need_ids = event_id_column is not None
        store, total, begin = EventStore(workspace), Receipt(0, 0, 0), time.perf_counter()
        progress = LineProgress(quiet=quiet)
        for file in files or []:
            stored = Receipt(0, 0, 0)
            try:
                for batch in batches_from_file(file, columns, workspace.config.limits, need_ids=need_ids):
                    stored = stored.plus(store.append(batch))
                    n_stored = total.accepted + stored.accepted
                    progress.say(f"{file}: {stored} so far")
            except DataError as error:
                raise DataError(f"{error}; before that, {n_stored:,} new events were stored") from None
            print_lines(console, f"{file}: {stored}")
            total = total.plus(stored)
        if files:
            counts["events"] = total._asdict()
            seconds = time.perf_counter() - begin
            print_lines(console, f"Together: {total}; {sum(total) / seconds:,.0f} events a second")
        write_result(counts, json)


def _kept(n_stored: int) -> str:
    return f"{n_stored:,} new events are stored; the same command stores the others, and none twice"


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
