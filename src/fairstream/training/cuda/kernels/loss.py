"""The loss of a batch and its gradient, in closed form."""

from __future__ import annotations

import triton
import triton.language as tl

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def score_gradients(
    s, n_scale, tau, N_REC: tl.constexpr, N_FAIR: tl.constexpr, SURROGATE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Scores s (R, WIDTH), positive in column 0 → ∂L_rec/∂s, ∂DH/∂s, DH (R,) and Σ −log σ(s_0 − s_j) (R,).

    N_REC is n and N_FAIR is μ, or 0 where there is no fairness loss; n_scale is |B| n. Columns
    behind those that a loss looks at have no part in it. Here and in all other kernels, DH is what
    SURROGATE says.
    """
    column = tl.arange(0, WIDTH)[None, :]
    is_positive = column == 0
    s_0 = tl.sum(tl.where(is_positive, s, 0.0), axis=1)[:, None]
    # L_rec = 1/(|B| n) Σ_j softplus(x_j), x_j = s_j − s_0:  ∂/∂s_j = σ(x_j) / (|B| n),  ∂/∂s_0 = −Σ_j
    x = s - s_0
    is_rec = (column > 0) & (column <= N_REC)
    pull = tl.where(is_rec, 1.0 / (1.0 + tl.exp(-x)) / n_scale, 0.0)
    ds_rec = tl.where(is_positive, -tl.sum(pull, axis=1)[:, None], pull)
    l_rec = tl.sum(tl.where(is_rec, softplus(x), 0.0), axis=1)
    if N_FAIR == 0:
        return ds_rec, tl.zeros_like(s), tl.zeros_like(l_rec), l_rec
    if SURROGATE == "hit":
        ddh, dh = hit(s, tau, N_FAIR, WIDTH)
    else:
        ddh, dh = approx_ndcg(s, tau, N_FAIR, WIDTH)
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
def approx_ndcg(s, tau, N_FAIR: tl.constexpr, WIDTH: tl.constexpr):
    """ApproxNDCG: v = 1 / log₂(1 + r),  r = 1 + Σ_j σ(x_j),  x_j = (s_j − s_0) / τ."""
    column = tl.arange(0, WIDTH)[None, :]
    is_positive, is_negative = column == 0, (column > 0) & (column <= N_FAIR)
    x = (s - tl.sum(tl.where(is_positive, s, 0.0), axis=1)[:, None]) / tau
    e = tl.exp(-tl.abs(x))
    rank = 1.0 + tl.sum(tl.where(is_negative, tl.where(x >= 0, 1.0, e) / (1.0 + e), 0.0), axis=1)
    log = tl.log(1.0 + rank)
    # ∂v/∂s_j = −ln 2 / ((1 + r) ln²(1 + r)) · σ(x_j) σ(−x_j) / τ,  ∂v/∂s_0 = −Σ_j
    by_rank = -LN_2 / ((1.0 + rank) * log * log)
    pull = tl.where(is_negative, by_rank[:, None] * e / ((1.0 + e) * (1.0 + e)) / tau, 0.0)
    return tl.where(is_positive, -tl.sum(pull, axis=1)[:, None], pull), LN_2 / log


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

    L_fair = mean over the groups that are there of softplus(a_g DPD_g), or of softplus(|DPD_g|);
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
    n_there = tl.maximum(tl.sum(tl.where(is_defined, 1.0, 0.0), axis=0), 1.0)
    l_fair = tl.sum(tl.where(is_defined, softplus(x), 0.0), axis=0) / n_there
    slope = tl.where(is_defined, lambda_ / n_there * side / (1.0 + tl.exp(-x)), 0.0)
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
