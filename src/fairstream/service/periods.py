"""The periods: which events each holds, and which of them are learned when.

An event belongs to the period that is open when it arrives, whatever its own time. Inside a
period events are ordered by time. The latest of them, the held-out ones, judge the candidate that
has learned the others; they are learned with the next period.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Engine, select

from fairstream.service import schema
from fairstream.service.event_store import EventStore
from fairstream.service.records import Period


def closed_periods(
    engine: Engine, *, after: int | None = None, before: int | None = None, limit: int | None = None
) -> list[Period]:
    """All of them, or up to `limit`: the first ones after a period, else the last ones; the earliest first."""
    t = schema.periods.c.t
    page = select(schema.periods).order_by(t if after is not None else t.desc()).limit(limit)
    if after is not None:
        page = page.where(t > after)
    if before is not None:
        page = page.where(t < before)
    with engine.connect() as connection:
        rows = connection.execute(page).mappings()
        return sorted((Period.from_row(row) for row in rows), key=lambda period: period.t)


def in_order(events: pa.Table) -> pa.Table:
    """By time, and what happened at once as it arrived."""
    return events.sort_by([("time", "ascending"), ("seq", "ascending")])


def events_of(store: EventStore, period: Period) -> pa.Table:
    """A closed period's events, in order; those of users who were forgotten since are gone."""
    return in_order(store.read(period.first_seq - 1, period.last_seq))


def held_out(store: EventStore, period: Period) -> pa.Table:
    """The events of a closed period that its own model has not learned."""
    events = events_of(store, period)
    later = pc.greater(events["time"], period.split_time)
    same_time = pc.equal(events["time"], period.split_time)
    return events.filter(pc.or_(later, pc.and_(same_time, pc.greater_equal(events["seq"], period.split_seq))))
