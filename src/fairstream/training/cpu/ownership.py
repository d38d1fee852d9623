"""Which thread a row belongs to."""

from __future__ import annotations

from typing import Any

from fairstream.compiled import njit_inline

_BLOCK_BITS = 6


@njit_inline
def owner(row: Any, n_threads: Any) -> Any:
    """The thread (of a power of two) that a row belongs to.

    Rows go in blocks: what is kept for neighbours lies in one cache line, which two threads that
    write to it would take from each other all the time.
    """
    return (row >> _BLOCK_BITS) & (n_threads - 1)
