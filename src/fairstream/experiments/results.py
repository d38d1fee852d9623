"""The result of a period, summaries over periods, and their layout as JSON."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any

from fairstream._version import __version__
from fairstream.evaluation import (
    Evaluation,
    Explanation,
    GroupScores,
    MetricAtK,
    Protocol,
    Slice,
    UserResults,
    score_periods,
)
from fairstream.experiments.config import evaluation_protocol
from fairstream.randomness import Randomness
from fairstream.recommender import Update


@dataclass(frozen=True)
class PeriodResult:
    """W_t, and how it did on what came after D_t."""

    t: int
    update: Update
    advantaged: tuple[str, ...]
    """The groups that the fairness loss treated as advantaged."""
    tasks: Mapping[str, Evaluation]
    explanation: Mapping[str, Mapping[str, Explanation]] = field(default_factory=dict)
    """Task → metric → why it differs from the period before, where the run was asked to measure that."""

    def about(self) -> dict[str, Any]:
        """The update without its evaluation."""
        report = self.update.report
        training = (
            {}
            if report is None
            else {
                "n_batches": report.n_batches,
                "n_one_group_batches": report.n_one_group_batches,
                "n_without_negatives": report.n_without_negatives,
                "loss": report.loss,
                "fairness_weight": report.fairness_weight,
            }
        )
        return {
            "t": self.t,
            "step": str(self.update.step),
            "notes": list(self.update.notes),
            "training": training,
            "advantaged": list(self.advantaged),
            "event_weights": dict(self.update.event_weights),
        }

    def to_dict(self) -> dict[str, Any]:
        tasks = {name: judgement.to_dict() for name, judgement in self.tasks.items()}
        explained = {
            task: {metric: explanation.to_dict() for metric, explanation in by_metric.items()}
            for task, by_metric in self.explanation.items()
        }
        return {**self.about(), "tasks": tasks, **({"explanation": explained} if explained else {})}


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
    """Each slice's users, events, means and PD, averaged over the periods; intervals do not average."""
    return _mean_slices([{name: part.to_dict() for name, part in slices.items()} for slices in periods])


def _mean_slices(periods: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    averaged = ("mean", "by_group", "performance_disparity")
    return mean_of(
        [
            {
                name: {
                    key: value if isinstance(value, int) else {part: value[part] for part in averaged}
                    for key, value in slice_.items()
                }
                for name, slice_ in slices.items()
            }
            for slices in periods
        ]
    )


def reported_metrics(about: Mapping[str, Any]) -> list[str]:
    """NAME@K of the metrics in a document's results, the main one first."""
    scores = next(iter(about["periods"][0]["tasks"].values()))
    return [name for name in scores if "@" in name]


def stored_metric(name: str, protocol: Protocol) -> MetricAtK | str:
    """A metric of stored results: computed from the hits, or by the name of its stored values, registered or not."""
    return protocol.built_in(name) or name


def summarise_periods(about: Mapping[str, Any], tests: Mapping[tuple[int, str], UserResults]) -> dict[str, Any]:
    """`summary` and `slices` of a document whose periods were computed apart: those of `Run.document()`."""
    config, periods = about["config"], about["periods"]
    protocol, names = evaluation_protocol(config["protocol"]), about["data"]["groups"]
    metrics = [stored_metric(name, protocol) for name in reported_metrics(about)]
    summary = {}
    for task in periods[0]["tasks"]:
        tested = [tests[result["t"], task] for result in periods]
        rng = Randomness(config["seed"]).numpy("resampling of the mean", len(periods))
        scores, _ = score_periods(
            tested,
            metrics,
            names,
            config["min_group_size"],
            rng,
            config["n_resamples"],
            has_advantaged=about["data"]["advantaged"] is not None,
        )
        summary[task] = {name: score.to_dict() for name, score in scores.items()}
    slices = {task: _mean_slices([result["tasks"][task]["slices"] for result in periods]) for task in summary}
    return {"summary": summary, "slices": slices}


def notes_on_advantaged(about: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    """A sentence where, over all periods, the group that was said to be better served is the one behind.

    Of the main metric, and of the first task where it is so.
    """
    if about["data"]["advantaged_by"] == "auto":
        return []
    mains = {task: next(iter(scores.items())) for task, scores in summary.items() if scores}
    notes = {task: GroupScores.from_dict(score).note_on_advantaged(name) for task, (name, score) in mains.items()}
    return [f"on the task {task}, {note}" for task, note in notes.items() if note is not None][:1]


def versions() -> dict[str, str]:
    """Versions of fairstream, Python and the packages that the numbers depend on."""
    packages = ("torch", "numpy", "pyarrow", "pydantic")
    return {
        "fairstream": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in packages},
    }


@cache
def _version(package: str) -> str:
    """Of an installed package; its files are searched for it, which takes longer than a small evaluation."""
    return version(package)
