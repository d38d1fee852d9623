"""Runs, stores of results, parallel execution, and comparisons."""

from fairstream.experiments.compare import Comparison, by_label, compare
from fairstream.experiments.config import PROTOCOLS, RunConfig, protocol_of
from fairstream.experiments.explain import explain_run
from fairstream.experiments.frontier import Frontier, FrontierLevel
from fairstream.experiments.identity import run_id
from fairstream.experiments.jobs import Device, Job, PlannedRun, Source, plan_runs
from fairstream.experiments.pool import OnJobs, execute_runs
from fairstream.experiments.pooling import pooled
from fairstream.experiments.record import Record
from fairstream.experiments.results import PeriodResult, versions
from fairstream.experiments.run import Run, make_run, popularity_runs, run
from fairstream.experiments.store import Store
from fairstream.experiments.sweep import run_seeds

__all__ = [
    "PROTOCOLS",
    "Comparison",
    "Device",
    "Frontier",
    "FrontierLevel",
    "Job",
    "OnJobs",
    "PeriodResult",
    "PlannedRun",
    "Record",
    "Run",
    "RunConfig",
    "Source",
    "Store",
    "by_label",
    "compare",
    "execute_runs",
    "explain_run",
    "make_run",
    "plan_runs",
    "pooled",
    "popularity_runs",
    "protocol_of",
    "run",
    "run_id",
    "run_seeds",
    "versions",
]
