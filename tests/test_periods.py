"""D_0, D_1 … D_T lie one behind the other, and the tail behind them, by share, by count and by calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fairstream import ConfigurationError, DataError
from fairstream.periods import Periods, check_length, cut_by_length, cut_periods, is_calendar, seconds_of, to_moments

PERCENT = st.integers(1, 99)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, int, int, int, int]:
    """n_events, ratio in percent, n_periods, n_blocks, unit; not all of them can be cut."""
    n_blocks = draw(st.integers(1, 20))
    n_periods = draw(st.integers(1, n_blocks))
    n_events = draw(st.integers(0, 300) | st.integers(0, 1_000_000))
    return n_events, draw(PERCENT), n_periods, n_blocks, draw(st.integers(1, 10) | st.just(256))


def cut(n_events: int, percent: int, n_periods: int, n_blocks: int, unit: int) -> Periods:
    return cut_periods(n_events, pretrain_ratio=percent / 100, n_periods=n_periods, n_blocks=n_blocks, unit=unit)


def can_be_cut(n_events: int, percent: int, n_blocks: int, unit: int) -> bool:
    n_units = -(-n_events // unit)
    first = n_units * percent // 100
    return first >= 1 and n_units - first >= n_blocks


@given(cuts())
def test_periods_partition_the_log_in_order(asked: tuple[int, int, int, int, int]) -> None:
    n_events, percent, n_periods, n_blocks, unit = asked
    assume(can_be_cut(n_events, percent, n_blocks, unit))
    periods = cut(*asked)
    assert periods.last == n_periods
    spans = [periods.span(t) for t in range(n_periods + 1)]
    assert spans[0].start == 0
    assert all(span.start < span.stop <= n_events for span in spans)
    assert all(earlier.stop == later.start for earlier, later in pairwise(spans))


@given(cuts())
def test_sizes_are_whole_units_as_the_paper_counts_them(asked: tuple[int, int, int, int, int]) -> None:
    n_events, percent, n_periods, n_blocks, unit = asked
    assume(can_be_cut(n_events, percent, n_blocks, unit))
    periods = cut(*asked)
    n_units = -(-n_events // unit)
    first = int(Fraction(percent, 100) * n_units)
    block = (n_units - first) // n_blocks
    assert periods.ends[0] == first * unit
    for t in range(1, n_periods + 1):
        span = periods.span(t)
        assert span.stop == min(span.start + block * unit, n_events)


@given(cuts())
def test_what_remains_is_everything_after_the_period(asked: tuple[int, int, int, int, int]) -> None:
    n_events, percent, n_periods, n_blocks, unit = asked
    assume(can_be_cut(n_events, percent, n_blocks, unit))
    periods, events = cut(*asked), range(n_events)
    for t in range(n_periods + 1):
        up_to_now = sum(len(events[periods.span(s)]) for s in range(t + 1))
        assert events[periods.remaining(t)] == events[up_to_now:]


@given(cuts())
def test_earlier_periods_do_not_depend_on_how_many_follow(asked: tuple[int, int, int, int, int]) -> None:
    n_events, percent, n_periods, n_blocks, unit = asked
    assume(can_be_cut(n_events, percent, n_blocks, unit))
    some, all_of_them = cut(*asked), cut(n_events, percent, n_blocks, n_blocks, unit)
    assert all_of_them.starts[: n_periods + 1] == some.starts
    assert all_of_them.ends[: n_periods + 1] == some.ends


@given(cuts())
def test_a_log_is_cut_exactly_when_every_period_gets_a_unit(asked: tuple[int, int, int, int, int]) -> None:
    n_events, percent, _, n_blocks, unit = asked
    if can_be_cut(n_events, percent, n_blocks, unit):
        cut(*asked)
    else:
        with pytest.raises(DataError, match=rf"\A{n_events} events are too few [^\n]* fewer blocks\Z"):
            cut(*asked)


@pytest.mark.parametrize(
    ("n_events", "ratio", "first", "block"),
    [(836_478, 0.6, 1960, 130), (83_147, 0.7, 227, 9)],
    ids=["MovieLens", "ModCloth"],
)
def test_the_papers_numbers_of_batches(n_events: int, ratio: float, first: int, block: int) -> None:
    periods = cut_periods(n_events, pretrain_ratio=ratio, n_periods=7, unit=256)
    sizes = [(end - start) / 256 for start, end in zip(periods.starts, periods.ends, strict=True)]
    assert sizes == [first] + [block] * 7
    assert periods.remaining(7) == slice((first + 7 * block) * 256, n_events)


def test_a_share_is_what_it_seems() -> None:
    """0.29 · 100 is 28.999… in floating point, and still 29 events."""
    for percent in range(1, 100):
        for n_events in (100, 200, 700, 1_000, 99_900):
            periods = cut_periods(n_events, pretrain_ratio=percent / 100, n_periods=1, n_blocks=1)
            assert periods.ends == (n_events * percent // 100, n_events)


@pytest.mark.parametrize("n_periods", [0, 11])
def test_there_are_no_more_periods_than_blocks(n_periods: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"\An_periods must be between 1 and n_blocks, 10, got {n_periods}\Z"):
        cut_periods(1000, pretrain_ratio=0.5, n_periods=n_periods)


def test_a_cut_cannot_be_changed() -> None:
    periods = cut_periods(100, pretrain_ratio=0.5, n_periods=2)
    with pytest.raises(AttributeError):
        periods.n_events = 7  # type: ignore[misc]


# ── periods of a given length ────────────────────────────────────────────────────────────


def cut_or_none(times: np.ndarray, percent: int, length: str, n_periods: int | None = None) -> Periods | None:
    """The cut, or None where there are too few periods, of which the error must tell in one sentence."""
    try:
        return cut_by_length(times, pretrain_ratio=percent / 100, length=length, n_periods=n_periods)
    except DataError as error:
        told = str(error)
    wanted = 2 if n_periods is None else n_periods
    assert told.startswith(f"{wanted} periods of {length} are needed after the first {percent / 100:g} of ")
    assert told.endswith("choose shorter or fewer periods, or a smaller pretrain_ratio")
    assert "\n" not in told
    return None


def assert_they_lie_behind_each_other(periods: Periods, n_events: int) -> None:
    assert periods.starts[0] == 0
    assert periods.n_events == n_events
    assert periods.starts[1:] == periods.ends[:-1]
    assert all(start < end for start, end in zip(periods.starts, periods.ends, strict=True))
    assert periods.ends[-1] <= n_events
    assert periods.last >= 2


@given(st.integers(0, 500), PERCENT, st.integers(1, 100), st.none() | st.integers(2, 9))
@example(100, 29, 10, None)  # 0.29 · 100 is 28.999… in floating point
@example(50, 1, 5, None)  # nothing to pre-train on
def test_periods_of_so_many_events(n_events: int, percent: int, size: int, n_periods: int | None) -> None:
    """Whole ones: what is left at the end, less than a period or not asked for, is the tail."""
    first = n_events * percent // 100
    n_there = (n_events - first) // size if first else 0
    periods = cut_or_none(np.zeros(n_events), percent, str(size), n_periods)
    if n_there < (n_periods or 2):
        assert periods is None
        return
    assert_they_lie_behind_each_other(periods, n_events)
    assert periods.ends[0] == first
    assert [end - start for start, end in zip(periods.starts, periods.ends, strict=True)][1:] == [size] * (
        n_periods or n_there
    )


@given(st.integers(10, 5000), PERCENT, st.integers(1, 400), st.none() | st.integers(2, 9))
@example(100, 40, 290, None)  # 0.29 · 100 is 28.999… in floating point
def test_a_share_of_the_events_is_so_many_events(
    n_events: int, percent: int, per_mille: int, n_periods: int | None
) -> None:
    share, count = f"{per_mille / 10}%", max(1, n_events * per_mille // 1000)
    periods = cut_or_none(np.zeros(n_events), percent, share, n_periods)
    assert periods == cut_or_none(np.zeros(n_events), percent, str(count), n_periods)


# ── by the calendar ──────────────────────────────────────────────────────────────────────

EPOCH, A_MONDAY = datetime(1970, 1, 1, tzinfo=UTC), datetime(1969, 12, 29, tzinfo=UTC)
DAYS_OF = {"1h": 1 / 24, "6h": 1 / 4, "1d": 1, "3d": 3, "1w": 7, "2w": 14, "1mo": 30, "3mo": 91, "1y": 365, "2 y": 730}


def stretch(moment: datetime, length: str) -> int:
    """The number of the stretch of the calendar that a moment lies in, by Python's own calendar."""
    digits = "".join(letter for letter in length if letter.isdigit())
    unit = length.removeprefix(digits).strip()
    number = {
        "h": (moment - EPOCH) // timedelta(hours=1),
        "d": (moment - EPOCH) // timedelta(days=1),
        "w": (moment - A_MONDAY) // timedelta(weeks=1),
        "mo": (moment.year - 1970) * 12 + moment.month - 1,
        "y": moment.year - 1970,
    }[unit]
    return number // int(digits)


