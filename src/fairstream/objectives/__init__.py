"""Tensors in, one number out; each loss of the paper in a file of its own."""

from fairstream.objectives.approx_ndcg import approx_ndcg, first_item_approx_ndcg
from fairstream.objectives.bpr import bpr_loss
from fairstream.objectives.disparity import Disparity, differentiable_disparity
from fairstream.objectives.fairness import FairnessLoss, fairness_loss
from fairstream.objectives.hit import differentiable_hit, differentiable_hits, first_item_hit
from fairstream.objectives.ndcg import differentiable_ndcg
from fairstream.objectives.neural_ndcg import first_item_neural_ndcg, neural_ndcg
from fairstream.objectives.neural_sort import relaxed_permutation
from fairstream.objectives.sinkhorn import doubly_stochastic
from fairstream.objectives.total import Objective, Surrogate

__all__ = [
    "Disparity",
    "FairnessLoss",
    "Objective",
    "Surrogate",
    "approx_ndcg",
    "bpr_loss",
    "differentiable_disparity",
    "differentiable_hit",
    "differentiable_hits",
    "differentiable_ndcg",
    "doubly_stochastic",
    "fairness_loss",
    "first_item_approx_ndcg",
    "first_item_hit",
    "first_item_neural_ndcg",
    "neural_ndcg",
    "relaxed_permutation",
]
