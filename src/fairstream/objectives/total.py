"""L = L_rec + λ L_fair. Home of the fairness weight λ."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fairstream.errors import ConfigurationError, ModelError
from fairstream.objectives.auto_weight import AutoWeight
from fairstream.objectives.bpr import bpr_loss
from fairstream.objectives.fairness import DisparityLoss, FairnessLoss, fairness_loss
from fairstream.objectives.softmax import against_all_others, sampled_softmax_loss, softmax_loss
from fairstream.registry import Registry

Loss = Callable[..., Tensor]
"""scores (B, 1 + n) with the positive in column 0 → scalar.

A loss with an attribute `candidates = "all"` is given (scores (B, n_items), positives (B,), weights (B,)) instead:
the scores of all items, which of them is the positive, and how much each interaction counts (1 on average)."""

LOSSES: Registry[Loss] = Registry("loss")
"""Recommendation losses by name."""
LOSSES.register("bpr", bpr_loss)
LOSSES.register("sampled-softmax", sampled_softmax_loss)
LOSSES.register("softmax", softmax_loss)

_TWO = 2


class AmongAll(NamedTuple):
    """Each interaction among all items, or among a weighted sample of them that stands for all."""

    scores: Tensor
    """(B, C)"""
    positives: Tensor
    """(B,) the column of the positive."""
    weights: Tensor
    """(B,) how much each interaction counts; 1 on average."""


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
    is_auto: bool = False
    """Whether λ is Proposition 1's, of each step, instead of `lambda_`."""
    auto_weight: AutoWeight | None = None
    """What computes it in one training; `start` makes it."""

    def start(self, parameters: Iterable[Tensor], n_groups: int, device: torch.device) -> Self:
        """The loss of one training, with a state of its own that lives across its batches, if there is any."""
        if not self.is_fair:
            return self
        changes: dict[str, object] = {}
        if self.is_auto:
            if n_groups > _TWO:
                raise ConfigurationError(
                    f"fairness_weight='auto' is Proposition 1's, for two groups; there are {n_groups}, so give a number"
                )
            if not isinstance(self.fairness, DisparityLoss):
                raise ConfigurationError(
                    "fairness_weight='auto' goes with the fairness losses signed and absolute; give a number"
                )
            changes["auto_weight"] = AutoWeight(parameters)
        start = getattr(self.fairness, "start", None)
        if start is not None:
            changes["fairness"] = start(n_groups, device)
        return replace(self, **changes) if changes else self  # type: ignore[arg-type]

    @property
    def n_drawn(self) -> int:
        """Negatives to draw for each interaction."""
        for_loss = 0 if _ranks_all_items(self.loss) else self.n
        is_used = self.is_fair or for_loss > 0  # the draws of a sampled loss do not depend on λ
        return max(for_loss, self.mu if is_used and not self._is_fairness_among_all else 0)

    @property
    def is_fair(self) -> bool:
        """Whether there is a fairness loss at all; with λ = 0 it is not even computed."""
        return self.is_auto or self.lambda_ > 0

    def is_fair_on(self, *, has_two_groups: bool) -> bool:
        """Whether a batch has a fairness loss."""
        return self.is_fair and (has_two_groups or not getattr(self.fairness, "needs_two_groups", True))

    @property
    def mean_weight(self) -> float:
        """The λ that was used, on average over the steps with a fairness loss."""
        return self.lambda_ if self.auto_weight is None else self.auto_weight.mean

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
        """Whether the fairness loss compares a positive with all items."""
        follows = getattr(self.fairness, "candidates", "sampled") == "as-loss"
        return _ranks_all_items(self.loss if follows else self.fairness)

    def __call__(
        self,
        scores: Tensor,
        groups: Tensor,
        signs: Tensor,
        *,
        has_two_groups: bool,
        among_all: AmongAll | None = None,
    ) -> Tensor:
        """The loss of B interactions.

        Parameters
        ----------
        scores
            (B, 1 + n_drawn) with the positive in column 0.
        groups
            (B,) codes.
        signs
            (G,) +1 for a group that is ahead, −1 for one that is behind.
        has_two_groups
            Whether the batch has users of two groups; one that has not trains on L_rec alone, unless
            the fairness loss wants it.
        among_all
            The scores of all items, where a loss needs them.

        """
        if _ranks_all_items(self.loss):
            assert among_all is not None
            l_rec = self.loss(*among_all)
        else:
            l_rec = self.loss(scores[:, : 1 + self.n])
        if l_rec.dim() != 0:
            raise ModelError(f"a loss must return one number, got a tensor of shape {tuple(l_rec.shape)}")
        if not self.is_fair_on(has_two_groups=has_two_groups):
            return l_rec
        if self.auto_weight is None:
            return l_rec + self.lambda_ * self.fairness_of(scores, groups, signs, among_all)
        assert isinstance(self.fairness, DisparityLoss)
        disparity = self.fairness.disparity(self.fairness_scores(scores, among_all), groups, len(signs))
        lambda_ = self.auto_weight(l_rec, signs[0] * disparity.dpd[0])
        return l_rec + lambda_ * fairness_loss(disparity, signs, self.fairness.kind)

    def fairness_of(self, scores: Tensor, groups: Tensor, signs: Tensor, among_all: AmongAll | None = None) -> Tensor:
        """L_fair alone."""
        return self.fairness(self.fairness_scores(scores, among_all), groups, signs)

    def fairness_scores(self, scores: Tensor, among_all: AmongAll | None) -> Tensor:
        """The scores that the fairness loss is of."""
        if not self._is_fairness_among_all:
            return scores[:, : 1 + self.mu]
        assert among_all is not None
        return against_all_others(among_all.scores, among_all.positives)


def _ranks_all_items(part: object) -> bool:
    return getattr(part, "candidates", "sampled") == "all"
