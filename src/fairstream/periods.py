"""Cut a log into D_0, D_1 … D_T.

The model pre-trains on D_0; D_1 … D_T are the periods (Section 2 of the paper). A period is a range of positions in
the chronological log, so it contains no later events.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairstream.errors import ConfigurationError, DataError

_UNIX_UNITS = {"s": 4.1e9, "ms": 4.1e12, "us": 4.1e15, "ns": 4.1e18}
"""3 December 2099, as Unix time in each unit."""
LATEST_SECONDS = _UNIX_UNITS["s"]
UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds", None: "no unit"}
_EARLIEST_UNIX_TIME = 1e8 / LATEST_SECONDS  # 1973, as a share of these; smaller numbers are counts
_CALENDAR = re.compile(r"(\d+)\s*(h|d|w|mo|y)")


@dataclass(frozen=True)
class Periods:
    """D_t is `log[starts[t]:ends[t]]`; events after D_T belong to no period (the tail)."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    n_events: int
    notes: tuple[str, ...] = field(default=(), compare=False)  # assumptions, one sentence each

    @property
    def last(self) -> int:
        """T, the index of the last period, which is used for tests only."""
        return len(self.starts) - 1

    def span(self, t: int) -> slice:
        """Return the positions of D_t."""
        return slice(self.starts[t], self.ends[t])

    def remaining(self, t: int) -> slice:
        """Return the positions of all events after D_t, the tail included (Task-R)."""
        return slice(self.ends[t], self.n_events)


def cut_periods(n_events: int, *, pretrain_ratio: float, n_periods: int, n_blocks: int = 10, unit: int = 1) -> Periods:
    """Cut the first `pretrain_ratio` of the events as D_0, and the rest into `n_blocks` equal blocks.

    The first `n_periods` blocks are D_1 … D_T; the others belong to no period.

    Everything is counted in whole units of `unit` events. The paper counts in batches of 256:
    n = ⌈N / 256⌉, D_0 = the first ⌊ratio · n⌋ of them, a block = ⌊(n − |D_0|) / 10⌋.

    >>> paper = cut_periods(836_478, pretrain_ratio=0.6, n_periods=7, unit=256)
    >>> paper.ends[0] // 256, (paper.ends[1] - paper.starts[1]) // 256, paper.last
    (1960, 130, 7)
    """
    if not 1 <= n_periods <= n_blocks:
        raise ConfigurationError(f"n_periods must be between 1 and n_blocks, {n_blocks}, got {n_periods}")
    n_units = math.ceil(n_events / unit)
    first = math.floor(pretrain_ratio * n_units * (1 + 1e-12))  # 0.29 · 100 is 28.999… in floating point
    block = (n_units - first) // n_blocks
    if first < 1 or block < 1:
        raise DataError(
            f"{n_events} events are too few for a pre-training share of {pretrain_ratio:g} and {n_blocks} blocks "
            f"of at least {unit} event(s) after it; use more events or fewer blocks"
        )
    starts = [0] + [(first + block * t) * unit for t in range(n_periods)]
    ends = [*starts[1:], (first + block * n_periods) * unit]
    return Periods(tuple(starts), tuple(min(end, n_events) for end in ends), n_events)


def cut_by_length(times: np.ndarray[Any, Any], *, pretrain_ratio: float, length: str, n_periods: int | None) -> Periods:
    """Cut periods of a given length after the first `pretrain_ratio` of the events.

    `length` is a number of events ("5000"), a share of all events ("4%"), or a calendar interval: "6h", "1d", "1w"
    (from Monday), "1mo", "1y", in UTC. D_0 then ends with an interval, and an interval without events is no period.
    The end of the log may cut the last period short. `n_periods=None` returns all periods.

    >>> cut_by_length(np.arange(100), pretrain_ratio=0.5, length="20", n_periods=None).ends
    (50, 70, 90)
    >>> days = np.arange("2024-01-01", "2024-03-01", dtype="datetime64[D]")
    >>> cut_by_length(days, pretrain_ratio=0.5, length="1w", n_periods=3).ends  # Mondays
    (35, 42, 49, 56)
    """
    n_events, first = len(times), math.floor(pretrain_ratio * len(times) * (1 + 1e-12))
    notes: tuple[str, ...] = ()
    if match := _CALENDAR.fullmatch(length):
        number, unit = int(match[1]), match[2]
        moments = to_moments(times)
        if unit == "w":  # from Monday; 1 January 1970 was a Thursday
            since_epoch = (moments.astype("datetime64[D]").astype(np.int64) + 3) // 7
        else:
            numpy_unit = {"h": "h", "d": "D", "mo": "M", "y": "Y"}[unit]
            since_epoch = moments.astype(f"datetime64[{numpy_unit}]").astype(np.int64)
        intervals = since_epoch // max(1, number)
        if (assumed := unit_of(times)) is not None:
            notes = (f"the times are numbers and were read as Unix time in {assumed}; time_unit states another unit",)
        edges = np.flatnonzero(np.diff(intervals)) + 1
        ends = [int(edge) for edge in edges if edge >= first > 0] + [n_events]
    else:
        is_share = length.endswith("%")
        size = max(1, math.floor(float(length[:-1]) / 100 * n_events * (1 + 1e-12))) if is_share else int(length)
        ends = list(range(first, n_events + 1, size)) if first > 0 else []
    if n_periods is not None:
        ends = ends[: n_periods + 1]
    if len(ends) < max(3, (n_periods or 0) + 1):
        raise DataError(
            f"{'2' if n_periods is None else n_periods} periods of {length} are needed after the first "
            f"{pretrain_ratio:g} of the {n_events} events, but there are {max(0, len(ends) - 1)}; "
            f"choose shorter or fewer periods, or a smaller pretrain_ratio"
        )
    return Periods((0, *ends[:-1]), tuple(ends), n_events, notes)


