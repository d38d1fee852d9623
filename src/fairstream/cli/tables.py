"""What a run found, as tables for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from fairstream.experiment import PeriodResult, Run

_TASKS = {"remain": "everything after the period (Task-R)", "next": "the next period (Task-N)"}


def period_table(run: Run, task: str) -> Table:
    """One row per period, the mean over the periods after pre-training at the end."""
    summary = run.summary()[task]
    main, *others = [name for name in summary if not name.startswith("true_")]
    sizes = ", ".join(f"{name} {number(summary[name]['abs_performance_disparity'])}" for name in (main, *others))
    table = _table(f"{run.config.method}, judged on {_TASKS[task]}", caption=f"mean |PD|: {sizes}")
    table.add_column("period", justify="right", no_wrap=True)
    table.add_column("step", no_wrap=True)
    for heading in (main, *run.groups.names, "PD", *(cell for name in others for cell in (name, "PD")), "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in [run.pretrained, *run.results]:
        if result is not None:
            scores = result.tasks[task].metrics
            cells = _cells(scores[main].to_dict() | {"mean": scores[main].overall})
            for name in others:
                cells += [number(scores[name].overall), signed(scores[name].performance_disparity)]
            step = "pre-train" if result.t == 0 else str(result.update.step)
            table.add_row(str(result.t), step, *cells, f"{result.update.seconds:.2f}")
    means = _cells(summary[main])
    for name in others:
        means += [number(summary[name]["mean"]), signed(summary[name]["performance_disparity"])]
    table.add_section()
    table.add_row("mean", "", *means, f"{_mean_seconds(run.results):.2f}")
    return table


def comparison_table(runs: Sequence[Run], task: str, metric: str) -> Table:
    """One row per method, averaged over its periods."""
    table = _table(f"{metric} on {_TASKS[task]}, mean over the periods")
    table.add_column("method", no_wrap=True)
    for heading in (metric, *runs[0].groups.names, "PD", "mean |PD|", "s / update"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        row = run.summary()[task][metric]
        size = number(row["abs_performance_disparity"])
        table.add_row(run.config.method, *_cells(row), size, f"{_mean_seconds(run.results):.2f}")
    return table


def number(value: float | None) -> str:
    """Four decimals, or a dash where there is nothing to show."""
    return "–" if value is None else f"{value:.4f}"


def signed(value: float | None) -> str:
    """The same with its sign."""
    return "–" if value is None else f"{value:+.4f}"


def _table(title: str, caption: str | None = None) -> Table:
    return Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )


def _cells(score: Mapping[str, Any]) -> list[str]:
    """The mean, each group's, and the signed gap."""
    by_group = [number(value) for value in score["by_group"].values()]
    return [number(score["mean"]), *by_group, signed(score["performance_disparity"])]


def _mean_seconds(results: Sequence[PeriodResult]) -> float:
    return sum(result.update.seconds for result in results) / len(results)
