"""Points gathered into the paper's figures; their panels as Vega-Lite charts, and whole figures as pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from fairstream.experiments import write_file
from fairstream.pages.format import plain
from fairstream.pages.series import CONFIG, Styles, in_order, styles_of
from fairstream.paper.findings import Findings, Place, Point
from fairstream.paper.report import PictureFormat
from fairstream.paper.report.wording import Caption, axis_name, caption_of, dataset_name, panel_rank, quantity, rank


@dataclass(frozen=True)
class Mark:
    """One point as it is drawn: of a curve x is its place on the axis, of a trade-off the performance."""

    series: str
    x: float
    y: float
    x_sd: float
    y_sd: float
    n_seeds: int


_Values = Mapping[Place, tuple[float, float, int]]
"""Of each point its value, the standard deviation between seeds, and how many seeds there are."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes: the paper's points and ours."""

    figure: str
    about: Place
    """The place of its first point; what all its points have in common counts."""
    points: tuple[Point, ...]

    @property
    def is_tradeoff(self) -> bool:
        return self.about.x is None

    @property
    def title(self) -> str:
        """What sets it apart from the other panels of its figure."""
        place = self.about
        measured = place.metric if self.is_tradeoff else quantity(place)
        by = "" if self.is_tradeoff or place.x_name == "period" else f" by {axis_name(place.x_name)}"
        return f"{dataset_name(place.dataset)} · {place.model} · {measured}{by}"

    @property
    def x_title(self) -> str:
        return self.about.metric if self.is_tradeoff else axis_name(self.about.x_name)

    @property
    def y_title(self) -> str:
        return "|PD|" if self.is_tradeoff or self.about.y_name == "abs_pd" else self.about.metric

    @property
    def n_missing(self) -> int:
        """Points that the store has no runs for."""
        return sum(point.ours is None for point in self.points)

    @property
    def paper(self) -> list[Mark]:
        """What the paper gives."""
        return self._marks(ours=False)

    @property
    def ours(self) -> list[Mark]:
        """What the runs gave."""
        return self._marks(ours=True)

    def _marks(self, *, ours: bool) -> list[Mark]:
        values: _Values = {
            point.place: (value, (point.sd or 0.0) if ours else 0.0, point.n_seeds if ours else 0)
            for point in self.points
            if (value := point.ours if ours else point.paper) is not None
        }
        return _pairs(values) if self.is_tradeoff else _curves(values)


@dataclass(frozen=True)
class Figure:
    """A figure of the paper with all its panels."""

    caption: Caption
    panels: tuple[Panel, ...]

    @property
    def points(self) -> list[Point]:
        return [point for panel in self.panels for point in panel.points]

    @property
    def series(self) -> list[str]:
        return in_order({point.place.series for point in self.points})

    @property
    def has_paper(self) -> bool:
        """Whether the source gives numbers for it at all."""
        return any(point.paper is not None for point in self.points)

    @property
    def anchor(self) -> str:
        """Its label as an HTML id and a file's name."""
        return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in self.caption.label)


def figures_of(points: Iterable[Point]) -> list[Figure]:
    """The figures in the order of the page, each with its panels in the paper's order."""
    panels: dict[str, dict[tuple[str, ...], list[Point]]] = {}
    for point in points:
        place = point.place
        axes = ("tradeoff",) if place.x is None else (place.x_name, place.y_name)
        key = (place.task, place.dataset, place.model, place.metric, *axes)
        panels.setdefault(place.figure, {}).setdefault(key, []).append(point)
    labels = sorted(panels, key=lambda label: (rank(label), label))
    return [
        Figure(
            caption_of(label),
            tuple(
                sorted(
                    (Panel(label, inside[0].place, tuple(inside)) for inside in panels[label].values()),
                    key=lambda panel: (panel.about.task != "R", panel_rank(panel.about)),
                )
            ),
        )
        for label in labels
    ]


def _curves(values: _Values) -> list[Mark]:
    marks = [Mark(place.series, place.x, y, 0.0, sd, n) for place, (y, sd, n) in values.items() if place.x is not None]
    return sorted(marks, key=lambda mark: (mark.series, mark.x))


def _pairs(values: _Values) -> list[Mark]:
    """The two coordinates of a trade-off are two points of the same series; a series that lacks one is not drawn."""
    performance = {place.series: value for place, value in values.items() if place.y_name == "performance"}
    disparity = {place.series: value for place, value in values.items() if place.y_name == "abs_pd"}
    marks = []
    for series in sorted(performance.keys() & disparity.keys()):
        (x, x_sd, n), (y, y_sd, _) = performance[series], disparity[series]
        marks.append(Mark(series, x, y, x_sd, y_sd, n))
    return marks


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


_WIDTH = 190


def export_figures(findings: Findings, folder: Path, *, format: PictureFormat) -> list[Path]:  # noqa: A002
    """One picture per figure that has anything to show; their paths."""
    written = []
    for figure in figures_of(findings.points):
        if any(panel.paper or panel.ours for panel in figure.panels):
            path = folder / f"{figure.anchor}.{format}"
            write_file(path, picture(figure, format=format))
            written.append(path)
    return written


def picture(figure: Figure, *, format: PictureFormat) -> bytes:  # noqa: A002
    """The figure as PNG (at twice the size, for sharp screens and paper) or SVG."""
    spec = figure_spec(figure)
    if format == "png":
        return vl_convert.vegalite_to_png(spec, scale=2)
    return vl_convert.vegalite_to_svg(spec).encode()


def figure_spec(figure: Figure) -> dict[str, Any]:
    """All panels in rows of two, in each the paper's on the left and ours on the right, one legend for all."""
    sides = [side for panel in figure.panels for side in _sides(panel, figure)]
    shared = dict.fromkeys(("color", "shape", "strokeDash"), "shared")
    return {
        "$schema": alt.SCHEMA_URL,
        "concat": sides,
        "columns": 4 if len(sides) > 2 else 2,
        "resolve": {"scale": shared},
        "title": {"text": figure.caption.title, "fontSize": 14, "offset": 12},
        "config": {**CONFIG, "background": "white"},
        "padding": 12,
    }


def _sides(panel: Panel, figure: Figure) -> list[dict[str, Any]]:
    if not panel.paper and not panel.ours:
        return []
    chart = spec_of(panel, styles_of(figure.series), legend=True)
    del chart["$schema"]
    sides = []
    for whose, marks in (("the paper", panel.paper), ("ours", panel.ours)):
        if whose == "ours" or figure.has_paper:
            # A side without numbers is drawn with empty axes, so that what is missing can be seen.
            title = {"text": panel.title, "subtitle": whose if marks else f"{whose}: no numbers", "offset": 14}
            sides.append({**chart, "width": _WIDTH, "title": title, "data": {"values": rows_of(marks)}})
    return sides
