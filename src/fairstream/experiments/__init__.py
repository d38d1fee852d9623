"""The prequential run, its results, and how runs compare."""

from fairstream.experiments.compare import Comparison, compare
from fairstream.experiments.config import RunConfig
from fairstream.experiments.record import Record, pooled
from fairstream.experiments.results import PeriodResult, check_writable, write_json
from fairstream.experiments.run import Run, run
from fairstream.experiments.seeds import run_seeds

__all__ = [
    "Comparison",
    "PeriodResult",
    "Record",
    "Run",
    "RunConfig",
    "check_writable",
    "compare",
    "pooled",
    "run",
    "run_seeds",
    "write_json",
]
