"""L = L_rec + λ L_fair. Home of the fairness weight λ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from fairstream.errors import ModelError
from fairstream.objectives.bpr import bpr_loss
from fairstream.objectives.fairness import DisparityLoss, FairnessLoss
from fairstream.objectives.softmax import sampled_softmax_loss, softmax_loss
from fairstream.registry import Registry

Loss = Callable[[Tensor], Tensor]
"""scores (B, 1 + n) with the positive in column 0 → scalar.

A loss with an attribute `candidates = "all"` is given all items instead of n sampled negatives."""

LOSSES: Registry[Loss] = Registry("loss")
"""Recommendation losses by name."""
for _name, _loss in {"bpr": bpr_loss, "sampled-softmax": sampled_softmax_loss, "softmax": softmax_loss}.items():
    LOSSES.register(_name, _loss)


@dataclass(frozen=True)
class Objective:
    """The loss of one batch (Algorithm 1).

    The negatives of L_rec (n of them) and of L_fair (μ) are the first n and the first μ of one
    shared draw of max(n, μ).
    """

    lambda_: float
    n: int
    mu: int
    loss: Loss = bpr_loss
    fairness: FairnessLoss = field(default_factory=DisparityLoss)

    @property
    def n_drawn(self) -> int:
        """Negatives to draw for each interaction."""
        return max(self.n, self.mu)

    @property
    def is_fair(self) -> bool:
        """Whether there is a fairness loss at all; with λ = 0 it is not even computed."""
        return self.lambda_ > 0

    @property
    def needs_all_items(self) -> bool:
        """Whether the recommendation loss ranks the positive among all items."""
        return getattr(self.loss, "candidates", "sampled") == "all"

    def __call__(
        self,
        scores: Tensor,
        groups: Tensor,
        signs: Tensor,
        *,
        has_two_groups: bool,
        all_scores: Tensor | None = None,
    ) -> Tensor:
        """The loss of B interactions.

        Parameters
        ----------
        scores
            (B, 1 + max(n, μ)) with the positive in column 0.
        groups
            (B,) codes.
        signs
            (G,) +1 for a group that is ahead, −1 for one that is behind.
        has_two_groups
            Whether the batch has users of two groups; one that has not trains on L_rec alone.
        all_scores
            (B, 1 + n_items) likewise over all items, for a loss that needs them.

        """
        l_rec = self.loss(scores[:, : 1 + self.n] if all_scores is None else all_scores)
        if l_rec.dim() != 0:
            raise ModelError(f"a loss must return one number, got a tensor of shape {tuple(l_rec.shape)}")
        if not (self.is_fair and has_two_groups):
            return l_rec
        return l_rec + self.lambda_ * self.fairness(scores[:, : 1 + self.mu], groups, signs)