@st.composite
def calendar_cuts(draw: st.DrawFn) -> tuple[list[datetime], int, str]:
    """Events in order, to the second, some at once, some far apart, some before 1970; a share; a length."""
    length = draw(st.sampled_from(sorted(DAYS_OF)))
    start = draw(st.datetimes(datetime(1960, 1, 1), datetime(2020, 1, 1), timezones=st.just(UTC)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_events, pace = draw(st.integers(5, 40)), draw(st.sampled_from([0.2, 0.6, 2.0]))
    gaps = rng.exponential(DAYS_OF[length] * pace, n_events) * (rng.random(n_events) < 0.7)
    days = np.cumsum(gaps).clip(max=365 * 70)  # before 2100
    log = [start.replace(microsecond=0) + timedelta(seconds=int(day * 86_400)) for day in days]
    return log, draw(st.integers(1, 70)), length


def seconds(log: list[datetime]) -> np.ndarray:
    return np.array([(moment - EPOCH) // timedelta(seconds=1) for moment in log], dtype=np.int64)


@given(calendar_cuts())
def test_a_period_is_one_stretch_of_the_calendar_and_a_stretch_is_one_period(
    asked: tuple[list[datetime], int, str],
) -> None:
    log, percent, length = asked
    periods = cut_or_none(seconds(log), percent, length)
    numbers, first = [stretch(moment, length) for moment in log], len(log) * percent // 100
    ends = [place for place in range(max(1, first), len(log)) if numbers[place - 1] != numbers[place]]
    if first == 0 or len(ends) < 2:
        assert periods is None
        return
    assert_they_lie_behind_each_other(periods, len(log))
    assert periods.ends == (*ends, len(log))  # D_0 ends with a stretch; all of the log is used
    assert periods.ends[0] >= first
    inside = [set(numbers[periods.span(t)]) for t in range(periods.last + 1)]
    assert all(len(some) == 1 for some in inside[1:])
    assert all(not one & other for one, other in pairwise(inside))
    assert len(set(numbers[ends[0] :])) == periods.last  # where nothing happened there is no period


@given(calendar_cuts(), st.integers(2, 5))
def test_the_first_periods_are_the_same_however_many_follow(
    asked: tuple[list[datetime], int, str], n_periods: int
) -> None:
    log, percent, length = asked
    every, some = cut_or_none(seconds(log), percent, length), cut_or_none(seconds(log), percent, length, n_periods)
    if every is None or every.last < n_periods:
        assert some is None
        return
    assert (some.starts, some.ends) == (every.starts[: n_periods + 1], every.ends[: n_periods + 1])
    assert some.remaining(some.last) == slice(some.ends[-1], len(log))


@given(calendar_cuts())
def test_in_whatever_unit_the_time_is_given_the_cut_is_the_same(asked: tuple[list[datetime], int, str]) -> None:
    log, percent, length = asked
    whole = seconds(log)
    assume(np.abs(whole).max() > 5_000_000)  # so that milliseconds are not taken for seconds
    expected = cut_or_none(whole, percent, length)
    for per_second in (10**3, 10**6, 10**9):
        assert cut_or_none(whole * per_second, percent, length) == expected
    for unit in ("s", "ms", "us", "ns"):
        assert cut_or_none(whole.astype("datetime64[s]").astype(f"datetime64[{unit}]"), percent, length) == expected
    assert cut_or_none(whole.astype(np.float64), percent, length) == expected
    assert cut_or_none(whole * 1e3, percent, length) == expected


@given(st.lists(st.integers(-5000, 20_000), min_size=8, max_size=60).map(sorted), PERCENT)
def test_days_and_months_are_times_too(days: list[int], percent: int) -> None:
    dates = np.array(days).astype("datetime64[D]")
    for length in ("1w", "1mo", "1y"):
        assert cut_or_none(dates, percent, length) == cut_or_none(dates.astype("datetime64[s]"), percent, length)
    months = dates.astype("datetime64[M]")
    assert cut_or_none(months, percent, "1y") == cut_or_none(dates, percent, "1y")


def test_a_week_begins_on_monday_and_a_day_at_midnight() -> None:
    hours = np.arange("2024-02-26", "2024-03-20", dtype="datetime64[h]")  # a Monday, in a leap year
    weeks = cut_by_length(hours, pretrain_ratio=0.1, length="1w", n_periods=None)
    assert [str(hours[start])[:10] for start in weeks.starts] == [
        "2024-02-26",
        "2024-03-04",
        "2024-03-11",
        "2024-03-18",
    ]
    assert weeks.ends[-1] - weeks.starts[-1] == 48  # the last is cut short by the end of the log
    days = cut_by_length(hours, pretrain_ratio=0.1, length="1d", n_periods=3)
    assert [str(hours[start]) for start in days.starts[1:]] == ["2024-02-29T00", "2024-03-01T00", "2024-03-02T00"]
    months = cut_by_length(
        np.arange("2023-01", "2025-01", dtype="datetime64[D]"), pretrain_ratio=0.5, length="1mo", n_periods=2
    )
    assert [end - start for start, end in zip(months.starts, months.ends, strict=True)] == [365, 31, 29]


@pytest.mark.parametrize("length", ["1d", "5", "10%"])
def test_too_few_periods_are_told_in_one_sentence(length: str) -> None:
    times = np.arange("2024-01-01", "2024-01-11", dtype="datetime64[D]")
    with pytest.raises(
        DataError,
        match=rf"\A7 periods of {length} are needed after the first 0.5 of the 10 events, but there are \d; "
        r"choose shorter or fewer periods, or a smaller pretrain_ratio\Z",
    ):
        cut_by_length(times, pretrain_ratio=0.5, length=length, n_periods=7)


# ── lengths and times ────────────────────────────────────────────────────────────────────

LENGTHS = st.builds(
    lambda number, space, unit: f"{number}{space}{unit}" if unit else str(number),
    st.integers(1, 10_000),
    st.sampled_from(["", " "]),
    st.sampled_from(["", "h", "d", "w", "mo", "y", "%"]),
)


@given(LENGTHS, st.sampled_from(["", " ", "\t"]))
def test_a_length_is_itself(length: str, space: str) -> None:
    assert check_length(f"{space}{length}{space}") == length
    cut_or_none(np.arange(10), 50, check_length(length))  # and can be cut by


@given(LENGTHS)
def test_stretches_of_the_calendar_are_the_lengths_with_a_unit_of_time(length: str) -> None:
    assert is_calendar(length) == (length[-1] in "hdwoy")


@pytest.mark.parametrize("length", ["2.5%", ".5%", "10.%", "007"])
def test_shares_may_be_broken(length: str) -> None:
    assert check_length(length) == length
    assert cut_or_none(np.arange(1000), 50, length) is not None


@pytest.mark.parametrize(
    "length",
    [
        "",
        "0",
        "00",
        "0d",
        "-5",
        "1.5d",
        "d",
        "%",
        "1m",
        "1min",
        "1 week",
        "5000 events",
        "1e3",
        "4%%",
        "1D",
        "5\n6",
        "nan%",
    ],
)
def test_what_is_no_length_is_answered_with_what_is_one(length: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\Aperiod must be a number of events \(5000\), a share") as caught:
        check_length(length)
    assert str(caught.value).endswith(f"got {length!r}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", ["0%", "0.0%", ".0 %"])
def test_a_share_of_nothing_is_no_length(length: str) -> None:
    with pytest.raises(ConfigurationError):
        check_length(length)


@given(st.lists(st.integers(-4 * 10**18, 4 * 10**18), min_size=1, max_size=10))
def test_moments_of_timestamps_are_exact_to_the_microsecond(nanoseconds: list[int]) -> None:
    times = np.array(nanoseconds).astype("datetime64[ns]")
    assert to_moments(times).astype(np.int64).tolist() == [nanosecond // 1000 for nanosecond in nanoseconds]


@given(st.integers(4_200_000, 4_000_000_000), st.integers(0, 10**9 - 1))
@example(1_700_006_399, 999_999_999)  # the last nanosecond before a midnight
def test_nanoseconds_as_numbers_are_moments_to_the_microsecond(second: int, nanosecond: int) -> None:
    times = np.array([4_000_000_000 * 10**9, second * 10**9 + nanosecond], dtype=np.int64)
    assert to_moments(times).tolist() == to_moments(times.astype("datetime64[ns]")).tolist()


@given(st.integers(5_000_000, 4_000_000_000), st.sampled_from([1, 10**3, 10**6, 10**9]), st.sampled_from([1, -1]))
def test_numbers_are_unix_time_in_the_unit_that_puts_them_before_2100(second: int, per_second: int, sign: int) -> None:
    (moment,) = to_moments(np.array([sign * second * per_second]))
    assert moment == np.datetime64(sign * second, "s")


@pytest.mark.parametrize("times", [[1e20], [0.0, -1e25], [4.2e18]])
def test_numbers_that_are_no_time_are_told_of_in_one_sentence(times: list[float]) -> None:
    largest = max(abs(time) for time in times)
    expected = f"times must be timestamps or Unix time for periods by the calendar, got {largest:g}"
    with pytest.raises(DataError) as caught:
        to_moments(np.array(times))
    assert str(caught.value) == expected
    with pytest.raises(DataError):
        cut_by_length(np.array(times * 10), pretrain_ratio=0.5, length="1d", n_periods=None)


def test_by_count_the_times_need_not_be_times() -> None:
    ranks = np.full(20, 1e30)
    assert cut_by_length(ranks, pretrain_ratio=0.5, length="5", n_periods=None).ends == (10, 15, 20)


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_a_unit_that_was_assumed_is_noted(unit: str, per_second: int) -> None:
    numbers = (1_700_000_000 + 3600 * np.arange(100)) * per_second
    by_day = cut_by_length(numbers, pretrain_ratio=0.3, length="1d", n_periods=None)
    assert by_day.notes == (
        f"the times are numbers and were read as Unix time in {unit}; time_unit states another unit",
    )
    assert cut_by_length(numbers, pretrain_ratio=0.3, length="10", n_periods=None).notes == ()
    moments = to_moments(numbers)
    assert cut_by_length(moments, pretrain_ratio=0.3, length="1d", n_periods=None).notes == ()


# ── seconds ──────────────────────────────────────────────────────────────────────────────

INTEGERS = st.integers(-(10**9), 10**20 // 11) | st.integers(10**8, 5 * 10**9).flatmap(
    lambda second: st.sampled_from([second, second * 10**3, second * 10**6, second * 10**9])
)


@given(st.lists(INTEGERS, min_size=1, max_size=8), st.integers(1, 8))
@example([1_700_000_000, 1_700_000_000_000], 1)  # the unit has changed
@example([1_700_000_000, 2**62], 1)
@example([0, 1_700_000_000], 1)
def test_no_later_time_decides_what_is_known_of_earlier_ones(numbers: list[int], n: int) -> None:
    times = np.sort(np.array(numbers, np.int64))
    whole, early = seconds_of(times), seconds_of(times[:n])
    assert (whole is None) == (early is None)
    if whole is not None and early is not None:
        np.testing.assert_array_equal(early, whole[:n])
        known = whole[~np.isnan(whole)]
        assert ((known >= 0) & (known < 4.1e9)).all()


@given(st.lists(st.integers(10**8, 4 * 10**9), min_size=1))
def test_seconds_are_the_same_in_every_unit(seconds: list[int]) -> None:
    times, units = np.array(seconds), {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    for unit, per_second in units.items():
        for numbers in (
            times * per_second,
            times * float(per_second),
            (times * per_second).astype(f"datetime64[{unit}]"),
        ):
            np.testing.assert_array_equal(seconds_of(numbers), seconds)


def test_timestamps_that_are_no_time_are_unknown() -> None:
    times = np.array(["1900-01-01", "1969-12-31", "1970-01-01", "2024-05-01", "9999-12-31"], "datetime64[us]")
    np.testing.assert_array_equal(seconds_of(times), [np.nan, np.nan, 0, 1_714_521_600, np.nan])
