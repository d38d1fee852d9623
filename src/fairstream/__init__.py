"""Recommendations that keep up with new data and stay fair to groups of users while they do.

>>> import fairstream
>>> stream = fairstream.synthetic_stream(n_users=150, n_items=80, n_events=4000)
>>> log = fairstream.read_events(stream.events, users=stream.users, group="community", advantaged="majority")
>>> len(log), log.groups.names
(4000, ('majority', 'minority'))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairstream._version import __version__

if TYPE_CHECKING:
    from fairstream import models as models
    from fairstream import testing as testing
    from fairstream.data import EventLog, Groups, History, SyntheticStream, ingest, read_events, synthetic_stream
    from fairstream.distributed import cluster
    from fairstream.errors import (
        CheckpointError,
        ConfigurationError,
        DataError,
        FairstreamError,
        ModelError,
        WorkspaceError,
    )
    from fairstream.evaluation import (
        ArmTotals,
        Estimate,
        Evaluation,
        GapExplanation,
        GroupScores,
        RecommendationComparison,
        SequentialResult,
        Slice,
        evaluate_recommendations,
        group_statistics,
        sequential_test,
        win_rate_test,
    )
    from fairstream.experiments import (
        Comparison,
        Frontier,
        FrontierLevel,
        PeriodResult,
        Record,
        Run,
        RunConfig,
        run_seeds,
    )
    from fairstream.experiments.compare import compare
    from fairstream.experiments.run import run
    from fairstream.methods import (
        METHODS,
        Method,
        MethodConfig,
        register_fairness,
        register_loss,
        register_method,
        register_metric,
        register_model,
        register_strategy,
    )
    from fairstream.models import (
        ClosedFormScorer,
        Context,
        ItemTable,
        ModelConfig,
        Scorer,
        Table,
        UserTable,
        WindowScorer,
    )
    from fairstream.objectives import DisparityLoss, GroupDROLoss, LargestGapLoss
    from fairstream.pages.audit import FairnessReport, fairness_report
    from fairstream.recipe import GroupWeight
    from fairstream.recommender import FairRecommender, State, Update, load
    from fairstream.strategies import (
        FineTune,
        Keep,
        LeastRegret,
        MaxGap,
        PastRegret,
        Period,
        Plan,
        Replay,
        RestartOnDegradation,
        Retrain,
        SlidingWindow,
        Strategy,
    )
    from fairstream.tools.leakcheck import LeakReport, leakcheck
    from fairstream.training import Training

__all__ = [
    "METHODS",
    "ArmTotals",
    "CheckpointError",
    "ClosedFormScorer",
    "Comparison",
    "ConfigurationError",
    "Context",
    "DataError",
    "DisparityLoss",
    "Estimate",
    "Evaluation",
    "EventLog",
    "FairRecommender",
    "FairnessReport",
    "FairstreamError",
    "FineTune",
    "Frontier",
    "FrontierLevel",
    "GapExplanation",
    "GroupDROLoss",
    "GroupScores",
    "GroupWeight",
    "Groups",
    "History",
    "ItemTable",
    "Keep",
    "LargestGapLoss",
    "LeakReport",
    "LeastRegret",
    "MaxGap",
    "Method",
    "MethodConfig",
    "ModelConfig",
    "ModelError",
    "PastRegret",
    "Period",
    "PeriodResult",
    "Plan",
    "RecommendationComparison",
    "Record",
    "Replay",
    "RestartOnDegradation",
    "Retrain",
    "Run",
    "RunConfig",
    "Scorer",
    "SequentialResult",
    "Slice",
    "SlidingWindow",
    "State",
    "Strategy",
    "SyntheticStream",
    "Table",
    "Training",
    "Update",
    "UserTable",
    "WindowScorer",
    "WorkspaceError",
    "__version__",
    "cluster",
    "compare",
    "evaluate_recommendations",
    "fairness_report",
    "group_statistics",
    "ingest",
    "leakcheck",
    "load",
    "read_events",
    "register_fairness",
    "register_loss",
    "register_method",
    "register_metric",
    "register_model",
    "register_strategy",
    "run",
    "run_seeds",
    "sequential_test",
    "synthetic_stream",
    "win_rate_test",
]

# Where the names above come from. They are searched in this order: the first name that needs PyTorch loads it.
_WITHOUT_TORCH = ("errors", "distributed", "data", "tools.leakcheck", "evaluation")
_WITH_TORCH = (
    *("models", "objectives", "strategies", "training", "recipe", "methods", "recommender", "experiments"),
    "pages.audit",
)
_MODULES = ("models", "testing")  # available as `fairstream.models` without another import


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"fairstream.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'fairstream' has no attribute {name!r}")
    homes = (import_module(f"fairstream.{home}") for home in (*_WITHOUT_TORCH, *_WITH_TORCH))
    value = next(getattr(home, name) for home in homes if name in vars(home) or name in getattr(home, "__all__", ()))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted((*__all__, *_MODULES))
