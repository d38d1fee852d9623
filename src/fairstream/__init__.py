"""Recommendations that keep up with new data and stay fair to groups of users while they do.

>>> import fairstream
>>> stream = fairstream.synthetic_stream(n_users=150, n_items=80, n_events=4000)
>>> log = fairstream.read_events(stream.events, users=stream.users, group="community", advantaged="majority")
>>> len(log), log.groups.names
(4000, ('majority', 'minority'))
"""

from fairstream._version import __version__
from fairstream.data import EventLog, Groups, SyntheticStream, ingest, read_events, synthetic_stream
from fairstream.errors import (
    CheckpointError,
    ConfigurationError,
    DataError,
    FairstreamError,
    ModelError,
    WorkspaceError,
)
from fairstream.evaluation import Estimate, Evaluation, GroupScores, Slice
from fairstream.experiments import Comparison, PeriodResult, Record, Run, RunConfig, compare, run, run_seeds
from fairstream.methods import METHODS, MethodConfig
from fairstream.models import ItemTable, Scorer, UserTable
from fairstream.recommender import FairRecommender, load
from fairstream.strategies import Step, Update

__all__ = [
    "METHODS",
    "CheckpointError",
    "Comparison",
    "ConfigurationError",
    "DataError",
    "Estimate",
    "Evaluation",
    "EventLog",
    "FairRecommender",
    "FairstreamError",
    "GroupScores",
    "Groups",
    "ItemTable",
    "MethodConfig",
    "ModelError",
    "PeriodResult",
    "Record",
    "Run",
    "RunConfig",
    "Scorer",
    "Slice",
    "Step",
    "SyntheticStream",
    "Update",
    "UserTable",
    "WorkspaceError",
    "__version__",
    "compare",
    "ingest",
    "load",
    "read_events",
    "run",
    "run_seeds",
    "synthetic_stream",
]
