"""How our loops are compiled: once per machine, and outside of Python's lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

_OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    # Sums may be taken in any order, which a dot product needs to use the whole width of the
    # machine. Nothing else of IEEE arithmetic is given up.
    "fastmath": {"reassoc", "contract", "nsz"},
}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Machine code, kept on disk between runs."""
    return numba.njit(function, **_OPTIONS)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for the inside of a loop, where handing over the arguments would cost more than the work."""
    return numba.njit(function, **_OPTIONS, forceinline=True)
