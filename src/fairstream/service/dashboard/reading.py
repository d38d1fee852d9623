"""The data of the pages, read from the database, and the audit report as JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Engine, Select, and_, case, func, select, true

from fairstream.service import schema
from fairstream.service.audit import Entry
from fairstream.service.event_store import EventStore, closed_periods
from fairstream.service.forgetting import pending_requests
from fairstream.service.gaps import score_in
from fairstream.service.records import Model, Period, UnknownIdError, Update, from_microseconds
from fairstream.service.registry import in_service, model, unpromoted_in_a_row
from fairstream.service.registry import models as models_listed
from fairstream.service.settings import LiveConfig
from fairstream.service.updates import listed
from fairstream.service.workspace import Workspace

PERIODS_AT_ONCE = 60
_LATEST_UPDATES, _LATEST_ENTRIES = 6, 12
_MAX_ID_LENGTH = 32
_RELATIVE = {"id", "t", "state"}  # what an audit report says of parents and children


def iso(time: datetime | int) -> str:
    """Format a time as ISO 8601."""
    at: datetime = from_microseconds(time).astimezone(UTC)
    return at.isoformat().replace("+00:00", "Z")


def reason_of(model: Model) -> str:
    """Return the reason for the decision of the gate."""
    return str(model.decision.get("reason") or "no reason was recorded")


def is_manual(model: Model) -> bool:
    """Return whether an admin promoted the model after the gate had rejected it."""
    return model.state == "promoted" and not all(check.get("ok") for check in model.decision.get("checks") or ())


class Days(NamedTuple):
    """A range of days (UTC), both ends included; None where it has no end."""

    first: date | None = None
    last: date | None = None

    @classmethod
    def latest(cls, n: int) -> Days:
        today = datetime.now(UTC).date()
        return cls(today - timedelta(n - 1), today)

    def hold(self, column: ColumnElement[int]) -> ColumnElement[bool]:
        """Return the condition that a time in microseconds is in the range."""
        ends = [
            column >= _microseconds(self.first) if self.first else true(),
            column < _microseconds(self.last + timedelta(1)) if self.last and self.last < date.max else true(),
        ]
        return and_(*ends)

    @property
    def query(self) -> str:
        """The range as the parameters of a page."""
        return "".join(f"&{name}={end}" for name, end in (("from", self.first), ("to", self.last)) if end)


def _microseconds(day: date) -> int:
    return int(datetime.combine(day, time(), UTC).timestamp()) * 1_000_000


class Overview:
    """The data of the first page: the latest periods of some days, oldest first, or those before period `before`."""

    def __init__(self, workspace: Workspace, *, days: Days = Days(), before: int | None = None) -> None:  # noqa: B008
        engine, models, audit = workspace.engine, schema.models, schema.audit
        self.service = in_service(engine)
        self.serving = model(engine, self.service.model) if self.service else None
        self.newest = next(iter(models_listed(engine, limit=1)), None)  # the last candidate
        periods = _periods(engine, days, before)
        self.periods = periods[-PERIODS_AT_ONCE:]
        self.days, self.is_latest = days, before is None and days.last in (None, datetime.now(UTC).date())
        self.earlier = self.periods[0].t if len(periods) > PERIODS_AT_ONCE else None
        """The first period shown, if there are earlier ones."""
        self.updates = listed(engine, limit=_LATEST_UPDATES)
        self.n_unpromoted = len(unpromoted_in_a_row(engine))  # updates in a row that promoted nothing
        self.n_waiting = EventStore(workspace).n_open()
        self.forgettings = pending_requests(engine)  # how many are not completed, and the time of the oldest
        with engine.connect() as connection:
            shown = [period.t for period in self.periods]
            self.candidates = {each.t: each for each in reversed(_models(connection, models.c.t.in_(shown)))}
            n_closed = connection.scalar(select(func.sum(schema.periods.c.n_events))) or 0
            latest = select(schema.events.c.time).order_by(schema.events.c.seq.desc()).limit(1)
            self.n_events = int(n_closed) + self.n_waiting
            self.latest_event = from_microseconds(connection.scalar(latest))
            self.entries = _entries(connection, select(audit).order_by(audit.c.seq.desc()).limit(_LATEST_ENTRIES))

    @property
    def evaluated(self) -> list[tuple[Period, Mapping[str, Any]]]:
        """Periods that tested a model in service, with its NDCG."""
        return [(period, score) for period in self.periods if (score := score_in(period.evaluation))]

    @property
    def groups(self) -> list[str]:
        """Every group of any period, in the order of the latest period that has it."""
        return list(dict.fromkeys(name for _, score in reversed(self.evaluated) for name in score.get("by_group", {})))

    @property
    def running(self) -> Update | None:
        return next((update for update in self.updates if update.state in ("queued", "running")), None)

    def data_of(self, period: Period) -> dict[str, Any]:
        candidate = self.candidates.get(period.t)
        return (candidate.about.get("data") or {}) if candidate else {}


def _periods(engine: Engine, days: Days, before: int | None) -> list[Period]:
    """Return the latest periods whose events happened in these days: an import stores them much later."""
    row = schema.periods.c
    happened = case((row.latest_time < row.closed, row.latest_time), else_=row.closed)
    page = select(schema.periods).where(days.hold(happened), true() if before is None else row.t < before)
    with engine.connect() as connection:
        rows = connection.execute(page.order_by(row.t.desc()).limit(PERIODS_AT_ONCE + 1)).mappings()
        return [Period(**each) for each in rows][::-1]


def last_entry(engine: Engine, kinds: Collection[str]) -> Entry | None:
    """Return the last entry of these kinds in the audit log."""
    entries = select(schema.audit).where(schema.audit.c.kind.in_(kinds)).order_by(schema.audit.c.seq.desc()).limit(1)
    with engine.connect() as connection:
        return next(iter(_entries(connection, entries)), None)


class ModelStory:
    """One model, its parent, its children, and its entries of the audit log."""

    def __init__(self, workspace: Workspace, model_id: str) -> None:
        if len(model_id) > _MAX_ID_LENGTH or not model_id.isprintable():  # PostgreSQL refuses some of them
            raise UnknownIdError("there is no such model")
        engine, models, audit = workspace.engine, schema.models, schema.audit
        self.model, self.service = model(engine, model_id), in_service(engine)
        self.is_serving = self.service is not None and self.service.model == model_id
        text = json.dumps(model_id, ensure_ascii=False)
        entries = select(audit).where(audit.c.body.contains(text, autoescape=True)).order_by(audit.c.seq)
        with engine.connect() as connection:
            self.period = next(iter(closed_periods(engine, after=self.model.t - 1, before=self.model.t + 1)), None)
            self.parent = next(iter(_models(connection, models.c.id == self.model.parent)), None)
            self.children = _models(connection, models.c.parent == model_id)
            # SQLite ignores case.
            self.entries = [entry for entry in _entries(connection, entries) if text in entry.body]


def _models(connection: Connection, which: Any) -> list[Model]:
    query = select(schema.models).where(which).order_by(schema.models.c.created.desc())
    return [Model(**row) for row in connection.execute(query).mappings()]


def _entries(connection: Connection, query: Select[Any]) -> list[Entry]:
    return [Entry(**row) for row in connection.execute(query).mappings()]


def audit_json(story: ModelStory, config: LiveConfig, *, made: int) -> str:
    """Return the audit report of a model as JSON; a group that is too small to report is null."""
    document = {
        "written": iso(made),
        "group": config.group,
        "metric": f"ndcg@{config.gate.k}",
        "model": story.model.model_dump(mode="json"),
        "in_service_since": iso(story.service.since) if story.service and story.is_serving else None,
        "period": story.period.model_dump(mode="json") if story.period else None,
        "parent": story.parent.model_dump(include=_RELATIVE) if story.parent else None,
        "children": [child.model_dump(include=_RELATIVE) for child in story.children],
        # As recorded, so that the hash of each entry can be checked.
        "record": [{**asdict(entry), "time_utc": iso(entry.time)} for entry in story.entries],
    }
    return json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
