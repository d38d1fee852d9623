"""Numbers, durations and tables as text: one format for the command line, notebooks, reports and the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

MISSING = "–"  # stands where there is no value
_MINUS = "\N{MINUS SIGN}"  # as wide as a plus, and screen readers say it


def number(value: float | None, digits: int = 4) -> str:
    """Format a score.

    >>> number(0.21341), number(-0.0213, digits=3), number(None)
    ('0.2134', '−0.021', '–')
    """
    return MISSING if value is None else f"{value:.{digits}f}".replace("-", _MINUS)


def signed(value: float | None, digits: int = 4) -> str:
    """Format a difference.

    >>> signed(0.004), signed(-0.02, digits=3), signed(-0.00001), signed(None)
    ('+0.0040', '−0.020', '±0.0000', '–')
    """
    if value is None:
        return MISSING
    if round(value, digits) == 0:
        return f"±{0:.{digits}f}"
    return f"{value:+.{digits}f}".replace("-", _MINUS)


def between(interval: Sequence[float | None] | None, *, is_signed: bool = False, digits: int = 4) -> str:
    """Format an interval.

    >>> between((0.1, 0.25)), between((-0.1, 0.2), is_signed=True), between(None)
    ('0.1000 … 0.2500', '−0.1000 … +0.2000', '–')
    """
    if interval is None or None in interval:
        return MISSING
    low, high = (signed(end, digits) if is_signed else number(end, digits) for end in interval)
    return f"{low} … {high}"


def percent(share: float | None) -> str:
    """Format a share; one between 0 and 1 never looks like 0 or 1.

    >>> percent(0.5), percent(0.00001), percent(1.0), percent(0.0)
    ('50.0 %', '<0.1 %', '100.0 %', '0.0 %')
    """
    if share is None:
        return MISSING
    if 0 < share < 0.001:
        return "<0.1 %"
    return ">99.9 %" if 0.999 < share < 1 else f"{number(100 * share, 1)} %"


def signed_percent(share: float) -> str:
    """Format a relative change.

    >>> signed_percent(-0.0234)
    '−2.3 %'
    """
    return f"{signed(100 * share, 1)} %"


def count(value: float | None) -> str:
    """Format a count.

    >>> count(1234), count(None)
    ('1,234', '–')
    """
    return MISSING if value is None else f"{value:,.0f}"


def counted(n: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "claim"), counted(2000, "number")
    ('1 claim', '2,000 numbers')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def plain(value: float | None) -> str:
    """Format a setting with as few digits as it needs.

    >>> plain(2.0), plain(0.5)
    ('2', '0.5')
    """
    return MISSING if value is None else f"{value:g}".replace("-", _MINUS)


def duration(seconds: float | None) -> str:
    """Format a duration.

    >>> duration(0.0021), duration(0.88), duration(185), duration(7300)
    ('2.1 ms', '0.9 s', '3 min', '2 h')
    """
    if seconds is None:
        return MISSING
    if seconds < 0.1:
        return f"{1000 * seconds:.1f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"


def anything(value: Any, form: Callable[[float | None], str] = number) -> str:
    """Format a JSON value, its floats by `form`.

    >>> anything({"M": 4331, "F": 1709}), anything(0.51234), anything(None)
    ('M: 4,331, F: 1,709', '0.5123', '–')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {anything(inner, form)}" for key, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(anything(inner, form) for inner in value)
    if isinstance(value, bool | str):
        return str(value)
    return MISSING if value is None else count(value) if isinstance(value, int) else form(value)


def sentence(words: str) -> str:
    """Add a capital and a full stop.

    >>> sentence("all checks passed")
    'All checks passed.'
    """
    return f"{words[:1].upper()}{words[1:]}" + ("" if words.endswith((".", "!", "?")) else ".")


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of plain text: the first column on the left, the others on the right; an empty row is a rule.

    >>> print(text_table(["group", "ndcg@20"], [["M", "0.25"], ["F", "0.1"]]))
    group  ndcg@20
    ──────────────
    M         0.25
    F          0.1
    """
    widths = [max(map(len, column)) for column in zip(headings, *filter(None, rows), strict=True)]
    rule = "─" * (sum(widths) + 2 * (len(widths) - 1))

    def line(cells: Sequence[str]) -> str:
        if not cells:
            return rule
        first, *others = zip(cells, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()

    return "\n".join(map(line, [headings, [], *rows]))
