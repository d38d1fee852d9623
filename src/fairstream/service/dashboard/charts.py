"""Charts over time: places in percent of their space, which the template draws as SVG.

The server draws them because the content security policy allows no script; so they print and take their colours from
the style sheet. Vega would need JavaScript in the browser, or hundreds of milliseconds for each chart on the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple, TypeVar

_LEFT, _RIGHT = 12.0, 2.0  # space for the labels of the grid, and for the last point
_N_GRID, _N_DATES = 4, 4
_STEPS = (1, 2, 2.5, 5, 10)

T = TypeVar("T")
Value = float | None
Point = tuple[float, float]


class Series(NamedTuple):
    """One line: a value for each moment."""

    name: str
    style: str  # a class of the style sheet
    values: Sequence[Value]
    bands: Sequence[tuple[float, float] | None] = ()  # the 95 % interval of each value


class Moment(NamedTuple):
    """A place on the time axis: a period, or just a time."""

    t: int | None
    time: datetime
    note: str = ""  # shown with the numbers on hover

    @property
    def title(self) -> str:
        return f"{self.time:%-d %b, %H:%M}" if self.t is None else f"{self.time:%-d %b} · period {self.t}"


@dataclass(frozen=True)
class Chart:
    """Lines over time with their intervals."""

    id: str
    title: str
    moments: Sequence[Moment]
    series: Sequence[Series]
    write: Callable[[float], str]  # formats a value
    from_zero: bool = False
    limit: tuple[float, str] | None = None  # the value and the name of a horizontal line

    @cached_property
    def levels(self) -> list[float]:
        """The values of the horizontal lines, the lowest first: round numbers around everything that is drawn."""
        ends = [value for line in self.series for value in line.values if value is not None]
        ends += [end for line in self.series for band in line.bands if band is not None for end in band]
        ends += [self.limit[0]] if self.limit else []
        ends += [0.0] if self.from_zero else []
        return _levels(min(ends, default=0.0), max(ends, default=1.0))

    @cached_property
    def _ends(self) -> tuple[datetime, datetime]:
        times = [moment.time for moment in self.moments]
        return min(times), max(times)

    def x(self, time: datetime) -> float:
        first, last = self._ends
        return round(_LEFT + (100 - _LEFT - _RIGHT) * ((time - first) / (last - first) if last > first else 0.5), 2)

    def y(self, value: float) -> float:
        return round(100 * (self.levels[-1] - value) / (self.levels[-1] - self.levels[0]), 2)

    def grid(self) -> list[tuple[float, str]]:
        """Return the height and the label of each level; zeros at the end that all labels have are left out."""
        labels = [self.write(level) for level in self.levels]
        while all("." in label and label.endswith("0") for label in labels):
            labels = [label[:-1].removesuffix(".") for label in labels]
        return list(zip(map(self.y, self.levels), labels, strict=True))

    def dates(self) -> list[tuple[float, str, str]]:
        """Return the position, label and anchor of a few dates at equal distances, so that they do not touch."""
        if not self.moments:
            return []
        first, last = self._ends
        span, labels = last - first, dict[str, float]()
        form = "%b %Y" if span.days > 400 else "%-d %b" if span.days > 2 else "%H:%M"
        for n in range(_N_DATES):
            time = first + span * n / (_N_DATES - 1)
            labels.setdefault(time.strftime(form), self.x(time))
        # At the edge the whole label lies on one side.
        return [(x, label, "end" if x > 92 else "middle") for label, x in labels.items()]

    def points(self, line: Series) -> list[Point | None]:
        values = zip(self.moments, line.values, strict=True)
        return [None if value is None else (self.x(moment.time), self.y(value)) for moment, value in values]

    def path(self, line: Series) -> str:
        """Return the line, broken where a value is missing."""
        return "".join(map(_path, _runs(self.points(line))))

    def area(self, line: Series) -> str:
        """Return the space between the ends of the intervals, broken where one is missing."""
        bands = zip(self.moments, line.bands, strict=False)
        corners = [band and (self.x(moment.time), self.y(band[0]), self.y(band[1])) for moment, band in bands]
        outlines = (
            [*((x, low) for x, low, _ in run), *((x, high) for x, _, high in reversed(run))] for run in _runs(corners)
        )
        return "".join(f"{_path(outline)}Z" for outline in outlines)

    def strips(self) -> list[tuple[int, float, float]]:
        """Return each moment's place in `moments`, and the left end and width of its strip; strips meet half-way."""
        xs = [self.x(moment.time) for moment in self.moments]
        order = sorted(range(len(xs)), key=xs.__getitem__)
        ends = [0.0, *((xs[one] + xs[other]) / 2 for one, other in pairwise(order)), 100.0]
        ends_of = zip(order, pairwise(ends), strict=False)
        return [(place, round(left, 2), round(right - left, 2)) for place, (left, right) in ends_of]

    def reading(self, line: Series, place: int) -> str | None:
        """Return a value with its margin, for the text on hover."""
        if (value := line.values[place]) is None:
            return None
        band = line.bands[place] if line.bands else None
        return self.write(value) + (f" ± {self.write(band[1] - value)}" if band else "")

    @property
    def label(self) -> str:
        """The chart in a sentence, for readers who cannot see it."""
        parts = []
        for line in self.series:
            known = [(at.time, value) for at, value in zip(self.moments, line.values, strict=True) if value is not None]
            if known:
                ends = ", ".join(f"{self.write(value)} on {time:%-d %b %Y}" for time, value in (known[0], known[-1]))
                parts.append(ends if line.name == self.title else f"{line.name} {ends}")
        return f"{self.title}: {'; '.join(parts) or 'nothing to report'}."


def _levels(low: float, high: float) -> list[float]:
    """Return round numbers at equal distances.

    >>> _levels(0.12, 0.19)
    [0.12, 0.14, 0.16, 0.18, 0.2]
    """
    span = high - low or abs(high)
    span = span if span > 1e-9 else 1.0  # levels have 12 decimals
    size = 10.0 ** math.floor(math.log10(span / _N_GRID))
    step = next(size * times for times in _STEPS if span / (size * times) <= _N_GRID)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(level * step, 12) for level in range(first, max(last, first + 1) + 1)]


def _runs(values: Iterable[T | None]) -> Iterator[list[T]]:
    """Yield the values between those that are missing."""
    for _, run in groupby(values, lambda value: value is None):
        if known := [value for value in run if value is not None]:
            yield known


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)
