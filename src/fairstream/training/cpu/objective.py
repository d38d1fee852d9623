"""L_rec + λ L_fair and its gradient with respect to the scores, in closed form, a whole batch at once.

Arrays are (1 + C, B) with the interactions along the last axis, so that the loops over them use
the whole width of the machine; row 0 is the positive.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fairstream.compiled import njit
from fairstream.training.cpu.arithmetic import exp_negative

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_FOLD = 1e200
_LN_2 = math.log(2.0)


@njit
def bpr(s: Any, n_rows: Any, n: Any, ds: Any, product: Any) -> Any:
    """L_rec = 1/(B n) Σ_b Σ_j softplus(s_j − s_0) and its gradient, put into `ds`   (Section 3.2).

    softplus(x) = max(x, 0) + log(1 + e^−|x|). The logarithms are taken of products: one every
    few hundred terms instead of one for each.
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
        if j % 256 == 0 or j == n:  # 256 factors of at most 2 are far from too large
            total += log_of_product(product, n_rows)
    return total / (n_rows * n)


@njit
def log_of_product(factors: Any, n_rows: Any) -> Any:
    """Log Π factors, each at most 2²⁵⁶; sets them to 1."""
    logarithm, run = 0.0, 1.0
    for b in range(n_rows):
        run *= factors[b]
        factors[b] = 1.0
        if run > _FOLD:
            logarithm += math.log(run)
            run = 1.0
    return logarithm + math.log(run)


@njit
def positive_hit(s: Any, n_rows: Any, mu: Any, tau: Any, dh: Any, d: Any, p: Any, top: Any) -> None:
    """DH = P̂[1, 0] of the candidates {i} ∪ N' (Section 3.3), and ∂DH/∂s, put into `dh` and `d`.

    With N = 1 + μ and a_i = P̂_0 (δ_0i − P̂_i) / τ:
    ∂DH/∂s_k = (N − 1) a_k − Σ_{j≠k} (a_k + a_j) sgn(s_k − s_j).
    """
    relaxed_first_row(s, n_rows, mu, tau, p, top)
    inverse, others = np.float32(1.0 / tau), np.float32(mu)
    for b in range(n_rows):
        dh[b] = p[0, b]
    for i in range(mu + 1):
        delta = _ONE if i == 0 else _ZERO
        for b in range(n_rows):
            p[i, b] = dh[b] * (delta - p[i, b]) * inverse  # a_i
            d[i, b] = others * p[i, b]
    for i in range(mu + 1):
        for j in range(i + 1, mu + 1):
            for b in range(n_rows):
                x = s[i, b] - s[j, b]
                sign = (_ONE if x > _ZERO else _ZERO) - (_ONE if x < _ZERO else _ZERO)
                pull = (p[i, b] + p[j, b]) * sign
                d[i, b] -= pull
                d[j, b] += pull


@njit
def positive_approx_ndcg(s: Any, n_rows: Any, mu: Any, tau: Any, value: Any, d: Any) -> None:
    """ApproxNDCG v = 1 / log₂(1 + r), r = 1 + Σ_j σ(x_j), x_j = (s_j − s_0) / τ, and its gradient, put into `d`.

    ∂v/∂s_j = −ln 2 / ((1 + r) ln²(1 + r)) · σ(x_j) σ(−x_j) / τ, and ∂v/∂s_0 is minus the sum of these.
    """
    inverse = np.float32(1.0 / tau)
    value[:n_rows] = _ONE  # r
    for j in range(1, mu + 1):
        for b in range(n_rows):
            x = (s[j, b] - s[0, b]) * inverse
            e = exp_negative(-abs(x))
            value[b] += (_ONE if x >= _ZERO else e) / (_ONE + e)
            d[j, b] = inverse * e / ((_ONE + e) * (_ONE + e))
    for b in range(n_rows):
        one_more = 1.0 + np.float64(value[b])
        log = math.log(one_more)
        value[b] = np.float32(_LN_2 / log)
        d[0, b] = np.float32(-_LN_2 / (one_more * log * log))  # ∂v/∂r, until it has been multiplied by
    for j in range(1, mu + 1):
        for b in range(n_rows):
            d[j, b] *= d[0, b]
    d[0, :n_rows] = _ZERO
    for j in range(1, mu + 1):
        for b in range(n_rows):
            d[0, b] -= d[j, b]


