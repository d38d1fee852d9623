"""The Triton kernels of matrix factorisation.

A step is two kernels: `mf_scores` computes scores and their gradients, `mf_update` the gradients and Adam of the rows
that the batch touches. The second changes table rows in place, so the first stores what the second needs of them: each
interaction's p_u, and Σ_c ∂s q_c, whose sum over a user's interactions is the gradient of p_u.
"""

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


# ── the loss of a batch and its gradient ──────────────────────────────────────────────


@triton.jit
def score_gradients(
    s, n_scale, tau, N_REC: tl.constexpr, N_FAIR: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Scores s (R, WIDTH), positive in column 0 → ∂L_rec/∂s, ∂DH/∂s, DH (R,) and Σ −log σ(s_0 − s_j) (R,).

    N_REC is n and N_FAIR is μ, or 0 where there is no fairness loss; n_scale is |B| n. Columns
    after those that a loss reads have no part in it.
    """
    column = tl.arange(0, WIDTH)[None, :]
    is_positive = column == 0
    s_0 = tl.sum(tl.where(is_positive, s, 0.0), axis=1)[:, None]
    # L_rec = 1/(|B| n) Σ_j softplus(x_j), x_j = s_j − s_0:  ∂/∂s_j = σ(x_j) / (|B| n),  ∂/∂s_0 = −Σ_j
    x = s - s_0
    is_rec = (column > 0) & (column <= N_REC)
    slope = tl.where(is_rec, 1.0 / (1.0 + tl.exp(-x)) / n_scale, 0.0)
    ds_rec = tl.where(is_positive, -tl.sum(slope, axis=1)[:, None], slope)
    l_rec = tl.sum(tl.where(is_rec, softplus(x), 0.0), axis=1)
    if N_FAIR == 0:
        return ds_rec, tl.zeros_like(s), tl.zeros_like(l_rec), l_rec
    ddh, dh = hit(s, tau, N_FAIR, WIDTH)
    return ds_rec, ddh, dh, l_rec


@triton.jit
def moved_to_0(s, N_FAIR: tl.constexpr, WIDTH: tl.constexpr):
    """The scores less the largest, which changes no ranking: differences of huge ones are not rounded away."""
    is_fair = tl.arange(0, WIDTH)[None, :] <= N_FAIR
    return tl.where(is_fair, s - tl.max(tl.where(is_fair, s, float("-inf")), axis=1)[:, None], 0.0)


@triton.jit
def sign(x):
    """sgn(x), 0 for 0."""
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))


@triton.jit
def hit(s, tau, N_FAIR: tl.constexpr, WIDTH: tl.constexpr):
    """DH = P_0,  P = softmax(L / τ),  L_i = μ s_i − Σ_j |s_i − s_j|   (N = 1 + μ, first row of P̂)."""
    column = tl.arange(0, WIDTH)[None, :]
    is_positive, is_fair = column == 0, column <= N_FAIR
    s = moved_to_0(s, N_FAIR, WIDTH)
    other = tl.arange(0, WIDTH)[None, None, :] <= N_FAIR
    difference = s[:, :, None] - s[:, None, :]  # (R, k, j)
    logits = N_FAIR * s - tl.sum(tl.where(other, tl.abs(difference), 0.0), axis=2)
    logits = tl.where(is_fair, logits / tau, float("-inf"))
    p = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    p = p / tl.sum(p, axis=1)[:, None]
    dh = tl.sum(tl.where(is_positive, p, 0.0), axis=1)
    # a_i = ∂P_0/∂L_i = P_0 (δ_0i − P_i) / τ;  ∂DH/∂s_k = μ a_k − Σ_j (a_k + a_j) sgn(s_k − s_j)
    a = dh[:, None] * (tl.where(is_positive, 1.0, 0.0) - p) / tau
    pairs = tl.where(other, (a[:, :, None] + a[:, None, :]) * sign(difference), 0.0)
    return tl.where(is_fair, N_FAIR * a - tl.sum(pairs, axis=2), 0.0), dh


@triton.jit
def softplus(x):
    """−log σ(−x) = log(1 + eˣ), finite for any x."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def _add_both(a, b, c, d):
    return a + c, b + d


@triton.jit
def fairness(
    dh_at, codes_at, signs_at, n_b, lambda_, N_GROUPS: tl.constexpr, WIDTH: tl.constexpr, ABSOLUTE: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """λ L_fair of a batch, and its derivative by the mean DH inside and outside each group (WIDTH,), per member.

    L_fair = mean over the groups in the batch of softplus(a_g DPD_g), or of softplus(|DPD_g|);
    ∂L_fair/∂DPD_g = a_g σ(a_g DPD_g), or sgn(DPD_g) σ(|DPD_g|), over their number. Every program
    computes this for itself, from the same numbers in the same order.
    """
    group = tl.arange(0, WIDTH)
    sum_in, n_in = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
    for first in range(0, n_b, ROWS):
        row = first + tl.arange(0, ROWS)
        code = tl.load(codes_at + row, mask=row < n_b, other=-1)[:, None]
        dh = tl.load(dh_at + row, mask=row < n_b, other=0.0)[:, None]
        is_in = code == group[None, :]
        some, n_some = tl.reduce((tl.where(is_in, dh, 0.0), tl.where(is_in, 1.0, 0.0)), 0, _add_both)
        sum_in += some
        n_in += n_some
    is_other = group[:, None] != group[None, :]
    sum_out = tl.sum(tl.where(is_other, sum_in[:, None], 0.0), axis=0)
    n_out = tl.sum(tl.where(is_other, n_in[:, None], 0.0), axis=0)
    is_defined = (n_in > 0) & (n_out > 0) & (group < N_GROUPS)
    n_in, n_out = tl.maximum(n_in, 1.0), tl.maximum(n_out, 1.0)
    dpd = sum_in / n_in - sum_out / n_out
    if ABSOLUTE:
        side = tl.where(dpd > 0, 1.0, tl.where(dpd < 0, -1.0, 0.0))
        x = tl.abs(dpd)
    else:
        side = tl.load(signs_at + group, mask=group < N_GROUPS, other=0.0)
        x = side * dpd
    n_defined = tl.maximum(tl.sum(tl.where(is_defined, 1.0, 0.0), axis=0), 1.0)
    l_fair = tl.sum(tl.where(is_defined, softplus(x), 0.0), axis=0) / n_defined
    slope = tl.where(is_defined, lambda_ / n_defined * side / (1.0 + tl.exp(-x)), 0.0)
    return lambda_ * l_fair, slope / n_in, slope / n_out


@triton.jit
def fairness_of(code, inside, outside, WIDTH: tl.constexpr):
    """∂(λ L_fair)/∂DH of interactions by the code (R,) of their group: 0 where it is not known."""
    is_in = code[:, None] == tl.arange(0, WIDTH)[None, :]
    coefficient = tl.sum(tl.where(is_in, inside[None, :], -outside[None, :]), axis=1)
    return tl.where(code >= 0, coefficient, 0.0)


@triton.jit
def mean_loss(l_rec_at, n_b, n_scale, ROWS: tl.constexpr):
    """L_rec of a batch from its interactions' sums."""
    total = 0.0
    for first in range(0, n_b, ROWS):
        row = first + tl.arange(0, ROWS)
        total += tl.sum(tl.load(l_rec_at + row, mask=row < n_b, other=0.0), axis=0)
    return total / n_scale


# ── Adam on a tile of rows ────────────────────────────────────────────────────────────


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


# ── the step ──────────────────────────────────────────────────────────────────────────


@triton.jit(do_not_specialize=["i", "n_all"])
def mf_scores(
    batches_at, step_at, i, n_all, users_at, candidates_at, p_at, q_at,
    p_old_at, p_rec_at, p_fair_at, ds_rec_at, ddh_at, dh_at, l_rec_at, user_touched_at, item_touched_at, tau,
    SIZE: tl.constexpr, C: tl.constexpr, D: tl.constexpr, N_REC: tl.constexpr, N_FAIR: tl.constexpr,
    DENSE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
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
    ds_rec, ddh, dh, l_rec = score_gradients(s, n_scale, tau, N_REC, N_FAIR, WIDTH)
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
