"""Several runs that differ in nothing but the seed, as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairstream.evaluation import GroupPanel, UserResults, group_statistics, stack_periods
from fairstream.experiments.record import Record
from fairstream.experiments.results import mean_of
from fairstream.randomness import Randomness


def pooled(records: Sequence[Record]) -> dict[str, Any]:
    """Return one document of several seeds: users' values averaged over the seeds, and the spread between seeds.

    Intervals and p-values are those of the averaged values over users; `seed_sd` is the standard
    deviation between seeds.
    """
    first, *others = (record.about for record in records)
    if not others:
        return {"timing": None, **first}
    periods = [_pooled_period(records, results) for results in zip(*(r.results for r in records), strict=True)]
    return {
        **first,
        "config": {**first["config"], "seed": [record.seed for record in records]},
        "pretrained": periods[0],
        "periods": periods[1:],
        "summary": {task: _pooled_summary(records, task) for task in periods[0]["tasks"]},
        "slices": mean_of([about["slices"] for about in (first, *others)]),
        "timing": mean_of([about.get("timing") for about in (first, *others)]),
        **_pooled_recovery(records),
    }


def _pooled_recovery(records: Sequence[Record]) -> dict[str, Any]:
    """How well the group was recovered from the embeddings, averaged over the seeds; intervals do not average."""
    probes = [probe for record in records if (probe := record.about.get("group_recovery")) is not None]
    if not probes:
        return {}
    accuracies = [probe["balanced_accuracy"] for probe in probes]
    mean = {"balanced_accuracy": mean_of(accuracies), "interval": None, "seed_sd": _sd(accuracies)}
    return {"group_recovery": {**probes[0], **mean}}


def _pooled_period(records: Sequence[Record], results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    t = results[0]["t"]
    tasks = {}
    for task, evaluation in results[0]["tasks"].items():
        tests = [[record.tests[t, task]] for record in records]
        scores = _scores_over_seeds(records[0], tests, [result["tasks"][task] for result in results], "overall")
        counts = {name: evaluation[name] for name in ("n_tested_users", "n_cold_users", "excluded_groups")}
        tasks[task] = {**scores, **counts}
    steps, advantaged = ([result[name] for result in results] for name in ("step", "advantaged"))
    return {
        "t": t,
        "step": " / ".join(dict.fromkeys(steps)),
        "advantaged": sorted({name for names in advantaged for name in names}),
        "tasks": tasks,
    }


def _pooled_summary(records: Sequence[Record], task: str) -> dict[str, Any]:
    scores = _scores_over_seeds(
        records[0],
        [record.tested(task) for record in records],
        [record.about["summary"][task] for record in records],
        "mean",
    )
    return {metric: {"mean": score["overall"], **score} for metric, score in scores.items()}


def _scores_over_seeds(
    like: Record, tests: Sequence[Sequence[UserResults]], scores: Sequence[Mapping[str, Any]], overall: str
) -> dict[str, Any]:
    """Each metric of the seeds' mean, with the standard deviation between seeds."""
    metrics = like.protocol.metrics
    stacks = [stack_periods(test, list(metrics.values())) for test in tests]
    values, codes = np.mean([values for values, _ in stacks], axis=0), stacks[0][1]
    names = like.about["data"]["groups"]
    rng = Randomness(0).numpy("resampling of several seeds")
    panel = GroupPanel(values, codes, len(names), like.config["min_group_size"])
    statistics = group_statistics(panel, names, rng, like.config["n_resamples"])
    result = {}
    for name, score in zip(metrics, statistics, strict=True):
        metric = f"{name}@{like.config['k']}"
        # |PD| of the mean is smaller than the mean |PD|, which is what each run reports.
        sizes = [part[metric]["abs_performance_disparity"] for part in scores]
        result[metric] = {
            **score.to_dict(),
            "abs_performance_disparity": mean_of(sizes),
            "null_mean": mean_of([part[metric]["null_mean"] for part in scores]),
            "seed_sd": {
                "overall": _sd([part[metric][overall] for part in scores]),
                "performance_disparity": _sd([part[metric]["performance_disparity"] for part in scores]),
                "abs_performance_disparity": _sd(sizes),
            },
        }
    return result


def _sd(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.std(known, ddof=1)) if len(known) > 1 else None
