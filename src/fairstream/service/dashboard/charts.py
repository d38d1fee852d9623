"""Charts as geometry: where lines, bars, dates and numbers go, in percent of the space. The template draws them as SVG.

Drawn on the server: a page needs no script, looks the same in print, and takes its colours from the style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

_LEFT, _RIGHT = 12.0, 2.0
"""Room at both sides: for the numbers of the grid, and so that the last point is not cut."""
_N_GRID, _N_DATES = 4, 6
_STEPS = (1, 2, 2.5, 5, 10)

Value = float | None
Band = tuple[float, float] | None


@dataclass(frozen=True)
class Series:
    """One line, or the bars: a value for each period."""

    name: str
    style: str
    """Class of the style sheet."""
    values: Sequence[Value]
    bands: Sequence[Band] = ()
    """The 95 % interval of each value."""


@dataclass(frozen=True)
class Moment:
    """A period on the time axis: when its events happened, and what to say of it."""

    t: int
    time: datetime
    note: str = ""
    """Shown with the numbers where somebody points at it."""


@dataclass(frozen=True)
class Line:
    """A series as it is drawn."""

    name: str
    style: str
    path: str
    area: str
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class Column:
    """The strip of the chart that belongs to a period, and what it says when pointed at."""

    x: float
    left: float
    width: float
    title: str
    note: str
    readings: list[tuple[str, str, str]]
    """Style, name and number."""


@dataclass(frozen=True)
class Chart:
    """A chart, ready to be drawn."""

    id: str
    title: str
    described: str
    """What it shows, in a sentence, for whoever cannot see it."""
    grid: list[tuple[float, str]]
    dates: list[tuple[float, str, str]]
    """Place, label, and how the label is anchored."""
    lines: list[Line]
    columns: list[Column]
    bars: list[tuple[float, float, float]] = field(default_factory=list)
    """Left, width and top."""
    limit: tuple[float, str] | None = None
    """A level drawn across, and its name."""


def line_chart(
    id_: str,
    title: str,
    moments: Sequence[Moment],
    series: Sequence[Series],
    write: Callable[[float], str],
    *,
    from_zero: bool = False,
    limit: tuple[float, str] | None = None,
) -> Chart:
    """Lines over time, each with its interval where it has one."""
    inside = [value for line in series for value in line.values if value is not None]
    inside += [end for line in series for band in line.bands if band is not None for end in band]
    inside += [limit[0]] if limit else []
    grid = _grid(min([0.0, *inside] if from_zero else inside, default=0.0), max(inside, default=1.0))
    xs = _places(moments)

    def height(value: float) -> float:
        return round(100 * (grid[-1] - value) / (grid[-1] - grid[0]), 2)

    lines = []
    for line in series:
        at = [None if value is None else (x, height(value)) for x, value in zip(xs, line.values, strict=True)]
        bands = [band and (x, height(band[0]), height(band[1])) for x, band in zip(xs, line.bands, strict=False)]
        lines.append(Line(line.name, line.style, _path(at), _area(bands), [point for point in at if point]))
    return Chart(
        id_,
        title,
        _described(title, moments, series, write),
        _labels(grid, height, write),
        _dates(moments, xs),
        lines,
        _columns(moments, xs, series, write),
        limit=(height(limit[0]), limit[1]) if limit else None,
    )


def bar_chart(
    id_: str, title: str, moments: Sequence[Moment], values: Sequence[Value], write: Callable[[float], str]
) -> Chart:
    """One bar for each period."""
    series = [Series(title, "bar", values)]
    grid = _grid(0.0, max((value for value in values if value is not None), default=1.0))
    # Bars side by side, as wide as the space allows: their order is the time's, their distance is not.
    step = (100 - _LEFT) / max(len(values), 1)
    xs = [round(_LEFT + (place + 0.5) * step, 2) for place in range(len(values))]
    width = round(min(0.7 * step, 6.0), 2)

    def height(value: float) -> float:
        return round(100 - 100 * value / grid[-1], 2)

    bars = [
        (round(x - width / 2, 2), width, height(value))
        for x, value in zip(xs, values, strict=True)
        if value is not None
    ]
    return Chart(
        id_,
        title,
        _described(title, moments, series, write),
        _labels(grid, height, write),
        _dates(moments, xs),
        [],
        _columns(moments, xs, series, write),
        bars,
    )


def sparkline(values: Sequence[Value]) -> str:
    """The path of a small line without axes, in a box of 100 by 100."""
    there = [value for value in values if value is not None]
    if len(there) < 2:
        return ""
    low, span = min(there), max(there) - min(there) or 1.0
    step = 100 / (len(values) - 1)
    return _path(
        [
            None if value is None else (round(place * step, 2), round(90 - 80 * (value - low) / span, 2))
            for place, value in enumerate(values)
        ]
    )


def _grid(low: float, high: float) -> list[float]:
    """Levels at round numbers, around everything that is drawn.

    >>> _grid(0.12, 0.19)
    [0.12, 0.14, 0.16, 0.18, 0.2]
    """
    span = high - low or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / _N_GRID))
    step = next(size * times for times in _STEPS if span / (size * times) <= _N_GRID)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(level * step, 12) for level in range(first, max(last, first + 1) + 1)]


def _places(moments: Sequence[Moment]) -> list[float]:
    """Where each period is on the time axis."""
    if not moments:
        return []
    seconds = [moment.time.timestamp() for moment in moments]
    first, span = min(seconds), max(seconds) - min(seconds)
    if not span:
        return [50.0] * len(moments)
    return [round(_LEFT + (100 - _LEFT - _RIGHT) * (at - first) / span, 2) for at in seconds]


def _labels(
    grid: Sequence[float], height: Callable[[float], float], write: Callable[[float], str]
) -> list[tuple[float, str]]:
    """Each level and its number, with no more digits than tell them apart."""
    written = [write(level) for level in grid]
    while all("." in label and label.endswith("0") for label in written):
        written = [label[:-1].removesuffix(".") for label in written]
    return list(zip(map(height, grid), written, strict=True))


def _dates(moments: Sequence[Moment], xs: Sequence[float]) -> list[tuple[float, str, str]]:
    """A few dates that do not touch each other."""
    if not moments:
        return []
    first, last = min(m.time for m in moments), max(m.time for m in moments)
    days = (last - first).total_seconds() / 86_400
    form = "%b %Y" if days > 400 else "%-d %b" if days > 2 else "%H:%M"
    labels: list[tuple[float, str, str]] = []
    for x, moment in zip(xs, moments, strict=True):
        label, is_last = moment.time.strftime(form), x > 92
        apart = 100 / _N_DATES * (1.5 if is_last else 1)  # at the edge the label lies on one side of its place
        if not labels or (x - labels[-1][0] >= apart and label != labels[-1][1]):
            labels.append((x, label, "end" if is_last else "middle"))
    return labels


def _columns(
    moments: Sequence[Moment], xs: Sequence[float], series: Sequence[Series], write: Callable[[float], str]
) -> list[Column]:
    """What each strip says; strips meet half-way between two periods."""
    order = sorted(range(len(xs)), key=lambda place: xs[place])
    ends = [0.0, *((xs[one] + xs[other]) / 2 for one, other in pairwise(order)), 100.0]
    columns = []
    for rank, place in enumerate(order):
        moment, left = moments[place], ends[rank]
        title = f"{moment.time:%-d %b} · period {moment.t}"
        readings = [
            (line.style, line.name, write(value) + _margin(line, place, write))
            for line in series
            if (value := line.values[place]) is not None
        ]
        width = round(ends[rank + 1] - left, 2)
        columns.append(Column(xs[place], round(left, 2), width, title, moment.note, readings))
    return columns


def _margin(line: Series, place: int, write: Callable[[float], str]) -> str:
    """How far the interval goes beyond the value, where there is one."""
    value, band = line.values[place], line.bands[place] if line.bands else None
    return "" if value is None or band is None else f" ± {write(band[1] - value)}"


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """A line through the points, broken where one is missing."""
    parts, is_on = [], False
    for point in points:
        if point is not None:
            parts.append(f"{'L' if is_on else 'M'}{point[0]} {point[1]}")
        is_on = point is not None
    return "".join(parts)


def _area(bands: Sequence[tuple[float, float, float] | None]) -> str:
    """The space between the low and the high ends, broken where they are missing."""
    parts, run = [], list[tuple[float, float, float]]()
    for band in (*bands, None):
        if band is not None:
            run.append(band)
        elif run:
            there = "L".join(f"{x} {low}" for x, low, _ in run)
            back = "L".join(f"{x} {high}" for x, _, high in reversed(run))
            parts.append(f"M{there}L{back}Z")
            run = []
    return "".join(parts)


def _described(title: str, moments: Sequence[Moment], series: Sequence[Series], write: Callable[[float], str]) -> str:
    parts = []
    for line in series:
        there = [(moment, value) for moment, value in zip(moments, line.values, strict=True) if value is not None]
        if there:
            (first, begins), (last, ends) = there[0], there[-1]
            name = f"{line.name} " if line.name != title else ""
            parts.append(f"{name}{write(begins)} on {first.time:%-d %b %Y}, {write(ends)} on {last.time:%-d %b %Y}")
    return f"{title}: {'; '.join(parts) or 'nothing to report'}."
