"""Recommendation losses: Bayesian personalised ranking, and softmax over sampled or all items."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fairstream.registry import Registry

Loss = Callable[..., Tensor]
"""scores (B, 1 + n) with the positive in column 0 → scalar.

A loss with an attribute `candidates = "all"` gets (scores (B, n_items), positives (B,), weights (B,)) instead:
the scores of all items, the column of the positive, and the weight of each interaction (1 on average)."""


def bpr_loss(scores: Tensor) -> Tensor:
    """L_rec = −1/|B| Σ_(u,i) 1/n Σ_i' log σ(s_ui − s_ui')   (Section 3.2).

    scores (B, 1 + n), column 0 is the positive → scalar.

    >>> bpr_loss(torch.tensor([[1.0, 1.0]]))
    tensor(0.6931)
    """
    margins = scores[:, :1] - scores[:, 1:]  # (B, n)
    return F.softplus(-margins).mean()  # −log σ(x) = softplus(−x), finite for any x


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

MEAN_LOSSES = (bpr_loss, sampled_softmax_loss, softmax_loss)  # a batch can be divided or padded

LOSSES: Registry[Loss] = Registry("loss")  # recommendation losses by name
LOSSES.register("bpr", bpr_loss)
LOSSES.register("sampled-softmax", sampled_softmax_loss)
LOSSES.register("softmax", softmax_loss)


def against_all_others(scores: Tensor, positives: Tensor) -> Tensor:
    """Return (B, 2): the positive's score, and log Σ e^s of all other items, as if they were one.

    The softmax of the two is the positive's probability among all items.

    >>> against_all_others(torch.zeros(1, 5), torch.tensor([2])).softmax(dim=1)
    tensor([[0.2000, 0.8000]])
    """
    positive = scores.gather(1, positives[:, None]).squeeze(1)
    total = scores.logsumexp(dim=1)
    # Log of the positive's probability, kept below 0: log of (1 − probability) must stay finite.
    share = (positive - total).clamp(max=-torch.finfo(scores.dtype).eps)
    return torch.stack([positive, total + torch.log(-torch.expm1(share))], dim=1)


def positive_log_likelihood(scores: Tensor) -> Tensor:
    """(B, 1 + n) with the positive in column 0 → (B,) the log of its softmax probability."""
    return scores[:, 0] - scores.logsumexp(dim=1)
