"""Ranking → metrics → statistics by group → uncertainty."""

from typing import TYPE_CHECKING, Any

from fairstream.evaluation.by_group import Estimate, GroupScores, group_statistics, panel_scores
from fairstream.evaluation.gap import Composition, GapExplanation, GroupOutlook, Trial, seed_certificate
from fairstream.evaluation.lists import ItemLists, Lists, PeriodTask, Truth, check_period_task
from fairstream.evaluation.metrics import DEFAULT_METRICS, METRICS, Metric, MetricAtK, built_in, resolve_metrics
from fairstream.evaluation.paired import Paired
from fairstream.evaluation.recommendations import RecommendationComparison, SystemDifference, evaluate_recommendations
from fairstream.evaluation.resampling import GroupPanel, Statistics
from fairstream.evaluation.results import EvaluatedLists, Evaluation, Slice
from fairstream.evaluation.sequential import ArmTotals, SequentialResult, sequential_test, win_rate_test
from fairstream.evaluation.user_results import AggregateMetric, UserResults, score_periods, stack_periods

if TYPE_CHECKING:
    from fairstream.evaluation.evaluator import Evaluator
    from fairstream.evaluation.ranking import best_items

__all__ = [
    "DEFAULT_METRICS",
    "METRICS",
    "AggregateMetric",
    "ArmTotals",
    "Composition",
    "Estimate",
    "EvaluatedLists",
    "Evaluation",
    "Evaluator",
    "GapExplanation",
    "GroupOutlook",
    "GroupPanel",
    "GroupScores",
    "ItemLists",
    "Lists",
    "Metric",
    "MetricAtK",
    "Paired",
    "PeriodTask",
    "RecommendationComparison",
    "SequentialResult",
    "Slice",
    "Statistics",
    "SystemDifference",
    "Trial",
    "Truth",
    "UserResults",
    "best_items",
    "built_in",
    "check_period_task",
    "evaluate_recommendations",
    "group_statistics",
    "panel_scores",
    "resolve_metrics",
    "score_periods",
    "seed_certificate",
    "sequential_test",
    "stack_periods",
    "win_rate_test",
]


def __getattr__(name: str) -> Any:
    # These load PyTorch, which the evaluation of lists in tables does without.
    if name not in ("Evaluator", "best_items"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fairstream.evaluation import evaluator, ranking  # noqa: PLC0415

    return evaluator.Evaluator if name == "Evaluator" else ranking.best_items
