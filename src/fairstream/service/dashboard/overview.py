"""The charts and numbers of the first page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairstream.service.dashboard.charts import Chart, Moment, Series, bar_chart, line_chart
from fairstream.service.dashboard.reading import Overview, gap_of
from fairstream.service.dashboard.words import count, percent, score
from fairstream.service.gaps import with_margin
from fairstream.service.records import Model, Period, from_microseconds
from fairstream.service.settings import LiveConfig

_Z = 1.96
_NOT_PROMOTED = {"rejected": "candidate rejected", "failed": "update failed"}


@dataclass(frozen=True)
class Target:
    """What an update measured of the accepted gap, and what it did."""

    model: Model
    max_disparity: float
    sentences: list[str]
    groups: list[dict[str, Any]]


def quality_chart(overview: Overview) -> Chart:
    """How good the lists of everyone and of each group were."""
    series = [
        Series(
            name,
            f"line-{place % 6}",
            [scores.by_group.get(name) for _, scores in overview.evaluated],
            [_band(period, name) for period, _ in overview.evaluated],
        )
        for place, name in enumerate(overview.groups)
    ]
    series = [line for line in series if any(value is not None for value in line.values)]
    everyone = Series("everyone", "line-all", [scores.mean for _, scores in overview.evaluated])
    return line_chart("chart-quality", "Quality of the lists", _evaluated(overview), [*series, everyone], score)


def gap_chart(overview: Overview, config: LiveConfig) -> Chart:
    """The largest gap between a group and everyone else."""
    gaps = [gap_of(scores) for _, scores in overview.evaluated]
    line = Series(
        "largest gap",
        "line-0",
        [gap.value if gap else None for gap in gaps],
        [gap.interval if gap else None for gap in gaps],
    )
    accepted = config.learning.max_disparity
    limit = None if accepted is None else (accepted, "accepted")
    moments = _evaluated(overview)
    return line_chart("chart-gap", "Largest gap between groups", moments, [line], score, from_zero=True, limit=limit)


def stream_charts(overview: Overview) -> list[Chart]:
    """What came in, period by period; the first one holds all that was there before, and would dwarf the others."""
    periods = [period for period in overview.periods if period.t] or overview.periods
    moments = [_moment(overview, period) for period in periods]
    drawn: list[tuple[str, str, Callable[[Period], float | None], Callable[[float], str]]] = [
        ("chart-events", "Events", lambda period: period.n_events, count),
        ("chart-newcomers", "People new to the model", newcomers, percent),
        ("chart-items", "New items", lambda period: _data(overview, period).get("n_new_items"), count),
        ("chart-late", "Late events", late, percent),
    ]
    charts = []
    for id_, title, value, write in drawn:
        values = [value(period) for period in periods]
        if any(values):
            charts.append(bar_chart(id_, title, moments, values, write))
    return charts


def newcomers(period: Period) -> float | None:
    """The share of evaluated people whom the model did not know."""
    evaluation = period.evaluation or {}
    tested, cold = evaluation.get("n_tested_users"), evaluation.get("n_cold_users")
    return cold / tested if tested and cold is not None else None


def late(period: Period) -> float | None:
    """The share of events dated before the end of the period before."""
    return period.n_late / period.n_events if period.n_events else None


def target_of(model: Model | None) -> Target | None:
    """The accepted gap when a model was made; None where none was named."""
    control = model.about.get("control") if model else None
    if model is None or not control:
        return None
    weights = model.about.get("event_weights") or {}
    groups = [
        {
            "name": name,
            "weight": weight,
            "gap": _gap_words(gap := control["gaps"].get(name)),
            "verdict": _verdict(control, gap),
        }
        for name, weight in weights.items()
    ]
    return Target(model, control["max_disparity"], list(control["sentences"]), groups)


def _gap_words(gap: dict[str, float] | None) -> str:
    """How far a group is behind or ahead, with its margin; where it may be chance, neither."""
    if gap is None:
        return "–"
    size, margin = abs(gap["value"]), _Z * gap["se"]
    side = ", may be chance" if size <= margin else " behind" if gap["value"] > 0 else " ahead"
    return f"{with_margin(size, (size - margin, size + margin))}{side}"


def _band(period: Period, name: str) -> tuple[float, float] | None:
    """The interval of a group's mean."""
    level = ((period.evaluation or {}).get("levels") or {}).get(name)
    return None if level is None else (level[1][0], level[1][1])


def _verdict(control: dict[str, Any], gap: dict[str, float] | None) -> tuple[str, str]:
    """What a gap and its standard error say of what is accepted, with its colour."""
    if gap is None:
        return "quiet", "not measured"
    low, high = gap["value"] - gap["se"], gap["value"] + gap["se"]
    if low > control["max_disparity"]:
        return "warning", "more than accepted"
    if high < control["max_disparity"]:
        return "good", "within what is accepted"
    return "quiet", "too close to tell"


def _evaluated(overview: Overview) -> list[Moment]:
    return [_moment(overview, period) for period, _ in overview.evaluated]


def _moment(overview: Overview, period: Period) -> Moment:
    """When the period's events happened: by their own clock, which is another than the update's after an import."""
    candidate = overview.candidates.get(period.t)
    happened = min(from_microseconds(min(period.split_time, 2**52)), period.closed)
    return Moment(period.t, happened, _NOT_PROMOTED.get(candidate.state, "") if candidate else "")


def _data(overview: Overview, period: Period) -> dict[str, Any]:
    candidate = overview.candidates.get(period.t)
    return (candidate.about.get("data") or {}) if candidate else {}
