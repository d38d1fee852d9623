"""Runs, their stored results, several of them in parallel, and how they compare."""

from fairstream.experiments.compare import Comparison, by_label, compare, read_runs
from fairstream.experiments.config import RunConfig, evaluation_protocol
from fairstream.experiments.explain import explain_run
from fairstream.experiments.identity import run_id
from fairstream.experiments.jobs import Device, Job, Source
from fairstream.experiments.pool import OnJobs, execute_runs
from fairstream.experiments.pooling import pooled
from fairstream.experiments.record import Record
from fairstream.experiments.results import PeriodResult, versions
from fairstream.experiments.run import Run, popularity_runs, run
from fairstream.experiments.store import Store
from fairstream.experiments.sweep import run_seeds
from fairstream.files import check_writable, to_json, write_file, write_json

__all__ = [
    "Comparison",
    "Device",
    "Job",
    "OnJobs",
    "PeriodResult",
    "Record",
    "Run",
    "RunConfig",
    "Source",
    "Store",
    "by_label",
    "check_writable",
    "compare",
    "evaluation_protocol",
    "execute_runs",
    "explain_run",
    "pooled",
    "popularity_runs",
    "read_runs",
    "run",
    "run_id",
    "run_seeds",
    "to_json",
    "versions",
    "write_file",
    "write_json",
]
