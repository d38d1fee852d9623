"""The periods: which events each holds, and which of them are learned when.

An event belongs to the period that is open when it arrives, whatever its own time. Inside a
period events are ordered by time. The latest of them, the held-out ones, judge the candidate that
has learned the others; they are learned with the next period.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
from sqlalchemy import Engine, select

from fairstream.service import schema
from fairstream.service.event_store import EventStore


class Period(NamedTuple):
    """A period that is closed."""

    t: int
    first_seq: int
    last_seq: int
    closed: int
    n_events: int
    n_users: int
    n_late: int
    n_learnable: int
    judgement: dict[str, Any] | None


def closed_periods(engine: Engine) -> list[Period]:
    """All of them, the first one first."""
    with engine.connect() as connection:
        return [
            Period(**row._mapping) for row in connection.execute(select(schema.periods).order_by(schema.periods.c.t))
        ]


def in_order(events: pa.Table) -> pa.Table:
    """By time, and what happened at once as it arrived."""
    return events.sort_by([("time", "ascending"), ("seq", "ascending")])


def events_of(store: EventStore, period: Period) -> pa.Table:
    """A closed period's events, in order; those of users who were forgotten since are gone."""
    return in_order(store.read(period.first_seq - 1, period.last_seq))


def held_out(store: EventStore, period: Period) -> pa.Table:
    """The events of a closed period that its own model has not learned."""
    events = events_of(store, period)
    # Who was forgotten is missing from both parts; the share is what was agreed, not the number.
    n_gone = period.n_events - len(events)
    return events.slice(max(0, period.n_learnable - n_gone))
