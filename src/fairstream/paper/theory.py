"""The theorems of Section 3.1 and Proposition 1 as functions.

Both theorems are one bound (the paper's Corollary in Appendix A) with two ways to weigh the past.
With weights α_t over D_0 … D_{T−1} that sum to 1, sizes m_t and distribution shifts d_t = d_{t,T}, the
excess loss on the next period T is, with probability at least 1 − δ, at most

    2 Σ_t α_t d_t  +  4 ς √( Σ_t α_t² · log(m_t) / m_t · log(2 / δ) ).
     (shift)           (learning error)

`excess_loss_bound` computes it for any weights: Theorem 1 is the bound with `fine_tuning_weights`, Theorem 2 the bound
with `retraining_weights`. Two things differ from the print:

- The paper's closed form of the second term for fine-tuning, (1 + γ)(1 − γ^{2T−4}) / (1 − γ), is not
  the sum Σ_{t≥1} α_t² that its proof arrives at, which is (1 − γ)(1 − γ^{2T−2}) / (1 + γ); at T = 2
  the printed form even vanishes. The functions below use the sum.
- The proof bounds how far Σ_t α_t sup_W |L^{D_t}(W) − L_t(W)| lies above its mean, and takes that mean for
  0. It is a Rademacher complexity, positive for any rich class of models, so the learning error is what
  chance adds to the mean, and not the whole price of learning from few events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fairstream import ConfigurationError

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
    if not 0 < gamma < 1:
        raise ConfigurationError(f"gamma, the share that fine-tuning retains, must be between 0 and 1, got {gamma:g}")
    t = np.arange(1, n_periods)
    return np.concatenate([[gamma ** (n_periods - 1.0)], (1 - gamma) * gamma ** (n_periods - t - 1.0)])


def retraining_weights(sizes: Sequence[float] | Floats) -> Floats:
    """α of Theorem 2: each event counts the same, m_t / Σ m.

    >>> retraining_weights([300, 100])
    array([0.75, 0.25])
    """
    m = np.asarray(sizes, dtype=np.float64)
    return m / m.sum()


def excess_loss_bound(
    weights: Sequence[float] | Floats,
    sizes: Sequence[float] | Floats,
    shifts: Sequence[float] | Floats,
    *,
    delta: float = 0.05,
    scale: float = 1.0,
) -> ExcessLoss:
    """Compute the bound above from α_t, m_t and d_t of the periods so far   (Corollary in Appendix A).

    It holds with probability 1 − `delta`. `scale` is ς of Assumption 3, in the unit of the loss; the paper
    rescales its loss so that it is 1.

    >>> round(excess_loss_bound([0.5, 0.5], [1000, 1000], [0.1, 0.02]).shift, 4)
    0.12
    """
    alpha, m, d = (np.asarray(x, dtype=np.float64) for x in (weights, sizes, shifts))
    if not len(alpha) == len(m) == len(d) > 0:
        raise ConfigurationError(
            f"every period has a weight, a size and a shift, got {len(alpha)}, {len(m)} and {len(d)} of them"
        )
    if (alpha < 0).any() or abs(alpha.sum() - 1) > 1e-6:
        raise ConfigurationError(f"weights must be 0 or more and sum to 1, got a sum of {alpha.sum():g}")
    if not (m >= 2).all() or not (d >= 0).all():
        raise ConfigurationError("every period has at least 2 events and a shift of 0 or more")
    if not 0 < delta < 1 or not scale >= 0:
        raise ConfigurationError(f"delta must be between 0 and 1 and scale 0 or more, got {delta:g} and {scale:g}")
    shift = 2 * float(alpha @ d)
    learning_error = 4 * scale * float(np.sqrt((alpha**2 * np.log(m) / m).sum() * np.log(2 / delta)))
    return ExcessLoss(shift, learning_error)


def sufficient_fairness_weight(grad_rec: Floats, grad_dpd: Floats) -> float:
    """The λ of Proposition 1's proof: −2 ⟨∇L_rec, ∇DPD⟩ / ‖∇DPD‖².

    Where L_rec causes unfairness (⟨∇L_rec, ∇DPD⟩ ≤ 0), a small gradient step on
    L_rec + λ L_fair with this λ moves DPD towards 0, whatever its sign.

    >>> sufficient_fairness_weight(np.array([1.0, 1.0]), np.array([-1.0, 0.0]))
    2.0
    """
    return float(-2 * (grad_rec @ grad_dpd) / (grad_dpd @ grad_dpd))
