"""Pool runs that differ only in the seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairstream.evaluation import AggregateMetric, MetricAtK, UserResults
from fairstream.experiments.record import Record, mean_of
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
        "summary": {
            task: _scores_over_seeds(
                records[0], [each.tested(task) for each in records], [each.about["summary"][task] for each in records]
            )
            for task in periods[0]["tasks"]
        },
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
        scores = _scores_over_seeds(records[0], tests, [result["tasks"][task] for result in results])
        counts = {name: evaluation[name] for name in ("n_tested_users", "n_cold_users", "excluded_groups")}
        tasks[task] = {**scores, **counts}
    steps, advantaged = ([result[name] for result in results] for name in ("step", "advantaged"))
    return {
        "t": t,
        "step": " / ".join(dict.fromkeys(steps)),
        "advantaged": sorted({name for names in advantaged for name in names}),
        "levels": list(dict.fromkeys(tuple(level) for result in results if (level := result.get("level")))),
        "tasks": tasks,
    }


_OF_SIZES = ("abs_performance_disparity_debiased", "null_mean")


def _scores_over_seeds(
    like: Record, tests: Sequence[Sequence[UserResults]], scores: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Each metric of the seeds' mean, with the standard deviation between seeds."""
    metrics = {name: like.metric(name) for name in like.metrics}
    averaged = [_mean_results(results, metrics) for results in zip(*tests, strict=True)]
    rng = Randomness(0).numpy("resampling of several seeds")
    statistics = like.scores(averaged, list(metrics), rng)
    result = {}
    for metric, score in statistics.items():
        # |PD| of the mean is smaller than the mean |PD|, which is what each run reports.
        sizes = [part[metric]["abs_performance_disparity"] for part in scores]
        result[metric] = {
            **score.to_dict(),
            "abs_performance_disparity": mean_of(sizes),
            **{size: mean_of([part[metric][size] for part in scores]) for size in _OF_SIZES},
            "seed_sd": {
                "mean": _sd([part[metric]["mean"] for part in scores]),
                "performance_disparity": _sd([part[metric]["performance_disparity"] for part in scores]),
                "abs_performance_disparity": _sd(sizes),
            },
        }
    return result


def _mean_results(results: Sequence[UserResults], metrics: Mapping[str, MetricAtK | str]) -> UserResults:
    """The values of every metric, averaged over the seeds, which test the same users."""
    values, totals = {}, {}
    for name, metric in metrics.items():
        if name in results[0].totals:
            totals[name] = AggregateMetric.from_dict(mean_of([result.totals[name].to_dict() for result in results]))
        else:
            values[name] = np.mean([result.values_of(metric) for result in results], axis=0)
    levels = [result.level_values for result in results if result.level_values is not None]
    at_levels = np.mean(levels, axis=0) if len(levels) == len(results) else None
    return replace(
        results[0],
        values=values,
        totals=totals,
        levels=() if at_levels is None else results[0].levels,
        level_values=at_levels,
    )


def _sd(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.std(known, ddof=1)) if len(known) > 1 else None
