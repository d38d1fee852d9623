"""What a run found, and its layout as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairstream._version import __version__
from fairstream.errors import ConfigurationError
from fairstream.evaluation import Judgement
from fairstream.files import replace_file
from fairstream.strategies import Update

TASKS = ("remain", "next")
"""Task-R: everything after D_t; Task-N: D_{t+1}   (Section 4.1)."""


@dataclass(frozen=True)
class PeriodResult:
    """W_t, and how it did on what came after D_t."""

    t: int
    update: Update
    tasks: Mapping[str, Judgement]

    def to_dict(self) -> dict[str, Any]:
        report = self.update.report
        training = (
            {}
            if report is None
            else {
                "n_batches": report.n_batches,
                "n_one_group_batches": report.n_one_group_batches,
                "n_without_negatives": report.n_without_negatives,
                "loss": report.loss,
            }
        )
        return {
            "t": self.t,
            "step": str(self.update.step),
            "training": training,
            "tasks": {name: judgement.to_dict() for name, judgement in self.tasks.items()},
        }


def summarise(periods: Sequence[PeriodResult]) -> dict[str, dict[str, dict[str, Any]]]:
    """The paper's averages: over the periods, of each metric, of each group, of PD, and of |PD|."""
    return {
        task: {metric: _summarise_metric(periods, task, metric) for metric in periods[0].tasks[task].metrics}
        for task in TASKS
        if periods
    }


def _summarise_metric(periods: Sequence[PeriodResult], task: str, metric: str) -> dict[str, Any]:
    scores = [period.tasks[task][metric] for period in periods]
    return {
        "mean": _mean([score.overall for score in scores]),
        "by_group": {name: _mean([score.by_group[name] for score in scores]) for name in scores[0].by_group},
        "performance_disparity": _mean([score.performance_disparity for score in scores]),
        "abs_performance_disparity": _mean([score.abs_performance_disparity for score in scores]),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def versions() -> dict[str, str]:
    """What computed the numbers."""
    packages = ("torch", "numpy", "pyarrow", "pydantic")
    return {
        "fairstream": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def write_json(document: Mapping[str, Any], path: Path) -> None:
    """Write whole or not at all."""
    content = json.dumps(document, indent=2, allow_nan=False) + "\n"
    need_writable(path)
    try:
        replace_file(path, content.encode())
    except OSError as error:
        raise _not_written(path, error.strerror or str(error)) from None


def need_writable(path: Path) -> None:
    """Say now that a result cannot be written there, not after hours of work."""
    if path.is_dir():
        raise _not_written(path, "it is a folder")
    if not path.parent.is_dir():
        raise _not_written(path, f"there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise _not_written(path, f"the folder {path.parent} may not be written to")


def _not_written(path: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(f"the result could not be written to {path}: {reason}; choose another file")
