"""What a chart shows, for those who hear the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairstream.pages.format import number


def course(
    what: str, points: Sequence[tuple[int, float | int | None]], written: Callable[[float], str] = number
) -> str:
    """Where a line begins and ends, and its lowest and highest point.

    >>> course("Gap", [(1, 0.08), (2, None), (3, 0.02)])
    'Gap by period: 0.0800 in period 1, 0.0200 in period 3; lowest 0.0200, highest 0.0800.'
    """
    there = [(t, value) for t, value in points if value is not None]
    if not there:
        return f"{what} by period: nothing to report."
    (first, begins), (last, ends) = there[0], there[-1]
    if first == last:
        return f"{what}: {written(begins)} in period {first}."
    values = [value for _, value in there]
    return (
        f"{what} by period: {written(begins)} in period {first}, {written(ends)} in period {last}; "
        f"lowest {written(min(values))}, highest {written(max(values))}."
    )
