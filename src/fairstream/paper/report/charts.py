"""A panel as Vega-Lite charts: the paper's and ours, on the same axes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import altair as alt

from fairstream.pages.format import plain
from fairstream.pages.series import Styles
from fairstream.paper.report.figures import Mark, Panel

HEIGHT = 150

_WITHOUT_RANGE = alt.Scale(domain=[0, 1], nice=False, zero=False)


Range = tuple[float, float]


@dataclass(frozen=True)
class Frame:
    """What charts of like panels have in common, whatever their numbers are."""

    x_title: str
    y_title: str
    is_tradeoff: bool
    ticks: tuple[float, ...]
    """Where the x axis is labelled, if not wherever it looks best."""


def frame_of(panel: Panel) -> Frame:
    """Periods are whole numbers, and each is labelled."""
    xs = {mark.x for mark in (*panel.paper, *panel.ours)}
    ticks = tuple(sorted(xs)) if panel.about.x_name == "period" else ()
    return Frame(panel.x_title, panel.y_title, panel.is_tradeoff, ticks)


def ranges_of(panel: Panel) -> tuple[Range, Range]:
    """The x and y axis that the paper's chart and ours share, with room for every point of either and its spread."""
    marks = [*panel.paper, *panel.ours]
    x = _range([(mark.x - mark.x_sd, mark.x + mark.x_sd) for mark in marks])
    y = _range([(mark.y - mark.y_sd, mark.y + mark.y_sd) for mark in marks])
    return x, (0.0, y[1]) if panel.y_title == "|PD|" else y  # no disparity is where an axis begins


def _chart(frame: Frame, styles: Styles, *, legend: bool) -> alt.LayerChart:
    """A chart without data and ranges.

    A band, or a cross in a trade-off, is one standard deviation between seeds either way.
    """
    series = [name for name, _ in styles]
    colours = alt.Scale(domain=series, range=[style.colour for _, style in styles])
    shapes = alt.Scale(domain=series, range=[style.shape for _, style in styles])
    dashes = alt.Scale(domain=series, range=[list(style.dash) for _, style in styles])
    shown = alt.Legend(columns=5) if legend else None
    x_axis = alt.Axis(values=list(frame.ticks), format="d") if frame.ticks else alt.Axis(tickCount=4)
    # The y axis is named above it, lying: a name that stands on its side is hard to read and takes width.
    y_axis = alt.Axis(titleAngle=0, titleAlign="left", titleAnchor="end", titleBaseline="bottom", titleX=-24, titleY=-6)
    base = alt.Chart().encode(
        x=alt.X("x:Q", title=frame.x_title, scale=_WITHOUT_RANGE, axis=x_axis),
        y=alt.Y("y:Q", title=frame.y_title, scale=_WITHOUT_RANGE, axis=y_axis),
        color=alt.Color("series:N", scale=colours, legend=shown),
    )
    # A wide invisible border makes the points easy to hit with a mouse or a finger.
    points = base.mark_point(filled=True, size=42, opacity=1, stroke="transparent", strokeWidth=9).encode(
        shape=alt.Shape("series:N", scale=shapes, legend=shown), tooltip=_tooltip(frame)
    )
    up_and_down, across = {"y": "low:Q", "y2": "high:Q"}, {"x": "left:Q", "x2": "right:Q"}
    if frame.is_tradeoff:
        cross = base.mark_rule(opacity=0.6)
        layers = (cross.encode(**up_and_down), cross.encode(**across), points)
    else:
        band = base.mark_area(opacity=0.14).encode(**up_and_down)
        line = base.mark_line(strokeWidth=1.6).encode(strokeDash=alt.StrokeDash("series:N", scale=dashes, legend=shown))
        layers = (band, line, points)
    return _with_spread(alt.LayerChart(layer=layers)).properties(height=HEIGHT)


def rows_of(marks: Sequence[Mark]) -> list[dict[str, Any]]:
    """The points as a chart takes them."""
    rows = []
    for mark in marks:
        spread = {"sd": mark.y_sd, "x_sd": mark.x_sd, "seeds": mark.n_seeds}  # left out where there is none
        row = {"series": mark.series, "x": mark.x, "y": mark.y} | {key: value for key, value in spread.items() if value}
        rows.append({key: round(value, 6) if isinstance(value, float) else value for key, value in row.items()})
    return rows


def spec_of(panel: Panel, styles: Styles, *, legend: bool = False) -> dict[str, Any]:
    """A panel's chart, as wide as what it stands in, still without data; `CONFIG` goes with all of them once."""
    spec = deepcopy(_template(frame_of(panel), styles, legend))
    for layer in spec["layer"]:
        for axis, range_ in zip(("x", "y"), ranges_of(panel), strict=True):
            layer["encoding"][axis].get("scale", {})["domain"] = list(range_)
    return spec


@cache
def _template(frame: Frame, styles: Styles, legend: bool) -> dict[str, Any]:
    """Checking a chart against Vega-Lite's schema takes long beside making it: like panels are checked once."""
    chart = _chart(frame, styles, legend=legend)
    spec = chart.properties(width="container", data=alt.InlineData(values=[])).to_dict()
    return {key: part for key, part in spec.items() if key not in ("config", "datasets")} | {"data": {"values": []}}


def described(panel: Panel, marks: Sequence[Mark], *, whose: str) -> str:
    """What a chart shows, in words."""
    by_series: dict[str, list[Mark]] = {}
    for mark in marks:
        by_series.setdefault(mark.series, []).append(mark)
    if panel.is_tradeoff:
        parts = [f"{name} {panel.x_title} {marks[0].x:.4f}, |PD| {marks[0].y:.4f}" for name, marks in by_series.items()]
    else:
        parts = [
            f"{name} from {first.y:.4f} at {panel.x_title} {plain(first.x)} to {last.y:.4f} at {plain(last.x)}"
            for name, (first, *_, last) in ((name, [*line, line[-1]]) for name, line in by_series.items())
        ]
    return f"{whose}, {panel.title}, Task-{panel.about.task}: {'; '.join(parts)}."


def _with_spread(chart: alt.LayerChart) -> alt.LayerChart:
    """Where bands and crosses end; nothing that is drawn here can be below 0."""
    spread = "isValid(datum.sd) ? format(datum.sd, '.4f') + ' between ' + datum.seeds + ' seeds' : '–'"
    return chart.transform_calculate(
        low="max(0, datum.y - (datum.sd || 0))",
        high="datum.y + (datum.sd || 0)",
        left="datum.x - (datum.x_sd || 0)",
        right="datum.x + (datum.x_sd || 0)",
        spread=spread,
    )


def _tooltip(frame: Frame) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("series:N", title="series"),
        alt.Tooltip("x:Q", title=frame.x_title, format=".4f" if frame.is_tradeoff else "~g"),
        alt.Tooltip("y:Q", title=frame.y_title, format=".4f"),
        alt.Tooltip("spread:N", title="sd"),
    ]


def _range(spans: Sequence[Range]) -> Range:
    low, high = min(span[0] for span in spans), max(span[1] for span in spans)
    room = (high - low or abs(high) or 1.0) * 0.06
    return round(low - room, 6), round(high + room, 6)
