"""The first page: its data, the banner, and the charts of periods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, case, func, select, true

from fairstream.service import schema
from fairstream.service.audit import Entry
from fairstream.service.dashboard.charts import Chart, Moment, Series, Value
from fairstream.service.database import reading
from fairstream.service.event_store import EventStore
from fairstream.service.forgetting import pending_requests
from fairstream.service.gaps import falling, gap_in, score_in
from fairstream.service.records import FINISHED, Model, Period, Update, from_microseconds
from fairstream.service.registry import in_service, model, n_unpromoted
from fairstream.service.serving import ServedBy
from fairstream.service.settings import LiveConfig
from fairstream.service.updates import listed
from fairstream.service.workspace import Workspace
from fairstream.text import count, number, percent, plain, sentence

MAX_PERIODS = 60  # drawn at once; choose days to see others
_LATEST_UPDATES, _LATEST_ENTRIES = 6, 12
_NOT_PROMOTED = {"rejected": "candidate rejected", "failed": "update failed"}
_MAX_WEIGHT = 60.0  # drawn for a group whose choices alone count
_score = partial(number, digits=3)


# ── data ─────────────────────────────────────────────────────────────────────────────────


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
        return and_(
            column >= _microseconds(self.first) if self.first else true(),
            column < _microseconds(self.last + timedelta(1)) if self.last and self.last < date.max else true(),
        )


def _microseconds(day: date) -> int:
    return int(datetime.combine(day, time(), UTC).timestamp()) * 1_000_000


class Overview:
    """The data of the first page: the latest periods of some days, oldest first."""

    def __init__(self, workspace: Workspace, days: Days = Days()) -> None:  # noqa: B008
        engine, audit = workspace.engine, schema.audit
        self.service = in_service(engine)
        self.serving = model(engine, self.service.model) if self.service else None
        self.updates = listed(engine, limit=_LATEST_UPDATES)
        self.n_unpromoted = n_unpromoted(engine)
        self.n_waiting = EventStore(workspace).n_open()
        self.forgettings = pending_requests(engine)  # how many are not completed, and the time of the oldest
        self.days, self.is_latest = days, days.last in (None, datetime.now(UTC).date())
        with reading(engine) as connection:
            self.periods = _periods(connection, days)
            self.candidates = _candidates(connection, [period.t for period in self.periods])
            n_closed = connection.scalar(select(func.sum(schema.periods.c.n_events))) or 0
            latest = select(schema.events.c.time).order_by(schema.events.c.seq.desc()).limit(1)
            self.n_events = int(n_closed) + self.n_waiting
            self.latest_event = from_microseconds(connection.scalar(latest))
            entries = select(audit).order_by(audit.c.seq.desc()).limit(_LATEST_ENTRIES)
            self.entries = [Entry(**row) for row in connection.execute(entries).mappings()]
        finished = next((update for update in self.updates if update.state in FINISHED), None)
        self.finished = finished  # the last update that has ended, and its candidate
        self.candidate = model(engine, finished.model) if finished and finished.model else None

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


def _periods(connection: Connection, days: Days) -> list[Period]:
    """Return the latest periods whose events happened in these days: an import stores them much later."""
    row = schema.periods.c
    happened = case((row.latest_time < row.closed, row.latest_time), else_=row.closed)
    latest = select(schema.periods).where(days.hold(happened)).order_by(row.t.desc()).limit(MAX_PERIODS)
    rows = connection.execute(latest).mappings()
    return [Period(**each) for each in rows][::-1]


def _candidates(connection: Connection, periods: Sequence[int]) -> dict[int, Model]:
    """Return the latest candidate of each period."""
    rows = select(schema.models).where(schema.models.c.t.in_(periods)).order_by(schema.models.c.created)
    return {row["t"]: Model(**row) for row in connection.execute(rows).mappings()}


# ── the banner ───────────────────────────────────────────────────────────────────────────


class Status(NamedTuple):
    """The banner."""

    level: Literal["good", "warning", "bad", "neutral"]
    headline: str
    sentences: list[str]
    candidate: str | None = None  # the model that was not promoted; an admin may promote it
    can_roll_back: bool = False


def status_of(overview: Overview, source: ServedBy | None, problem: str | None, alert_after: int) -> Status:
    """Return the worst problem, of the workspace or of this process, or that all is well.

    `source` and `problem` describe this process; `alert_after` updates in a row without a promotion are an alert.
    """
    serving, candidate, n = overview.serving, overview.candidate, overview.n_unpromoted
    if problem is not None and serving is not None:
        headlines = {None: "The model is being loaded", "model": "The service has a problem"}
        return Status(
            "warning" if source is None else "bad",
            headlines.get(source, "The model in service cannot be used"),
            [sentence(problem)],
            can_roll_back=source not in headlines and serving.parent is not None,
        )
    state, reasons = _outcome(overview)
    candidate_id = None if candidate is None else candidate.id
    last_update = [f"The last update was {state}. {' '.join(reasons)}"] if state else []
    if serving is None:
        if not overview.n_events:
            return Status("neutral", "Waiting for the first events", ["Send events, then run an update."])
        return Status("warning", "Popular items are shown: there is no model yet", last_update, candidate_id)
    is_alert = n >= alert_after and state != "promoted"
    headline = {"failed": "The last update failed", "rejected": "The last update was rejected"}.get(state or "")
    headline = f"The last {n} updates promoted no model" if is_alert and n > 1 else headline
    if headline:
        level: Literal["warning", "bad"] = "bad" if is_alert or state == "failed" else "warning"
        return Status(level, headline, reasons, candidate_id)
    if candidate is not None and candidate.id != serving.id:
        last_update = [f"The newer model {candidate.id} was taken out of service."]
    elif candidate is not None and serving.is_manual:
        last_update = [f"An admin promoted model {serving.id} after the gate had rejected it."]
    fall = falling([score["mean"] for _, score in overview.evaluated]) if overview.is_latest else None
    if fall is not None:
        return Status("warning", "Up to date, but the quality is falling", [fall, *last_update])
    return Status("good", "Everything is up to date", last_update)


def _outcome(overview: Overview) -> tuple[str | None, list[str]]:
    """Return how the last update ended, and why; an admin may have promoted its candidate since."""
    if overview.candidate is not None:
        return overview.candidate.state, [sentence(part) for part in overview.candidate.reason.split("; ")]
    if overview.finished is None:
        return None, []
    return overview.finished.state, [sentence(overview.finished.reason or "no reason was recorded")]


# ── charts ───────────────────────────────────────────────────────────────────────────────


def quality_charts(overview: Overview, config: LiveConfig) -> list[Chart]:
    """Return the quality of the lists of everyone and of each group, and the largest gap between groups."""
    if not overview.evaluated:
        return []
    periods, scores = zip(*overview.evaluated, strict=True)
    moments = [_moment(overview, period) for period in periods]
    of_groups = {
        name: [(score["by_group"].get(name), _band(period, name)) for period, score in overview.evaluated]
        for name in overview.groups
    }
    lines = [*_lines_of(overview, of_groups), Series("everyone", "line-all", [score["mean"] for score in scores])]
    charts = [Chart("chart-quality", "Quality of the lists", moments, lines, _score)]
    if overview.groups:
        gaps = [gap_in(score) for score in scores]
        values, bands = [gap.value if gap else None for gap in gaps], [gap.interval if gap else None for gap in gaps]
        line = Series("largest gap", "line-0", values, bands)
        limit = None if config.learning.max_gap is None else (config.learning.max_gap, "accepted")
        title = "Largest gap between groups"
        charts.append(Chart("chart-gap", title, moments, [line], _score, from_zero=True, limit=limit))
    return charts


def control_charts(overview: Overview) -> list[Chart]:
    """Return each group's regret and the level in force, where a target has been set."""
    drawn = [
        (period, control)
        for period in overview.periods
        if (candidate := overview.candidates.get(period.t)) is not None
        and candidate.state == "promoted"
        and (control := candidate.about.get("control"))
    ]
    if not drawn:
        return []
    moments = [_moment(overview, period) for period, _ in drawn]
    names = list(dict.fromkeys(name for _, control in drawn for name in (*control["regret"], *control["withheld"])))
    regret = {name: [control["regret"].get(name, (None, None)) for _, control in drawn] for name in names}
    weight = {name: [(_weight(control["level"], name), None) for _, control in drawn] for name in names}
    raised = {name: values for name, values in weight.items() if any(value != 1.0 for value, _ in values)}
    return [
        Chart("chart-regret", "Regret of each group", moments, _lines_of(overview, regret), percent, from_zero=True),
        Chart("chart-level", "Weight of a group’s choices", moments, _lines_of(overview, raised or weight), plain),
    ]


