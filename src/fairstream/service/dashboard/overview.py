"""The first page: status and charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from fairstream.service.dashboard.charts import Chart, Moment, Series, Value, make_chart
from fairstream.service.dashboard.reading import Overview, is_manual, reason_of
from fairstream.service.gaps import falling, gap_in
from fairstream.service.records import FINISHED, Model, Period, from_microseconds
from fairstream.service.serving import ServedBy
from fairstream.service.settings import LiveConfig
from fairstream.text import count, number, percent, plain, sentence

_NOT_PROMOTED = {"rejected": "candidate rejected", "failed": "update failed"}
_MAX_WEIGHT = 60.0  # drawn for a group whose choices alone count
_score = partial(number, digits=3)


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
    serving = overview.serving
    if problem is not None and serving is not None:
        headlines = {None: "The model is being loaded", "model": "The service has a problem"}
        return Status(
            "warning" if source is None else "bad",
            headlines.get(source, "The model in service cannot be used"),
            [sentence(problem)],
            can_roll_back=source not in headlines and serving.parent is not None,
        )
    state, reasons, candidate = _last_outcome(overview)
    if serving is None:
        if not overview.n_events:
            return Status("neutral", "Waiting for the first events", ["Send events, then run an update."])
        why = [f"The last update was {state}. {reason}" for reason in reasons[:1]] if state else []
        return Status("warning", "Popular items are shown: there is no model yet", why, candidate)
    n, is_current = overview.n_unpromoted, candidate == serving.id
    is_alert = n >= alert_after and state != "promoted" and not is_current
    if is_alert and n > 1:
        headline: str | None = f"The last {n} updates promoted no model"
    else:
        headline = {"failed": "The last update failed", "rejected": "The last update was rejected"}.get(state or "")
    if headline and not is_current:
        return Status("bad" if is_alert or state == "failed" else "warning", headline, reasons, candidate)
    return _up_to_date(overview, _why_good(overview, serving, state, reasons))


def _up_to_date(overview: Overview, why: list[str]) -> Status:
    fall = falling([score["mean"] for _, score in overview.evaluated]) if overview.is_latest else None
    if fall is None:
        return Status("good", "Everything is up to date", why)
    return Status("warning", "Up to date, but the quality is falling", [fall, *why])


def _why_good(overview: Overview, serving: Model, state: str | None, reasons: list[str]) -> list[str]:
    newest = overview.newest
    if state in ("skipped", "interrupted"):
        return [f"The last update was {state}. {reason}" for reason in reasons]
    if newest is not None and newest.id != serving.id and newest.state == "promoted":
        return [f"The newer model {newest.id} was taken out of service."]
    if is_manual(serving):
        return [f"An admin promoted model {serving.id} after the gate had rejected it."]
    return [f"The last update was promoted. {' '.join(reasons)}"]


def _last_outcome(overview: Overview) -> tuple[str | None, list[str], str | None]:
    """Return state, reasons and candidate of the last finished update; models of old versions have no update."""
    newest = overview.newest
    last = next((update for update in overview.updates if update.state in FINISHED), None)
    if last is not None and last.model is None and (newest is None or last.requested >= newest.created):
        return last.state, [sentence(last.reason or "no reason was recorded")], None
    if newest is None:
        return None, [], None
    # The state of the model, not of its update: an admin may have promoted it since.
    return newest.state, [sentence(part) for part in reason_of(newest).split("; ")], newest.id


def quality_charts(overview: Overview, config: LiveConfig) -> list[Chart]:
    """Return the charts of quality, gap, regret and level over time that have something to show."""
    charts = [quality_chart(overview)] if overview.evaluated else []
    charts += [gap_chart(overview, config)] if overview.groups else []
    return charts + control_charts(overview)


def quality_chart(overview: Overview) -> Chart:
    """Return the quality of the lists of everyone and of each group."""
    evaluated = overview.evaluated
    series = _of_groups(
        {
            name: [(score["by_group"].get(name), _band(period, name)) for period, score in evaluated]
            for name in overview.groups
        }
    )
    everyone = Series("everyone", "line-all", [score["mean"] for _, score in evaluated])
    moments = [_moment(overview, period) for period, _ in evaluated]
    return make_chart("chart-quality", "Quality of the lists", moments, [*series, everyone], _score)


def gap_chart(overview: Overview, config: LiveConfig) -> Chart:
    """Return the largest gap between a group and everyone else."""
    gaps = [gap_in(score) for _, score in overview.evaluated]
    values, bands = [gap.value if gap else None for gap in gaps], [gap.interval if gap else None for gap in gaps]
    accepted = config.learning.max_gap
    limit = None if accepted is None else (accepted, "accepted")
    moments = [_moment(overview, period) for period, _ in overview.evaluated]
    series = [Series("largest gap", "line-0", values, bands)]
    title = "Largest gap between groups"
    return make_chart("chart-gap", title, moments, series, _score, from_zero=True, limit=limit)


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
        make_chart("chart-regret", "Regret of each group", moments, _of_groups(regret), percent, from_zero=True),
        make_chart("chart-level", "Weight of a group’s choices", moments, _of_groups(raised or weight), plain),
    ]


def _weight(level: Mapping[str, Any], name: str) -> float:
    return min(float(level["weight"]), _MAX_WEIGHT) if level["group"] == name else 1.0


def _of_groups(values: Mapping[str, Sequence[tuple[Value, Any]]]) -> list[Series]:
    """Return the line of each group that has a value; its colour is the group's in every chart."""
    return [
        Series(name, f"line-{place % 6}", [value for value, _ in line], [band for _, band in line])
        for place, (name, line) in enumerate(values.items())
        if any(value is not None for value, _ in line)
    ]


def stream_charts(overview: Overview) -> list[Chart]:
    """Return the incoming events by period, without the first, which holds all earlier events and would dwarf them."""
    periods = [period for period in overview.periods if period.t] or overview.periods
    moments = [_moment(overview, period) for period in periods]
    drawn: list[tuple[str, str, list[float | None], Callable[[float], str]]] = [
        ("chart-events", "Events", [period.n_events for period in periods], count),
        ("chart-newcomers", "People new to the model", [newcomers(period) for period in periods], percent),
        ("chart-items", "New items", [overview.data_of(period).get("n_new_items") for period in periods], count),
        ("chart-late", "Late events", [late(period) for period in periods], percent),
    ]
    return [
        make_chart(id_, title, moments, [Series(title, "bar", values)], write, is_bars=True)
        for id_, title, values, write in drawn
        if any(values)
    ]


def newcomers(period: Period) -> float | None:
    """Return the share of tested people whom the model did not know."""
    evaluation = period.evaluation or {}
    tested, cold = evaluation.get("n_tested_users"), evaluation.get("n_cold_users")
    return cold / tested if tested and cold is not None else None


def late(period: Period) -> float | None:
    """Return the share of events dated before the end of the previous period."""
    return period.n_late / period.n_events if period.n_events else None


def _moment(overview: Overview, period: Period) -> Moment:
    """Return the time of the period's events, which an import may have stored much later."""
    candidate = overview.candidates.get(period.t)
    happened = min(from_microseconds(min(period.latest_time, 2**52)), period.closed)
    return Moment(period.t, happened, _NOT_PROMOTED.get(candidate.state, "") if candidate else "")


def _band(period: Period, name: str) -> tuple[float, float] | None:
    level = ((period.evaluation or {}).get("levels") or {}).get(name)
    return None if level is None else (level[1][0], level[1][1])
