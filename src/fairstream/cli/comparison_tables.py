"""What a comparison found, as tables for a person."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table

from fairstream.cli.tables import CHANCE_MARK, TASK_NAMES, new_table, number, shown_groups, signed
from fairstream.evaluation.paired import Interval
from fairstream.experiments import Comparison


def contender_table(comparison: Comparison) -> Table:
    """Every contender by itself."""
    n_seeds = len(comparison.seeds)
    seeds, over = (f"{n_seeds} seeds", "users and seeds") if n_seeds > 1 else ("1 seed", "users")
    table = new_table(
        f"{comparison.metric} on {TASK_NAMES[comparison.task]}, {comparison.n_users:,} users, {seeds}",
        caption=f"95 % intervals over {over}; ● on the Pareto front\n"
        "the size of a gap is above 0 by chance alone: see each run's own table",
    )
    table.add_column("", no_wrap=True, min_width=1)
    table.add_column("method", no_wrap=True)
    gap = "mean |PD|" if comparison.n_groups == 2 else "largest gap"
    names = shown_groups(list(comparison.contenders[0].by_group))
    for heading in (comparison.metric, "interval", *names, gap, "interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    for contender in comparison.contenders:
        groups = [number(contender.by_group[name]) for name in names]
        table.add_row(
            "●" if contender.is_on_front else "",
            contender.label,
            *_interval_cells(contender.performance, number),
            *groups,
            *_interval_cells(contender.disparity, number),
        )
    return table


def difference_table(comparison: Comparison, against: str) -> Table:
    """Every other contender minus one."""
    table = new_table(
        f"The others minus {against}, on the same users and seeds", caption=f"{CHANCE_MARK} the interval holds 0"
    )
    table.add_column("method", no_wrap=True)
    gap = "mean |PD|" if comparison.n_groups == 2 else "largest gap"
    for heading in (comparison.metric, "95 % interval", gap, "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    for difference in comparison.against(against):
        cells = []
        for part in (difference.performance, difference.disparity):
            value, interval = _interval_cells(part, signed)
            cells += [value + (" " if part.excludes_zero else CHANCE_MARK), interval]
        table.add_row(difference.label, *cells)
    return table


def _interval_cells(part: Interval, form: Callable[[float | None], str]) -> tuple[str, str]:
    return form(part.value), f"{form(part.low)} … {form(part.high)}"
