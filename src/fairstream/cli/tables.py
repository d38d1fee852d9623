"""What a run found, as tables for a person."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from fairstream.evaluation import GroupScores
from fairstream.experiment import PeriodResult, Run

_TASKS = {"remain": "everything after the period (Task-R)", "next": "the next period (Task-N)"}


def period_table(run: Run, task: str) -> Table:
    """One row per period, the mean at the end."""
    metrics = [name for name in run.results[0].tasks[task].metrics if not name.startswith("true_")]
    first, second = run.groups.names
    table = Table(title=f"{run.config.method}, judged on {_TASKS[task]}", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("period", justify="right")
    table.add_column("step")
    for metric in metrics:
        for heading in (metric, first, second, "PD"):
            table.add_column(heading, justify="right")
    table.add_column("seconds", justify="right")
    for result in [run.pretrained, *run.results]:
        if result is not None:
            table.add_row(*_period_row(result, task, metrics))
    summary = run.summary()[task]
    means = [
        cell
        for metric in metrics
        for cell in (
            number(summary[metric]["mean"]),
            *(number(value) for value in summary[metric]["by_group"].values()),
            f"|{number(summary[metric]['abs_performance_disparity'])}|",
        )
    ]
    table.add_section()
    table.add_row("mean", "", *means, f"{_mean_seconds(run.results):.2f}")
    return table


def comparison_table(runs: Sequence[Run], task: str, metric: str) -> Table:
    """One row per method, averaged over its periods."""
    first, second = runs[0].groups.names
    table = Table(title=f"{metric} on {_TASKS[task]}, mean over the periods", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("method")
    for heading in (metric, first, second, "PD", "mean |PD|", "s / update"):
        table.add_column(heading, justify="right")
    for run in runs:
        row = run.summary()[task][metric]
        table.add_row(
            run.config.method,
            number(row["mean"]),
            *(number(value) for value in row["by_group"].values()),
            signed(row["performance_disparity"]),
            number(row["abs_performance_disparity"]),
            f"{_mean_seconds(run.results):.2f}",
        )
    return table


def number(value: float | None) -> str:
    """Four decimals, or a dash where there is nothing to show."""
    return "–" if value is None else f"{value:.4f}"


def signed(value: float | None) -> str:
    """The same with its sign."""
    return "–" if value is None else f"{value:+.4f}"


def _period_row(result: PeriodResult, task: str, metrics: Sequence[str]) -> list[str]:
    cells = [str(result.t), "pre-train" if result.t == 0 else str(result.update.step)]
    for metric in metrics:
        cells += _score_cells(result.tasks[task][metric])
    return [*cells, f"{result.update.seconds:.2f}"]


def _score_cells(score: GroupScores) -> list[str]:
    by_group = [number(value) for value in score.by_group.values()]
    return [number(score.overall), *by_group, signed(score.performance_disparity)]


def _mean_seconds(results: Sequence[PeriodResult]) -> float:
    return sum(result.update.seconds for result in results) / len(results)
