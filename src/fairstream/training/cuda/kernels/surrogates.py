"""What can stand for the quality of a ranking in L_fair, each with its gradient: DH, ApproxNDCG, NeuralNDCG.

Scores s are (R, WIDTH) with the positive in column 0; columns behind N_FAIR are padding. Each gives
its gradient (R, WIDTH) and its value (R,).
"""

from __future__ import annotations

import triton
import triton.language as tl

from fairstream.objectives import sinkhorn

N_ROUNDS = tl.constexpr(sinkhorn.N_ROUNDS)
LEAST_SUM = tl.constexpr(sinkhorn.LEAST_SUM)
LN_2 = tl.constexpr(0.6931471805599453)


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
def scaled(p, tangents, AXIS: tl.constexpr):
    """P (R, K, J) over its sums Σ along AXIS; the tangents ∂P/∂s_c (R, K, J, C) become (∂P − P/Σ Σ∂P) / Σ."""
    total = tl.expand_dims(tl.maximum(tl.sum(p, axis=AXIS), LEAST_SUM), AXIS)
    p = p / total
    along = tl.expand_dims(tl.sum(tangents, axis=AXIS), AXIS)
    return p, (tangents - p[:, :, :, None] * along) / total[:, :, :, None]


@triton.jit
def neural_ndcg(s, tau, N_FAIR: tl.constexpr, WIDTH: tl.constexpr):
    """NeuralNDCG: v = Σ_k P_k0 / log₂(k + 1) for the doubly stochastic P that Sinkhorn scaling makes of P̂.

    Differentiated forwards: beside P (R, K, J) go its tangents by each score (R, K, J, C), so that
    no round has to be remembered. Rows and columns of padding are 0 and stay so.
    """
    s = moved_to_0(s, N_FAIR, WIDTH)
    index = tl.arange(0, WIDTH)
    is_fair = index <= N_FAIR
    difference = s[:, :, None] - s[:, None, :]  # (R, j, c)
    is_pair = is_fair[None, :, None] & is_fair[None, None, :]
    sgn = tl.where(is_pair, sign(difference), 0.0)
    # P̂_k = softmax(L_k / τ),  L_kj = (N + 1 − 2k) s_j − Σ_m |s_j − s_m|,  N = 1 + μ,  k = 1 … N
    factor = (N_FAIR - 2 * index).to(tl.float32)[None, :, None]  # N + 1 − 2k of row k − 1
    distance = tl.sum(tl.where(is_pair, tl.abs(difference), 0.0), axis=2)
    logits = (factor * s[:, None, :] - distance[:, None, :]) / tau  # (R, k, j)
    logits = tl.where(is_fair[None, None, :], logits, float("-inf"))
    p = tl.exp(logits - tl.max(logits, axis=2)[:, :, None])
    p = tl.where(is_pair, p / tl.sum(p, axis=2)[:, :, None], 0.0)
    # ∂L_kj/∂s_c = δ_jc (N + 1 − 2k − Σ_m sgn(s_j − s_m)) + sgn(s_j − s_c),  ∂P_kj = P_kj (∂L_kj − Σ_i P_ki ∂L_ki) / τ
    is_same = (index[:, None] == index[None, :])[None, None, :, :]
    slope = factor - tl.sum(sgn, axis=2)[:, None, :]  # (R, k, j)
    tangents = tl.where(is_same, slope[:, :, :, None], 0.0) + sgn[:, None, :, :]  # (R, k, j, c)
    mean = tl.sum(p[:, :, :, None] * tangents, axis=2)
    tangents = p[:, :, :, None] * (tangents - mean[:, :, None, :]) / tau
    for _ in range(N_ROUNDS):
        p, tangents = scaled(p, tangents, 1)
        p, tangents = scaled(p, tangents, 2)
    discount = (1.0 / tl.log2(index + 2.0))[None, :, None]
    of_positive = tl.where((index == 0)[None, None, :], discount, 0.0)  # (1, k, j)
    value = tl.sum(tl.sum(p * of_positive, axis=2), axis=1)
    return tl.sum(tl.sum(tangents * of_positive[:, :, :, None], axis=2), axis=1), value
