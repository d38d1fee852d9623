"""Differentiable Hit."""

from __future__ import annotations

from torch import Tensor

from fairstream.objectives.neural_sort import relaxed_permutation


def differentiable_hit(scores: Tensor, relevance: Tensor, *, k: int, tau: float) -> Tensor:
    """DH(C; k) = P̂[k, :] · Y   (Section 3.3): the soft chance that the k-th ranked item is relevant.

    scores (..., N), relevance (..., N) of 0 and 1 → (...).

    >>> import torch
    >>> s, y = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0.0, 1.0, 0.0])
    >>> differentiable_hit(s, y, k=1, tau=1e-3), differentiable_hit(s, y, k=2, tau=1e-3)
    (tensor(1.), tensor(0.))
    """
    return differentiable_hits(scores, relevance, n_ranks=k, tau=tau)[..., -1]


def differentiable_hits(scores: Tensor, relevance: Tensor, *, n_ranks: int, tau: float) -> Tensor:
    """DH(C; 1) … DH(C; n_ranks): (..., n_ranks)."""
    p_hat = relaxed_permutation(scores, tau=tau, n_rows=n_ranks)
    return (p_hat * relevance.unsqueeze(-2)).sum(dim=-1)


def positive_hit(scores: Tensor, *, tau: float) -> Tensor:
    """DH(C_ui; 1) for candidates {i} ∪ N'_ui with the positive in column 0: (..., 1 + μ) → (...)."""
    return relaxed_permutation(scores, tau=tau, n_rows=1)[..., 0, 0]
