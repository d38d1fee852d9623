"""Adam on a tile of rows, and how the rows of a batch find their occurrences.

What a step needs of a row is loaded well before the gradient is there, so that the two waits overlap.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_rows(w_at, m_at, v_at, n_at, row, is_mine, step, D: tl.constexpr, DENSE: tl.constexpr):
    """w, m and v (R, D) of the rows (R,) of a table that are mine, and n (R,), the number of this update.

    Row Adam counts each row's own updates in `n_at`. Dense Adam has one count, as it was before
    the epoch began; `step` steps have been taken since.
    """
    at = row.to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
    mask = is_mine[:, None]
    w = tl.load(w_at + at, mask=mask, other=0.0)
    m = tl.load(m_at + at, mask=mask, other=0.0)
    v = tl.load(v_at + at, mask=mask, other=0.0)
    if DENSE:
        n = tl.load(n_at) + step + 1.0 + tl.zeros_like(row).to(tl.float32)
    else:
        n = tl.load(n_at + row, mask=is_mine, other=0.0) + 1.0
    return w, m, v, n


@triton.jit
def store_adam(
    w_at, m_at, v_at, n_at, row, is_mine, w, m, v, n, grad, l2, lr, eps, betas_at, D: tl.constexpr, DENSE: tl.constexpr
):  # fmt: skip
    """One step of Adam on rows that `load_rows` has loaded, with the gradient (R, D); returns the new w.

        g ← g + l2 w,   m ← m + (1 − β₁)(g − m),   v ← β₂ v + (1 − β₂) g²
        w ← w − lr / (1 − β₁ⁿ) · m / (√v / √(1 − β₂ⁿ) + ε)

    1 − βⁿ is computed in float64: in float32 its first digits would cancel. PyTorch's fused Adam
    rounds βⁿ to float32 all the same, and dense Adam here does as it does.
    """
    n_64 = n.to(tl.float64)
    power_1, power_2 = tl.exp(n_64 * tl.load(betas_at + 4)), tl.exp(n_64 * tl.load(betas_at + 5))
    if DENSE:
        power_1, power_2 = power_1.to(tl.float32).to(tl.float64), power_2.to(tl.float32).to(tl.float64)
    step_size = (lr / (1.0 - power_1)).to(tl.float32)[:, None]
    scale = (1.0 / tl.sqrt(1.0 - power_2)).to(tl.float32)[:, None]
    grad += l2 * w
    m += tl.load(betas_at).to(tl.float32) * (grad - m)
    v = v * tl.load(betas_at + 3).to(tl.float32) + tl.load(betas_at + 1).to(tl.float32) * grad * grad
    w -= step_size * m / (tl.sqrt_rn(v) * scale + eps)
    at = row.to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
    mask = is_mine[:, None]
    tl.store(w_at + at, w, mask=mask)
    tl.store(m_at + at, m, mask=mask)
    tl.store(v_at + at, v, mask=mask)
    if not DENSE:
        tl.debug_barrier()  # several warps read a row's count: none may find it raised already
        tl.store(n_at + row, n, mask=is_mine)
    return w


@triton.jit
def leaders(rows_at, position, n_positions, n_rows):
    """The rows (R,) at sorted positions, and whether each is the first of its kind: that one acts for all."""
    row = tl.load(rows_at + position, mask=position < n_positions, other=2147483647)
    before = tl.load(rows_at + position - 1, mask=(position > 0) & (position < n_positions), other=-1)
    return row, (row != before) & (row < n_rows)


@triton.jit
def sweep(
    w_at, m_at, v_at, n_at, touched_at, tile, n_rows, step, l2, lr, eps, betas_at, ROWS: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Dense Adam on the rows of a tile that this step's batch has not touched: their gradient is 0."""
    row = tile * ROWS + tl.arange(0, ROWS)
    touched = tl.load(touched_at + row, mask=row < n_rows, other=0)
    is_mine = (row < n_rows) & (touched != step)
    w, m, v, n = load_rows(w_at, m_at, v_at, n_at, row, is_mine, step, D, True)
    grad = tl.zeros((ROWS, D), tl.float32)
    store_adam(w_at, m_at, v_at, n_at, row, is_mine, w, m, v, n, grad, l2, lr, eps, betas_at, D, True)
