"""The largest gap of a group behind the rest, for any number of groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fairstream.errors import ConfigurationError
from fairstream.objectives.disparity import Disparity
from fairstream.objectives.fairness import FAIRNESS_LOSSES, FairnessLoss, Surrogate, SurrogateLoss, check_surrogate
from fairstream.objectives.statistics import RunningDisparity, check_decay


def largest_gap_loss(disparity: Disparity, softness: float) -> Tensor:
    """L = T log 1/G Σ_g exp(−DPD_g / T): a smooth maximum of how far each group is behind the rest.

    Its gradient is Σ_g w_g ∇(−DPD_g) with w = softmax(−DPD / T): the groups furthest behind are raised against the
    rest, the others are left alone. It is 0 where no group is behind, and there its gradient is 0.

    >>> from fairstream.objectives import differentiable_disparity
    >>> three = differentiable_disparity(torch.tensor([0.5, 0.5, 0.2]), torch.tensor([0, 1, 2]), 3)
    >>> largest_gap_loss(three, 0.001)
    tensor(0.2989)
    """
    dpd, is_defined = disparity
    n = is_defined.sum()
    behind = (-dpd / softness).masked_fill(~is_defined, -torch.inf)
    behind = torch.where(n > 0, behind, 0.0)  # log Σ of nothing has no gradient
    largest = softness * (behind.logsumexp(dim=0) - n.clamp(min=1).to(dpd.dtype).log())
    return torch.where(n > 0, largest, 0.0)


@dataclass(frozen=True)
class LargestGapLoss(SurrogateLoss):
    """Narrows the gap of the group that is furthest behind the rest, for any number of groups.

    The signed loss pushes every group by the same slope, whatever its gap, and for many groups these
    pushes cancel. This one asks who is behind and pushes there; who was declared advantaged has no
    part in it. For two groups it is T log cosh(DPD / T), |DPD| with a round bottom: it pulls
    whoever is behind up and whoever is ahead down, and lets go at 0.

    Parameters
    ----------
    surrogate, temperature
        What stands for the quality of a user's ranking, as in `DisparityLoss`.
    ema_decay
        Who is behind is judged by means accumulated across batches, in which an interaction counts
        this much compared with one of the next batch; 0: by each batch alone.
    softness
        T, in units of the surrogate: groups whose gaps differ by less are pushed nearly alike.

    Examples
    --------
    >>> scores, groups = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 2])
    >>> scores.requires_grad_()
    tensor([[2., 0.],
            [1., 0.],
            [0., 1.]], requires_grad=True)
    >>> LargestGapLoss()(scores, groups, torch.tensor([1.0, -1.0, -1.0])).backward()
    >>> scores.grad[:, 0].sign()  # the last group is behind: up with it
    tensor([ 1.,  1., -1.])

    """

    surrogate: Surrogate = "hit"
    temperature: float = 3.0
    ema_decay: float = 0.95
    softness: float = 0.02
    statistics: RunningDisparity | None = None
    """Of one training; `start` makes them."""

    def __post_init__(self) -> None:
        check_surrogate(self.surrogate, self.temperature)
        check_decay(self.ema_decay)
        if not self.softness > 0:
            raise ConfigurationError(f"softness must be > 0, got {self.softness}")

    def __call__(self, scores: Tensor, groups: Tensor, signs: Tensor) -> Tensor:
        return largest_gap_loss(self.disparity(scores, groups, len(signs)), self.softness)


def _make(
    *, temperature: float, surrogate: Surrogate, ema_decay: float = LargestGapLoss.ema_decay, **_: object
) -> FairnessLoss:
    return LargestGapLoss(surrogate, temperature, ema_decay)


FAIRNESS_LOSSES.register("largest", _make)
