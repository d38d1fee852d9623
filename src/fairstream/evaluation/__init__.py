"""Ranking → metrics → statistics by group → uncertainty; the protocols `paper` and `strict`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairstream.evaluation.breakdown import Breakdown
    from fairstream.evaluation.by_group import Estimate, GroupScores, group_statistics
    from fairstream.evaluation.evaluator import Evaluation, Evaluator, check_by_event
    from fairstream.evaluation.explanation import Change, ComparedTests, Explained, Explanation, Mix, explain
    from fairstream.evaluation.lists import ItemLists, Lists, Truth
    from fairstream.evaluation.metrics import METRICS, Metric, MetricAtK, resolve_metrics
    from fairstream.evaluation.paired import Interval, Paired, PointValue
    from fairstream.evaluation.protocol import REPAIRS, Protocol
    from fairstream.evaluation.ranking import best_items
    from fairstream.evaluation.recommendations import (
        RecommendationComparison,
        RecommendationEvaluation,
        SystemDifference,
        evaluate_recommendations,
    )
    from fairstream.evaluation.reranking import Reranker, RerankReport
    from fairstream.evaluation.resampling import GroupPanel, Statistics
    from fairstream.evaluation.totals import Total
    from fairstream.evaluation.user_results import Slice, UserResults, score_periods, stack_periods

__all__ = [
    "METRICS",
    "REPAIRS",
    "Breakdown",
    "Change",
    "ComparedTests",
    "Estimate",
    "Evaluation",
    "Evaluator",
    "Explained",
    "Explanation",
    "GroupPanel",
    "GroupScores",
    "Interval",
    "ItemLists",
    "Lists",
    "Metric",
    "MetricAtK",
    "Mix",
    "Paired",
    "PointValue",
    "Protocol",
    "RecommendationComparison",
    "RecommendationEvaluation",
    "RerankReport",
    "Reranker",
    "Slice",
    "Statistics",
    "SystemDifference",
    "Total",
    "Truth",
    "UserResults",
    "best_items",
    "check_by_event",
    "evaluate_recommendations",
    "explain",
    "group_statistics",
    "resolve_metrics",
    "score_periods",
    "stack_periods",
]

_HOMES = (
    "by_group",
    "lists",
    "metrics",
    "paired",
    "protocol",
    "recommendations",
    "resampling",
    "totals",
    "user_results",
    "breakdown",
    "ranking",
    "reranking",
    "explanation",
    "evaluator",
)
"""Where the names above come from; those in front, which lists of other recommenders need, do without PyTorch."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = (import_module(f"{__name__}.{home}") for home in _HOMES)
    value = next(vars(home)[name] for home in homes if name in vars(home))
    globals()[name] = value
    return value
