"""NeuralNDCG: NDCG of a relaxed permutation that Sinkhorn scaling has made doubly stochastic."""

from __future__ import annotations

from torch import Tensor

from fairstream.objectives.ndcg import discounts, normalize_dcg
from fairstream.objectives.neural_sort import relaxed_permutation
from fairstream.objectives.sinkhorn import doubly_stochastic


def neural_ndcg(scores: Tensor, relevance: Tensor, *, k: int, tau: float) -> Tensor:
    """NDCG@k ≈ 1/maxDCG Σ_{r ≤ k} (scale(P̂) Y)_r / log₂(r + 1)   (Pobrotyn and Białobrzeski 2021), list by list.

    scores (..., N), relevance (..., N) of 0 and 1 → (...); a list with nothing relevant gives 0.

    >>> import torch
    >>> s, y = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0.0, 0.0, 1.0])
    >>> neural_ndcg(s, y, k=2, tau=0.01), neural_ndcg(s, y, k=3, tau=3.0)
    (tensor(0.6309), tensor(0.7066))
    """
    k = min(k, scores.shape[-1])
    p = doubly_stochastic(relaxed_permutation(scores, tau=tau))[..., :k, :]
    gains = (p * relevance.unsqueeze(-2)).sum(dim=-1)  # (..., k)
    return normalize_dcg((gains * discounts(k, like=scores)).sum(dim=-1), relevance, k=k)


def positive_neural_ndcg(scores: Tensor, *, tau: float) -> Tensor:
    """NeuralNDCG of candidates {i} ∪ N'_ui, all ranks, the positive in column 0: (..., 1 + μ) → (...)."""
    p = doubly_stochastic(relaxed_permutation(scores, tau=tau))
    return (p[..., 0] * discounts(scores.shape[-1], like=scores)).sum(dim=-1)  # maxDCG = 1
