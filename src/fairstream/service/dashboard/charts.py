"""Charts as geometry, in percent of their space; the template draws them as SVG.

The server draws them because the content security policy allows no script; so they print and take their colours from
the style sheet. Vega would need JavaScript in the browser, or hundreds of milliseconds for each chart on the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import groupby, pairwise
from typing import NamedTuple

_LEFT, _RIGHT = 12.0, 2.0  # space for the labels of the grid, and for the last point
_N_GRID, _N_DATES = 4, 6
_MAX_BAR = 6.0
_STEPS = (1, 2, 2.5, 5, 10)

Value = float | None
Write = Callable[[float], str]


class Series(NamedTuple):
    """One line, or the bars: a value for each period."""

    name: str
    style: str  # a class of the style sheet
    values: Sequence[Value]
    bands: Sequence[tuple[float, float] | None] = ()  # the 95 % interval of each value


class Moment(NamedTuple):
    """A period on the time axis, or a time that is none."""

    t: int | None
    time: datetime
    note: str = ""  # shown with the numbers on hover


class Line(NamedTuple):
    """The geometry of a series."""

    name: str
    style: str
    path: str
    area: str
    points: list[tuple[float, float]]


class Column(NamedTuple):
    """The strip of a period, and its text on hover."""

    x: float
    left: float
    width: float
    title: str
    note: str
    readings: list[tuple[str, str, str]]  # style, name and number


class Chart(NamedTuple):
    """The geometry of a chart."""

    id: str
    title: str
    label: str  # the chart in a sentence, for readers who cannot see it
    grid: list[tuple[float, str]]
    dates: list[tuple[float, str, str]]  # position, label, and anchor of the label
    lines: list[Line]
    columns: list[Column]
    bars: list[tuple[float, float, float]]  # left, width and top
    limit: tuple[float, str] | None  # the height and the name of a horizontal line


def make_chart(
    id_: str,
    title: str,
    moments: Sequence[Moment],
    series: Sequence[Series],
    write: Write,
    *,
    is_bars: bool = False,
    from_zero: bool = False,
    limit: tuple[float, str] | None = None,
) -> Chart:
    """Return lines over time with their intervals, or one bar for each period."""
    ends = [value for line in series for value in line.values if value is not None]
    ends += [end for line in series for band in line.bands if band is not None for end in band]
    ends += [limit[0]] if limit else []
    grid = _grid(min([0.0, *ends] if from_zero or is_bars else ends, default=0.0), max(ends, default=1.0))
    xs = _positions(moments, is_bars=is_bars)

    def height(value: float) -> float:
        return round(100 * (grid[-1] - value) / (grid[-1] - grid[0]), 2)

    lines = []
    for line in series:
        points = [None if value is None else (x, height(value)) for x, value in zip(xs, line.values, strict=True)]
        bands = [band and (x, height(band[0]), height(band[1])) for x, band in zip(xs, line.bands, strict=False)]
        lines.append(Line(line.name, line.style, _path(points), _area(bands), [point for point in points if point]))
    width = round(min(0.7 * (100 - _LEFT) / max(len(moments), 1), _MAX_BAR), 2)
    bars = [(round(x - width / 2, 2), width, y) for line in lines for x, y in line.points] if is_bars else []
    return Chart(
        id_,
        title,
        _label(title, moments, series, write),
        _grid_labels(grid, height, write),
        _dates(moments, xs),
        [] if is_bars else lines,
        _columns(moments, xs, series, write),
        bars,
        (height(limit[0]), limit[1]) if limit else None,
    )


def sparkline(values: Sequence[Value]) -> str:
    """Return the path of a small line without axes, in a box of 100 by 100."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ""
    low, span = min(known), max(known) - min(known) or 1.0
    points = ((100 * place / (len(values) - 1), value) for place, value in enumerate(values))
    return _path([None if y is None else (round(x, 2), round(90 - 80 * (y - low) / span, 2)) for x, y in points])


def _grid(low: float, high: float) -> list[float]:
    """Return levels at round numbers around everything that is drawn.

    >>> _grid(0.12, 0.19)
    [0.12, 0.14, 0.16, 0.18, 0.2]
    """
    span = high - low or abs(high)
    span = span if span > 1e-9 else 1.0  # levels have 12 decimals
    size = 10.0 ** math.floor(math.log10(span / _N_GRID))
    step = next(size * times for times in _STEPS if span / (size * times) <= _N_GRID)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(level * step, 12) for level in range(first, max(last, first + 1) + 1)]


