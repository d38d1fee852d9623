"""Adam on a tile of rows, and how the rows of a batch find their occurrences."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def adam_rows(
    w_at, m_at, v_at, n_at, row, is_mine, grad, step, lr, eps, l2, betas_at, D: tl.constexpr, DENSE: tl.constexpr
):  # fmt: skip
    """One step of Adam on the rows (R,) of a table (·, D) that are mine, with the gradient (R, D).

        g ← g + l2 w,   m ← m + (1 − β₁)(g − m),   v ← β₂ v + (1 − β₂) g²
        w ← w − lr · m / (1 − β₁ⁿ) / (√(v / (1 − β₂ⁿ)) + ε)

    Row Adam counts each row's own updates in `n_at` (·, 1). Dense Adam has one count before the
    epoch began, and `step` steps have been taken since.
    """
    row = row.to(tl.int64)
    at = row[:, None] * D + tl.arange(0, D)[None, :]
    mask = is_mine[:, None]
    if DENSE:
        n = tl.load(n_at) + step + 1.0 + tl.zeros_like(row).to(tl.float32)
    else:
        n = tl.load(n_at + row, mask=is_mine, other=0.0) + 1.0
    w = tl.load(w_at + at, mask=mask, other=0.0)
    m = tl.load(m_at + at, mask=mask, other=0.0)
    v = tl.load(v_at + at, mask=mask, other=0.0)
    w, m, v = adam(w, m, v, n[:, None], grad, lr, eps, l2, betas_at)
    tl.store(w_at + at, w, mask=mask)
    tl.store(m_at + at, m, mask=mask)
    tl.store(v_at + at, v, mask=mask)
    if not DENSE:
        tl.debug_barrier()  # several warps read a row's count: none may find it raised already
        tl.store(n_at + row, n, mask=is_mine)


@triton.jit
def adam(w, m, v, n, grad, lr, eps, l2, betas_at):
    """The new w, m and v; n broadcasts. 1 − βⁿ is computed in float64: in float32 its first digits would cancel."""
    beta_1, beta_2 = tl.load(betas_at), tl.load(betas_at + 1)
    n = n.to(tl.float64)
    correction_1 = (1.0 - tl.exp(n * tl.load(betas_at + 2))).to(tl.float32)
    correction_2 = (1.0 - tl.exp(n * tl.load(betas_at + 3))).to(tl.float32)
    grad = grad + l2 * w
    m = m + (1.0 - beta_1).to(tl.float32) * (grad - m)
    v = v * beta_2.to(tl.float32) + (1.0 - beta_2).to(tl.float32) * grad * grad
    m_hat, v_hat = tl.div_rn(m, correction_1), tl.div_rn(v, correction_2)
    return w - lr * tl.div_rn(m_hat, tl.sqrt_rn(v_hat) + eps), m, v


@triton.jit
def leaders(rows_at, position, n_positions, n_rows):
    """The rows (R,) at sorted positions, and whether each is the first of its kind: that one acts for all."""
    row = tl.load(rows_at + position, mask=position < n_positions, other=2147483647)
    before = tl.load(rows_at + position - 1, mask=(position > 0) & (position < n_positions), other=-1)
    return row, (row != before) & (row < n_rows)


@triton.jit
def sweep(
    w_at, m_at, v_at, n_at, touched_at, tile, n_rows, step, lr, eps, l2, betas_at, ROWS: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Dense Adam on the rows of a tile that this step's batch has not touched: their gradient is 0."""
    row = tile * ROWS + tl.arange(0, ROWS)
    touched = tl.load(touched_at + row, mask=row < n_rows, other=0)
    is_mine = (row < n_rows) & (touched != step)
    grad = tl.zeros((ROWS, D), tl.float32)
    adam_rows(w_at, m_at, v_at, n_at, row, is_mine, grad, step, lr, eps, l2, betas_at, D, True)
