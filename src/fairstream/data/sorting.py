"""Sorting integers by their digits: a few passes, whatever their number."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairstream.compiled import njit

_BITS = 13
_Integers = np.ndarray[Any, np.dtype[np.int64]]


def radix_sort(keys: _Integers) -> _Integers:
    """The keys (0 or more) sorted, in a new array or in the very one, which is used up.

    >>> radix_sort(np.array([5, 1 << 40, 3])).tolist()
    [3, 5, 1099511627776]
    """
    differing = int(np.bitwise_or.reduce(keys ^ keys[0])) if len(keys) else 0
    other = np.empty_like(keys) if differing else keys
    while differing:
        shift = (differing & -differing).bit_length() - 1  # bits that are the same in all keys decide nothing
        _pass(keys, other, np.zeros((1 << _BITS) + 1, dtype=np.int64), shift)
        keys, other = other, keys
        differing = differing >> (shift + _BITS) << (shift + _BITS)
    return keys


@njit
def _pass(keys: Any, out: Any, starts: Any, shift: int) -> None:
    """Sort by one digit; those with the same digit stay in their order."""
    mask = len(starts) - 2
    for key in keys:
        starts[((key >> shift) & mask) + 1] += 1
    for digit in range(1, len(starts)):
        starts[digit] += starts[digit - 1]
    for key in keys:
        digit = (key >> shift) & mask
        out[starts[digit]] = key
        starts[digit] += 1
