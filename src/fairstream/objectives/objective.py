"""L = L_rec + λ L_fair. Home of the fairness weight λ."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fairstream.errors import ModelError
from fairstream.objectives.fairness import DisparityLoss, FairnessLoss
from fairstream.objectives.recommendation import (
    Loss,
    against_all_others,
    bpr_loss,
    factored_softmax_loss,
    softmax_loss,
)


class AmongAll(NamedTuple):
    """Each interaction ranked among all items, or among a weighted sample of them."""

    scores: Tensor  # (B, C)
    positives: Tensor  # (B,) the column of the positive
    weights: Tensor  # (B,) the weight of each interaction; 1 on average


class FactoredAmongAll(NamedTuple):
    """The same for scores that are inner products, which the softmax loss does not keep."""

    states: Tensor  # (B, d)
    rows: Tensor  # (n_items, d)
    bias: Tensor | None  # (n_items,)
    positives: Tensor  # (B,)
    weights: Tensor  # (B,)

    @property
    def scores(self) -> Tensor:
        """(B, n_items)"""
        return F.linear(self.states, self.rows, self.bias)


Ranked = AmongAll | FactoredAmongAll


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

    def start(self, n_groups: int, device: torch.device) -> Self:
        """Return the loss of one training, whose fairness loss may have state that lives across its batches."""
        start = getattr(self.fairness, "start", None)
        return self if not self.is_fair or start is None else replace(self, fairness=start(n_groups, device))

    @property
    def n_drawn(self) -> int:
        """Negatives to draw for each interaction."""
        for_loss = 0 if _ranks_all_items(self.loss) else self.n
        is_used = self.is_fair or for_loss > 0  # the draws of a sampled loss do not depend on λ
        return max(for_loss, self.mu if is_used and not self._is_fairness_among_all else 0)

    @property
    def is_fair(self) -> bool:
        """Whether there is a fairness loss; with λ = 0 it is not computed."""
        return self.lambda_ > 0

    def is_fair_on(self, *, has_two_groups: bool) -> bool:
        return self.is_fair and (has_two_groups or not getattr(self.fairness, "needs_two_groups", True))

    @property
    def is_weighted(self) -> bool:
        """Whether the recommendation loss takes weights of the interactions."""
        return _ranks_all_items(self.loss)

    @property
    def needs_all_items(self) -> bool:
        """Whether the positive is ranked among all items."""
        return _ranks_all_items(self.loss) or (self.is_fair and self._is_fairness_among_all)

    @property
    def _is_fairness_among_all(self) -> bool:
        follows = getattr(self.fairness, "candidates", "sampled") == "as-loss"
        return _ranks_all_items(self.loss if follows else self.fairness)

    def __call__(
        self,
        scores: Tensor,
        groups: Tensor,
        signs: Tensor,
        *,
        has_two_groups: bool,
        among_all: Ranked | None = None,
    ) -> Tensor:
        """Compute the loss of B interactions.

        scores (B, 1 + n_drawn) with the positive in column 0, groups (B,) of codes, signs (G,): +1 for a group that is
        ahead, −1 for one that is behind. A batch with users of one group trains on L_rec alone, unless the fairness
        loss does not need two groups. `among_all` holds the scores of all items if a loss needs them.
        """
        l_rec = self.recommendation(scores, among_all)
        if not self.is_fair_on(has_two_groups=has_two_groups):
            return l_rec
        return l_rec + self.lambda_ * self.fairness_of(scores, groups, signs, among_all)

    def recommendation(self, scores: Tensor, among_all: Ranked | None) -> Tensor:
        if isinstance(among_all, FactoredAmongAll) and self.loss is softmax_loss:
            return factored_softmax_loss(*among_all)
        if _ranks_all_items(self.loss):
            assert among_all is not None
            l_rec = self.loss(among_all.scores, among_all.positives, among_all.weights)
        else:
            l_rec = self.loss(scores[:, : 1 + self.n])
        return _one_number(l_rec, "a loss")

    def fairness_of(self, scores: Tensor, groups: Tensor, signs: Tensor, among_all: Ranked | None = None) -> Tensor:
        l_fair = self.fairness(self.fairness_scores(scores, among_all), groups, signs)
        return _one_number(l_fair, "a fairness loss")

    def fairness_scores(self, scores: Tensor, among_all: Ranked | None) -> Tensor:
        if not self._is_fairness_among_all:
            return scores[:, : 1 + self.mu]
        assert among_all is not None
        return against_all_others(among_all.scores, among_all.positives)


def _one_number(loss: Any, what: str) -> Tensor:
    """The loss as a tensor; raises a ModelError unless it is one number."""
    loss = torch.tensor(float(loss)) if isinstance(loss, float | int) else loss  # such as 0 for a batch of one group
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        raise ModelError(f"{what} must return one number, got {found}")
    return loss


def _ranks_all_items(part: object) -> bool:
    return getattr(part, "candidates", "sampled") == "all"
