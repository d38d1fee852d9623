"""The paper's figures: their panels as Vega-Lite charts, and whole figures as pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fairstream import ConfigurationError
from fairstream.files import write_file
from fairstream.pages.charts import CONFIG, DASHED, SOLID, Style, Styles, axis_range, draw, page_spec, rounded
from fairstream.pages.rendering import require_report
from fairstream.paper.findings import Findings, Place, Point
from fairstream.paper.report.wording import AXES, CAPTIONS, Caption, dataset_name, panel_rank, quantity, rank
from fairstream.plotting import COLOURS, altair
from fairstream.text import plain

PictureFormat = Literal["png", "svg"]

_BLUE, _VERMILION, _PURPLE, _GREEN, _ORANGE, _SKY = COLOURS
_GREY = "#767676"  # visible on white and on black
_STAR = "M0,-1L0.27,-0.37L0.95,-0.31L0.43,0.14L0.59,0.81L0,0.45L-0.59,0.81L-0.43,0.14L-0.95,-0.31L-0.27,-0.37Z"
# A method and its fair variant share the colour; the line of the variant is dashed.
_STYLES = {
    "Pretrain": Style(_GREY, "cross", SOLID),
    "Pretrain-Fair": Style(_GREY, "diamond", DASHED),
    "Retrain": Style(_GREEN, "square", SOLID),
    "Retrain-Fair": Style(_GREEN, "triangle-up", DASHED),
    "Finetune": Style(_VERMILION, "triangle-down", SOLID),
    "Adver": Style(_PURPLE, "triangle-right", SOLID),
    "Rerank": Style(_ORANGE, "triangle-left", SOLID),
    "FADE-Abs": Style(_SKY, _STAR, DASHED),
    "FADE": Style(_BLUE, "circle", SOLID),
    "FADE[ApproxNDCG]": Style(_PURPLE, "triangle-up", DASHED),
    "FADE[NeuralNDCG]": Style(_ORANGE, "square", DASHED),
    "FADE[DH]": Style(_BLUE, "circle", SOLID),
    "advantaged": Style(_BLUE, "circle", SOLID),
    "disadvantaged": Style(_VERMILION, "square", DASHED),
}


def in_order(series: Iterable[str]) -> list[str]:
    """Return the methods, or the groups of users, in the paper's order."""
    return sorted(series, key=list(_STYLES).index)


def styles_of(series: Iterable[str]) -> Styles:
    """Return the style of each series.

    >>> [(name, style.colour) for name, style in styles_of(["FADE", "Retrain"])]
    [('Retrain', '#009E73'), ('FADE', '#0072B2')]
    """
    return tuple((name, _STYLES[name]) for name in in_order(series))


@dataclass(frozen=True)
class Mark:
    """A point of a chart: x is the position on the axis of a curve, or the performance in a trade-off."""

    series: str
    x: float
    y: float
    x_sd: float
    y_sd: float
    n_seeds: int


