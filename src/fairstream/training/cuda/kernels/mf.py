"""A step of matrix factorisation in two kernels: scores and their gradients, then the rows that the batch touches.

The table rows change in place in the second, so the first leaves behind what the second needs of
them: each interaction's p_u, and Σ_c ∂s q_c, by which p_u's gradient is the sum of as many rows
as there are interactions.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fairstream.training.cuda.kernels.adam import leaders, load_rows, store_adam, sweep
from fairstream.training.cuda.kernels.loss import fairness, fairness_of, mean_loss, score_gradients


@triton.jit(do_not_specialize=["i", "n_all"])
def mf_scores(
    batches_at, step_at, i, n_all, users_at, candidates_at, p_at, q_at,
    p_old_at, p_rec_at, p_fair_at, ds_rec_at, ddh_at, dh_at, l_rec_at, user_touched_at, item_touched_at, tau,
    SIZE: tl.constexpr, C: tl.constexpr, D: tl.constexpr, N_REC: tl.constexpr, N_FAIR: tl.constexpr,
    DENSE: tl.constexpr, SURROGATE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """s_ui = ⟨p_u, q_i⟩ for ROWS interactions and their C candidates, and the losses' derivatives by them."""
    b, step = tl.load(batches_at + i), tl.load(step_at) + i
    if b < 0:
        return
    first = b.to(tl.int64) * SIZE
    n_b = tl.minimum(n_all - first, SIZE).to(tl.int32)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # interaction of the batch
    column, k = tl.arange(0, WIDTH), tl.arange(0, D)
    is_row = row < n_b
    is_candidate = is_row[:, None] & (column < C)[None, :]
    user = tl.load(users_at + first + row, mask=is_row, other=0)
    e = row[:, None] * C + column[None, :]  # candidate of the batch
    item = tl.load(candidates_at + first * C + e, mask=is_candidate, other=0)
    p = tl.load(p_at + user[:, None] * D + k[None, :], mask=is_row[:, None], other=0.0)
    q_of = q_at + item[:, :, None] * D + k[None, None, :]
    q = tl.load(q_of, mask=is_candidate[:, :, None], other=0.0)  # (ROWS, WIDTH, D)
    s = tl.sum(p[:, None, :] * q, axis=2)
    n_scale = (n_b * N_REC).to(tl.float32)
    ds_rec, ddh, dh, l_rec = score_gradients(s, n_scale, tau, N_REC, N_FAIR, SURROGATE, WIDTH)
    tl.store(ds_rec_at + e, ds_rec, mask=is_candidate)
    tl.store(l_rec_at + row, l_rec, mask=is_row)
    at = row[:, None] * D + k[None, :]
    tl.store(p_old_at + at, p, mask=is_row[:, None])
    tl.store(p_rec_at + at, tl.sum(ds_rec[:, :, None] * q, axis=1), mask=is_row[:, None])
    if N_FAIR > 0:
        tl.store(ddh_at + e, ddh, mask=is_candidate)
        tl.store(dh_at + row, dh, mask=is_row)
        tl.store(p_fair_at + at, tl.sum(ddh[:, :, None] * q, axis=1), mask=is_row[:, None])
    if DENSE:
        tl.store(user_touched_at + user, step, mask=is_row)
        tl.store(item_touched_at + item, step, mask=is_candidate)