@njit
def relaxed_first_row(s: Any, n_rows: Any, mu: Any, tau: Any, p: Any, top: Any) -> None:
    """P̂[1, :] = softmax(L / τ) with L_i = (N − 1) s_i − Σ_j |s_i − s_j|, N = 1 + μ, put into `p`."""
    inverse, others = np.float32(1.0 / tau), np.float32(mu)
    largest(s, n_rows, mu + 1, top)
    # The largest score is moved to 0 (P̂ does not change): differences of huge scores are not rounded away.
    for i in range(mu + 1):
        for b in range(n_rows):
            p[i, b] = others * (s[i, b] - top[b])
    for i in range(mu + 1):
        for j in range(i + 1, mu + 1):
            for b in range(n_rows):
                distance = abs(s[i, b] - s[j, b])
                p[i, b] -= distance
                p[j, b] -= distance
    largest(p, n_rows, mu + 1, top)
    for i in range(mu + 1):
        for b in range(n_rows):
            p[i, b] = exp_negative((p[i, b] - top[b]) * inverse)
    top[:n_rows] = _ZERO
    for i in range(mu + 1):
        for b in range(n_rows):
            top[b] += p[i, b]
    for i in range(mu + 1):
        for b in range(n_rows):
            p[i, b] /= top[b]


@njit
def largest(x: Any, n_rows: Any, n: Any, top: Any) -> None:
    """The largest of the first n numbers in each column."""
    top[:n_rows] = x[0, :n_rows]
    for i in range(1, n):
        for b in range(n_rows):
            top[b] = max(top[b], x[i, b])


@njit
def fairness(dh: Any, codes: Any, n_rows: Any, signs: Any, is_signed: Any, lambda_: Any, sums: Any, slope: Any) -> Any:
    """λ L_fair (Section 3.4), and ∂(λ L_fair)/∂DH of a user of each group, put into `slope` (G,).

    L_fair is the mean of softplus(x_g) over the groups that are there with a rest, x_g = a_g DPD_g
    or |DPD_g|; DPD_g is the mean of DH inside the group less that outside. `sums` is (2, G).
    """
    n_groups = len(signs)
    everything, n_known = 0.0, 0.0
    for g in range(n_groups):
        sums[0, g], sums[1, g], slope[g] = 0.0, 0.0, _ZERO
    for b in range(n_rows):
        if 0 <= codes[b] < n_groups:
            sums[0, codes[b]] += np.float64(dh[b])
            sums[1, codes[b]] += 1.0
    for g in range(n_groups):
        everything += sums[0, g]
        n_known += sums[1, g]
    n_there = 0
    for g in range(n_groups):
        if 0 < sums[1, g] < n_known:
            n_there += 1
    if n_there == 0:
        return 0.0
    loss, from_outside = 0.0, 0.0
    for g in range(n_groups):
        inside = sums[1, g]
        outside = n_known - inside
        if inside > 0 and outside > 0:
            dpd = sums[0, g] / inside - (everything - sums[0, g]) / outside
            direction = signs[g] if is_signed else np.sign(dpd)
            x = direction * dpd
            e = math.exp(-abs(x))
            loss += max(x, 0.0) + math.log1p(e)
            pull = lambda_ / n_there * direction * (1.0 if x >= 0 else e) / (1.0 + e)  # λ/G' · dsoftplus(x)/dDPD
            slope[g] += np.float32(pull / inside + pull / outside)
            from_outside += pull / outside
    for g in range(n_groups):
        slope[g] -= np.float32(from_outside)  # each user is outside of every group but its own
    return lambda_ * loss / n_there
