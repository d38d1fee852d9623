"""Adam on what a step of neural collaborative filtering has gradients for: touched rows, and the layers."""

from __future__ import annotations

import triton
import triton.language as tl

from fairstream.training.cuda.kernels.adam import leaders, load_rows, store_adam, sweep


@triton.jit
def row_gradient(
    mine, position, n_there, rows_at, place_at, ds_at, from_at, D: tl.constexpr, EACH: tl.constexpr, LONG: tl.constexpr
):  # fmt: skip
    """Σ over the candidates e of a row of ∂L/∂(its embedding in e) (1, D), and of ∂L/∂s_e, LONG at a time."""
    k = tl.arange(0, D)
    grad, grad_bias = tl.zeros((D,), tl.float32), 0.0
    at = 0
    n_found = LONG
    while n_found == LONG:
        slot = at + tl.arange(0, LONG)
        place = position + slot // EACH
        is_e = tl.load(rows_at + place, mask=place < n_there, other=-1) == mine
        e = tl.load(place_at + place, mask=place < n_there, other=0).to(tl.int32) * EACH + slot % EACH
        grad += tl.sum(tl.load(from_at + e[:, None] * D + k[None, :], mask=is_e[:, None], other=0.0), axis=0)
        grad_bias += tl.sum(tl.load(ds_at + e, mask=is_e, other=0.0), axis=0)
        n_found = tl.sum(is_e.to(tl.int32), axis=0)
        at += LONG
    return grad[None, :], grad_bias


@triton.jit(do_not_specialize=["i", "n_all", "n_rows"])
def ncf_rows(
    batches_at, step_at, i, n_all, n_rows, rows_at, place_at, touched_at, ds_at, dproduct_at, dmlp_at,
    product_at, product_m_at, product_v_at, product_n_at, product_l2, mlp_at, mlp_m_at, mlp_v_at, mlp_n_at, mlp_l2,
    bias_at, bias_m_at, bias_v_at, bias_n_at, bias_l2, lr, eps, betas_at,
    SIZE: tl.constexpr, C: tl.constexpr, D: tl.constexpr, DENSE: tl.constexpr,
    EACH: tl.constexpr, LONG: tl.constexpr, SWEPT: tl.constexpr,
):  # fmt: skip
    """The product and bias rows (axis 1: program 0) and the MLP rows (1) of the users, or of the items.

    A program of axis 0 has one sorted position (the first SIZE · C / EACH), or a tile of rows that
    the batch has not touched. EACH candidates belong to one occurrence: C to a user's, 1 to an item's.
    """
    b, step = tl.load(batches_at + i), tl.load(step_at) + i
    if b < 0:
        return
    first = b.to(tl.int64) * SIZE
    n_b = tl.minimum(n_all - first, SIZE).to(tl.int32)
    position, is_product = tl.program_id(0), tl.program_id(1) == 0
    n_positions = SIZE * C // EACH
    if position < n_positions:
        n_there = n_b * C // EACH
        rows_at += first * C // EACH
        place_at += first * C // EACH
        row, is_mine = leaders(rows_at, position + tl.zeros((1,), tl.int32), n_there, n_rows)
        mine = tl.max(tl.where(is_mine, row, -2), axis=0)
        if mine >= 0:
            if is_product:
                w, m, v, n = load_rows(
                    product_at, product_m_at, product_v_at, product_n_at, row, is_mine, step, D, DENSE
                )
                grad, grad_bias = row_gradient(
                    mine, position, n_there, rows_at, place_at, ds_at, dproduct_at, D, EACH, LONG
                )
                store_adam(
                    product_at, product_m_at, product_v_at, product_n_at, row, is_mine, w, m, v, n, grad,
                    product_l2, lr, eps, betas_at, D, DENSE,
                )  # fmt: skip
                bias, bias_m, bias_v, bias_n = load_rows(
                    bias_at, bias_m_at, bias_v_at, bias_n_at, row, is_mine, step, 1, DENSE
                )
                store_adam(
                    bias_at, bias_m_at, bias_v_at, bias_n_at, row, is_mine, bias, bias_m, bias_v, bias_n,
                    grad_bias + tl.zeros((1, 1), tl.float32), bias_l2, lr, eps, betas_at, 1, DENSE,
                )  # fmt: skip
            else:
                w, m, v, n = load_rows(mlp_at, mlp_m_at, mlp_v_at, mlp_n_at, row, is_mine, step, D, DENSE)
                grad, grad_bias = row_gradient(
                    mine, position, n_there, rows_at, place_at, ds_at, dmlp_at, D, EACH, LONG
                )
                store_adam(
                    mlp_at, mlp_m_at, mlp_v_at, mlp_n_at, row, is_mine, w, m, v, n, grad,
                    mlp_l2, lr, eps, betas_at, D, DENSE,
                )  # fmt: skip
    elif DENSE:
        tile = position - n_positions
        if is_product:
            sweep(
                product_at, product_m_at, product_v_at, product_n_at, touched_at, tile, n_rows,
                step, product_l2, lr, eps, betas_at, SWEPT, D,
            )  # fmt: skip
            sweep(
                bias_at, bias_m_at, bias_v_at, bias_n_at, touched_at, tile, n_rows,
                step, bias_l2, lr, eps, betas_at, SWEPT, 1,
            )  # fmt: skip
        else:
            sweep(
                mlp_at, mlp_m_at, mlp_v_at, mlp_n_at, touched_at, tile, n_rows,
                step, mlp_l2, lr, eps, betas_at, SWEPT, D,
            )  # fmt: skip


