"""Softmax cross-entropy, over sampled negatives or over all items."""

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


def softmax_loss(scores: Tensor) -> Tensor:
    """The same with all items of the catalogue as candidates."""
    return sampled_softmax_loss(scores)


softmax_loss.candidates = "all"  # type: ignore[attr-defined]
