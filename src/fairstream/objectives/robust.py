"""Distributionally robust losses: the likelihood of the worst group, or of the worst interactions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fairstream.errors import ConfigurationError
from fairstream.objectives.fairness import FAIRNESS_LOSSES, FairnessLoss
from fairstream.objectives.softmax import positive_log_likelihood
from fairstream.objectives.statistics import RunningMeans, check_decay


class GroupWeights:
    """q_g ∝ exp(θ_g): the adversary's weights of the groups, by exponentiated gradient ascent.

        θ_g ← θ_g + η (ℓ̂_g − mean of ℓ̂ over the groups seen so far)

    ℓ̂ are running means of the groups' losses, so that a group which a batch does not show goes on counting by
    what was last known of it (as in Streaming DRO). Without the running means this is Group DRO's
    q_g ← q_g exp(η ℓ_g), normalised; a group that is seen for the first time begins with the mean weight.
    """

    def __init__(self, n_groups: int, step_size: float, decay: float, device: torch.device) -> None:
        self._losses, self._step_size = RunningMeans(n_groups, decay, device), step_size
        self.theta = torch.zeros(n_groups, dtype=torch.float64, device=device)
        """(G,)"""

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
    The weights q rise, batch by batch, for the groups whose loss is high; see `GroupWeights`. Nothing
    pulls a group down: the loss of the worst is lowered, not the quality of the best.

    Parameters
    ----------
    step_size
        η, how fast the weights follow the losses.
    ema_decay
        Of the running means of the groups' losses; 0: those of each batch alone.

    Examples
    --------
    >>> scores, groups = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
    >>> GroupDROLoss(step_size=0.0)(scores, groups, torch.tensor([1.0, -1.0]))
    tensor(0.5032)

    """

    step_size: float = 0.01
    ema_decay: float = 0.95
    weights: GroupWeights | None = None
    """Of one training; `start` makes them."""
    candidates: ClassVar[Literal["as-loss"]] = "as-loss"
    needs_two_groups: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.step_size >= 0:
            raise ConfigurationError(f"step_size must be >= 0, got {self.step_size}")
        check_decay(self.ema_decay)

    def start(self, n_groups: int, device: torch.device) -> GroupDROLoss:
        """The loss of one training, with weights of its own."""
        return replace(self, weights=GroupWeights(n_groups, self.step_size, self.ema_decay, device))

    def __call__(self, scores: Tensor, groups: Tensor, signs: Tensor) -> Tensor:
        if self.weights is None:
            return self.start(len(signs), scores.device)(scores, groups, signs)
        losses = -positive_log_likelihood(scores)  # (B,)
        q = self.weights.update(losses.detach(), groups).to(losses.dtype)
        inside = (groups[:, None] == torch.arange(len(q), dtype=groups.dtype, device=groups.device)).to(losses.dtype)
        share = (inside * (q / inside.sum(dim=0).clamp(min=1))).sum(dim=1)  # (B,) q_g / |B_g|; 0 of unknown group
        return (share * losses).sum()


@dataclass(frozen=True)
class CVaRLoss:
    """L = the mean negative log-likelihood of the worst share α of the interactions of a batch.

    The conditional value at risk at level 1 − α, in its dual form max Σ_i w_i ℓ_i over 0 ≤ w_i ≤ 1 / (α B),
    Σ w_i = 1. It needs no group: whoever is served worst counts, also those whose group is not known. The
    likelihood is among all items where the recommendation loss is, else among the sampled negatives.

    Parameters
    ----------
    share
        α; 1 is the mean over all interactions.

    Examples
    --------
    >>> scores = torch.tensor([[0.0, 0.0], [5.0, 0.0], [5.0, 0.0], [5.0, 0.0]])
    >>> CVaRLoss(0.25)(scores, torch.tensor([-1, -1, -1, -1]), torch.tensor([1.0, -1.0]))
    tensor(0.6931)

    """

    share: float = 0.2
    candidates: ClassVar[Literal["as-loss"]] = "as-loss"
    needs_two_groups: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigurationError(f"share must be > 0 and <= 1, got {self.share}")

    def __call__(self, scores: Tensor, groups: Tensor, signs: Tensor) -> Tensor:
        losses = (-positive_log_likelihood(scores)).sort(descending=True).values  # (B,)
        n_worst = self.share * len(losses)  # the last of them may count in part
        before = torch.arange(len(losses), dtype=losses.dtype, device=losses.device)
        return (losses * (n_worst - before).clamp(0, 1)).sum() / n_worst


def _group_dro(
    *, step_size: float = GroupDROLoss.step_size, ema_decay: float = GroupDROLoss.ema_decay, **_: object
) -> FairnessLoss:
    return GroupDROLoss(step_size, ema_decay)


def _cvar(*, share: float = CVaRLoss.share, **_: object) -> FairnessLoss:
    return CVaRLoss(share)


FAIRNESS_LOSSES.register("group-dro", _group_dro)
FAIRNESS_LOSSES.register("cvar", _cvar)
