"""Differentiable performance disparity, of each group to the rest."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Disparity(NamedTuple):
    """DPD of each group, and which groups it can be told of."""

    dpd: Tensor
    """(G,)"""
    is_defined: Tensor
    """(G,) whether the batch has users of the group and users of the rest; if not, dpd is void."""


def differentiable_disparity(dh: Tensor, groups: Tensor, n_groups: int = 2) -> Disparity:
    """DPD_g = mean of DH over {B | a = g} − mean of DH over {B | a ≠ g}   (Section 3.4, each group to the rest).

    dh (B,), groups (B,) of codes → (G,). For two groups this is the paper's DPD for code 0 and
    −DPD for code 1, exactly. Interactions of users whose group is not known have no part in it.

    >>> differentiable_disparity(torch.tensor([0.9, 0.7, 0.5]), torch.tensor([0, 0, 1])).dpd
    tensor([ 0.3000, -0.3000])
    """
    codes = torch.arange(n_groups, dtype=groups.dtype, device=groups.device)
    inside = groups[:, None] == codes  # (B, G)
    outside = (groups >= 0)[:, None] & ~inside
    (mean_inside, n_inside), (mean_outside, n_outside) = _means(dh, inside), _means(dh, outside)
    return Disparity(mean_inside - mean_outside, (n_inside > 0) & (n_outside > 0))


def _means(values: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of `values` over each column's members, and their number."""
    weight = members.to(values.dtype)
    n = weight.sum(dim=0)
    return (values[:, None] * weight).sum(dim=0) / n.clamp(min=1), n
