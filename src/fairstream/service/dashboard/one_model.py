"""Everything that is known of one model: itself, where it comes from, what came of it, and the record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from fairstream.service.audit import Entry
from fairstream.service.dashboard.facts import Candidate, Period, candidate_from, period_from
from fairstream.service.dashboard.overview import metric_of, read_service
from fairstream.service.registry import InService
from fairstream.service.schema import audit, models, periods
from fairstream.service.settings import Gate
from fairstream.service.workspace import Workspace

_LONGEST_ID = 32


@dataclass(frozen=True)
class Relative:
    """Another model, in a word."""

    id: str
    t: int
    state: str


@dataclass(frozen=True)
class ModelStory:
    """A model's page."""

    model: Candidate
    group: str
    metric: str
    gate: Gate
    service: InService | None
    period: Period | None
    parent: Relative | None
    children: tuple[Relative, ...]
    entries: tuple[Entry, ...]
    """What the record says of it."""


def read_model(workspace: Workspace, id_: str) -> ModelStory | None:
    """The model of this id; None where there is none."""
    if len(id_) > _LONGEST_ID or not id_.isprintable():  # some of these no database would take
        return None
    gate = workspace.config.gate
    metric = metric_of(gate)
    with workspace.engine.connect() as connection:
        row = connection.execute(select(models).where(models.c.id == id_)).mappings().first()
        if row is None:
            return None
        in_service = read_service(connection)
        period = connection.execute(select(periods).where(periods.c.t == row["t"])).mappings().first()
        parents = _relatives(connection, models.c.id == row["parent"]) if row["parent"] else ()
        return ModelStory(
            model=candidate_from(row, in_service.model if in_service else None),
            group=workspace.config.group,
            metric=metric,
            gate=gate,
            service=in_service,
            period=period_from(period, metric) if period else None,
            parent=parents[0] if parents else None,
            children=_relatives(connection, models.c.parent == id_),
            entries=tuple(_entries_about(connection, id_)),
        )


def _relatives(connection: Connection, which: Any) -> tuple[Relative, ...]:
    wanted = select(models.c.id, models.c.t, models.c.state).where(which).order_by(models.c.created)
    return tuple(Relative(**row) for row in connection.execute(wanted).mappings())


def _entries_about(connection: Connection, id_: str) -> Iterator[Entry]:
    """Entries that name the model; the database finds those that may, the rest is looked at closely."""
    written = json.dumps(id_, ensure_ascii=False)
    wanted = select(audit).where(audit.c.body.contains(written, autoescape=True)).order_by(audit.c.seq)
    for row in connection.execute(wanted):
        entry = Entry(**row._mapping)
        if _names(json.loads(entry.body), id_):
            yield entry


def _names(value: Any, id_: str) -> bool:
    if isinstance(value, dict):
        return any(_names(inner, id_) for inner in value.values())
    if isinstance(value, list):
        return any(_names(inner, id_) for inner in value)
    return bool(value == id_)
