"""What runs found, as tables for a person; made from stored results only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from fairstream.evaluation.by_group import SIGNIFICANCE
from fairstream.experiment import Comparison
from fairstream.experiment.compare import Interval

_TASKS = {"remain": "everything after the period (Task-R)", "next": "the next period (Task-N)"}
_SLICES = {
    "warm_users": "users seen before",
    "cold_users": "users not seen before (fallback)",
    "no_group": "users without a group",
    "new_items": "items first seen in the last period",
    "cold_items": "items nobody has had yet",
}
_FEW_GROUPS = 3
CHANCE_MARK = "~"
_LEGEND = f"{CHANCE_MARK} cannot be told from chance (permutation p ≥ {SIGNIFICANCE:g})"

Document = Mapping[str, Any]


def period_table(document: Document, task: str) -> Table:
    """The main metric: one row per period, the mean over the periods after pre-training at the end."""
    main = next(iter(document["summary"][task]))
    groups = ordered(document["data"]["groups"])
    shown = groups if len(groups) <= _FEW_GROUPS else []
    method, seeds = document["config"]["method"], document["config"]["seed"]
    title = f"{method}, judged on {_TASKS[task]}" + (f", mean of {len(seeds)} seeds" if isinstance(seeds, list) else "")
    table = _table(title, caption=_caption(document, task, main))
    table.add_column("period", justify="right", no_wrap=True)
    table.add_column("step", no_wrap=True)
    gap = "PD" if shown else "largest gap"
    for heading in (main, *shown, gap, "95 % interval" if shown else "of group", "chance", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    timing, begins = document["timing"], document["data"]["period_begins"]
    for result, seconds in zip(
        [document["pretrained"], *document["periods"]], [timing["pretrain_s"], *timing["update_s"]], strict=True
    ):
        t = result["t"]
        step = "pre-train" if t == 0 else result["step"]
        when = f" from {begins[t].replace('T', ' ')}" if begins else ""
        cells = _cells(result["tasks"][task][main], "overall", shown)
        table.add_row(f"{t}{when}", step, *cells, f"{seconds:.2f}")
    table.add_section()
    mean_seconds = sum(timing["update_s"]) / len(timing["update_s"])
    table.add_row("mean", "", *_cells(document["summary"][task][main], "mean", shown), f"{mean_seconds:.2f}")
    return table


def metric_table(document: Document, task: str) -> Table:
    """Every metric, averaged over the periods."""
    groups = ordered(document["data"]["groups"])
    shown = groups if len(groups) <= _FEW_GROUPS else []
    table = _table(f"All metrics on {_TASKS[task]}, mean over the periods")
    table.add_column("metric", no_wrap=True)
    gap = "PD" if shown else "largest gap"
    for heading in ("mean", *shown, gap, "95 % interval" if shown else "of group", "chance"):
        table.add_column(heading, justify="right", no_wrap=True)
    for metric, score in document["summary"][task].items():
        table.add_row(metric, *_cells(score, "mean", shown))
    return table


def group_table(document: Document, task: str) -> Table:
    """Each group's value and gap to the rest, averaged over the periods."""
    main, score = next(iter(document["summary"][task].items()))
    table = _table(f"{main} by {document['data']['group']}, mean over the periods", caption=_LEGEND)
    table.add_column("group", no_wrap=True)
    for heading in (main, "gap to the rest", "95 % interval", "chance"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in ordered(document["data"]["groups"]):
        gap = score["gaps"].get(name)
        cells = [number(score["by_group"][name]), *_gap_cells(gap)] if gap else ["set aside", "", "", ""]
        table.add_row(name, *cells)
    return table


def slice_table(document: Document, task: str) -> Table:
    """The slices, averaged over the periods."""
    main = next(iter(document["summary"][task]))
    groups = ordered(document["data"]["groups"])
    shown = groups if len(groups) <= _FEW_GROUPS else []
    table = _table(f"{main} on {_TASKS[task]} by slice, mean over the periods")
    table.add_column("slice", no_wrap=True)
    for heading in ("users", "events", main, *shown):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, part in document["slices"][task].items():
        if part["n_users"]:
            score = part[main]
            values = [number(score["by_group"].get(group)) for group in shown]
            counts = [f"{part['n_users']:,.0f}", f"{part['n_positives']:,.0f}"]
            table.add_row(_SLICES[name], *counts, number(score["overall"]), *values)
    return table


def method_table(documents: Sequence[Document], task: str, metric: str) -> Table:
    """One row per method, averaged over its periods."""
    groups = documents[0]["data"]["groups"]
    table = _table(f"{metric} on {_TASKS[task]}, mean over the periods", caption=_LEGEND)
    table.add_column("method", no_wrap=True)
    for heading in (metric, *groups, "PD", "95 % interval", "mean |PD|", "s / update"):
        table.add_column(heading, justify="right", no_wrap=True)
    for document in documents:
        score, seconds = document["summary"][task][metric], document["timing"]["update_s"]
        values = [number(score["by_group"][name]) for name in groups]
        gap, interval, _ = _gap_cells(score["disparity"])
        size = number(score["abs_performance_disparity"])
        mean_seconds = f"{sum(seconds) / len(seconds):.2f}"
        table.add_row(document["config"]["method"], number(score["mean"]), *values, gap, interval, size, mean_seconds)
    return table


def contender_table(comparison: Comparison) -> Table:
    """Every contender by itself."""
    seeds = f"{len(comparison.seeds)} seed{'s' if len(comparison.seeds) > 1 else ''}"
    table = _table(
        f"{comparison.metric} on {_TASKS[comparison.task]}, {comparison.n_users:,} users, {seeds}",
        caption="95 % intervals over users and seeds; ● on the Pareto front",
    )
    table.add_column("", no_wrap=True, min_width=1)
    table.add_column("method", no_wrap=True)
    gap = "mean |PD|" if comparison.n_groups == 2 else "largest gap"
    names = list(comparison.contenders[0].by_group) if comparison.n_groups <= _FEW_GROUPS else []
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
    table = _table(
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
            cells += [value + (" " if part.is_certain else CHANCE_MARK), interval]
        table.add_row(difference.label, *cells)
    return table


def number(value: float | None) -> str:
    """Four decimals, or a dash where there is nothing to show."""
    return "–" if value is None else f"{value:.4f}"


def signed(value: float | None) -> str:
    """The same with its sign."""
    return "–" if value is None else f"{value:+.4f}"


def ordered(names: Sequence[str]) -> list[str]:
    """Two groups with the advantaged one first; more in the order of their values, numbers as numbers."""
    if len(names) <= 2:
        return list(names)
    return sorted(names, key=lambda name: [(not p.isdigit(), int(p) if p.isdigit() else 0, p) for p in name.split(",")])


def _caption(document: Document, task: str, main: str) -> str:
    score = document["summary"][task][main]
    size = f"mean |PD| {number(score['abs_performance_disparity'])}"
    if spread := score["spread"]:
        p_value = "" if spread["p_value"] is None else f" (p = {spread['p_value']:.3f})"
        size += f", spread between groups {number(spread['value'])}{p_value}"
    aside: dict[str, int] = {}
    for period in document["periods"]:
        aside |= {name: max(n, aside.get(name, 0)) for name, n in period["tasks"][task]["set_aside"].items()}
    lines = [size, f"chance: what dealing the groups out at random gives on average; {_LEGEND}"]
    if aside:
        groups = ", ".join(f"{name} (at most {n} users)" for name, n in sorted(aside.items()))
        lines.append(f"too small to judge in some period (fewer than {document['config']['min_group_size']}): {groups}")
    return "\n".join(lines)


def _cells(score: Mapping[str, Any], overall: str, shown: Sequence[str]) -> list[str]:
    """The mean, each group's where they are few, and the gap with what chance would do."""
    sd = score.get("seed_sd", {})
    mean = number(score[overall]) + _plus_minus(sd.get("overall"))
    if shown:
        gap, interval, chance = _gap_cells(score["disparity"])
        gap += _plus_minus(sd.get("performance_disparity"))
        return [mean, *(number(score["by_group"].get(name)) for name in shown), gap, interval, chance]
    largest = score["largest_gap"]
    gap, _, chance = _gap_cells(largest)
    return [mean, gap, "–" if largest is None else largest["group"], chance]


def _gap_cells(gap: Mapping[str, Any] | None) -> list[str]:
    """Value with its mark, interval, and the size by chance."""
    if gap is None:
        return ["–", "–", "–"]
    p_value, interval = gap["p_value"], gap["interval"]
    mark = CHANCE_MARK if p_value is not None and p_value >= SIGNIFICANCE else " "
    between = "–" if interval is None else f"{interval[0]:+.4f} … {interval[1]:+.4f}"
    return [signed(gap["value"]) + mark, between, number(gap["chance"])]


def _interval_cells(part: Interval, form: Any) -> tuple[str, str]:
    return form(part.value), f"{form(part.low)} … {form(part.high)}"


def _plus_minus(sd: float | None) -> str:
    return "" if sd is None else f" ± {sd:.4f}"


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
