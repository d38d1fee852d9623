"""Tensors in, one number out; each loss of the paper in a file of its own."""

from fairstream.objectives.approx_ndcg import approx_ndcg, positive_approx_ndcg
from fairstream.objectives.auto_weight import AutoWeight
from fairstream.objectives.bpr import bpr_loss
from fairstream.objectives.disparity import Disparity, differentiable_disparity
from fairstream.objectives.fairness import FAIRNESS_LOSSES, DisparityLoss, FairnessLoss, Surrogate, fairness_loss
from fairstream.objectives.hit import differentiable_hit, differentiable_hits, positive_hit
from fairstream.objectives.largest import LargestGapLoss, largest_gap_loss
from fairstream.objectives.ndcg import differentiable_ndcg
from fairstream.objectives.neural_ndcg import neural_ndcg, positive_neural_ndcg
from fairstream.objectives.neural_sort import relaxed_permutation
from fairstream.objectives.robust import CVaRLoss, GroupDROLoss
from fairstream.objectives.sinkhorn import doubly_stochastic
from fairstream.objectives.softmax import sampled_softmax_loss, softmax_loss
from fairstream.objectives.statistics import RunningDisparity, RunningMeans
from fairstream.objectives.total import LOSSES, AmongAll, Loss, Objective

__all__ = [
    "FAIRNESS_LOSSES",
    "LOSSES",
    "AmongAll",
    "AutoWeight",
    "CVaRLoss",
    "Disparity",
    "DisparityLoss",
    "FairnessLoss",
    "GroupDROLoss",
    "LargestGapLoss",
    "Loss",
    "Objective",
    "RunningDisparity",
    "RunningMeans",
    "Surrogate",
    "approx_ndcg",
    "bpr_loss",
    "differentiable_disparity",
    "differentiable_hit",
    "differentiable_hits",
    "differentiable_ndcg",
    "doubly_stochastic",
    "fairness_loss",
    "largest_gap_loss",
    "neural_ndcg",
    "positive_approx_ndcg",
    "positive_hit",
    "positive_neural_ndcg",
    "relaxed_permutation",
    "sampled_softmax_loss",
    "softmax_loss",
]