def is_calendar(length: str) -> bool:
    """Return whether the length of a period is a calendar interval."""
    return _CALENDAR.fullmatch(length) is not None


def check_length(length: str) -> str:
    """Return a valid length of periods, or raise ConfigurationError."""
    match = re.fullmatch(r"(\d+)(\s*(h|d|w|mo|y))?|(\d+\.?\d*|\.\d+)\s*%", length.strip())
    if match is None or float(match[1] or match[4]) == 0:
        raise ConfigurationError(
            f"period must be a number of events (5000), a share of them (4%) or a calendar interval "
            f"(6h, 1d, 1w, 1mo, 1y), got {length!r}"
        )
    return length.strip()


def to_moments(times: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.datetime64]]:
    """Return times as timestamps; numbers are Unix time in the unit that `unit_of` guesses.

    >>> to_moments(np.array([0, 978_300_760]))[1]
    np.datetime64('2000-12-31T22:12:40.000000')
    """
    if times.dtype.kind == "M":
        return times.astype("datetime64[us]")
    unit = unit_of(times)
    if unit is None:
        last = float(np.abs(times.astype(np.float64)).max())
        raise DataError(f"times must be timestamps or Unix time for periods by the calendar, got {last:g}")
    if times.dtype.kind == "f":
        times = np.floor(times * (4.1e15 / _UNIX_UNITS[unit]))
        unit = "us"
    return times.astype(np.int64).astype(f"datetime64[{unit}]").astype("datetime64[us]")


def unit_of(times: np.ndarray[Any, Any]) -> str | None:
    """Guess the unit of Unix times: the coarsest in which all are before 2100. None for timestamps, or if none fits.

    >>> unit_of(np.array([978_300_760])), unit_of(np.array([978_300_760_000]))
    ('s', 'ms')
    """
    if times.dtype.kind == "M":
        return None
    last = float(np.abs(times.astype(np.float64)).max(initial=0))
    return next((unit for unit, limit in _UNIX_UNITS.items() if last < limit), None)


def seconds_of(times: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Return timestamps and plausible Unix times as seconds since 1970; NaN before 1970 and after 2099.

    None for other numbers, which only order the events. The earliest time decides on this and on the unit, so that no
    later one changes what is known of the events before it.

    >>> seconds_of(np.array(["1970-01-02"], "datetime64[D]")), seconds_of(np.array([978_300_760_000]))
    (array([86400.]), array([9.7830076e+08]))
    >>> seconds_of(np.array([3, 2500])) is None
    True
    """
    if times.dtype.kind != "M":
        unit = unix_unit(times)
        if unit is None:
            return None
        times = np.where(times < _UNIX_UNITS[unit], times, -1)
    seconds = to_moments(times).astype(np.int64) / 1e6
    return np.where((seconds >= 0) & (seconds < LATEST_SECONDS), seconds, np.nan)


def notes_on_times(times: np.ndarray[Any, Any]) -> tuple[str, ...]:
    """Return a note if some of the sorted times make them or all times unknown.

    >>> notes_on_times(np.array([0, 978_300_760, 978_300_761]))
    ('the earliest time, 0, is no Unix time as later ones are: all times only order the events',)
    >>> notes_on_times(np.array([978_300_760, 978_300_761_000]))
    ('1 of 2 times are before 1970 or after 2099 and count as unknown: check their unit',)
    """
    ends = seconds_of(times[[0, -1]])
    if ends is None:
        is_mixed = unix_unit(times[len(times) // 2 :]) is not None
        about = f"the earliest time, {times[0]:g}, is no Unix time as later ones are"
        return (f"{about}: all times only order the events",) if is_mixed else ()
    seconds = seconds_of(times) if np.isnan(ends).any() else None  # those between two known times are known
    if seconds is None:
        return ()
    n_unknown = int(np.isnan(seconds).sum())
    return (f"{n_unknown} of {len(times)} times are before 1970 or after 2099 and count as unknown: check their unit",)


def minutes_of(seconds: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return whole minutes since 1970; −1 where the time is unknown or earlier.

    >>> minutes_of(np.array([119.9, 120.0, np.nan]))
    array([ 1,  2, -1])
    """
    is_known = seconds >= 0
    return np.where(is_known, np.where(is_known, seconds, 0) // 60, -1).astype(np.int64)


def unix_unit(times: np.ndarray[Any, Any]) -> str | None:
    """Return the unit in which the earliest time lies in the years 1973 to 2099; None: it is no Unix time."""
    if not len(times):
        return None
    earliest = times.min(keepdims=True)
    unit = unit_of(earliest)
    return None if unit is None or earliest[0] < _EARLIEST_UNIX_TIME * _UNIX_UNITS[unit] else unit


def readable_times(times: np.ndarray[Any, Any]) -> list[str]:
    """Format timestamps and plausible Unix times of one unit as dates, and other times as numbers.

    >>> readable_times(np.array([978_300_760])), readable_times(np.array([3, 2500]))
    (['2000-12-31 22:12:40'], ['3', '2,500'])
    """
    seconds = seconds_of(times)
    if times.dtype.kind == "M" or (seconds is not None and not np.isnan(seconds).any()):
        return [str(moment).replace("T", " ") for moment in to_moments(times).astype("datetime64[s]")]
    return [format(time, ",.6g" if times.dtype.kind == "f" else ",") for time in times]
