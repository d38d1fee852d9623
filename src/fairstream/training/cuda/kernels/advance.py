"""Which batches are next."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def advance(order_at, next_at, step_at, batches_at, N: tl.constexpr):
    """Take the next N batches of the epoch's order."""
    step, i = tl.load(next_at), tl.arange(0, N)
    tl.store(batches_at + i, tl.load(order_at + step + i))
    tl.store(step_at, step)
    tl.debug_barrier()
    tl.store(next_at, step + N)
