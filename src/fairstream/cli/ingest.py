"""`fairstream ingest`: events and users from files."""

from __future__ import annotations

import shlex
import time
from typing import Annotated

import typer

from fairstream.cli.console import Output, on_interrupt
from fairstream.cli.options import ItemColumn, TimeColumn, UserColumn, Users, WorkspaceFolder
from fairstream.cli.progress import LineProgress
from fairstream.cli.workspaces import opened
from fairstream.data import Columns
from fairstream.errors import ConfigurationError, DataError
from fairstream.service.event_store import EventsReceipt, EventStore, closed_periods
from fairstream.service.incoming import batches_from_file, people_from_file
from fairstream.service.people import UsersReceipt


def ingest(
    folder: WorkspaceFolder,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE…",
            help="Events, as `fairstream run` reads them: files, folders of parts, globs in quotes, addresses.",
            show_default=False,
        ),
    ] = None,
    users: Users = None,
    user_column: UserColumn = None,
    item_column: ItemColumn = None,
    time_column: TimeColumn = None,
    kind_column: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column with the kind: view, purchase, … as in [events] of fairstream.toml.",
            show_default="recognised",
        ),
    ] = None,
    event_id_column: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column with the event's id.",
            show_default="event_id, or derived from user, item, time and kind",
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Column of the users that makes the groups.", show_default="as configured")
    ] = None,
    *,
    output: Output,
) -> None:
    """Store events and the groups of users; an event that is sent again is stored once.

    Each part of a file is stored whole or not at all. After an error the parts before it stay stored; correct the
    file and ingest it again from the beginning.
    """
    if not files and users is None:
        raise ConfigurationError("give files with events, or --users FILE, or both")
    n_stored, resume = 0, "new events are stored; the same command stores the others, and none twice"
    with on_interrupt(lambda: f"{n_stored:,} {resume}"), opened(folder) as workspace:
        counts, columns = {}, Columns(user_column, item_column, time_column, kind=kind_column)
        if users is not None:
            receipt, config = UsersReceipt(0, 0), workspace.config
            for part in people_from_file(users, columns, group or config.group, config.groups):
                receipt = receipt.plus(workspace.people.put(part))
            output.print(f"{users}: {receipt}")
            counts["users"] = vars(receipt)
        store, total, begin = EventStore(workspace), EventsReceipt(0, 0, 0), time.perf_counter()
        progress = LineProgress(quiet=output.quiet)
        for file in files or []:
            stored = EventsReceipt(0, 0, 0)
            try:
                limits, kinds = workspace.config.limits, workspace.config.events
                for batch in batches_from_file(file, columns, limits, kinds, event_id_column):
                    stored = stored.plus(store.append(batch))
                    n_stored = total.accepted + stored.accepted
                    progress.say(f"{file}: {stored} so far")
            except DataError as error:
                raise DataError(f"{error}; before that, {n_stored:,} new events were stored") from None
            output.print(f"{file}: {stored}")
            total = total.plus(stored)
        if files:
            counts["events"] = vars(total)
            seconds = time.perf_counter() - begin
            output.print(f"Together: {total}; {sum(vars(total).values()) / seconds:,.0f} events a second")
            if not closed_periods(workspace.engine, limit=1):
                output.print(f"Next: fairstream update {shlex.quote(str(folder))} learns this history period by period")
        output.write(counts)
