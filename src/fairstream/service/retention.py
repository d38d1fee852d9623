"""Deleting events that are old and that nothing needs any more."""

from __future__ import annotations

from time import sleep

from sqlalchemy import delete, func, select

from fairstream.service import schema
from fairstream.service.audit import record
from fairstream.service.database import now, reachable, writing
from fairstream.service.event_store import one_writer
from fairstream.service.workspace import Workspace

_AT_ONCE = 5_000
"""So few that an update, which runs at a low priority, does not hold the lock of writers for seconds."""
PAUSE_SECONDS = 0.15
"""Between two parts: longer than SQLite lets a writer that waits sleep before it looks again."""
_DAY = 86_400_000_000


def prune(workspace: Workspace) -> int:
    """Delete events older than `retention.events_days`; gives how many there were.

    Those of the periods that a kept model was learned in, and all later ones, stay: a rollback learns from them.
    """
    days = workspace.config.retention.events_days
    if days is None:
        return 0
    models, periods, events = schema.models.c, schema.periods.c, schema.events.c
    kept = (
        select(func.min(periods.first_seq))
        .join_from(schema.models, schema.periods, periods.t == models.t)
        .where(
            models.folder.in_(workspace.models.names())
            | (models.id == select(schema.service.c.model).scalar_subquery())
        )
    )
    before, n_deleted = now() - days * _DAY, 0
    with reachable(workspace.engine), workspace.engine.connect() as connection:
        first_kept = connection.scalar(kept) or 0
    while True:
        old = select(events.seq).where(events.seq < first_kept, events.time < before).order_by(events.seq)
        with reachable(workspace.engine), writing(workspace.engine) as connection:
            one_writer(connection)
            part = connection.scalars(old.limit(_AT_ONCE)).all()
            if part:
                these = (events.seq.between(part[0], part[-1])) & (events.time < before)
                n_deleted += connection.execute(delete(schema.events).where(these)).rowcount
            if len(part) < _AT_ONCE:
                if n_deleted:
                    record(connection, "prune", {"n_events": n_deleted, "before": before})
                return n_deleted
        sleep(PAUSE_SECONDS)  # events that come in have their turn
