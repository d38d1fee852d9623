"""The fairness losses."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

FairnessLoss = Literal["signed", "absolute"]


def fairness_loss(dpd: Tensor, kind: FairnessLoss = "signed") -> Tensor:
    """L_fair = −log σ(−DPD), or L_fair-abs = −log σ(−|DPD|)   (Section 3.4).

    The signed loss pushes the disadvantaged group up as long as it is behind and lets go
    smoothly once it is ahead (Proposition 1); the absolute one has a kink at 0.

    >>> import torch
    >>> fairness_loss(torch.tensor(-0.5)), fairness_loss(torch.tensor(-0.5), "absolute")
    (tensor(0.4741), tensor(0.9741))
    """
    return F.softplus(dpd if kind == "signed" else dpd.abs())  # −log σ(−x) = softplus(x)
