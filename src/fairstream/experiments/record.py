"""A finished run as it is stored, and several of them that differ in nothing but the seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fairstream.errors import DataError
from fairstream.evaluation import GroupPanel, Protocol, UserResults, group_statistics, stack_periods
from fairstream.evaluation.resampling import Array
from fairstream.experiments.identity import used_settings
from fairstream.experiments.results import mean_of
from fairstream.randomness import Randomness


@dataclass(frozen=True, eq=False)
class Record:
    """What `Run.document` gives and `--json` writes."""

    document: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Record:
        """A stored run, or one sentence that says why the file is none."""
        try:
            document = json.loads(path.read_bytes())
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
        except ValueError:
            raise DataError(f"{path} is not JSON; give files that `fairstream run --json` wrote") from None
        try:
            tasks = [task for period in document["periods"] for task in period["tasks"].values()]
            is_run = bool(tasks) and {"summary", "pretrained", "timing"} <= set(document)
            is_run &= {"seed", "method", "protocol", "k"} <= set(document["config"]) and "sha256" in document["data"]
        except (KeyError, TypeError, AttributeError):
            is_run = False
        if not is_run:
            raise DataError(f"{path} is not a finished run; give files that `fairstream run --json` wrote")
        if "slices" not in document or any("tested" not in task for task in tasks):
            raise DataError(f"{path} was written by an older version, without users' values; run it again")
        return cls(document)

    @property
    def config(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = self.document["config"]
        return config

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def settings(self) -> dict[str, Any]:
        """What decides what the run does: the options that its method uses, and who is advantaged."""
        data = self.document["data"]
        advantaged = "auto" if data["advantaged_by"] == "auto" else data["advantaged"]
        config = {"surrogate": "hit", **self.config}  # runs stored before there was a choice
        return {**used_settings(config), "advantaged": advantaged}

    @cached_property
    def protocol(self) -> Protocol:
        return Protocol.named(self.config["protocol"])

    def tested(self, task: str) -> list[UserResults]:
        """Of each period after pre-training, the users tested."""
        return [UserResults.from_dict(period["tasks"][task]["tested"]) for period in self.document["periods"]]


def by_settings(records: Iterable[Record]) -> list[list[Record]]:
    """The records in heaps that differ in nothing but the seed, each in the order of its seeds."""
    heaps: dict[str, dict[int, Record]] = {}
    for record in records:
        about = [record.document["data"]["sha256"], record.settings]
        heap = heaps.setdefault(json.dumps(about, sort_keys=True), {})
        if record.seed in heap and heap[record.seed].document["periods"] != record.document["periods"]:
            raise DataError(
                f"two runs of {record.config['method']} with seed {record.seed} differ in nothing but their results; "
                f"leave one of them out"
            )
        heap[record.seed] = record
    return [[heap[seed] for seed in sorted(heap)] for heap in heaps.values()]


def pooled(records: Sequence[Record]) -> dict[str, Any]:
    """One document of several seeds: users' values averaged over them, and the spread between them.

    Intervals and p-values are those of the averaged values over users; `seed_sd` says beside
    them what another seed would change.
    """
    first, *others = (record.document for record in records)
    if not others:
        return dict(first)
    runs = [[document["pretrained"], *document["periods"]] for document in (first, *others)]
    periods = [_pooled_period(records[0], results) for results in zip(*runs, strict=True)]
    tasks = periods[0]["tasks"]
    return {
        **first,
        "config": {**first["config"], "seed": [record.seed for record in records]},
        "pretrained": periods[0],
        "periods": periods[1:],
        "summary": {task: _pooled_summary(records, task) for task in tasks},
        "slices": mean_of([record.document["slices"] for record in records]),
        "timing": mean_of([record.document["timing"] for record in records]),
        **_pooled_recovery(records),
    }


def _pooled_recovery(records: Sequence[Record]) -> dict[str, Any]:
    """How well the group was told from the embeddings, averaged over the seeds; intervals do not average."""
    found = [record.document.get("group_recovery") for record in records]
    there = [part for part in found if part is not None]
    if not there:
        return {}
    accuracies = [part["balanced_accuracy"] for part in there]
    mean = {"balanced_accuracy": mean_of(accuracies), "interval": None, "seed_sd": _sd(accuracies)}
    return {"group_recovery": {**there[0], **mean}}


def _pooled_period(like: Record, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    pooled_tasks = {}
    for task, judged in results[0]["tasks"].items():
        parts = [[UserResults.from_dict(result["tasks"][task]["tested"])] for result in results]
        scores = _scores_over_seeds(like, parts, [result["tasks"][task] for result in results])
        kept = {name: judged[name] for name in ("n_tested_users", "n_cold_users", "excluded_groups")}
        pooled_tasks[task] = {**scores, **kept}
    steps, advantaged = ([result[name] for result in results] for name in ("step", "advantaged"))
    return {
        "t": results[0]["t"],
        "step": " / ".join(dict.fromkeys(steps)),
        "advantaged": sorted({name for names in advantaged for name in names}),
        "tasks": pooled_tasks,
    }


def _pooled_summary(records: Sequence[Record], task: str) -> dict[str, Any]:
    tests, scores = zip(*((record.tested(task), record.document["summary"][task]) for record in records), strict=True)
    return _scores_over_seeds(records[0], tests, scores)


_OF_SIZES = ("abs_performance_disparity_debiased", "null_mean")


def _scores_over_seeds(
    like: Record, tests: Sequence[Sequence[UserResults]], scores: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Each metric of the seeds' mean, with the standard deviation between seeds."""
    values, codes = mean_values(like, tests)
    names = like.document["data"]["groups"]
    rng = Randomness(0).numpy("resampling of several seeds")
    panel = GroupPanel(values, codes, len(names), like.config["min_group_size"])
    found = group_statistics(panel, names, rng, like.config["n_resamples"])
    result = {}
    for name, score in zip(like.protocol.metrics, found, strict=True):
        metric = f"{name}@{like.config['k']}"
        # |PD| of the mean is smaller than the mean |PD|, which is what each run reports.
        sizes = [part[metric]["abs_performance_disparity"] for part in scores]
        result[metric] = {
            **score.to_dict(),
            "abs_performance_disparity": mean_of(sizes),
            **{name: mean_of([part[metric][name] for part in scores]) for name in _OF_SIZES},
            "seed_sd": {
                "mean": _sd([part[metric]["mean"] for part in scores]),
                "performance_disparity": _sd([part[metric]["performance_disparity"] for part in scores]),
                "abs_performance_disparity": _sd(sizes),
            },
        }
    return result


def mean_values(like: Record, tests: Sequence[Sequence[UserResults]]) -> tuple[Array, Any]:
    """(U, P, M) the users' values averaged over seeds, and their groups."""
    metrics = list(like.protocol.metrics.values())
    panels = [stack_periods(test, metrics) for test in tests]
    return np.mean([values for values, _ in panels], axis=0), panels[0][1]


def _sd(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.std(there, ddof=1)) if len(there) > 1 else None
