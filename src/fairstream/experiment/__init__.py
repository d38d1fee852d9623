"""The prequential run, its results, and how runs compare."""

from fairstream.experiment.compare import Comparison, compare
from fairstream.experiment.config import RunConfig
from fairstream.experiment.record import Record, pooled
from fairstream.experiment.results import PeriodResult, need_writable, write_json
from fairstream.experiment.run import Run, run
from fairstream.experiment.seeds import run_seeds

__all__ = [
    "Comparison",
    "PeriodResult",
    "Record",
    "Run",
    "RunConfig",
    "compare",
    "need_writable",
    "pooled",
    "run",
    "run_seeds",
    "write_json",
]