@triton.jit
def user_gradient(
    mine, position, n_b, rows_at, order_at, codes_at, p_rec_at, p_fair_at, inside, outside,
    D: tl.constexpr, N_FAIR: tl.constexpr, GROUPS: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """g_u = Σ over u's interactions of Σ_c (∂L_rec/∂s_c + ∂(λ L_fair)/∂DH · ∂DH/∂s_c) q_c   (1, D).

    LONG interactions at a time: in chronological order a batch holds few users, with many each.
    """
    k = tl.arange(0, D)
    grad = tl.zeros((D,), tl.float32)
    at = position
    n_found = LONG
    while n_found == LONG:
        place = at + tl.arange(0, LONG)
        is_mine = tl.load(rows_at + place, mask=place < n_b, other=-1) == mine
        r = tl.load(order_at + place, mask=place < n_b, other=0).to(tl.int32)
        source = r[:, None] * D + k[None, :]
        part = tl.load(p_rec_at + source, mask=is_mine[:, None], other=0.0)
        if N_FAIR > 0:
            code = tl.load(codes_at + r, mask=is_mine, other=-1)
            fair = tl.load(p_fair_at + source, mask=is_mine[:, None], other=0.0)
            part += fairness_of(code, inside, outside, GROUPS)[:, None] * fair
        grad += tl.sum(part, axis=0)
        n_found = tl.sum(is_mine.to(tl.int32), axis=0)
        at += LONG
    return grad[None, :]


@triton.jit
def item_gradients(
    row, is_first, position, n_e, rows_at, order_at, codes_at, p_old_at, ds_rec_at, ddh_at, inside, outside,
    C: tl.constexpr, D: tl.constexpr, N_FAIR: tl.constexpr, GROUPS: tl.constexpr,
    ROWS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """g_i = Σ over i's occurrences as a candidate of (∂L_rec/∂s + ∂(λ L_fair)/∂DH · ∂DH/∂s) p_u   (ROWS, D).

    SLOTS occurrences at a time: an item rarely has more in a batch.
    """
    k = tl.arange(0, D)
    grad = tl.zeros((ROWS, D), tl.float32)
    place = position[:, None] + tl.arange(0, SLOTS)[None, :]
    is_open = is_first
    while tl.max(is_open.to(tl.int32), axis=0) > 0:
        is_defined = is_open[:, None] & (place < n_e)
        is_mine = tl.load(rows_at + place, mask=is_defined, other=-1) == row[:, None]  # (ROWS, SLOTS)
        e = tl.load(order_at + place, mask=is_defined, other=0).to(tl.int32)
        r = e // C
        ds = tl.load(ds_rec_at + e, mask=is_mine, other=0.0)
        if N_FAIR > 0:
            code = tl.reshape(tl.load(codes_at + r, mask=is_mine, other=-1), (ROWS * SLOTS,))
            ddh = tl.load(ddh_at + e, mask=is_mine, other=0.0)
            ds += tl.reshape(fairness_of(code, inside, outside, GROUPS), (ROWS, SLOTS)) * ddh
        p_of = p_old_at + r[:, :, None] * D + k[None, None, :]
        p = tl.load(p_of, mask=is_mine[:, :, None], other=0.0)
        grad += tl.sum(ds[:, :, None] * p, axis=1)
        is_open = tl.sum(is_mine.to(tl.int32), axis=1) == SLOTS
        place += SLOTS
    return grad


@triton.jit(do_not_specialize=["i", "n_all", "n_users", "n_items"])
def mf_update(
    batches_at, step_at, i, losses_at, n_all, n_users, n_items, codes_at, signs_at,
    user_rows_at, user_order_at, item_rows_at, item_order_at,
    p_old_at, p_rec_at, p_fair_at, ds_rec_at, ddh_at, dh_at, l_rec_at, user_touched_at, item_touched_at,
    p_at, p_m_at, p_v_at, p_n_at, p_l2, q_at, q_m_at, q_v_at, q_n_at, q_l2, lr, eps, betas_at, lambda_,
    SIZE: tl.constexpr, C: tl.constexpr, D: tl.constexpr, N_REC: tl.constexpr, N_FAIR: tl.constexpr,
    DENSE: tl.constexpr, ABSOLUTE: tl.constexpr, N_GROUPS: tl.constexpr, GROUPS: tl.constexpr,
    LONG: tl.constexpr, ROWS: tl.constexpr, SLOTS: tl.constexpr, SWEPT: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Gradient and Adam of a user row (the first SIZE programs), of ROWS item rows (the next), of SWEPT others."""
    b, step = tl.load(batches_at + i), tl.load(step_at) + i
    if b < 0:
        return
    first = b.to(tl.int64) * SIZE
    n_b = tl.minimum(n_all - first, SIZE).to(tl.int32)
    codes_at += first
    program = tl.program_id(0)
    tile = program - SIZE
    n_item_tiles = (SIZE * C + ROWS - 1) // ROWS
    loss, inside, outside = 0.0, tl.zeros((GROUPS,), tl.float32), tl.zeros((GROUPS,), tl.float32)
    if tile < 0:
        user_rows_at += first
        user, is_mine = leaders(user_rows_at, program + tl.zeros((1,), tl.int32), n_b, n_users)
        mine = tl.max(tl.where(is_mine, user, -1), axis=0)
        if mine >= 0:
            p, p_m, p_v, p_n = load_rows(p_at, p_m_at, p_v_at, p_n_at, user, is_mine, step, D, DENSE)
            if N_FAIR > 0:
                loss, inside, outside = fairness(
                    dh_at, codes_at, signs_at, n_b, lambda_, N_GROUPS, GROUPS, ABSOLUTE, CHUNK
                )
            g_u = user_gradient(
                mine, program, n_b, user_rows_at, user_order_at + first, codes_at, p_rec_at, p_fair_at,
                inside, outside, D, N_FAIR, GROUPS, LONG,
            )  # fmt: skip
            store_adam(
                p_at, p_m_at, p_v_at, p_n_at, user, is_mine, p, p_m, p_v, p_n, g_u, p_l2, lr, eps, betas_at, D, DENSE
            )
            if program == 0:
                loss += mean_loss(l_rec_at, n_b, (n_b * N_REC).to(tl.float32), CHUNK)
                tl.store(losses_at + step, loss)
    elif tile < n_item_tiles:
        item_rows_at += first * C
        position = tile * ROWS + tl.arange(0, ROWS)
        item, are_mine = leaders(item_rows_at, position, n_b * C, n_items)
        q, q_m, q_v, q_n = load_rows(q_at, q_m_at, q_v_at, q_n_at, item, are_mine, step, D, DENSE)
        if N_FAIR > 0:
            loss, inside, outside = fairness(dh_at, codes_at, signs_at, n_b, lambda_, N_GROUPS, GROUPS, ABSOLUTE, CHUNK)
        g_i = item_gradients(
            item, are_mine, position, n_b * C, item_rows_at, item_order_at + first * C, codes_at,
            p_old_at, ds_rec_at, ddh_at, inside, outside, C, D, N_FAIR, GROUPS, ROWS, SLOTS,
        )  # fmt: skip
        store_adam(
            q_at, q_m_at, q_v_at, q_n_at, item, are_mine, q, q_m, q_v, q_n, g_i, q_l2, lr, eps, betas_at, D, DENSE
        )
    elif DENSE:
        tile -= n_item_tiles
        n_user_tiles = (n_users + SWEPT - 1) // SWEPT
        if tile < n_user_tiles:
            sweep(p_at, p_m_at, p_v_at, p_n_at, user_touched_at, tile, n_users, step, p_l2, lr, eps, betas_at, SWEPT, D)
        else:
            tile -= n_user_tiles
            sweep(q_at, q_m_at, q_v_at, q_n_at, item_touched_at, tile, n_items, step, q_l2, lr, eps, betas_at, SWEPT, D)
