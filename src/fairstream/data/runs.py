"""Growing without copying the past: a log-structured merge.

New entries become a run of their own; a run that is not much larger than the next one is merged
with it. N entries are then in about log N runs, and each entry is copied about log N times in
all. Runs are never changed, so whoever holds the older ones keeps seeing the older state.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, TypeVar

import numpy as np

_MUCH_LARGER = 4

Run = TypeVar("Run", bound=Sized)


def append_run(runs: tuple[Run, ...], new: Run, merge: Callable[[Run, Run], Run]) -> tuple[Run, ...]:
    """Return the runs with a new one at the end; `merge` makes one run of two neighbours.

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
    """Return two sorted arrays as one."""
    return np.sort(np.concatenate([first, second]), kind="stable")  # Timsort: linear where two runs are sorted
