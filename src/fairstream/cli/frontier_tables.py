"""A frontier as tables and as a picture made of letters."""

from __future__ import annotations

from rich.table import Table

from fairstream.cli.console import new_table
from fairstream.evaluation import Interval
from fairstream.evaluation.by_group import ordered
from fairstream.evaluation.score_cells import CHANCE_MARK, shown_groups
from fairstream.pages.frontier import TASKS
from fairstream.recommender import Frontier, FrontierLevel
from fairstream.recommender.frontier import percent, relative
from fairstream.text import number, signed

CHOSEN, ON_FRONT, OFF_FRONT = "◆", "●", "○"
_WIDTH, _HEIGHT, _MARGIN = 72, 13, 10


def level_table(frontier: Frontier) -> Table:
    """Every level by itself."""
    n_periods = len(frontier.period_ends) - 2
    table = new_table(
        f"{frontier.metric} {TASKS[frontier.task]} by {frontier.lever}: {frontier.n_users:,} users, mean over "
        f"{n_periods} period{'s' * (n_periods > 1)}",
        caption=f"{CHOSEN} recommended, {ON_FRONT} on the Pareto front; {CHANCE_MARK} not significant (permutations)",
    )
    table.add_column("", no_wrap=True, min_width=1)
    table.add_column("level", justify="right", no_wrap=True)
    names = shown_groups(frontier.groups)
    gap = ("PD",) if names else ("largest gap", "furthest behind")
    for heading in (frontier.metric, *names, *gap, "95 % interval", "p", "s / update"):
        table.add_column(heading, justify="right", no_wrap=True)
    for level in frontier.levels:
        low, high = level.gap.interval or (None, None)
        value = signed(level.gap.value) if names else number(level.gap.value)
        table.add_row(
            _mark(frontier, level).replace(OFF_FRONT, ""),
            frontier.name_of(level),
            number(level.quality),
            *(number(level.scores.by_group[name]) for name in names),
            value + (CHANCE_MARK if level.gap.may_be_chance else " "),
            *([] if names else [level.behind]),
            f"{signed(low)} … {signed(high)}",
            "–" if level.gap.p_value is None else f"{level.gap.p_value:.3f}",
            f"{level.seconds:.2f}",
        )
    return table


def change_table(frontier: Frontier) -> Table:
    """Every other level minus none."""
    table = new_table(
        "The levels minus none, on the same users",
        caption=f"{CHANCE_MARK} the interval contains 0; the quality in percent of that without a lever",
    )
    table.add_column("level", justify="right", no_wrap=True)
    gap = "PD" if len(frontier.groups) == 2 else "largest gap"
    names = ordered(frontier.groups) if len(frontier.groups) == 2 else []
    for heading in (frontier.metric, "95 % interval", *names, gap, "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    for level in frontier.levels:
        if level is frontier.none:
            continue
        quality, base = level.quality_change, frontier.none.quality
        low, high = (percent(relative(end, base), sign="+") for end in (quality.low, quality.high))
        by_group = [_group_change(frontier, level, name) for name in names]
        table.add_row(
            frontier.name_of(level),
            percent(relative(quality.value, base), sign="+") + _chance(quality),
            f"{low} … {high}",
            *by_group,
            signed(level.gap_change.value) + _chance(level.gap_change),
            f"{signed(level.gap_change.low)} … {signed(level.gap_change.high)}",
        )
    return table


def text_picture(frontier: Frontier) -> list[str]:
    """The quality of each level over its gap, in lines of text."""
    gaps, qualities = zip(*((level.gap.value, level.quality) for level in frontier.levels), strict=True)
    left, right = min(gaps), max(gaps)
    if left - (right - left) < 0 < right + (right - left):  # near enough to be shown
        left, right = min(left, 0.0), max(right, 0.0)
    bottom, top = min(qualities), max(qualities)
    canvas = [[" "] * _WIDTH for _ in range(_HEIGHT)]

    def column_of(gap: float) -> int:
        return 1 + round((gap - left) / (right - left or 1.0) * (_WIDTH - 10))

    if left <= 0 <= right:
        for line in canvas:
            line[column_of(0.0)] = "┊"
    points = {
        level.value: (round((top - level.quality) / (top - bottom or 1.0) * (_HEIGHT - 1)), column_of(level.gap.value))
        for level in frontier.levels
    }
    for level in sorted(frontier.levels, key=lambda level: level is frontier.recommended):  # which is on top
        row, column = points[level.value]
        canvas[row][column] = _mark(frontier, level)
    for level in frontier.levels:
        _write_beside(canvas, *points[level.value], frontier.name_of(level))
    labels = {0: number(top), _HEIGHT - 1: number(bottom)}
    ticks = {column_of(value): number(value) for value in (left, right, 0.0) if left <= value <= right}
    gap = "PD" if len(frontier.groups) == 2 else "largest gap"
    return [
        f"{frontier.metric:>{_MARGIN}}",
        *(f"{labels.get(at, ''):>{_MARGIN}} │{''.join(line).rstrip()}" for at, line in enumerate(canvas)),
        f"{'':>{_MARGIN}} └{'─' * _WIDTH}",
        f"{'':>{_MARGIN}}  {_axis(ticks)} {gap}",
    ]


def _axis(labels: dict[int, str]) -> str:
    """Labels around their columns, those that would overlap left out."""
    line = [" "] * _WIDTH
    for column, label in labels.items():
        start = min(max(0, column - len(label) // 2), _WIDTH - len(label))
        if set(line[max(0, start - 1) : start + len(label) + 1]) == {" "}:
            line[start : start + len(label)] = label
    return "".join(line)


def _write_beside(canvas: list[list[str]], row: int, column: int, label: str) -> None:
    """Write a label where it covers nothing: on the right of its point, on the left, or in the lines around it."""
    width = len(label)
    for line, start in (
        (row, column + 2),
        (row, column - 1 - width),
        (row - 1, column + 1),
        (row + 1, column + 1),
        (row - 1, column - width),
        (row + 1, column - width),
    ):
        if 0 <= line < _HEIGHT and start >= 0 and start + width <= _WIDTH:
            around = canvas[line][max(0, start - 1) : start + width + 1]
            inside = canvas[line][start : start + width]
            if set(inside) <= {" "} and set(around) <= {" ", "┊"}:
                canvas[line][start : start + width] = label
                return


def _mark(frontier: Frontier, level: FrontierLevel) -> str:
    return CHOSEN if level is frontier.recommended else ON_FRONT if level.is_on_front else OFF_FRONT


def _group_change(frontier: Frontier, level: FrontierLevel, name: str) -> str:
    before, after = frontier.none.scores.by_group[name], level.scores.by_group[name]
    return "–" if before is None or after is None else percent(relative(after - before, before), sign="+")


def _chance(interval: Interval) -> str:
    return " " if interval.excludes_zero else CHANCE_MARK
