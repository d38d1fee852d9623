"""The prequential run and its results."""

from fairstream.experiment.config import RunConfig
from fairstream.experiment.results import PeriodResult, need_writable, summarise, write_json
from fairstream.experiment.run import Run, run

__all__ = ["PeriodResult", "Run", "RunConfig", "need_writable", "run", "summarise", "write_json"]