@dataclass(frozen=True)
class Panel:
    """One pair of axes: the paper's points and ours."""

    about: Place  # the place of its first point; all its points share data set, model, metric and axes
    points: tuple[Point, ...]

    @property
    def is_tradeoff(self) -> bool:
        return self.about.x is None

    @property
    def title(self) -> str:
        """What distinguishes it from the other panels of its figure."""
        place = self.about
        measured = place.metric if self.is_tradeoff else quantity(place)
        by = "" if self.is_tradeoff or place.x_name == "period" else f" by {AXES[place.x_name]}"
        return f"{dataset_name(place.dataset)} · {place.model} · {measured}{by}"

    @property
    def x_title(self) -> str:
        return self.about.metric if self.is_tradeoff else AXES[self.about.x_name]

    @property
    def y_title(self) -> str:
        return "|PD|" if self.is_tradeoff or self.about.y_name == "abs_pd" else self.about.metric

    @property
    def n_missing(self) -> int:
        """Points that the store has no runs for."""
        return sum(point.ours is None for point in self.points)

    @property
    def paper(self) -> list[Mark]:
        return self._marks(ours=False)

    @property
    def ours(self) -> list[Mark]:
        return self._marks(ours=True)

    def _marks(self, *, ours: bool) -> list[Mark]:
        # The value of each point, its standard deviation between seeds, and the number of seeds.
        values = {
            point.place: (value, (point.sd or 0.0) if ours else 0.0, point.n_seeds if ours else 0)
            for point in self.points
            if (value := point.ours if ours else point.paper) is not None
        }
        if not self.is_tradeoff:
            marks = [Mark(place.series, place.x or 0.0, y, 0.0, sd, n) for place, (y, sd, n) in values.items()]
            return sorted(marks, key=lambda mark: (mark.series, mark.x))
        # The two points of a series are the coordinates of a trade-off; series that lack one are dropped.
        performance, disparity = (
            {place.series: value for place, value in values.items() if place.y_name == name}
            for name in ("performance", "abs_pd")
        )
        marks = []
        for series in sorted(performance.keys() & disparity.keys()):
            (x, x_sd, n), (y, y_sd, _) = performance[series], disparity[series]
            marks.append(Mark(series, x, y, x_sd, y_sd, n))
        return marks


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
        """Whether the source gives numbers for it."""
        return any(point.paper is not None for point in self.points)

    @property
    def anchor(self) -> str:
        """Its label as an HTML id and the name of a file."""
        return self.caption.label.replace(":", "-")


def figures_of(points: Iterable[Point]) -> list[Figure]:
    """Return the figures in the order of the page, with their panels in the paper's order."""
    panels: dict[str, dict[tuple[str, ...], list[Point]]] = {}
    for point in points:
        place = point.place
        axes = ("tradeoff",) if place.x is None else (place.x_name, place.y_name)
        key = (place.task, place.dataset, place.model, place.metric, *axes)
        panels.setdefault(place.figure, {}).setdefault(key, []).append(point)
    figures = []
    for label in sorted(panels, key=rank):
        inside = [Panel(points[0].place, tuple(points)) for points in panels[label].values()]
        inside.sort(key=lambda panel: (panel.about.task != "R", panel_rank(panel.about)))
        figures.append(Figure(CAPTIONS[label], tuple(inside)))
    return figures


_WIDTH, _HEIGHT = 190, 150


