"""Surrogates of NDCG that the paper compares with its differentiable hit."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from fairstream.objectives import SURROGATES, relaxed_permutation

N_ROUNDS: Final = 50
"""The largest number that NeuralNDCG's authors use. A test for an early stop would make the host wait for the device,
and a recorded graph cannot contain one. Where entries close to 0 make the scaling slow, the
columns of a P̂ of up to 41 candidates are within 0.02 of 1 after these rounds; rows are scaled last and sum to 1."""
MIN_SUM: Final = 1e-10
"""Rows and columns of P̂ sum to 1/N or more; but where scores are so huge next to τ that their differences are rounding,
a column may be all 0. A smaller sum than this is not divided by."""


def doubly_stochastic(matrix: Tensor, *, n_rounds: int = N_ROUNDS) -> Tensor:
    """Divide the columns, then the rows, of (..., N, N) numbers ≥ 0 by their sums, round after round (Sinkhorn).

    >>> doubly_stochastic(torch.tensor([[1.0, 1.0], [1.0, 4.0]]))
    tensor([[0.6667, 0.3333],
            [0.3333, 0.6667]])
    """
    for _ in range(n_rounds):
        for dim in (-2, -1):
            total = matrix.sum(dim=dim, keepdim=True)
            matrix = matrix / torch.where(total > MIN_SUM, total, 1.0)
    return matrix


def positive_neural_ndcg(scores: Tensor, *, tau: float) -> Tensor:
    """NDCG ≈ Σ_r scale(P̂)_{r1} / log₂(r + 1) over all ranks r   (Pobrotyn and Białobrzeski 2021).

    Candidates {i} ∪ N'_ui, the positive in column 0: (..., 1 + μ) → (...). With one positive, maxDCG is 1.

    >>> positive_neural_ndcg(torch.tensor([2.0, 1.0, 3.0]), tau=0.01)
    tensor(0.6309)
    """
    p = doubly_stochastic(relaxed_permutation(scores, tau=tau))
    ranks = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype, device=scores.device)
    return (p[..., 0] * (1.0 / torch.log2(1 + ranks))).sum(dim=-1)


def positive_approx_ndcg(scores: Tensor, *, tau: float) -> Tensor:
    """NDCG ≈ 1 / log₂(1 + r),  r = 1 + Σ_j σ((s_j − s_0) / τ)   (Qin et al. 2010); candidates as above.

    >>> positive_approx_ndcg(torch.tensor([2.0, 1.0, 3.0]), tau=3.0)
    tensor(0.6309)
    """
    rank = 1 + torch.sigmoid((scores[..., 1:] - scores[..., :1]) / tau).sum(dim=-1)
    return 1 / torch.log2(1 + rank)


SURROGATES.register("neural-ndcg", positive_neural_ndcg)
SURROGATES.register("approx-ndcg", positive_approx_ndcg)
