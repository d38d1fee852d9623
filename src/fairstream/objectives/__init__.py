"""Losses: recommendation losses, fairness losses, and the objective that adds the two."""

from fairstream.objectives.fairness import (
    FAIRNESS_LOSSES,
    SURROGATES,
    Disparity,
    DisparityLoss,
    FairnessLoss,
    LargestGapLoss,
    differentiable_disparity,
    fairness_loss,
)
from fairstream.objectives.group_dro import GroupDROLoss
from fairstream.objectives.hit import positive_hit, relaxed_permutation
from fairstream.objectives.objective import AmongAll, FactoredAmongAll, Objective, Ranked
from fairstream.objectives.recommendation import LOSSES, MEAN_LOSSES, Loss, bpr_loss, sampled_softmax_loss, softmax_loss

__all__ = [
    "FAIRNESS_LOSSES",
    "LOSSES",
    "MEAN_LOSSES",
    "SURROGATES",
    "AmongAll",
    "Disparity",
    "DisparityLoss",
    "FactoredAmongAll",
    "FairnessLoss",
    "GroupDROLoss",
    "LargestGapLoss",
    "Loss",
    "Objective",
    "Ranked",
    "bpr_loss",
    "differentiable_disparity",
    "fairness_loss",
    "positive_hit",
    "relaxed_permutation",
    "sampled_softmax_loss",
    "softmax_loss",
]
