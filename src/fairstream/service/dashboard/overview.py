"""Everything that the overview shows, read from the database in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, func, select

from fairstream.service.audit import Entry
from fairstream.service.dashboard.facts import Candidate, Period, candidate_from, period_from
from fairstream.service.event_store import EventStore
from fairstream.service.registry import InService
from fairstream.service.schema import audit, events, models, periods, service
from fairstream.service.settings import Gate
from fairstream.service.workspace import Workspace

AT_ONCE = 60
"""Periods on one page; earlier ones are on pages of their own."""
_TAIL = 12


@dataclass(frozen=True)
class Events:
    """What came in."""

    total: int
    waiting: int
    """Events of no closed period yet; at most so many."""
    latest: int | None
    """The time of the one that arrived last."""


@dataclass(frozen=True)
class Overview:
    """What the page shows, oldest period first, newest model first."""

    name: str
    """Of the workspace."""
    group: str
    """Name of the attribute whose groups are compared."""
    metric: str
    gate: Gate
    service: InService | None
    newest: Candidate | None
    """The candidate of the last update."""
    serving: Candidate | None
    """The model that answers."""
    periods: tuple[Period, ...]
    models: tuple[Candidate, ...]
    events: Events
    record: tuple[Entry, ...]
    earlier: int | None
    """The first period on this page, where there are periods before it."""
    is_latest: bool

    @property
    def judged(self) -> list[Period]:
        """Periods that found a model in service to judge."""
        return [period for period in self.periods if period.scores is not None]

    @property
    def groups(self) -> list[str]:
        """Every group of any period, in the order of the latest one that has it."""
        names = (name for period in reversed(self.judged) for name in (period.scores.by_group if period.scores else ()))
        return list(dict.fromkeys(names))

    @property
    def reported_groups(self) -> list[str]:
        """Those that were large enough in some period."""
        there = {
            name
            for period in self.judged
            if period.scores
            for name, v in period.scores.by_group.items()
            if v is not None
        }
        return [name for name in self.groups if name in there]


def metric_of(gate: Gate) -> str:
    """What the gate judges by."""
    return f"ndcg@{gate.k}"


def read_overview(workspace: Workspace, *, before: int | None = None) -> Overview:
    """The latest periods, or with `before` those that came before period t."""
    gate = workspace.config.gate
    metric = metric_of(gate)
    with workspace.engine.connect() as connection:
        in_service = read_service(connection)
        model = in_service.model if in_service else None
        wanted = select(periods).order_by(periods.c.t.desc()).limit(AT_ONCE + 1)  # one more: what the first is held to
        found = connection.execute(wanted if before is None else wanted.where(periods.c.t < before)).mappings().all()
        read = [period_from(row, metric) for row in reversed(found)]
        shown = read[-AT_ONCE:]
        made = _models(connection, [period.t for period in read], model)
        latest = select(models).order_by(models.c.created.desc(), models.c.t.desc()).limit(1)
        newest = connection.execute(latest).mappings().first()
        serving = connection.execute(select(models).where(models.c.id == model)).mappings().first()
        return Overview(
            name=workspace.folder.resolve().name,
            group=workspace.config.group,
            metric=metric,
            gate=gate,
            service=in_service,
            newest=candidate_from(newest, model) if newest else None,
            serving=candidate_from(serving, model) if serving else None,
            periods=_with_items(_with_limits(read, gate), made)[-AT_ONCE:],
            models=tuple(one for one in made if shown and one.t >= shown[0].t),
            events=_events(workspace, connection),
            record=_record(connection),
            earlier=shown[0].t if len(read) > AT_ONCE else None,
            is_latest=before is None,
        )


def read_service(connection: Connection) -> InService | None:
    """The one row that says which model answers."""
    row = connection.execute(select(service.c.model, service.c.since)).first()
    return InService(*row) if row else None


def _models(connection: Connection, ts: Sequence[int], in_service: str | None) -> list[Candidate]:
    """The candidates of these periods, newest first."""
    if not ts:
        return []
    wanted = select(models).where(models.c.t.between(ts[0], ts[-1]))
    rows = connection.execute(wanted.order_by(models.c.t.desc(), models.c.created.desc())).mappings()
    return [candidate_from(row, in_service) for row in rows]


def _with_limits(read: Sequence[Period], gate: Gate) -> list[Period]:
    limited = list(read[:1])
    for last, period in pairwise(read):
        gap = last.largest_gap
        limited.append(period if gap is None else replace(period, limit=gap.value + gate.max_rise))
    return limited


def _with_items(read: Sequence[Period], made: Sequence[Candidate]) -> tuple[Period, ...]:
    """How many items a period had is known of the candidate that was made from it."""
    by_period = {one.t: one for one in made}
    return tuple(
        replace(period, n_items=one.counted("n_items"), n_new_items=one.counted("n_new_items"))
        if (one := by_period.get(period.t))
        else period
        for period in read
    )


def _events(workspace: Workspace, connection: Connection) -> Events:
    closed = connection.scalar(select(func.sum(periods.c.n_events))) or 0
    waiting = EventStore(workspace).n_open()
    latest = connection.scalar(select(events.c.time).order_by(events.c.seq.desc()).limit(1))
    return Events(int(closed) + waiting, waiting, latest)


def _record(connection: Connection) -> tuple[Entry, ...]:
    rows: Any = connection.execute(select(audit).order_by(audit.c.seq.desc()).limit(_TAIL))
    return tuple(Entry(**row._mapping) for row in rows)
