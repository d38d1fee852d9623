"""ApproxNDCG: NDCG of ranks that are counted softly."""

from __future__ import annotations

import torch
from torch import Tensor

from fairstream.objectives.ndcg import normalize_dcg


def approx_ndcg(scores: Tensor, relevance: Tensor, *, k: int, tau: float) -> Tensor:
    """NDCG@k ≈ 1/maxDCG Σ_i y_i / log₂(1 + r_i),  r_i = 1 + Σ_{j≠i} σ((s_j − s_i) / τ)   (Qin et al. 2010).

    scores (..., N), relevance (..., N) of 0 and 1 → (...); a list with nothing relevant gives 0. A
    k below N cuts softly too: an item counts by σ((k + ½ − r_i) / τ).

    >>> s, y = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0.0, 0.0, 1.0])
    >>> approx_ndcg(s, y, k=2, tau=0.01), approx_ndcg(s, y, k=3, tau=3.0)
    (tensor(0.6309), tensor(0.6309))
    """
    n = scores.shape[-1]
    behind = torch.sigmoid((scores.unsqueeze(-2) - scores.unsqueeze(-1)) / tau)  # (..., i, j): how far j is before i
    ranks = 0.5 + behind.sum(dim=-1)  # j = i adds the other ½
    gains = relevance / torch.log2(1 + ranks)
    if k < n:
        gains = gains * torch.sigmoid((k + 0.5 - ranks) / tau)
    return normalize_dcg(gains.sum(dim=-1), relevance, k=min(k, n))


def positive_approx_ndcg(scores: Tensor, *, tau: float) -> Tensor:
    """ApproxNDCG of candidates {i} ∪ N'_ui, all ranks, the positive in column 0: (..., 1 + μ) → (...)."""
    rank = 1 + torch.sigmoid((scores[..., 1:] - scores[..., :1]) / tau).sum(dim=-1)
    return 1 / torch.log2(1 + rank)  # maxDCG = 1
