"""Results of runs and comparisons as tables; made from finished runs only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from fairstream.cli.console import new_table
from fairstream.evaluation import Interval, PointValue
from fairstream.evaluation.by_group import ordered
from fairstream.evaluation.score_cells import (
    CHANCE_MARK,
    LEGEND,
    gap_cells,
    gap_headings,
    plus_minus,
    score_cells,
    shown_groups,
)
from fairstream.experiments import Comparison
from fairstream.text import number, signed

TASK_NAMES = {
    "event": "each event of the next period (next event)",
    "next": "the next period (Task-N)",
    "remain": "everything after the period (Task-R)",
}
MOST_LISTED = 20
"""Of more groups than these only the number is shown."""
_SLICES = {
    "warm_users": "users seen before",
    "cold_users": "users not seen before",
    "no_group": "users without a group",
    "history_0": "first event of a user",
    "history_1": "after 1 event of the user",
    "history_2_4": "after 2 to 4 events",
    "history_5_19": "after 5 to 19 events",
    "history_20_plus": "after 20 events or more",
    "new_items": "items first seen in the last period",
    "cold_items": "items nobody has had yet",
}

Document = Mapping[str, Any]


def period_table(document: Document, task: str, others: Mapping[str, Document] | None = None) -> Table:
    """The main metric: one row per period, the mean over the periods after pre-training at the end.

    `others` are runs that this one has to beat; their means follow.
    """
    main = next(iter(document["summary"][task]))
    shown, has_groups = shown_groups(document["data"]["groups"]), bool(document["data"]["groups"])
    method, seeds = document["config"]["method"], document["config"]["seed"]
    several = f", mean of {len(seeds)} seeds" if isinstance(seeds, list) else ""
    table = new_table(f"{method}, evaluated on {TASK_NAMES[task]}{several}", caption=_caption(document, task, main))
    table.add_column("period", justify="right", no_wrap=True)
    table.add_column("step", no_wrap=True)
    for heading in (main, *(gap_headings(shown) if has_groups else ()), "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    update_seconds, begins = _update_seconds(document), document["data"]["period_begins"]
    pretrain_seconds = document["timing"]["pretrain_s"] if document["timing"] else None
    for result, seconds in zip(
        [document["pretrained"], *document["periods"]], [pretrain_seconds, *update_seconds], strict=True
    ):
        t = result["t"]
        step = "pre-train" if t == 0 else result["step"]
        when = f" from {begins[t].replace('T', ' ')}" if begins else ""
        cells = _cells(result["tasks"][task][main], shown, has_groups)
        table.add_row(f"{t}{when}", step, *cells, _seconds([seconds]))
    table.add_section()
    table.add_row("mean", "", *_cells(document["summary"][task][main], shown, has_groups), _seconds(update_seconds))
    for name, other in (others or {}).items():
        table.add_row(
            "mean",
            name.replace("-", "\n"),
            *_cells(other["summary"][task][main], shown, has_groups),
            _seconds(_update_seconds(other)),
        )
    return table


def _cells(score: Mapping[str, Any], shown: Sequence[str], has_groups: bool) -> list[str]:
    """The mean, and the gap where there are groups."""
    cells = score_cells(score, shown)
    return cells if has_groups else cells[:1]


def not_beaten(comparison: Comparison, name: str) -> str | None:
    """One sentence where the first contender is not better than the second, which is called `name`."""
    mine, other = comparison.contenders
    difference = next(pair for pair in comparison.differences if pair.label == mine.label)
    if difference.performance.value > 0 and difference.performance.excludes_zero:
        return None
    is_below = difference.performance.value < 0 and difference.performance.excludes_zero
    verb = "is better than" if is_below else "cannot be told from"
    return (
        f"On {TASK_NAMES[comparison.task]}, {name} ({number(other.performance.value)}) {verb} this model "
        f"({number(mine.performance.value)})."
    )


def metric_table(document: Document, task: str) -> Table:
    """Every metric, averaged over the periods."""
    shown, has_groups = shown_groups(document["data"]["groups"]), bool(document["data"]["groups"])
    table = new_table(f"All metrics on {TASK_NAMES[task]}, mean over the periods")
    table.add_column("metric", no_wrap=True)
    for heading in ("mean", *(gap_headings(shown) if has_groups else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    for metric, score in document["summary"][task].items():
        table.add_row(metric, *_cells(score, shown, has_groups))
    return table


def group_table(document: Document, task: str) -> Table:
    """Each group's value and gap to the rest, averaged over the periods."""
    main, score = next(iter(document["summary"][task].items()))
    title = f"{main} by {document['data']['group']} on {TASK_NAMES[task]}, mean over the periods"
    table = new_table(title, caption=LEGEND)
    table.add_column("group", no_wrap=True)
    for heading in (main, "gap to the rest", "95 % interval", "p", "null"):
        table.add_column(heading, justify="right", no_wrap=True)
    excluded = [name for name in document["data"]["groups"] if not score["gaps"].get(name)]
    for name in ordered(document["data"]["groups"]):
        if gap := score["gaps"].get(name):
            table.add_row(name, number(score["by_group"][name]), *gap_cells(gap))
        elif len(excluded) <= MOST_LISTED:
            table.add_row(name, "excluded", "", "", "", "")
    if len(excluded) > MOST_LISTED:
        table.add_row(f"{len(excluded)} groups", "excluded", "", "", "", "")
    return table


