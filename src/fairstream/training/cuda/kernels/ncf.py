"""Scores of neural collaborative filtering and their gradients, a tile of candidates at a time.

s_ui = w · [p_u ⊙ q_i ; h_4] + b_u + b_i,   h_l = relu(W_l h_{l−1}),   h_0 = [p'_u ; q'_i]

A batch's candidates stand behind each other: candidate e is one of interaction e // C. Products
are in float32 throughout (input_precision="ieee": no TF32).
"""

from __future__ import annotations

import triton
import triton.language as tl

from fairstream.training.cuda.kernels.loss import fairness, fairness_of, mean_loss, score_gradients


@triton.jit
def relu(x):
    """max(x, 0), in which NaN stays NaN: a training that diverges must show it."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def times(x, w_at, STRIDE: tl.constexpr, D: tl.constexpr):
    """X W for x (TILE, D) and W (D, D), whose rows are STRIDE apart."""
    j, k = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
    return tl.dot(x, tl.load(w_at + j * STRIDE + k), input_precision="ieee")


@triton.jit
def store_outer(dz, h, to, STRIDE: tl.constexpr, D: tl.constexpr):
    """∂L/∂W = Σ_e dz_e h_eᵀ over the tile, into a matrix (D, D) whose rows are STRIDE apart."""
    j, k = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
    tl.store(to + j * STRIDE + k, tl.dot(tl.trans(dz), h, input_precision="ieee"))


@triton.jit(do_not_specialize=["i", "n_all"])
def ncf_scores(
    batches_at, step_at, i, n_all, users_at, candidates_at, p_at, q_at, p_mlp_at, q_mlp_at, p_bias_at, q_bias_at,
    transposed_at, out_at, s_at, h_at, user_touched_at, item_touched_at,
    SIZE: tl.constexpr, C: tl.constexpr, D: tl.constexpr, DENSE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Scores of TILE candidates; h_1 … h_4 are kept for the way back, as (4, SIZE · C, D).

    The layers come as W_1ᵀ … W_4ᵀ behind each other.
    """
    b, step = tl.load(batches_at + i), tl.load(step_at) + i
    if b < 0:
        return
    first = b.to(tl.int64) * SIZE
    n_e = tl.minimum(n_all - first, SIZE).to(tl.int32) * C
    e, k = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, D)[None, :]
    is_e = e < n_e
    mask = is_e[:, None]
    user = tl.load(users_at + first + e // C, mask=is_e, other=0)
    item = tl.load(candidates_at + first * C + e, mask=is_e, other=0)
    u, v = user[:, None] * D + k, item[:, None] * D + k
    product = tl.load(p_at + u, mask=mask, other=0.0) * tl.load(q_at + v, mask=mask, other=0.0)
    s = tl.load(p_bias_at + user, mask=is_e, other=0.0) + tl.load(q_bias_at + item, mask=is_e, other=0.0)
    s += tl.sum(product * tl.load(out_at + k), axis=1)
    to = h_at + e[:, None] * D + k
    h = times(tl.load(p_mlp_at + u, mask=mask, other=0.0), transposed_at, D, D)
    h += times(tl.load(q_mlp_at + v, mask=mask, other=0.0), transposed_at + D * D, D, D)
    h = relu(h)
    tl.store(to, h, mask=mask)
    h = relu(times(h, transposed_at + 2 * D * D, D, D))
    tl.store(to + SIZE * C * D, h, mask=mask)
    h = relu(times(h, transposed_at + 3 * D * D, D, D))
    tl.store(to + 2 * SIZE * C * D, h, mask=mask)
    h = relu(times(h, transposed_at + 4 * D * D, D, D))
    tl.store(to + 3 * SIZE * C * D, h, mask=mask)
    s += tl.sum(h * tl.load(out_at + D + k), axis=1)
    tl.store(s_at + e, s, mask=is_e)
    if DENSE:
        tl.store(user_touched_at + user, step, mask=is_e)
        tl.store(item_touched_at + item, step, mask=is_e)


@triton.jit(do_not_specialize=["i", "n_all"])
def ncf_loss(
    batches_at, step_at, i, n_all, s_at, ds_rec_at, ddh_at, dh_at, l_rec_at, tau,
    SIZE: tl.constexpr, C: tl.constexpr, N_REC: tl.constexpr, N_FAIR: tl.constexpr,
    SURROGATE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The losses' derivatives by the scores of ROWS interactions."""
    b = tl.load(batches_at + i)
    if b < 0:
        return
    n_b = tl.minimum(n_all - b.to(tl.int64) * SIZE, SIZE).to(tl.int32)
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)[None, :]
    is_row = row < n_b
    is_candidate = is_row[:, None] & (column < C)
    e = row[:, None] * C + column
    s = tl.load(s_at + e, mask=is_candidate, other=0.0)
    n_scale = (n_b * N_REC).to(tl.float32)
    ds_rec, ddh, dh, l_rec = score_gradients(s, n_scale, tau, N_REC, N_FAIR, SURROGATE, WIDTH)
    tl.store(ds_rec_at + e, ds_rec, mask=is_candidate)
    tl.store(l_rec_at + row, l_rec, mask=is_row)
    if N_FAIR > 0:
        tl.store(ddh_at + e, ddh, mask=is_candidate)
        tl.store(dh_at + row, dh, mask=is_row)


@triton.jit(do_not_specialize=["i", "n_all"])
def ncf_back(
    batches_at, step_at, i, losses_at, n_all, users_at, candidates_at, codes_at, signs_at,
    p_at, q_at, p_mlp_at, q_mlp_at, w_1_at, w_2_at, w_3_at, w_4_at, out_at, h_at, ds_rec_at, ddh_at, dh_at, l_rec_at,
    ds_at, dp_at, dq_at, dp_mlp_at, dq_mlp_at, dw_at, lambda_,
    SIZE: tl.constexpr, C: tl.constexpr, D: tl.constexpr, N_REC: tl.constexpr, N_FAIR: tl.constexpr,
    ABSOLUTE: tl.constexpr, N_GROUPS: tl.constexpr, GROUPS: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """From ∂L/∂s of TILE candidates to the gradients of their four embeddings and a share of the layers'.

    A program's share lies at dw + program · 5D² + 2D: W_1 (D, 2D), W_2 … W_4 (D, D), w (2D).
    """
    b, step = tl.load(batches_at + i), tl.load(step_at) + i
    if b < 0:
        return
    first = b.to(tl.int64) * SIZE
    n_b = tl.minimum(n_all - first, SIZE).to(tl.int32)
    program = tl.program_id(0)
    if program * TILE >= n_b * C:
        return
    e, k = program * TILE + tl.arange(0, TILE), tl.arange(0, D)[None, :]
    is_e = e < n_b * C
    mask = is_e[:, None]
    loss = 0.0
    ds = tl.load(ds_rec_at + e, mask=is_e, other=0.0)
    if N_FAIR > 0:
        loss, inside, outside = fairness(
            dh_at, codes_at + first, signs_at, n_b, lambda_, N_GROUPS, GROUPS, ABSOLUTE, CHUNK
        )
        code = tl.load(codes_at + first + e // C, mask=is_e, other=-1)
        ds += fairness_of(code, inside, outside, GROUPS) * tl.load(ddh_at + e, mask=is_e, other=0.0)
    tl.store(ds_at + e, ds, mask=is_e)
    if program == 0:
        loss += mean_loss(l_rec_at, n_b, (n_b * N_REC).to(tl.float32), CHUNK)
        tl.store(losses_at + step, loss)

    user = tl.load(users_at + first + e // C, mask=is_e, other=0)
    item = tl.load(candidates_at + first * C + e, mask=is_e, other=0)
    u, v = user[:, None] * D + k, item[:, None] * D + k
    at = e[:, None] * D + k
    dw_at += program.to(tl.int64) * (5 * D * D + 2 * D)
    dout_at = dw_at + 5 * D * D
    # s = w · [p ⊙ q ; h_4] + …:  ∂s/∂p = w_: ⊙ q,  ∂s/∂q = w_: ⊙ p,  ∂s/∂w = [p ⊙ q ; h_4]
    g = ds[:, None]
    p, q = tl.load(p_at + u, mask=mask, other=0.0), tl.load(q_at + v, mask=mask, other=0.0)
    w = tl.load(out_at + k)
    tl.store(dp_at + at, g * w * q, mask=mask)
    tl.store(dq_at + at, g * w * p, mask=mask)
    tl.store(dout_at + tl.arange(0, D), tl.sum(g * p * q, axis=0))
    # dz_l = ∂L/∂(W_l h_{l−1}) = ∂L/∂h_l where h_l > 0:  ∂L/∂W_l = dz_l h_{l−1}ᵀ,  ∂L/∂h_{l−1} = W_lᵀ dz_l
    h_at += at
    h = tl.load(h_at + 3 * SIZE * C * D, mask=mask, other=0.0)
    tl.store(dout_at + D + tl.arange(0, D), tl.sum(g * h, axis=0))
    dz = tl.where(h > 0, g * tl.load(out_at + D + k), 0.0)
    h = tl.load(h_at + 2 * SIZE * C * D, mask=mask, other=0.0)
    store_outer(dz, h, dw_at + 4 * D * D, D, D)
    dz = tl.where(h > 0, times(dz, w_4_at, D, D), 0.0)
    h = tl.load(h_at + SIZE * C * D, mask=mask, other=0.0)
    store_outer(dz, h, dw_at + 3 * D * D, D, D)
    dz = tl.where(h > 0, times(dz, w_3_at, D, D), 0.0)
    h = tl.load(h_at, mask=mask, other=0.0)
    store_outer(dz, h, dw_at + 2 * D * D, D, D)
    dz = tl.where(h > 0, times(dz, w_2_at, D, D), 0.0)
    store_outer(dz, tl.load(p_mlp_at + u, mask=mask, other=0.0), dw_at, 2 * D, D)
    store_outer(dz, tl.load(q_mlp_at + v, mask=mask, other=0.0), dw_at + D, 2 * D, D)
    tl.store(dp_mlp_at + at, times(dz, w_1_at, 2 * D, D), mask=mask)
    tl.store(dq_mlp_at + at, times(dz, w_1_at + D, 2 * D, D), mask=mask)
