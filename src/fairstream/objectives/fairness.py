"""The fairness losses."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from fairstream.objectives.disparity import Disparity

FairnessLoss = Literal["signed", "absolute"]


def fairness_loss(disparity: Disparity, signs: Tensor, kind: FairnessLoss = "signed") -> Tensor:
    """L_fair = mean over the groups of −log σ(−a_g DPD_g), or of −log σ(−|DPD_g|)   (Section 3.4).

    signs (G,) holds a_g: +1 for a group that is ahead, which the loss pulls down to the rest, and
    −1 for one that is behind, which it pulls up. For two groups both terms are the paper's
    −log σ(−DPD), and so is their mean.

    The signed loss pushes a disadvantaged group up as long as it is behind and lets go smoothly
    once it is ahead (Proposition 1); the absolute one has a kink at 0. Groups that the batch does
    not show are left out of the mean; at least one must be there.

    >>> import torch
    >>> from fairstream.objectives import differentiable_disparity
    >>> two, signs = differentiable_disparity(torch.tensor([0.0, 0.5]), torch.tensor([0, 1])), torch.tensor([1.0, -1.0])
    >>> fairness_loss(two, signs), fairness_loss(two, signs, "absolute")
    (tensor(0.4741), tensor(0.9741))
    """
    dpd, is_defined = disparity
    terms = F.softplus(signs * dpd if kind == "signed" else dpd.abs())  # −log σ(−x) = softplus(x)
    weight = is_defined.to(terms.dtype)
    return (terms * weight).sum() / weight.sum()
