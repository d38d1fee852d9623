"""Bayesian personalised ranking with n negatives."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def bpr_loss(scores: Tensor) -> Tensor:
    """L_rec = −1/|B| Σ_(u,i) 1/n Σ_i' log σ(s_ui − s_ui')   (Section 3.2).

    scores (B, 1 + n), column 0 is the positive → scalar.

    >>> import torch
    >>> bpr_loss(torch.tensor([[1.0, 1.0]]))
    tensor(0.6931)
    """
    margins = scores[:, :1] - scores[:, 1:]  # (B, n)
    return F.softplus(-margins).mean()  # −log σ(x) = softplus(−x), finite for any x