def stream_charts(overview: Overview) -> list[Chart]:
    """Return the incoming events by period, without the first, which holds all earlier events and would dwarf them."""
    periods = [period for period in overview.periods if period.t] or overview.periods
    if not periods:
        return []
    moments = [_moment(overview, period) for period in periods]
    events = Series("Events", "line-0", [period.n_events for period in periods])
    newcomers = Series("People new to the model", "line-0", [_newcomers(period) for period in periods])
    charts = [Chart("chart-events", "Events", moments, [events], count, from_zero=True)]
    if any(newcomers.values):
        charts.append(Chart("chart-newcomers", newcomers.name, moments, [newcomers], percent, from_zero=True))
    return charts


def _newcomers(period: Period) -> float | None:
    """Return the share of tested people whom the model did not know."""
    evaluation = period.evaluation or {}
    tested, cold = evaluation.get("n_tested_users"), evaluation.get("n_cold_users")
    return cold / tested if tested and cold is not None else None


def _lines_of(overview: Overview, groups: Mapping[str, Sequence[tuple[Value, Any]]]) -> list[Series]:
    """Return the line of each group that has a value; a group has one colour in every chart."""
    order = list(dict.fromkeys((*overview.groups, *groups)))
    return [
        Series(name, f"line-{order.index(name) % 6}", [value for value, _ in line], [band for _, band in line])
        for name, line in groups.items()
        if any(value is not None for value, _ in line)
    ]


def _weight(level: Mapping[str, Any], name: str) -> float:
    return min(float(level["weight"]), _MAX_WEIGHT) if level["group"] == name else 1.0


def _moment(overview: Overview, period: Period) -> Moment:
    """Return the time of the period's events, which an import may have stored much later."""
    candidate = overview.candidates.get(period.t)
    happened = min(from_microseconds(min(period.latest_time, 2**52)), period.closed)
    return Moment(period.t, happened, _NOT_PROMOTED.get(candidate.state, "") if candidate else "")


def _band(period: Period, name: str) -> tuple[float, float] | None:
    level = ((period.evaluation or {}).get("levels") or {}).get(name)
    return None if level is None else (level[1][0], level[1][1])
