"""A training step of matrix factorisation in compiled loops: scores, loss, gradients and Adam.

Arrays of scores are (1 + C, B) with the interactions along the last axis, so that the loops over them vectorise;
row 0 is the positive. No step allocates memory.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fairstream.compiled import njit, njit_inline
from fairstream.data import Rows
from fairstream.data.groups import Codes

_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
_MAX_PRODUCT = 1e200
Float32s = np.ndarray[Any, np.dtype[np.float32]]
Float64s = np.ndarray[Any, np.dtype[np.float64]]
Int32s = np.ndarray[Any, np.dtype[np.int32]]


class Interactions(NamedTuple):
    """The events to learn, in chronological order."""

    users: Rows
    items: Rows
    codes: Codes  # The group of every user row
    size: int  # Interactions in a batch


class Table(NamedTuple):
    """The weights of a table and the moments of Adam, which the step changes in place."""

    weight: Float32s
    mean: Float32s  # m
    square: Float32s  # v
    n_updates: Float32s  # (rows,) row Adam: how often each row has been updated


class Adam(NamedTuple):
    """The constants of Adam."""

    learning_rate: np.float32
    beta1: np.float32
    rest1: np.float32  # 1 − β₁ of the exact β₁: for the rounded β₂ the fifth digit would be wrong
    beta2: np.float32
    rest2: np.float32
    epsilon: np.float32
    l2: np.float32
    mean_scale: Float32s  # 1 / (1 − β₁ⁿ) for n = 0, 1, 2 …; the last entry holds for all larger n
    square_scale: Float32s  # 1 / (1 − β₂ⁿ)


class Loss(NamedTuple):
    """The constants of the objective."""

    n: int
    mu: int
    tau: float
    lambda_: float
    is_signed: bool
    signs: Float64s  # (G,) a_g


class Chains(NamedTuple):
    """The distinct rows of a batch, and the occurrences of each, the latest first."""

    rows: Int32s
    heads: Int32s  # (rows of the table,) 1 + the latest occurrence of the row, 0 where there is none
    links: Int32s  # (occurrences,) 1 + the previous occurrence of the same row, 0 where there is none


class Buffers(NamedTuple):
    """The memory of one step."""

    scores: Float32s  # (1 + C, B)
    old: Float32s  # (B, d) the users' rows before the step
    score_grads: Float32s  # (1 + C, B) ∂L/∂s
    hits: Float32s  # (B,) DH
    hit_grads: Float32s  # (1 + C, B) ∂DH/∂s
    scratch: Float32s  # (2 + C, B)
    product: Float64s  # (B,)
    codes: Codes  # (B,)
    sums: Float64s  # (2, G)
    group_slopes: Float32s  # (G,) ∂(λ L_fair)/∂DH of a member of each group
    gradient: Float32s  # (d,)
    zeros: Float32s  # (d,)
    users: Chains
    items: Chains


def make_buffers(*, size: int, n_drawn: int, d: int, n_groups: int, n_users: int, n_items: int) -> Buffers:
    """Allocate the memory of a step."""
    width = 1 + n_drawn

    def floats(*shape: int) -> Float32s:
        return np.zeros(shape, dtype=np.float32)

    def chains(n_rows: int, n_occurrences: int) -> Chains:
        # One place more than there are distinct rows: `append` writes a row before it knows whether it is new.
        return Chains(*(np.zeros(n, dtype=np.int32) for n in (n_occurrences + 1, n_rows, n_occurrences)))

    return Buffers(
        scores=floats(width, size),
        old=floats(size, d),
        score_grads=floats(width, size),
        hits=floats(size),
        hit_grads=floats(width, size),
        scratch=floats(1 + width, size),
        product=np.zeros(size),
        codes=np.zeros(size, dtype=np.int16),
        sums=np.zeros((2, n_groups)),
        group_slopes=floats(n_groups),
        gradient=floats(d),
        zeros=floats(d),
        users=chains(n_users, size),
        items=chains(n_items, size * width),
    )


# ── the loss and its gradient ─────────────────────────────────────────────────────────────

_LOG2_E = np.float32(1.4426950408889634)
# ln 2 in two parts: the first has few enough bits that k · ln 2 is exact.
_LN_2_HIGH, _LN_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_MIN_EXPONENT = np.float32(-87.0)
_C3, _C4, _C5, _C6, _C7 = (np.float32(1.0 / f) for f in (6, 24, 120, 720, 5040))


@njit
def exp_negative(x: Any) -> Any:
    """e^x for x ≤ 0 in float32, to two units in the last place; e^−87 below −87.

    e^x = 2^k e^f with |f| ≤ ½ ln 2, and e^f by its series. Unlike the C library's, this function vectorises.
    """
    x = max(x, _MIN_EXPONENT)
    k = np.floor(x * _LOG2_E + _HALF)
    f = x - k * _LN_2_HIGH - k * _LN_2_LOW
    series = (((_C7 * f + _C6) * f + _C5) * f + _C4) * f + _C3
    series = (series * f + _HALF) * f * f + f + _ONE
    return series * np.int32((np.int32(k) + 127) << 23).view(np.float32)  # 2^k by its bits


@njit
def losses(n_rows: Any, loss: Any, buffers: Any) -> Any:
    """Return L of the batch, and put ∂L/∂s into `score_grads`."""
    s, ds = buffers.scores, buffers.score_grads
    total = bpr(s, n_rows, loss.n, ds, buffers.product)
    if loss.lambda_ > 0:
        ddh, dh, codes = buffers.hit_grads, buffers.hits, buffers.codes
        positive_hit(s, n_rows, loss.mu, loss.tau, dh, ddh, buffers.scratch[1:], buffers.scratch[0])
        total += fairness(dh, codes, n_rows, loss, buffers.sums, buffers.group_slopes)
        # ∂L/∂DH of each interaction overwrites DH (B,), which is no longer needed.
        for b in range(n_rows):
            dh[b] = buffers.group_slopes[codes[b]] if 0 <= codes[b] < len(loss.signs) else _ZERO
        for c in range(loss.mu + 1):
            for b in range(n_rows):
                ds[c, b] += dh[b] * ddh[c, b]
    return total


@njit
def bpr(s: Any, n_rows: Any, n: Any, ds: Any, product: Any) -> Any:
    """L_rec = 1/(B n) Σ_b Σ_j softplus(s_j − s_0) and its gradient, put into `ds` (1 + C, B)   (Section 3.2).

    softplus(x) = max(x, 0) + log(1 + e^−|x|). One logarithm of a product serves a few hundred terms.
    """
    scale = np.float32(1.0 / (n_rows * n))
    total = 0.0
    ds[:, :n_rows] = _ZERO
    product[:n_rows] = 1.0
    for j in range(1, n + 1):
        positive_part = _ZERO
        for b in range(n_rows):
            x = s[j, b] - s[0, b]
            e = exp_negative(-abs(x))
            slope = scale * (_ONE if x >= _ZERO else e) / (_ONE + e)  # σ(x) / (B n)
            ds[j, b] = slope
            ds[0, b] -= slope
            product[b] *= np.float64(_ONE + e)
            positive_part += max(x, _ZERO)
        total += np.float64(positive_part)
        if j % 256 == 0 or j == n:  # 256 factors of at most 2 cannot overflow
            total += _log_product(product, n_rows)
    return total / (n_rows * n)


@njit
def _log_product(factors: Any, n_rows: Any) -> Any:
    """Return log Π factors, each at most 2²⁵⁶, and set them to 1."""
    logarithm, product = 0.0, 1.0
    for b in range(n_rows):
        product *= factors[b]
        factors[b] = 1.0
        if product > _MAX_PRODUCT:
            logarithm += math.log(product)
            product = 1.0
    return logarithm + math.log(product)


@njit
def positive_hit(s: Any, n_rows: Any, mu: Any, tau: Any, dh: Any, ddh: Any, p: Any, top: Any) -> None:
    """DH = P̂[1, 0] of the candidates {i} ∪ N' and ∂DH/∂s, put into `dh` (B,) and `ddh` (1 + μ, B)   (Section 3.3).

    With N = 1 + μ and a_i = P̂_0 (δ_0i − P̂_i) / τ:
    ∂DH/∂s_k = (N − 1) a_k − Σ_{j≠k} (a_k + a_j) sgn(s_k − s_j).
    `p` (1 + μ, B) and `top` (B,) are scratch memory. Pairs are visited once, since the term is antisymmetric.
    """
    _relaxed_first_row(s, n_rows, mu, tau, p, top)
    inverse, others = np.float32(1.0 / tau), np.float32(mu)
    for b in range(n_rows):
        dh[b] = p[0, b]
    for i in range(mu + 1):
        delta = _ONE if i == 0 else _ZERO
        for b in range(n_rows):
            p[i, b] = dh[b] * (delta - p[i, b]) * inverse  # a_i
            ddh[i, b] = others * p[i, b]
    for i in range(mu + 1):
        for j in range(i + 1, mu + 1):
            for b in range(n_rows):
                x = s[i, b] - s[j, b]
                sign = (_ONE if x > _ZERO else _ZERO) - (_ONE if x < _ZERO else _ZERO)
                pair = (p[i, b] + p[j, b]) * sign
                ddh[i, b] -= pair
                ddh[j, b] += pair


@njit
def _relaxed_first_row(s: Any, n_rows: Any, mu: Any, tau: Any, p: Any, top: Any) -> None:
    """P̂[1, :] = softmax(L / τ) with L_i = (N − 1) s_i − Σ_j |s_i − s_j|, N = 1 + μ, put into `p`."""
    inverse, others = np.float32(1.0 / tau), np.float32(mu)
    _column_maxima(s, n_rows, mu + 1, top)
    # The largest score becomes 0, which does not change P̂; otherwise huge scores would lose their differences.
    for i in range(mu + 1):
        for b in range(n_rows):
            p[i, b] = others * (s[i, b] - top[b])
    for i in range(mu + 1):
        for j in range(i + 1, mu + 1):
            for b in range(n_rows):
                distance = abs(s[i, b] - s[j, b])
                p[i, b] -= distance
                p[j, b] -= distance
    _column_maxima(p, n_rows, mu + 1, top)
    for i in range(mu + 1):
        for b in range(n_rows):
            p[i, b] = exp_negative((p[i, b] - top[b]) * inverse)
    top[:n_rows] = _ZERO  # from here on the sum of each column
    for i in range(mu + 1):
        for b in range(n_rows):
            top[b] += p[i, b]
    for i in range(mu + 1):
        for b in range(n_rows):
            p[i, b] /= top[b]


@njit
def _column_maxima(x: Any, n_rows: Any, n: Any, top: Any) -> None:
    """Put the largest of the first n numbers of each column into `top`."""
    top[:n_rows] = x[0, :n_rows]
    for i in range(1, n):
        for b in range(n_rows):
            top[b] = max(top[b], x[i, b])


@njit
def fairness(dh: Any, codes: Any, n_rows: Any, loss: Any, sums: Any, slopes: Any) -> Any:
    """Return λ L_fair (Section 3.4), and put ∂(λ L_fair)/∂DH of a member of each group into `slopes` (G,).

    L_fair is the mean of softplus(x_g) over the groups with members inside and outside, where x_g = a_g DPD_g or
    |DPD_g|; DPD_g is the mean of DH inside the group less the mean outside. `sums` is (2, G).
    """
    n_groups = len(loss.signs)
    sums[:] = 0.0
    slopes[:] = _ZERO
    for b in range(n_rows):
        if 0 <= codes[b] < n_groups:
            sums[0, codes[b]] += np.float64(dh[b])
            sums[1, codes[b]] += 1.0
    everything, n_known, n_defined = sums[0].sum(), sums[1].sum(), 0
    for g in range(n_groups):
        if 0 < sums[1, g] < n_known:
            n_defined += 1
    if n_defined == 0:
        return 0.0
    total, outside_slope = 0.0, 0.0
    for g in range(n_groups):
        inside = sums[1, g]
        outside = n_known - inside
        if inside > 0 and outside > 0:
            dpd = sums[0, g] / inside - (everything - sums[0, g]) / outside
            direction = loss.signs[g] if loss.is_signed else np.sign(dpd)
            x = direction * dpd
            e = math.exp(-abs(x))
            total += max(x, 0.0) + math.log1p(e)
            # λ/G' · dsoftplus(x)/dDPD
            slope = loss.lambda_ / n_defined * direction * (1.0 if x >= 0 else e) / (1.0 + e)
            slopes[g] += np.float32(slope / inside + slope / outside)
            outside_slope += slope / outside
    for g in range(n_groups):
        slopes[g] -= np.float32(outside_slope)  # a user is outside all groups but one, whose part was added above
    return loss.lambda_ * total / n_defined


# ── the step ──────────────────────────────────────────────────────────────────────────────


@njit
def take_steps(
    order: Any, interactions: Any, negatives: Any, p: Any, q: Any, loss: Any, adam: Any, n_before: Any, buffers: Any
) -> Any:
    """Take a step on each batch of `order`; return the sum of the losses.

    `n_before` counts the steps of dense Adam before these; below 0 the optimizer is row Adam.
    """
    total, size = 0.0, interactions.size
    for at in range(len(order)):
        begin = order[at] * size
        users, items = interactions.users[begin : begin + size], interactions.items[begin : begin + size]
        drawn = negatives[at * size : at * size + len(users)]
        _score(users, items, drawn, p.weight, q.weight, buffers)
        for b in range(len(users)):
            buffers.codes[b] = interactions.codes[users[b]]
        n_users, n_items = _find_rows(users, items, drawn, buffers)
        total += losses(len(users), loss, buffers)
        n = -1 if n_before < 0 else n_before + at + 1
        if n >= 0:
            _update_idle_rows(p, buffers.users.heads, buffers.zeros, adam, n)
            _update_idle_rows(q, buffers.items.heads, buffers.zeros, adam, n)
        _update_users(p, q.weight, items, drawn, n_users, adam, n, buffers)
        _update_items(q, n_items, adam, n, buffers)
    return total


@njit
def _score(users: Any, items: Any, negatives: Any, p: Any, q: Any, buffers: Any) -> None:
    """Put s_bc = ⟨p_u, q_i⟩ into `scores`, and p_u before the step into `old`, for the gradients of the items."""
    s, old = buffers.scores, buffers.old
    for b in range(len(users)):
        p_u = p[users[b]]
        for k in range(len(p_u)):
            old[b, k] = p_u[k]
        for c in range(len(s)):
            q_i = q[items[b] if c == 0 else negatives[b, c - 1]]
            total = _ZERO
            for k in range(len(p_u)):
                total += p_u[k] * q_i[k]
            s[c, b] = total


@njit
def _find_rows(users: Any, items: Any, negatives: Any, buffers: Any) -> Any:
    """Chain the occurrences of each row of the batch; return the numbers of distinct users and items.

    Occurrence b of a user is its interaction; occurrence b (1 + C) + c of an item is a candidate of interaction b.
    """
    width = negatives.shape[1] + 1
    n_users, n_items = 0, 0
    for b in range(len(users)):
        n_users = _append(buffers.users, n_users, b, users[b])
        for c in range(width):
            n_items = _append(buffers.items, n_items, b * width + c, items[b] if c == 0 else negatives[b, c - 1])
    return n_users, n_items


@njit_inline
def _append(chains: Any, n: Any, occurrence: Any, row: Any) -> Any:
    """Put an occurrence before the others of its row; return the number of distinct rows so far."""
    head = chains.heads[row]
    chains.links[occurrence] = head
    chains.heads[row] = occurrence + 1
    chains.rows[n] = row  # overwritten by the next one unless the row is new: a branch would cost eight times as much
    return n + (1 if head == 0 else 0)


@njit
def _update_users(p: Any, q: Any, items: Any, negatives: Any, n_users: Any, adam: Any, n: Any, buffers: Any) -> None:
    """Adam on the users of the batch: ∂L/∂p_u = Σ_(b, c) ∂L/∂s_bc q_c over the occurrences b of u."""
    chains, ds, gradient = buffers.users, buffers.score_grads, buffers.gradient
    for slot in range(n_users):
        row = chains.rows[slot]
        gradient[:] = _ZERO
        link = chains.heads[row]
        while link > 0:
            b = link - 1
            for c in range(len(ds)):
                q_i, slope = q[items[b] if c == 0 else negatives[b, c - 1]], ds[c, b]
                for k in range(len(gradient)):
                    gradient[k] += slope * q_i[k]
            link = chains.links[b]
        _update_row(p, row, gradient, _ONE, adam, _count(p, row, n))
        chains.heads[row] = 0


@njit
def _update_items(q: Any, n_items: Any, adam: Any, n: Any, buffers: Any) -> None:
    """Adam on the items of the batch: ∂L/∂q_i = Σ_(b, c) ∂L/∂s_bc p_u over the occurrences (b, c) of i."""
    chains, ds, gradient = buffers.items, buffers.score_grads, buffers.gradient
    width = len(ds)
    for slot in range(n_items):
        row = chains.rows[slot]
        link = chains.heads[row]  # 1 + (b · width + c)
        b = (link - 1) // width
        if chains.links[link - 1] == 0:  # most items occur once in a batch: there is nothing to sum
            _update_row(q, row, buffers.old[b], ds[link - 1 - b * width, b], adam, _count(q, row, n))
        else:
            gradient[:] = _ZERO
            while link > 0:
                b = (link - 1) // width
                slope, p_u = ds[link - 1 - b * width, b], buffers.old[b]
                for k in range(len(gradient)):
                    gradient[k] += slope * p_u[k]
                link = chains.links[link - 1]
            _update_row(q, row, gradient, _ONE, adam, _count(q, row, n))
        chains.heads[row] = 0


@njit
def _update_idle_rows(table: Any, heads: Any, zeros: Any, adam: Any, n: Any) -> None:
    """Dense Adam on the rows that the batch does not touch: their gradient is the L2 term alone."""
    for row in range(len(heads)):
        if heads[row] == 0:
            _update_row(table, row, zeros, _ONE, adam, n)


@njit_inline
def _count(table: Any, row: Any, n: Any) -> Any:
    """Return n of this update of a row, from 1; row Adam counts the updates of each row."""
    if n < 0:
        table.n_updates[row] += _ONE
        return np.int64(table.n_updates[row])
    return np.int64(n)


@njit_inline
def _update_row(table: Any, row: Any, gradient: Any, scale: Any, adam: Any, n: Any) -> None:
    """Update a row for the n-th time, by `scale` · `gradient`.

    g ← g + l2 · w,   m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²
    w ← w − lr · m / (1 − β₁ⁿ) / (√(v / (1 − β₂ⁿ)) + ε)
    """
    n = min(n, len(adam.mean_scale) - 1)
    step, square_scale = adam.learning_rate * adam.mean_scale[n], adam.square_scale[n]
    beta1, beta2, rest1, rest2, epsilon = adam.beta1, adam.beta2, adam.rest1, adam.rest2, adam.epsilon
    weight, mean, square, l2 = table.weight[row], table.mean[row], table.square[row], adam.l2
    for k in range(len(gradient)):
        g = scale * gradient[k] + l2 * weight[k]
        m = beta1 * mean[k] + rest1 * g
        v = beta2 * square[k] + rest2 * g * g
        mean[k] = m
        square[k] = v
        weight[k] -= step * m / (np.sqrt(v * square_scale) + epsilon)


# ── the rows that a training touches, as a smaller table ──────────────────────────────────


@njit
def rename(column: Any, names: Any, rows: Any) -> Any:
    """Rename the rows in `column` to 0, 1, 2 … in the order of their first occurrence; return their number.

    `names[row]` becomes 1 + the name of a row and must be 0 before; `rows[name]` becomes the row.
    """
    n = 0
    for at in range(len(column)):
        row = column[at]
        if names[row] == 0:
            rows[n] = row
            n += 1
            names[row] = n
        column[at] = names[row] - 1
    return n


@njit
def swap_rows(users: Any, all_users: Any, items: Any, all_items: Any, is_written: Any) -> None:
    """Swap the rows of two subsets with the rows they were copied from; a second call undoes it.

    No signal can interrupt one compiled call: it swaps everything and flips `is_written`, or nothing.
    """
    for rows, ours, whole in ((users.rows, users.table, all_users), (items.rows, items.table, all_items)):
        for at in range(len(rows)):
            row = rows[at]
            for k in range(ours.weight.shape[1]):
                ours.weight[at, k], whole.weight[row, k] = whole.weight[row, k], ours.weight[at, k]
                ours.mean[at, k], whole.mean[row, k] = whole.mean[row, k], ours.mean[at, k]
                ours.square[at, k], whole.square[row, k] = whole.square[row, k], ours.square[at, k]
            ours.n_updates[at], whole.n_updates[row] = whole.n_updates[row], ours.n_updates[at]
    is_written[0] = not is_written[0]
