"""The overview's charts as Vega-Lite, checked against its schema once and filled with rows each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import altair as alt

from fairstream.pages.series import CONFIG, Style, Styles, palette
from fairstream.service.dashboard.overview import Overview
from fairstream.service.dashboard.scores import largest_gap_group
from fairstream.service.dashboard.words import STATES, plain_time

OPTIONS = {"ast": True, "defaultStyle": False, "tooltip": {"disableDefaultStyle": True}}
"""Expressions are interpreted and no style is written into the page: its security policy allows neither."""

_BLUE, _GREY, _RED = "#0072B2", "#767676", "#D55E00"
_HEIGHT = 190
_TICKS = 12

NOT_PROMOTED = "candidate not promoted"
_RING = "M-1,0A1,1 0 1 1 1,0A1,1 0 1 1 -1,0ZM-0.6,0A0.6,0.6 0 1 0 0.6,0A0.6,0.6 0 1 0 -0.6,0Z"

GAP_STYLES: Styles = (
    ("largest gap, with its 95 % interval", Style(_BLUE, "circle", (1, 0))),
    ("by chance", Style(_GREY, "", (2, 2))),
    ("limit of the gate", Style(_RED, "", (6, 3))),
    (NOT_PROMOTED, Style(_RED, _RING, (0, 99))),
)
PD_STYLES: Styles = (("PD, with its 95 % interval", Style(_BLUE, "circle", (1, 0))),)
ALL_USERS = ("all users", Style(_GREY, "diamond", (2, 2)))

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Drawing:
    """A chart: what it looks like, and its data."""

    spec: Mapping[str, Any]
    rows: Rows


def gap_chart(overview: Overview) -> Drawing:
    """The largest gap by period, its interval, its size by chance, and the gate's limit."""
    rows: Rows = []
    states = {model.t: model.state for model in overview.models}
    for period in overview.judged:
        gap = period.largest_gap
        low, high = (gap.interval if gap else None) or (None, None)
        rows.append(
            _at(period.t, period.closed)
            | {"value": gap and gap.value, "low": low, "high": high, "chance": gap and gap.null_mean}
            | {"candidate": STATES.get(states.get(period.t, ""), "none")}
            | {"limit": period.limit, "group": largest_gap_group(period.scores)}
        )
    return Drawing(_gap_spec(_ticks(rows)), rows)


def signed_chart(overview: Overview) -> Drawing:
    """PD with its sign by period, and its interval."""
    rows: Rows = []
    for period in overview.judged:
        disparity = period.scores.disparity if period.scores else None
        low, high = (disparity.interval if disparity else None) or (None, None)
        rows.append(_at(period.t, period.closed) | {"value": disparity and disparity.value, "low": low, "high": high})
    return Drawing(_band_spec(_ticks(rows), "PD", True), rows)


def group_styles(overview: Overview) -> Styles:
    """Each group's line."""
    return (*palette(overview.reported_groups), ALL_USERS)


def group_chart(overview: Overview) -> Drawing:
    """Each group's quality by period."""
    names = overview.reported_groups
    rows: Rows = []
    for period in overview.judged:
        if period.scores is None:
            continue
        # Numbered, not named: a group may have the name of another line, and the spec stays the same for all names.
        values = [period.scores.by_group.get(name) for name in names]
        for position, (name, value) in enumerate(
            zip([*names, ALL_USERS[0]], [*values, period.scores.mean], strict=True)
        ):
            rows.append(_at(period.t, period.closed) | {"line": position, "name": name, "value": value})
    return Drawing(_group_spec(_ticks(rows), len(names)), rows)


def performance_chart(overview: Overview) -> Drawing:
    """How the model in service did on each period."""
    rows: Rows = []
    for period in overview.judged:
        low, high = (period.scores.interval if period.scores else None) or (None, None)
        value = period.scores.mean if period.scores else None
        rows.append(_at(period.t, period.closed) | {"value": value, "low": low, "high": high})
    return Drawing(_band_spec(_ticks(rows), overview.metric.upper(), False), rows)


def bar_chart(overview: Overview, values: Sequence[float | int | None], title: str, format_: str) -> Drawing:
    """One number a period."""
    rows = [
        _at(period.t, period.closed) | {"value": value}
        for period, value in zip(overview.periods, values, strict=True)
        if value is not None
    ]
    return Drawing(_bar_spec(_ticks(rows), title, format_), rows)


def chart_data(drawings: Mapping[str, Drawing]) -> dict[str, Any]:
    """What the script draws from, by the ids of the elements to draw in."""
    specs = [drawing.spec for drawing in drawings.values()]
    drawn = {id_: {"spec": place, "rows": drawing.rows} for place, (id_, drawing) in enumerate(drawings.items())}
    return {"config": CONFIG, "specs": specs, "drawn": drawn, "options": OPTIONS}


def _at(t: int, closed: int) -> dict[str, Any]:
    return {"t": t, "closed": plain_time(closed)}