@triton.jit
def layer_rows(
    w_at, m_at, v_at, n_at, l2, transposed_at, block, grad, step, lr, eps, betas_at,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """Adam on ROWS whole rows of a layer (HEIGHT, WIDTH), all of which the batch touches; Wᵀ is kept beside it."""
    row = block * ROWS + tl.arange(0, ROWS)
    w, m, v, n = load_rows(w_at, m_at, v_at, n_at, row, row >= 0, step, WIDTH, DENSE)
    grad = tl.reshape(grad, (ROWS, WIDTH))
    w = store_adam(w_at, m_at, v_at, n_at, row, row >= 0, w, m, v, n, grad, l2, lr, eps, betas_at, WIDTH, DENSE)
    if HEIGHT > 1:
        tl.store(transposed_at + tl.arange(0, WIDTH)[None, :] * HEIGHT + row[:, None], w)


@triton.jit(do_not_specialize=["i", "n_all"])
def ncf_layers(
    batches_at, step_at, i, n_all, dw_at, transposed_at,
    w_1_at, m_1_at, v_1_at, n_1_at, l2_1, w_2_at, m_2_at, v_2_at, n_2_at, l2_2, w_3_at, m_3_at, v_3_at, n_3_at, l2_3,
    w_4_at, m_4_at, v_4_at, n_4_at, l2_4, out_at, out_m_at, out_v_at, out_n_at, out_l2, lr, eps, betas_at,
    SIZE: tl.constexpr, C: tl.constexpr, D: tl.constexpr, DENSE: tl.constexpr, TILE: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """The sum of all programs' shares for 2D weights: a row of W_1 (D programs), two of the others, or w (the last)."""
    b, step = tl.load(batches_at + i), tl.load(step_at) + i
    if b < 0:
        return
    n_e = tl.minimum(n_all - b.to(tl.int64) * SIZE, SIZE).to(tl.int32) * C
    n_shares = (n_e + TILE - 1) // TILE
    block, weight = tl.program_id(0), tl.arange(0, 2 * D)
    grad = tl.zeros((2 * D,), tl.float32)
    for share in range(0, n_shares, MANY):
        s = (share + tl.arange(0, MANY))[:, None]
        from_at = dw_at + s.to(tl.int64) * (5 * D * D + 2 * D) + block * 2 * D + weight[None, :]
        grad += tl.sum(tl.load(from_at, mask=s < n_shares, other=0.0), axis=0)
    half = D // 2
    square = D * D
    if block < D:
        layer_rows(
            w_1_at,
            m_1_at,
            v_1_at,
            n_1_at,
            l2_1,
            transposed_at,
            block,
            grad,
            step,
            lr,
            eps,
            betas_at,
            1,
            2 * D,
            D,
            DENSE,
        )
    elif block < D + half:
        layer_rows(
            w_2_at, m_2_at, v_2_at, n_2_at, l2_2, transposed_at + 2 * square, block - D, grad,
            step, lr, eps, betas_at, 2, D, D, DENSE,
        )  # fmt: skip
    elif block < D + 2 * half:
        layer_rows(
            w_3_at, m_3_at, v_3_at, n_3_at, l2_3, transposed_at + 3 * square, block - D - half, grad,
            step, lr, eps, betas_at, 2, D, D, DENSE,
        )  # fmt: skip
    elif block < D + 3 * half:
        layer_rows(
            w_4_at, m_4_at, v_4_at, n_4_at, l2_4, transposed_at + 4 * square, block - D - 2 * half, grad,
            step, lr, eps, betas_at, 2, D, D, DENSE,
        )  # fmt: skip
    else:
        layer_rows(
            out_at, out_m_at, out_v_at, out_n_at, out_l2, transposed_at, 0, grad,
            step, lr, eps, betas_at, 1, 2 * D, 1, DENSE,
        )  # fmt: skip
