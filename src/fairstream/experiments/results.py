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
from fairstream.evaluation import Evaluation, Slice
from fairstream.files import replace_file
from fairstream.strategies import Update

TASKS = ("remain", "next")
"""Task-R: everything after D_t; Task-N: D_{t+1}   (Section 4.1)."""


@dataclass(frozen=True)
class PeriodResult:
    """W_t, and how it did on what came after D_t."""

    t: int
    update: Update
    advantaged: tuple[str, ...]
    """The groups that the fairness loss took to be ahead."""
    tasks: Mapping[str, Evaluation]

    def about(self) -> dict[str, Any]:
        """What was done, without what came of it."""
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
            "advantaged": list(self.advantaged),
        }

    def to_dict(self) -> dict[str, Any]:
        return {**self.about(), "tasks": {name: judgement.to_dict() for name, judgement in self.tasks.items()}}


def mean_of(parts: Sequence[Any]) -> Any:
    """The mean, number by number, of several documents of one shape; of the numbers that are there.

    >>> mean_of([{"a": 1, "b": [2]}, {"a": 3, "b": [None]}])
    {'a': 2.0, 'b': [2.0]}
    """
    parts = [part for part in parts if part is not None]
    if not parts:
        return None
    if isinstance(parts[0], Mapping):
        names = dict.fromkeys(name for part in parts for name in part)
        return {name: mean_of([part.get(name) for part in parts]) for name in names}
    if isinstance(parts[0], list):
        return [mean_of(column) for column in zip(*parts, strict=True)]
    return sum(parts) / len(parts)


def mean_slices(periods: Sequence[Mapping[str, Slice]]) -> dict[str, Any]:
    """Each slice's users, events, means, and PD, averaged over the periods; intervals do not average."""
    return mean_of(
        [
            {
                name: {
                    "n_users": part.n_users,
                    "n_positives": part.n_positives,
                    **{
                        metric: {
                            "mean": score.mean,
                            "by_group": dict(score.by_group),
                            "performance_disparity": score.performance_disparity,
                        }
                        for metric, score in part.metrics.items()
                    },
                }
                for name, part in slices.items()
            }
            for slices in periods
        ]
    )


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
    # A part to a line: the configuration can be read, the thousands of users stay out of its way.
    parts = (f"{json.dumps(name)}: {json.dumps(part, allow_nan=False)}" for name, part in document.items())
    content = "{\n" + ",\n".join(parts) + "\n}\n"
    check_writable(path)
    try:
        replace_file(path, content.encode())
    except OSError as error:
        raise _not_written(path, error.strerror or str(error)) from None


def check_writable(path: Path) -> None:
    """Say now that a result cannot be written there, not after hours of work."""
    if path.is_dir():
        raise _not_written(path, "it is a folder")
    if not path.parent.is_dir():
        raise _not_written(path, f"there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise _not_written(path, f"the folder {path.parent} may not be written to")


def _not_written(path: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(f"the result could not be written to {path}: {reason}; choose another file")