def ranges_of(panel: Panel) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the x and y axis of both charts, which hold every point and its spread."""
    marks = [*panel.paper, *panel.ours]
    x = axis_range([end for mark in marks for end in (mark.x - mark.x_sd, mark.x + mark.x_sd)])
    y = axis_range([end for mark in marks for end in (mark.y - mark.y_sd, mark.y + mark.y_sd)])
    return x, (0.0, y[1]) if panel.y_title == "|PD|" else y  # an axis of disparity begins at 0


def spec_of(panel: Panel, styles: Styles) -> dict[str, Any]:
    """Return the chart of a panel without data and style.

    A band, or a cross in a trade-off, is one standard deviation between seeds either way.
    """
    alt, (series, looks) = altair(), zip(*styles, strict=True)
    colours = alt.Scale(domain=series, range=[look.colour for look in looks])
    shapes = alt.Scale(domain=series, range=[look.shape for look in looks])
    dashes = alt.Scale(domain=series, range=[list(look.dash) for look in looks])
    x_scale, y_scale = (alt.Scale(domain=list(ends), nice=False, zero=False) for ends in ranges_of(panel))
    x_axis = alt.Axis(tickCount=4)
    if panel.about.x_name == "period":  # every period is labelled
        x_axis = alt.Axis(values=sorted({mark.x for mark in (*panel.paper, *panel.ours)}), format="d")
    base = alt.Chart().encode(
        x=alt.X("x:Q", title=panel.x_title, scale=x_scale, axis=x_axis),
        y=alt.Y("y:Q", title=panel.y_title, scale=y_scale),
        color=alt.Color("series:N", title=None, scale=colours),
    )
    tooltip = [
        alt.Tooltip("series:N", title="series"),
        alt.Tooltip("x:Q", title=panel.x_title, format=".4f" if panel.is_tradeoff else "~g"),
        alt.Tooltip("y:Q", title=panel.y_title, format=".4f"),
        alt.Tooltip("spread:N", title="sd"),
    ]
    # A wide invisible border makes the points easy to hit with a mouse or a finger.
    points = base.mark_point(filled=True, size=42, opacity=1, stroke="transparent", strokeWidth=9).encode(
        shape=alt.Shape("series:N", title=None, scale=shapes), tooltip=tooltip
    )
    up_and_down, across = {"y": "low:Q", "y2": "high:Q"}, {"x": "left:Q", "x2": "right:Q"}
    if panel.is_tradeoff:
        cross = base.mark_rule(opacity=0.6)
        layers = (cross.encode(**up_and_down), cross.encode(**across), points)
    else:
        band = base.mark_area(opacity=0.14).encode(**up_and_down)
        line = base.mark_line(strokeWidth=1.6).encode(strokeDash=alt.StrokeDash("series:N", title=None, scale=dashes))
        layers = (band, line, points)
    ends = {
        "low": "max(0, datum.y - (datum.sd || 0))",  # no number is below 0
        "high": "datum.y + (datum.sd || 0)",
        "left": "datum.x - (datum.x_sd || 0)",
        "right": "datum.x + (datum.x_sd || 0)",
        "spread": "isValid(datum.sd) ? format(datum.sd, '.4f') + ' between ' + datum.seeds + ' seeds' : '–'",
    }
    transforms = [alt.CalculateTransform(**{"calculate": value, "as": name}) for name, value in ends.items()]
    chart = alt.LayerChart(layer=layers, data=alt.InlineData(values=[]), transform=transforms)
    return page_spec(chart, _HEIGHT)


def rows_of(marks: Sequence[Mark]) -> list[dict[str, Any]]:
    """Return the points as rows of a chart."""
    rows = []
    for mark in marks:
        spread = {"sd": mark.y_sd, "x_sd": mark.x_sd, "seeds": mark.n_seeds}  # absent without seeds
        row = {"series": mark.series, "x": mark.x, "y": mark.y} | {key: value for key, value in spread.items() if value}
        rows.append(rounded(row))
    return rows


def described(panel: Panel, marks: Sequence[Mark], *, whose: str) -> str:
    """Describe a chart in words."""
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


def write_figures(findings: Findings, folder: Path, *, format: PictureFormat = "png") -> list[Path]:  # noqa: A002
    """Write each figure that has numbers as a picture, named by the paper's label; return their paths."""
    require_report()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"cannot write the figures to {folder}: {reason}; choose another folder") from None
    written = []
    for figure in figures_of(findings.points):
        if any(panel.paper or panel.ours for panel in figure.panels):
            written.append(folder / f"{figure.anchor}.{format}")
            write_file(written[-1], draw(figure_spec(figure), format))
    return written


def figure_spec(figure: Figure) -> dict[str, Any]:
    """Return all panels in rows of two, each with the paper's chart and ours, and one legend."""
    sides = [side for panel in figure.panels for side in _sides(panel, figure)]
    shared = dict.fromkeys(("color", "shape", "strokeDash"), "shared")
    return {
        "$schema": altair().SCHEMA_URL,
        "concat": sides,
        "columns": 4 if len(sides) > 2 else 2,
        "resolve": {"scale": shared},
        "title": {"text": figure.caption.title, "fontSize": 14, "offset": 12},
        "config": {**CONFIG, "legend": {**CONFIG["legend"], "columns": 5}, "background": "white"},
        "padding": 12,
    }


def _sides(panel: Panel, figure: Figure) -> list[dict[str, Any]]:
    if not panel.paper and not panel.ours:
        return []
    chart = spec_of(panel, styles_of(figure.series))
    del chart["$schema"]
    sides = []
    for whose, marks in (("the paper", panel.paper), ("ours", panel.ours)):
        if whose == "ours" or figure.has_paper:
            # A side without numbers has empty axes, so that readers see what is missing.
            title = {"text": panel.title, "subtitle": whose if marks else f"{whose}: no numbers", "offset": 14}
            sides.append({**chart, "width": _WIDTH, "title": title, "data": {"values": rows_of(marks)}})
    return sides
