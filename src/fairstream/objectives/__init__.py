"""Tensors in, one number out; each loss of the paper in a file of its own."""

from fairstream.objectives.bpr import bpr_loss
from fairstream.objectives.disparity import Disparity, differentiable_disparity
from fairstream.objectives.fairness import FairnessLoss, fairness_loss
from fairstream.objectives.hit import differentiable_hit, differentiable_hits, first_item_hit
from fairstream.objectives.ndcg import differentiable_ndcg
from fairstream.objectives.neural_sort import relaxed_permutation
from fairstream.objectives.total import Objective

__all__ = [
    "Disparity",
    "FairnessLoss",
    "Objective",
    "bpr_loss",
    "differentiable_disparity",
    "differentiable_hit",
    "differentiable_hits",
    "differentiable_ndcg",
    "fairness_loss",
    "first_item_hit",
    "relaxed_permutation",
]
