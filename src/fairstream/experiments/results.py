"""The result of a period, and its layout as JSON."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any

from fairstream._version import __version__
from fairstream.evaluation import Evaluation
from fairstream.recommender import Update
from fairstream.tools.explain import Explanation


@dataclass(frozen=True)
class PeriodResult:
    """W_t, and its evaluation on the events after D_t."""

    t: int
    update: Update
    advantaged: tuple[str, ...]
    """The groups that the fairness loss treated as advantaged."""
    tasks: Mapping[str, Evaluation]
    explanation: Mapping[str, Mapping[str, Explanation]] = field(default_factory=dict)
    """Task → metric → why it differs from the previous period; empty without `explain`."""

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON of a run, but without the tested users."""
        report, explained = self.update.report, self.explanation
        names = ("n_batches", "n_one_group_batches", "n_without_negatives", "loss", "fairness_weight")
        document = {
            "t": self.t,
            "step": str(self.update.step),
            "notes": list(self.update.notes),
            "training": {} if report is None else {name: getattr(report, name) for name in names},
            "advantaged": list(self.advantaged),
            "event_weights": dict(self.update.event_weights),
            "level": list(self.update.level),
            "tasks": {name: _task_document(evaluation) for name, evaluation in self.tasks.items()},
        }
        if explained:
            document["explanation"] = {
                task: {metric: explanation.to_dict() for metric, explanation in by_metric.items()}
                for task, by_metric in explained.items()
            }
        return document


def _task_document(evaluation: Evaluation) -> dict[str, Any]:
    return {
        **{name: score.to_dict() for name, score in evaluation.metrics.items()},
        "n_tested_users": evaluation.n_users,
        "n_cold_users": evaluation.n_cold_users,
        "excluded_groups": dict(evaluation.excluded_groups),
        "notes": list(evaluation.notes),
        **evaluation.extras,
        "slices": {name: part.to_dict() for name, part in evaluation.slices.items()},
    }


@cache  # looking up a version takes longer than a small evaluation
def versions() -> dict[str, str]:
    """Versions of fairstream, Python and the packages that the numbers depend on."""
    packages = {name: version(name) for name in ("torch", "numpy", "pyarrow", "pydantic")}
    return {"fairstream": __version__, "python": platform.python_version(), **packages}
