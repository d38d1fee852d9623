"""L = L_rec + λ L_fair. Home of the fairness weight λ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fairstream.objectives.approx_ndcg import positive_approx_ndcg
from fairstream.objectives.bpr import bpr_loss
from fairstream.objectives.disparity import differentiable_disparity
from fairstream.objectives.fairness import FairnessLoss, fairness_loss
from fairstream.objectives.hit import positive_hit
from fairstream.objectives.neural_ndcg import positive_neural_ndcg

Surrogate = Literal["hit", "neural-ndcg", "approx-ndcg"]
"""What stands for the quality of a user's ranking in L_fair."""

_FIRST_ITEM = {
    "hit": positive_hit,
    "neural-ndcg": positive_neural_ndcg,
    "approx-ndcg": positive_approx_ndcg,
}


@dataclass(frozen=True)
class Objective:
    """The loss of one batch (Algorithm 1).

    The negatives of L_rec (n of them) and of L_fair (μ) are the first n and the first μ of one
    shared draw of max(n, μ).
    """

    lambda_: float
    tau: float
    n: int
    mu: int
    fairness: FairnessLoss = "signed"
    surrogate: Surrogate = "hit"

    @property
    def n_drawn(self) -> int:
        """Negatives to draw for each interaction."""
        return max(self.n, self.mu)

    @property
    def is_fair(self) -> bool:
        """Whether there is a fairness loss at all; with λ = 0 it is not even computed."""
        return self.lambda_ > 0

    def loss(self, scores: Tensor, groups: Tensor, signs: Tensor, *, has_two_groups: bool) -> Tensor:
        """Scores (B, 1 + max(n, μ)) with the positive in column 0, groups (B,), signs (G,) → scalar.

        A batch with one group only has no disparity: it trains on L_rec alone, and the trainer
        counts it.
        """
        l_rec = bpr_loss(scores[:, : 1 + self.n])
        if not (self.is_fair and has_two_groups):
            return l_rec
        # DH(C_ui; 1), or what is compared with it in the paper's appendix
        dh = _FIRST_ITEM[self.surrogate](scores[:, : 1 + self.mu], tau=self.tau)  # (B,)
        disparity = differentiable_disparity(dh, groups, len(signs))
        return l_rec + self.lambda_ * fairness_loss(disparity, signs, self.fairness)