def _positions(moments: Sequence[Moment], *, is_bars: bool) -> list[float]:
    """Return where the periods stand: bars side by side in the order of time, lines at the distances of time."""
    if is_bars:
        return [round(_LEFT + (100 - _LEFT) * (place + 0.5) / len(moments), 2) for place in range(len(moments))]
    seconds = [moment.time.timestamp() for moment in moments]
    first, span = min(seconds, default=0.0), max(seconds, default=0.0) - min(seconds, default=0.0)
    if not span:
        return [50.0] * len(moments)
    return [round(_LEFT + (100 - _LEFT - _RIGHT) * (at - first) / span, 2) for at in seconds]


def _grid_labels(grid: Sequence[float], height: Callable[[float], float], write: Write) -> list[tuple[float, str]]:
    """Return each level and its number, with as few digits as tell them apart."""
    labels = [write(level) for level in grid]
    while all("." in label and label.endswith("0") for label in labels):
        labels = [label[:-1].removesuffix(".") for label in labels]
    return list(zip(map(height, grid), labels, strict=True))


def _dates(moments: Sequence[Moment], xs: Sequence[float]) -> list[tuple[float, str, str]]:
    """Return a few dates that do not touch each other."""
    times = [moment.time for moment in moments]
    days = (max(times) - min(times)).total_seconds() / 86_400 if times else 0.0
    form = "%b %Y" if days > 400 else "%-d %b" if days > 2 else "%H:%M"
    labels: list[tuple[float, str, str]] = []
    for x, time in zip(xs, times, strict=True):
        label, is_last = time.strftime(form), x > 92
        distance = 100 / _N_DATES * (1.5 if is_last else 1)  # at the edge the whole label lies on one side
        if not labels or (x - labels[-1][0] >= distance and label != labels[-1][1]):
            labels.append((x, label, "end" if is_last else "middle"))
    return labels


def _columns(moments: Sequence[Moment], xs: Sequence[float], series: Sequence[Series], write: Write) -> list[Column]:
    """Return the strips, which meet half-way between two periods."""
    order = sorted(range(len(xs)), key=lambda place: xs[place])
    ends = [0.0, *((xs[one] + xs[other]) / 2 for one, other in pairwise(order)), 100.0]
    columns = []
    for place, (left, right) in zip(order, pairwise(ends), strict=False):
        moment, readings = moments[place], list[tuple[str, str, str]]()
        for line in series:
            if (value := line.values[place]) is not None:
                band = line.bands[place] if line.bands else None
                margin = f" ± {write(band[1] - value)}" if band else ""
                readings.append((line.style, line.name, write(value) + margin))
        title = f"{moment.time:%-d %b, %H:%M}" if moment.t is None else f"{moment.time:%-d %b} · period {moment.t}"
        columns.append(Column(xs[place], round(left, 2), round(right - left, 2), title, moment.note, readings))
    return columns


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """Return a line through the points, broken where one is missing."""
    runs = (list(run) for is_missing, run in groupby(points, lambda point: point is None) if not is_missing)
    return "".join("M" + "L".join(f"{point[0]} {point[1]}" for point in run if point) for run in runs)


def _area(bands: Sequence[tuple[float, float, float] | None]) -> str:
    """Return the space between the low and the high ends, broken where they are missing."""
    runs = ([band for band in run if band] for _, run in groupby(bands, lambda band: band is None))
    ends = ([(x, low) for x, low, _ in run] + [(x, high) for x, _, high in reversed(run)] for run in runs)
    return "".join(_path(corners) + "Z" for corners in ends if corners)


def _label(title: str, moments: Sequence[Moment], series: Sequence[Series], write: Write) -> str:
    parts = []
    for line in series:
        known = [(moment, value) for moment, value in zip(moments, line.values, strict=True) if value is not None]
        if known:
            ends = (f"{write(value)} on {moment.time:%-d %b %Y}" for moment, value in (known[0], known[-1]))
            parts.append((f"{line.name} " if line.name != title else "") + ", ".join(ends))
    return f"{title}: {'; '.join(parts) or 'nothing to report'}."
