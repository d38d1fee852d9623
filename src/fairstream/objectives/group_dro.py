"""Group DRO: the likelihood of the worst group."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fairstream.configuration import check_number
from fairstream.objectives.fairness import DECAY, FAIRNESS_LOSSES, RunningMeans, check_weight
from fairstream.objectives.recommendation import positive_log_likelihood


class GroupWeights:
    """q_g ∝ exp(θ_g): the adversary's weights of the groups, by exponentiated gradient ascent.

        θ_g ← θ_g + η (ℓ̂_g − mean of ℓ̂ over the groups seen so far)

    ℓ̂ are running means of the groups' losses, so that a group that is not in a batch still counts by its
    last mean (as in Streaming DRO). Without the running means this is Group DRO's q_g ← q_g exp(η ℓ_g),
    normalised. A group starts with the mean weight.
    """

    def __init__(self, n_groups: int, step_size: float, device: torch.device, decay: float = DECAY) -> None:
        self._losses, self._step_size = RunningMeans(n_groups, device, decay), step_size
        self.theta = torch.zeros(n_groups, dtype=torch.float64, device=device)  # (G,)

    @torch.no_grad()
    def update(self, losses: Tensor, groups: Tensor) -> Tensor:
        """Weights (G,) that sum to 1 over the groups seen so far, after a batch of losses (B,)."""
        self._losses.update(losses, groups)
        seen, mean = self._losses.n > 0, self._losses.mean
        centre = torch.where(seen, mean, 0.0).sum() / seen.sum().clamp(min=1)
        self.theta.add_(torch.where(seen, self._step_size * (mean - centre), 0.0))
        masked = torch.where(seen.any(), self.theta.masked_fill(~seen, -torch.inf), self.theta)
        return masked.softmax(dim=0)


@dataclass(frozen=True)
class GroupDROLoss:
    """L = Σ_g q_g ℓ_g: the mean negative log-likelihood of each group, weighted by an adversary   (Sagawa et al. 2020).

    The likelihood is among all items where the recommendation loss is, else among the sampled negatives.
    The weights q rise, batch by batch, for the groups whose loss is high; see `GroupWeights`. It lowers
    the loss of the worst group and does not push the best one down.

    Parameters
    ----------
    step_size
        η, how fast the weights follow the losses.
    weight, n_negatives
        λ and μ, as in `DisparityLoss`.

    Examples
    --------
    >>> scores, groups = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
    >>> GroupDROLoss(step_size=0.0)(scores, groups, torch.tensor([1.0, -1.0]))
    tensor(0.5032)

    """

    step_size: float = 0.01
    weight: float = 0.5
    n_negatives: int = 4
    name: ClassVar[str] = "group-dro"
    weights: GroupWeights | None = field(default=None, repr=False)  # of one training; `start` makes them
    candidates: ClassVar[Literal["as-loss"]] = "as-loss"
    needs_two_groups: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_weight(self.weight, self.n_negatives)
        check_number("step_size", self.step_size)

    def start(self, n_groups: int, device: torch.device) -> GroupDROLoss:
        """Return the loss of one training, with its own weights."""
        return replace(self, weights=GroupWeights(n_groups, self.step_size, device))

    def __call__(self, scores: Tensor, groups: Tensor, signs: Tensor) -> Tensor:
        if self.weights is None:
            return self.start(len(signs), scores.device)(scores, groups, signs)
        losses = -positive_log_likelihood(scores)  # (B,)
        q = self.weights.update(losses.detach(), groups).to(losses.dtype)
        inside = (groups[:, None] == torch.arange(len(q), dtype=groups.dtype, device=groups.device)).to(losses.dtype)
        share = (inside * (q / inside.sum(dim=0).clamp(min=1))).sum(dim=1)  # (B,) q_g / |B_g|; 0 of unknown group
        return (share * losses).sum()


FAIRNESS_LOSSES.register("group-dro", GroupDROLoss)
