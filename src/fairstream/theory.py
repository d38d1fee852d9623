"""The theory of Section 3.1 and Proposition 1, as plain functions.

Both theorems are one bound (the paper's Corollary in Appendix A) with two ways to weigh the past.
With weights α_t over D_0 … D_{T−1} that sum to 1, sizes m_t and distribution shifts d_t, the
excess loss on the next period is, with probability at least 1 − δ, at most

    2 Σ_t α_t d_t  +  4 √( Σ_t α_t² · log(m_t) / m_t · log(2 / δ) ).
     (shift)           (learning error)

The paper's closed form of the second term for fine-tuning, (1 + γ)(1 − γ^{2T−4}) / (1 − γ), is not
the sum Σ_{t≥1} α_t² that its proof arrives at, which is (1 − γ)(1 − γ^{2T−2}) / (1 + γ); at T = 2
the printed form even vanishes. The functions below use the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]


class ExcessLoss(NamedTuple):
    """The two parts of the bound on the loss beyond the best possible."""

    shift: float
    learning_error: float

    @property
    def total(self) -> float:
        return self.shift + self.learning_error


def fine_tuning_weights(n_periods: int, gamma: float) -> Floats:
    """α of Theorem 1: γ^{T−1} for D_0 and (1 − γ) γ^{T−t−1} for D_t; the past fades exponentially.

    >>> fine_tuning_weights(3, 0.5)
    array([0.25, 0.25, 0.5 ])
    """
    t = np.arange(n_periods)
    weights = np.where(t == 0, gamma ** (n_periods - 1), (1 - gamma) * gamma ** (n_periods - t - 1.0))
    return weights.astype(np.float64)


def retraining_weights(sizes: Sequence[float]) -> Floats:
    """α of Theorem 2: each event counts the same, m_t / Σ m."""
    m = np.asarray(sizes, dtype=np.float64)
    return m / m.sum()


def excess_loss_bound(
    weights: Sequence[float] | Floats, sizes: Sequence[float], shifts: Sequence[float], *, delta: float = 0.05
) -> ExcessLoss:
    """The bound above, for any weights."""
    alpha, m, d = (np.asarray(x, dtype=np.float64) for x in (weights, sizes, shifts))
    shift = 2 * float(alpha @ d)
    learning_error = 4 * float(np.sqrt((alpha**2 * np.log(m) / m).sum() * np.log(2 / delta)))
    return ExcessLoss(shift, learning_error)


def sufficient_fairness_weight(grad_rec: Floats, grad_dpd: Floats) -> float:
    """The λ of Proposition 1's proof: −2 ⟨∇L_rec, ∇DPD⟩ / ‖∇DPD‖².

    Where L_rec causes unfairness (⟨∇L_rec, ∇DPD⟩ ≤ 0), a small gradient step on
    L_rec + λ L_fair with this λ moves DPD towards 0, whatever its sign.
    """
    return float(-2 * (grad_rec @ grad_dpd) / (grad_dpd @ grad_dpd))
