"""What a workspace holds of one person."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select

from fairstream.service.database import reachable
from fairstream.service.forgetting import models_that_know
from fairstream.service.schema import events, of_users
from fairstream.service.workspace import Workspace

_1970 = datetime(1970, 1, 1, tzinfo=UTC)


def export(workspace: Workspace, user_id: str) -> dict[str, Any] | None:
    """Events, group and the models that know a person; None where there is nothing."""
    theirs = of_users(workspace.engine.dialect, [user_id])
    query = select(events.c.event_id, events.c.item_id, events.c.time).where(theirs)
    with reachable(workspace.engine), workspace.engine.connect() as connection:
        rows = connection.execute(query.order_by(events.c.seq)).all()
    with workspace.people() as people:
        values = people.values([user_id])["value"].to_pylist()
    known_to = models_that_know(workspace, user_id)
    if not (rows or values or known_to):
        return None
    return {
        "user_id": user_id,
        "events": [
            {
                "event_id": row.event_id,
                "item_id": row.item_id,
                "time": (_1970 + timedelta(microseconds=row.time)).isoformat(),
            }
            for row in rows
        ],
        "attribute": {workspace.config.group: values[0]} if values else {},
        "models": known_to,
    }
