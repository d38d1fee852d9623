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
    from fairstream import testing as testing
    from fairstream.data import (
        EventLog,
        Groups,
        History,
        LeakReport,
        SyntheticStream,
        ingest,
        leakcheck,
        read_events,
        synthetic_stream,
    )
    from fairstream.errors import (
        CheckpointError,
        ConfigurationError,
        DataError,
        FairstreamError,
        ModelError,
        WorkspaceError,
    )
    from fairstream.evaluation import (
        Estimate,
        Evaluation,
        GroupScores,
        RecommendationComparison,
        RecommendationEvaluation,
        Slice,
        evaluate_recommendations,
    )
    from fairstream.experiments import Comparison, PeriodResult, Record, Run, RunConfig, run_seeds
    from fairstream.experiments.compare import compare
    from fairstream.experiments.run import run
    from fairstream.extensions import (
        register_fairness,
        register_loss,
        register_method,
        register_metric,
        register_model,
        register_strategy,
    )
    from fairstream.methods import METHODS, Method, MethodConfig
    from fairstream.models import (
        ClosedFormScorer,
        Context,
        Graph,
        ItemTable,
        Reads,
        Scorer,
        Table,
        UserTable,
        WindowScorer,
    )
    from fairstream.recommender import FairRecommender, Frontier, FrontierLevel, State, Update, load
    from fairstream.strategies import Period, Plan, Strategy

__all__ = [
    "METHODS",
    "CheckpointError",
    "ClosedFormScorer",
    "Comparison",
    "ConfigurationError",
    "Context",
    "DataError",
    "Estimate",
    "Evaluation",
    "EventLog",
    "FairRecommender",
    "FairstreamError",
    "Frontier",
    "FrontierLevel",
    "Graph",
    "GroupScores",
    "Groups",
    "History",
    "ItemTable",
    "LeakReport",
    "Method",
    "MethodConfig",
    "ModelError",
    "Period",
    "PeriodResult",
    "Plan",
    "Reads",
    "RecommendationComparison",
    "RecommendationEvaluation",
    "Record",
    "Run",
    "RunConfig",
    "Scorer",
    "Slice",
    "State",
    "Strategy",
    "SyntheticStream",
    "Table",
    "Update",
    "UserTable",
    "WindowScorer",
    "WorkspaceError",
    "__version__",
    "compare",
    "evaluate_recommendations",
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
    "synthetic_stream",
]

_HOMES = ("errors", "data", "evaluation", "models", "strategies", "methods", "extensions", "recommender", "experiments")
"""Where the names above come from, the quickest to import first: PyTorch is loaded by the first name that needs it."""

_MODULES = ("mlflow", "testing", "theory")
"""Modules that are used as `fairstream.testing`, without an import of their own."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"fairstream.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'fairstream' has no attribute {name!r}")
    homes = map(_home, _HOMES)
    value = next(getattr(home, name) for home in homes if name in vars(home) or name in getattr(home, "__all__", ()))
    globals()[name] = value
    return value


def _home(name: str) -> Any:
    return import_module(f"fairstream.{name}")


def __dir__() -> list[str]:
    return sorted((*__all__, *_MODULES))
