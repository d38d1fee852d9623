"""`fairstream ingest`: events and users from files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from fairstream.cli.console import make_console
from fairstream.cli.workspaces import WorkspaceFolder, opened
from fairstream.errors import ConfigurationError, DataError


def ingest(
    folder: WorkspaceFolder,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE…", help="Events: Parquet, CSV, Arrow or JSON Lines files.", show_default=False),
    ] = None,
    users: Annotated[
        Path | None, typer.Option(help="File with the users and their group, the same formats.", show_default=False)
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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Store events, each once however often it is sent, and the groups of users.

    A file is read in parts, and each part is stored whole or not at all. Where one is refused the parts before it
    stay; the same file, once it is put right, can be ingested from its beginning.
    """
    if not files and users is None:
        raise ConfigurationError("give files with events, or --users FILE, or both")
    console = make_console(quiet=quiet)
    with opened(folder) as workspace:
        from fairstream.service.event_store import EventStore, Receipt  # noqa: PLC0415 (an extra)
        from fairstream.service.files_in import batches_from_file, people_from_file  # noqa: PLC0415
        from fairstream.service.people import put_people  # noqa: PLC0415

        def say(line: str) -> None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

        if users is not None:
            names = {"user_id": user, "value": group or workspace.config.group}
            n_users = sum(put_people(workspace.engine, part) for part in people_from_file(users, names))
            say(f"{users}: {n_users:,} users")
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
            seconds = time.perf_counter() - begin
            say(f"Together: {total}; {sum(total) / seconds:,.0f} events a second")
