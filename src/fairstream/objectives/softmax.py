"""Softmax cross-entropy, over a few negatives of each interaction or over all items."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def sampled_softmax_loss(scores: Tensor) -> Tensor:
    """L_rec = −1/|B| Σ_(u,i) log (e^{s_ui} / (e^{s_ui} + Σ_i' e^{s_ui'})).

    scores (B, 1 + n), column 0 is the positive → scalar.

    >>> sampled_softmax_loss(torch.tensor([[1.0, 1.0]]))
    tensor(0.6931)
    """
    return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))


def softmax_loss(scores: Tensor, positives: Tensor, weights: Tensor) -> Tensor:
    """The same with all items of the catalogue as candidates, each interaction weighted.

    scores (B, n_items), positives (B,) columns, weights (B,) of mean 1 → scalar.

    >>> softmax_loss(torch.zeros(1, 4), torch.tensor([2]), torch.ones(1))
    tensor(1.3863)
    """
    return (F.cross_entropy(scores, positives, reduction="none") * weights).mean()


softmax_loss.candidates = "all"  # type: ignore[attr-defined]


def against_all_others(scores: Tensor, positives: Tensor) -> Tensor:
    """(B, 2) the positive's score, and log Σ e^s of all other items: as if they were one.

    The softmax of the two is the positive's probability among all items.

    >>> against_all_others(torch.zeros(1, 5), torch.tensor([2])).softmax(dim=1)
    tensor([[0.2000, 0.8000]])
    """
    positive = scores.gather(1, positives[:, None]).squeeze(1)
    total = scores.logsumexp(dim=1)
    share = (positive - total).clamp(max=-torch.finfo(scores.dtype).eps)  # log of the positive's probability
    return torch.stack([positive, total + torch.log(-torch.expm1(share))], dim=1)


def positive_log_likelihood(scores: Tensor) -> Tensor:
    """(B, 1 + n) with the positive in column 0 → (B,) the log of its softmax probability."""
    return scores[:, 0] - scores.logsumexp(dim=1)


def positive_probability(scores: Tensor) -> Tensor:
    """(B, 1 + n) with the positive in column 0 → (B,) its softmax probability."""
    return positive_log_likelihood(scores).exp()