def slice_table(document: Document, task: str) -> Table:
    """The slices, averaged over the periods."""
    main = next(iter(document["summary"][task]))
    shown = shown_groups(document["data"]["groups"])
    table = new_table(f"{main} on {TASK_NAMES[task]} by slice, mean over the periods")
    table.add_column("slice", no_wrap=True)
    for heading in ("users", "events", main, *shown, *(["PD"] if shown else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, part in document["slices"][task].items():
        if part["n_users"]:
            score = part[main]
            values = [number(score["by_group"].get(group)) for group in shown]
            values += [signed(score["performance_disparity"])] if shown else []
            counts = [f"{part['n_users']:,.0f}", f"{part['n_positives']:,.0f}"]
            table.add_row(_SLICES[name], *counts, number(score["mean"]), *values)
    return table


def method_table(documents: Mapping[str, Document], task: str, metric: str) -> Table:
    """One row per name, averaged over its periods."""
    groups = next(iter(documents.values()))["data"]["groups"]
    table = new_table(f"{metric} on {TASK_NAMES[task]}, mean over the periods", caption=LEGEND)
    table.add_column("", no_wrap=True)
    for heading in (metric, *groups, "newcomers", "PD", "95 % interval", "mean |PD|", "s / update"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, document in documents.items():
        score, seconds = document["summary"][task][metric], _update_seconds(document)
        newcomers = number(document["slices"][task]["cold_users"][metric]["mean"])
        values = [number(score["by_group"][group]) for group in groups]
        gap, interval, *_ = gap_cells(score["disparity"])
        size = number(score["abs_performance_disparity"])
        mean, seconds_cell = number(score["mean"]), _seconds(seconds)
        table.add_row(name, mean, *values, newcomers, gap, interval, size, seconds_cell)
    return table


def _update_seconds(document: Document) -> list[float | None]:
    """Seconds of each period: training, and reranking where the method does; None where they were not kept."""
    timing = document["timing"]
    if timing is None:
        return [None] * len(document["periods"])
    training = timing["update_s"]
    return [sum(both) for both in zip(training, timing.get("rerank_s", [0.0] * len(training)), strict=True)]


def _seconds(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.2f}" if known else "–"


def recovery_line(probe: Mapping[str, Any]) -> str:
    """How well the group can be recovered from the user embeddings."""
    accuracy, interval = number(probe["balanced_accuracy"]) + plus_minus(probe.get("seed_sd")), probe["interval"]
    between = "" if interval is None else f"95 % interval {interval[0]:.4f} … {interval[1]:.4f}, "
    return (
        f"A new classifier recovers the group of {probe['n_users']:,} users from their embeddings with a "
        f"balanced accuracy of {accuracy} ({between}by chance {number(probe['chance'])})"
    )


def _caption(document: Document, task: str, main: str) -> str | None:
    if not document["data"]["groups"]:
        return None
    score = document["summary"][task][main]
    sizes, groups, first = [], document["data"]["groups"], document["data"]["advantaged"]
    if first is not None:
        of = f" of {first}" if len(groups) > 2 else ""
        size = f"{number(score['abs_performance_disparity'])} (null mean {number(score['null_mean'])})"
        sizes.append(f"mean |PD|{of} {size}")
    if spread := score["spread"]:
        p_value = "" if spread["p_value"] is None else f" (p = {spread['p_value']:.3f})"
        sizes.append(f"spread between groups {number(spread['value'])}{p_value}")
    excluded: dict[str, int] = {}
    for period in document["periods"]:
        for name, n in period["tasks"][task]["excluded_groups"].items():
            excluded[name] = max(n, excluded.get(name, 0))
    lines = [", ".join(sizes), "null: the size it has on average (null mean) where the groups' means are equal", LEGEND]
    if excluded:
        lines.append(_exclusions(excluded, document))
    return "\n".join(lines)


def _exclusions(excluded: Mapping[str, int], document: Document) -> str:
    """Which groups were too small to be compared in some period; of many only the number."""
    few, n_groups = f"fewer than {document['config']['min_group_size']} users", len(document["data"]["groups"])
    if len(excluded) > MOST_LISTED:
        return (
            f"excluded in some period ({few}): {len(excluded)} of {n_groups} groups, the largest with at most "
            f"{max(excluded.values())}; choose a coarser column, or make classes of its values"
        )
    groups = (f"{name} (at most {n} user{'' if n == 1 else 's'})" for name, n in sorted(excluded.items()))
    return f"excluded in some period ({few}): {', '.join(groups)}"


def contender_table(comparison: Comparison) -> Table:
    """Every contender by itself."""
    n_seeds = len(comparison.seeds)
    seeds, over = (f"{n_seeds} seeds", "users and seeds") if n_seeds > 1 else ("1 seed", "users")
    is_point = isinstance(comparison.contenders[0].performance, PointValue)
    intervals = "one number for all users: no intervals" if is_point else f"95 % intervals over {over}"
    size = "|PD|" if comparison.n_groups == 2 else "how far a group is behind"
    table = new_table(
        f"{comparison.metric} on {TASK_NAMES[comparison.task]}, {comparison.n_users:,} users, {seeds}",
        caption=f"{intervals}; ● on the Pareto front\n"
        f"{size} is above 0 by chance alone: see the run's own table for its size under permutation",
    )
    table.add_column("", no_wrap=True, min_width=1)
    table.add_column("method", no_wrap=True)
    names = shown_groups(list(comparison.contenders[0].by_group))
    gap = ("mean |PD|", "interval") if names else ("behind by", "interval", "furthest behind")
    for heading in (comparison.metric, "interval", *names, *gap):
        table.add_column(heading, justify="right", no_wrap=True)
    for contender in comparison.contenders:
        groups = [number(contender.by_group[name]) for name in names]
        table.add_row(
            "●" if contender.is_on_front else "",
            contender.label,
            *_interval_cells(contender.performance, number),
            *groups,
            *_interval_cells(contender.disparity, number),
            *([] if names else [contender.behind]),
        )
    return table


def difference_table(comparison: Comparison, against: str) -> Table:
    """Every other contender minus one."""
    table = new_table(
        f"The others minus {against}, on the same users and seeds", caption=f"{CHANCE_MARK} the interval contains 0"
    )
    table.add_column("method", no_wrap=True)
    gap = "mean |PD|" if comparison.n_groups == 2 else "behind by"
    for heading in (comparison.metric, "95 % interval", gap, "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    for difference in comparison.against(against):
        cells = []
        for part in (difference.performance, difference.disparity):
            value, interval = _interval_cells(part, signed)
            cells += [value + (" " if part.excludes_zero else CHANCE_MARK), interval]
        table.add_row(difference.label, *cells)
    return table


def _interval_cells(part: Interval | PointValue, form: Callable[[float | None], str]) -> tuple[str, str]:
    return form(part.value), "–" if part.low is None else f"{form(part.low)} … {form(part.high)}"
