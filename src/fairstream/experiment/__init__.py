"""The prequential run and its results."""

from fairstream.experiment.config import RunConfig
from fairstream.experiment.results import PeriodResult, summarise, write_json
from fairstream.experiment.run import Run, run

__all__ = ["PeriodResult", "Run", "RunConfig", "run", "summarise", "write_json"]
