"""D_0, D_1 … D_T lie one behind the other, and the tail behind them."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairstream import DataError
from fairstream.periods import Periods, cut_periods

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


@pytest.mark.parametrize("percent", range(1, 100))
def test_a_share_is_what_it_seems(percent: int) -> None:
    """0.29 · 100 is 28.999… in floating point, and still 29 events."""
    for n_events in (100, 200, 700, 1_000, 99_900):
        periods = cut_periods(n_events, pretrain_ratio=percent / 100, n_periods=1, n_blocks=1)
        assert periods.ends == (n_events * percent // 100, n_events)


def test_a_cut_cannot_be_changed() -> None:
    periods = cut_periods(100, pretrain_ratio=0.5, n_periods=2)
    with pytest.raises(AttributeError):
        periods.n_events = 7  # type: ignore[misc]
