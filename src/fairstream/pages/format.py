"""How numbers are written for a reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NOT_GIVEN = "not given"
"""Where the paper has no number."""
NOT_RUN = "not run"
"""Where the store has no runs for a number."""


def number(value: float) -> str:
    """Four decimals, with a real minus.

    >>> number(-0.0213)
    '−0.0213'
    """
    return f"{value:.4f}".replace("-", "−")


def signed(value: float) -> str:
    """Four decimals and a sign."""
    return f"{value:+.4f}".replace("-", "−")


def plain(value: float) -> str:
    """As short as the number is: a hyperparameter's value or a period.

    >>> plain(2.0), plain(0.5)
    ('2', '0.5')
    """
    return f"{value:g}".replace("-", "−")


def share(part: int, whole: int) -> str:
    """A share in percent, or a dash where there is nothing to take a share of."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


def counted(count: int, noun: str) -> str:
    """A count and what is counted.

    >>> counted(1, "claim"), counted(2000, "number")
    ('1 claim', '2,000 numbers')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def anything(value: Any) -> str:
    """A value of an open record: numbers as above, what is nested as a list.

    >>> anything({"M": 4331, "F": 1709}), anything(0.51234), anything(None)
    ('M: 4,331, F: 1,709', '0.5123', '–')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {anything(inner)}" for key, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(anything(inner) for inner in value)
    if value is None:
        return "–"
    if isinstance(value, bool | str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else number(float(value))
