"""Differentiable performance disparity."""

from __future__ import annotations

from torch import Tensor

from fairstream.events import ADVANTAGED, DISADVANTAGED


def differentiable_disparity(dh: Tensor, groups: Tensor) -> Tensor:
    """DPD = mean of DH over {B | a = 0} − mean of DH over {B | a = 1}   (Section 3.4).

    dh (B,), groups (B,) of codes → scalar. Interactions of users whose group is not known have
    no part in it. Both groups must occur: with one of them absent there is no disparity to speak
    of and the result is NaN, so the caller looks first (`Objective` does).

    >>> import torch
    >>> differentiable_disparity(torch.tensor([0.9, 0.7, 0.5]), torch.tensor([0, 0, 1]))
    tensor(0.3000)
    """
    return _mean_over(dh, groups == ADVANTAGED) - _mean_over(dh, groups == DISADVANTAGED)


def _mean_over(values: Tensor, mask: Tensor) -> Tensor:
    weight = mask.to(values.dtype)
    return (values * weight).sum() / weight.sum()
