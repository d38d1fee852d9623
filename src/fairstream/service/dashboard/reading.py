"""What the pages show, read from the database."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, select

from fairstream.evaluation.by_group import GroupScores
from fairstream.service import schema
from fairstream.service.audit import Entry
from fairstream.service.event_store import EventStore
from fairstream.service.gaps import Gap, gap_in, score_in
from fairstream.service.periods import closed_periods
from fairstream.service.records import Model, Period, Update, from_microseconds
from fairstream.service.registry import InService, in_service, model, rejections_in_a_row
from fairstream.service.registry import models as models_listed
from fairstream.service.updates import listed
from fairstream.service.workspace import Workspace

PERIODS_AT_ONCE = 60
_LATEST_UPDATES, _LATEST_ENTRIES = 6, 12
_LONGEST_ID = 32


@dataclass(frozen=True)
class Events:
    """What came in."""

    total: int
    waiting: int
    """Events of no closed period yet; at most so many."""
    latest: datetime | None
    """The time of the one that arrived last."""


@dataclass(frozen=True)
class Overview:
    """The first page: the latest periods, or those before one of them."""

    service: InService | None
    serving: Model | None
    """The model in service."""
    newest: Model | None
    """The candidate of the last update that made one."""
    periods: list[Period]
    """The oldest first."""
    candidates: dict[int, Model]
    """The last candidate of each of these periods."""
    updates: list[Update]
    """The newest first."""
    n_rejected: int
    """Candidates rejected in a row since the last promotion."""
    events: Events
    entries: list[Entry]
    """The latest of the audit record, the newest first."""
    earlier: int | None
    """The first period shown, where there are periods before it."""
    is_latest: bool

    @property
    def evaluated(self) -> list[tuple[Period, GroupScores]]:
        """Periods that found a model in service to evaluate."""
        return [(period, scores) for period in self.periods if (scores := scores_of(period.evaluation))]

    @property
    def groups(self) -> list[str]:
        """Every group of any period, in the order of the latest one that has it."""
        return list(dict.fromkeys(name for _, scores in reversed(self.evaluated) for name in scores.by_group))

    @property
    def running(self) -> Update | None:
        """The update that has not ended."""
        return next((update for update in self.updates if update.state in ("queued", "running")), None)


@dataclass(frozen=True)
class ModelStory:
    """One model, where it comes from, what came of it, and its entries of the audit record."""

    model: Model
    service: InService | None
    period: Period | None
    parent: Model | None
    children: list[Model]
    entries: list[Entry]

    @property
    def is_serving(self) -> bool:
        return self.service is not None and self.service.model == self.model.id


def scores_of(evaluation: Mapping[str, Any] | None) -> GroupScores | None:
    """NDCG of everyone and of the groups, from what is stored of an evaluation."""
    stored = score_in(evaluation)
    return GroupScores.from_dict(stored) if stored else None


def gap_of(scores: GroupScores | None) -> Gap | None:
    """The largest gap with its interval."""
    return None if scores is None else gap_in(scores.to_dict())


def read_overview(workspace: Workspace, *, before: int | None = None) -> Overview:
    """The latest periods, or those before period `before`."""
    engine, models = workspace.engine, schema.models
    service, newest = in_service(engine), models_listed(engine, limit=1)
    periods = closed_periods(engine, before=before, limit=PERIODS_AT_ONCE + 1)
    shown = periods[-PERIODS_AT_ONCE:]
    with engine.connect() as connection:
        candidates = _models(connection, models.c.t.between(shown[0].t, shown[-1].t)) if shown else []
        return Overview(
            service=service,
            serving=model(engine, service.model) if service else None,
            newest=newest[0] if newest else None,
            periods=shown,
            candidates={candidate.t: candidate for candidate in reversed(candidates)},
            updates=listed(engine, limit=_LATEST_UPDATES),
            n_rejected=rejections_in_a_row(engine),
            events=_events(workspace, connection),
            entries=_entries(connection),
            earlier=shown[0].t if len(periods) > PERIODS_AT_ONCE else None,
            is_latest=before is None,
        )


def read_model(workspace: Workspace, model_id: str) -> ModelStory | None:
    """The model of this id; None where there is none."""
    if len(model_id) > _LONGEST_ID or not model_id.isprintable():  # some of these no database would take
        return None
    models, periods = schema.models, schema.periods
    with workspace.engine.connect() as connection:
        if not (found := _models(connection, models.c.id == model_id)):
            return None
        period = connection.execute(select(periods).where(periods.c.t == found[0].t)).mappings().first()
        parents = _models(connection, models.c.id == found[0].parent) if found[0].parent else []
        return ModelStory(
            model=found[0],
            service=in_service(workspace.engine),
            period=Period.from_row(period) if period else None,
            parent=parents[0] if parents else None,
            children=_models(connection, models.c.parent == model_id),
            entries=list(_entries_about(connection, model_id)),
        )


def _models(connection: Connection, which: Any) -> list[Model]:
    wanted = select(schema.models).where(which).order_by(schema.models.c.created.desc())
    return [Model.from_row(row) for row in connection.execute(wanted).mappings()]


def _events(workspace: Workspace, connection: Connection) -> Events:
    closed = connection.scalar(select(func.sum(schema.periods.c.n_events))) or 0
    waiting = EventStore(workspace).n_open()
    latest = connection.scalar(select(schema.events.c.time).order_by(schema.events.c.seq.desc()).limit(1))
    return Events(int(closed) + waiting, waiting, from_microseconds(latest))


def _entries(connection: Connection) -> list[Entry]:
    wanted = select(schema.audit).order_by(schema.audit.c.seq.desc()).limit(_LATEST_ENTRIES)
    return [Entry(**row) for row in connection.execute(wanted).mappings()]


def _entries_about(connection: Connection, model_id: str) -> Iterator[Entry]:
    """Entries that name the model: the database finds those that may, a closer look those that do."""
    audit, written = schema.audit, json.dumps(model_id, ensure_ascii=False)
    wanted = select(audit).where(audit.c.body.contains(written, autoescape=True)).order_by(audit.c.seq)
    for row in connection.execute(wanted).mappings():
        if _names(json.loads(row["body"]), model_id):
            yield Entry(**row)


def _names(value: Any, model_id: str) -> bool:
    if isinstance(value, dict):
        return any(_names(inner, model_id) for inner in value.values())
    if isinstance(value, list):
        return any(_names(inner, model_id) for inner in value)
    return bool(value == model_id)
