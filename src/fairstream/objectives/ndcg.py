"""Differentiable NDCG@K from Differentiable Hit, and what every NDCG shares: discounts and the best DCG."""

from __future__ import annotations

import torch
from torch import Tensor

from fairstream.objectives.hit import differentiable_hits


def differentiable_ndcg(scores: Tensor, relevance: Tensor, *, k: int, tau: float) -> Tensor:
    """NDCG@K ≈ 1/maxDCG Σ_{r ≤ K} DH(C; r) / log₂(r + 1)   (Section 3.3), list by list.

    scores (..., N), relevance (..., N) of 0 and 1 → (...); a list with nothing relevant gives 0.

    >>> s, y = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0.0, 0.0, 1.0])
    >>> differentiable_ndcg(s, y, k=2, tau=0.01)
    tensor(0.6309)
    """
    k = min(k, scores.shape[-1])
    hits = differentiable_hits(scores, relevance, n_ranks=k, tau=tau)  # (..., K)
    return normalize_dcg((hits * discounts(k, like=scores)).sum(dim=-1), relevance, k=k)


def discounts(k: int, *, like: Tensor) -> Tensor:
    """1 / log₂(r + 1) of the ranks r = 1 … k: (k,)."""
    return 1.0 / torch.log2(torch.arange(2, k + 2, dtype=like.dtype, device=like.device))


def normalize_dcg(dcg: Tensor, relevance: Tensor, *, k: int) -> Tensor:
    """NDCG@k from DCG@k: over the DCG of the best order, or 0 where nothing is relevant."""
    discount = discounts(k, like=dcg)
    best = relevance.sort(dim=-1, descending=True).values[..., :k]
    max_dcg = (best * discount).sum(dim=-1)
    return torch.where(max_dcg > 0, dcg / max_dcg.clamp(min=discount[-1]), 0.0)
