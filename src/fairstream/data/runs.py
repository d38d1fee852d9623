"""Growing without copying the past: a few runs, merged so that each is much larger than the next.

What comes in becomes a run of its own; a run that is not much larger than the one behind it is
merged with it. N entries are then in about log N runs, and each entry is copied about log N
times in all, however many small pieces they came in (a log-structured merge). Runs are never
changed, so whoever holds the older ones goes on seeing what there was.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, TypeVar

import numpy as np

from fairstream.compiled import njit

_MUCH_LARGER = 4

Run = TypeVar("Run", bound=Sized)


def append_run(runs: tuple[Run, ...], new: Run, merge: Callable[[Run, Run], Run]) -> tuple[Run, ...]:
    """The runs with a new one behind them; `merge` makes one run of two neighbours.

    >>> runs = ()
    >>> for letter in "abcdefghij":
    ...     runs = append_run(runs, letter, str.__add__)
    >>> runs
    ('abcdefgh', 'ij')
    """
    while runs and len(runs[-1]) < _MUCH_LARGER * len(new):
        runs, new = runs[:-1], merge(runs[-1], new)
    return (*runs, new) if len(new) else runs


def merged(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Two sorted arrays as one."""
    both = np.empty(len(first) + len(second), dtype=first.dtype)
    _merge(first, second, both)
    return both


@njit
def _merge(first: Any, second: Any, both: Any) -> None:
    i = j = 0
    for at in range(len(both)):
        if j == len(second) or (i < len(first) and first[i] <= second[j]):
            both[at] = first[i]
            i += 1
        else:
            both[at] = second[j]
            j += 1