def _ticks(rows: Rows) -> tuple[int, ...]:
    """Whole periods, not too many of them."""
    ts = sorted({row["t"] for row in rows})
    step = max(1, -(-len(ts) // _TICKS))
    return tuple(ts[::step])


@lru_cache(maxsize=32)
def _gap_spec(ticks: tuple[int, ...]) -> dict[str, Any]:
    base = _base(ticks)
    tooltip = [
        *_about_period(),
        alt.Tooltip("group:N", title="group"),
        alt.Tooltip("candidate:N", title="candidate"),
        *(alt.Tooltip(f"{field}:Q", title=title, format=".4f") for field, title in _GAP_FIELDS),
    ]
    return _spec(
        base.mark_area(color=_BLUE, opacity=0.14).encode(y=_y("low", "gap", zero=True), y2="high:Q"),
        base.mark_line(color=_GREY, strokeDash=[2, 2], strokeWidth=1.6).encode(y=_y("chance", "gap", zero=True)),
        base.mark_line(color=_RED, strokeDash=[6, 3], strokeWidth=1.6, interpolate="step").encode(
            y=_y("limit", "gap", zero=True)
        ),
        base.mark_line(color=_BLUE, strokeWidth=1.8).encode(y=_y("value", "gap", zero=True)),
        base.mark_point(filled=False, size=150, color=_RED, strokeWidth=1.8)
        .encode(y=_y("value", "gap", zero=True))
        .transform_filter(f"datum.candidate === '{STATES['rejected']}' || datum.candidate === '{STATES['failed']}'"),
        _points(base).encode(color=alt.value(_BLUE), y=_y("value", "gap", zero=True), tooltip=tooltip),
    )


_GAP_FIELDS = (
    ("value", "largest gap"),
    ("low", "from"),
    ("high", "to"),
    ("chance", "by chance"),
    ("limit", "limit"),
)


@lru_cache(maxsize=32)
def _band_spec(ticks: tuple[int, ...], title: str, with_zero: bool) -> dict[str, Any]:
    base = _base(ticks)
    fields = (("value", title), ("low", "from"), ("high", "to"))
    tooltip = [*_about_period(), *(alt.Tooltip(f"{field}:Q", title=name, format=".4f") for field, name in fields)]
    zero = [alt.Chart().mark_rule(color=_GREY, strokeWidth=1).encode(y=alt.YDatum(0))] if with_zero else []
    return _spec(
        base.mark_area(color=_BLUE, opacity=0.14).encode(y=_y("low", title), y2="high:Q"),
        *zero,
        base.mark_line(color=_BLUE, strokeWidth=1.8).encode(y=_y("value", title)),
        _points(base).encode(color=alt.value(_BLUE), y=_y("value", title), tooltip=tooltip),
    )


@lru_cache(maxsize=32)
def _group_spec(ticks: tuple[int, ...], n_groups: int) -> dict[str, Any]:
    lines = list(range(n_groups + 1))
    styles = [style for _, style in (*palette([str(line) for line in lines[:-1]]), ALL_USERS)]
    colours = alt.Scale(domain=lines, range=[style.colour for style in styles])
    shapes = alt.Scale(domain=lines, range=[style.shape for style in styles])
    dashes = alt.Scale(domain=lines, range=[list(style.dash) for style in styles])
    base = _base(ticks).encode(color=alt.Color("line:N", scale=colours, legend=None), y=_y("value", "quality"))
    tooltip = [*_about_period(), alt.Tooltip("name:N", title="group"), alt.Tooltip("value:Q", format=".4f")]
    return _spec(
        base.mark_line(strokeWidth=1.8).encode(strokeDash=alt.StrokeDash("line:N", scale=dashes, legend=None)),
        _points(base).encode(shape=alt.Shape("line:N", scale=shapes, legend=None), tooltip=tooltip),
    )


@lru_cache(maxsize=32)
def _bar_spec(ticks: tuple[int, ...], title: str, format_: str) -> dict[str, Any]:
    x = alt.X("t:O", title="period", axis=alt.Axis(values=list(ticks), labelAngle=0))
    y = _y("value", title, zero=True, format_=format_)
    tooltip = [*_about_period(), alt.Tooltip("value:Q", title=title, format=".1%" if "%" in format_ else ",d")]
    return _spec(alt.Chart().mark_bar(color=_BLUE, opacity=0.8).encode(x=x, y=y, tooltip=tooltip))


def _base(ticks: tuple[int, ...]) -> alt.Chart:
    axis = alt.Axis(values=list(ticks), format="d")
    return alt.Chart().encode(
        x=alt.X("t:Q", title="period", axis=axis, scale=alt.Scale(zero=False, nice=False, padding=8))
    )


def _y(field: str, title: str, *, zero: bool = False, format_: str | None = None) -> alt.Y:
    # The axis is named above it, lying: a name that stands on its side is hard to read and takes width.
    axis = alt.Axis(
        titleAngle=0,
        titleAlign="left",
        titleAnchor="end",
        titleBaseline="bottom",
        titleX=-24,
        titleY=-9,
        format=alt.Undefined if format_ is None else format_,
    )
    return alt.Y(f"{field}:Q", title=title, scale=alt.Scale(zero=zero), axis=axis)


def _points(base: alt.Chart) -> alt.Chart:
    # A wide invisible border makes the points easy to hit with a mouse or a finger.
    return base.mark_point(filled=True, size=42, opacity=1, stroke="transparent", strokeWidth=9)


def _about_period() -> list[alt.Tooltip]:
    return [alt.Tooltip("t:Q", title="period", format="d"), alt.Tooltip("closed:N", title="closed")]


def _spec(*layers: alt.Chart) -> dict[str, Any]:
    chart = alt.LayerChart(layer=list(layers)).properties(
        height=_HEIGHT, width="container", data=alt.InlineData(values=[])
    )
    spec: dict[str, Any] = chart.to_dict()
    return {key: part for key, part in spec.items() if key not in ("config", "datasets")} | {"data": {"values": []}}
