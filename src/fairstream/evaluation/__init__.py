"""Ranking → metrics → by group → how sure; the protocols `paper` and `strict`."""

from fairstream.evaluation.by_group import Estimate, GroupScores, group_statistics
from fairstream.evaluation.evaluator import Evaluation, Evaluator
from fairstream.evaluation.metrics import Metric
from fairstream.evaluation.paired import Interval, Paired
from fairstream.evaluation.protocol import REPAIRS, Protocol
from fairstream.evaluation.ranking import best_items
from fairstream.evaluation.reranking import Reranker, RerankReport
from fairstream.evaluation.resampling import GroupPanel, Statistics
from fairstream.evaluation.slices import Slice
from fairstream.evaluation.user_results import UserResults, stack_periods

__all__ = [
    "REPAIRS",
    "Estimate",
    "Evaluation",
    "Evaluator",
    "GroupPanel",
    "GroupScores",
    "Interval",
    "Metric",
    "Paired",
    "Protocol",
    "RerankReport",
    "Reranker",
    "Slice",
    "Statistics",
    "UserResults",
    "best_items",
    "group_statistics",
    "stack_periods",
]
