"""Ranking metrics, user by user, from which of the top k were hits.

`hits` is (U, k) of 0 and 1 in ranked order; `n_positives` is (U,), what there was to find.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fairstream.registry import Registry

Metric = Callable[..., Tensor]
METRICS: Registry[Metric] = Registry("metric")
"""Metrics by name."""


def dcg(hits: Tensor) -> Tensor:
    """Σ_r hit_r / log₂(r + 1)."""
    return (hits * _discounts(hits.shape[1], hits)).sum(dim=1)


def true_ndcg(hits: Tensor, n_positives: Tensor) -> Tensor:
    """DCG over that of the best possible list, which has min(k, positives) hits in front.

    >>> true_ndcg(torch.tensor([[1.0, 0.0]]), torch.tensor([2]))
    tensor([0.6131])
    """
    return _over_ideal(hits, n_positives)


def retrieved_ndcg(hits: Tensor, n_positives: Tensor) -> Tensor:
    """DCG over that of the best order of the hits that were retrieved: the paper's NDCG.

    One hit at rank 1 scores 1, however many were missed.

    >>> retrieved_ndcg(torch.tensor([[1.0, 0.0]]), torch.tensor([2]))
    tensor([1.])
    """
    return _over_ideal(hits, hits.sum(dim=1))


def recall(hits: Tensor, n_positives: Tensor) -> Tensor:
    """Hits / positives: how much of what there was to find was found."""
    return hits.sum(dim=1) / n_positives


def precision(hits: Tensor, n_positives: Tensor) -> Tensor:
    """Hits / k: how much of the list was worth its place."""
    return hits.sum(dim=1) / hits.shape[1]


def hit(hits: Tensor, n_positives: Tensor) -> Tensor:
    """1 if anything was found, else 0."""
    return hits.amax(dim=1)


def mrr(hits: Tensor, n_positives: Tensor) -> Tensor:
    """1 / rank of the first hit, 0 where there is none.

    >>> mrr(torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]), torch.tensor([2, 2]))
    tensor([0.5000, 0.0000])
    """
    ranks = torch.arange(1, hits.shape[1] + 1, dtype=hits.dtype, device=hits.device)
    return (hits / ranks).amax(dim=1)


def f1(hits: Tensor, n_positives: Tensor) -> Tensor:
    """The harmonic mean of precision (hits / k) and recall (hits / positives) = 2 hits / (k + positives).

    >>> f1(torch.tensor([[1.0, 0.0]]), torch.tensor([2]))
    tensor([0.5000])
    """
    return 2 * hits.sum(dim=1) / (hits.shape[1] + n_positives)


def _over_ideal(hits: Tensor, n_ideal: Tensor) -> Tensor:
    k = hits.shape[1]
    best = torch.cat([hits.new_zeros(1), _discounts(k, hits).cumsum(0)])
    ideal = best[n_ideal.long().clamp(max=k)]
    return torch.where(ideal > 0, dcg(hits) / ideal.clamp(min=0.1), 0.0)


def _discounts(k: int, like: Tensor) -> Tensor:
    return 1.0 / torch.log2(torch.arange(2, k + 2, dtype=like.dtype, device=like.device))
