"""What runs found, as tables for a person; made from stored results only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from fairstream.evaluation.by_group import SIGNIFICANCE

TASK_NAMES = {"remain": "everything after the period (Task-R)", "next": "the next period (Task-N)"}
_SLICES = {
    "warm_users": "users seen before",
    "cold_users": "users not seen before (fallback)",
    "no_group": "users without a group",
    "new_items": "items first seen in the last period",
    "cold_items": "items nobody has had yet",
}
_FEW_GROUPS = 2
CHANCE_MARK = "~"
_LEGEND = f"{CHANCE_MARK} cannot be told from chance (permutation p ≥ {SIGNIFICANCE:g})"

Document = Mapping[str, Any]


def period_table(document: Document, task: str) -> Table:
    """The main metric: one row per period, the mean over the periods after pre-training at the end."""
    main = next(iter(document["summary"][task]))
    shown = shown_groups(document["data"]["groups"])
    method, seeds = document["config"]["method"], document["config"]["seed"]
    several = f", mean of {len(seeds)} seeds" if isinstance(seeds, list) else ""
    table = new_table(f"{method}, judged on {TASK_NAMES[task]}{several}", caption=_caption(document, task, main))
    table.add_column("period", justify="right", no_wrap=True)
    table.add_column("step", no_wrap=True)
    for heading in (main, *_gap_headings(shown), "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    timing, update_seconds, begins = document["timing"], _update_seconds(document), document["data"]["period_begins"]
    for result, seconds in zip(
        [document["pretrained"], *document["periods"]], [timing["pretrain_s"], *update_seconds], strict=True
    ):
        t = result["t"]
        step = "pre-train" if t == 0 else result["step"]
        when = f" from {begins[t].replace('T', ' ')}" if begins else ""
        cells = _cells(result["tasks"][task][main], shown)
        table.add_row(f"{t}{when}", step, *cells, f"{seconds:.2f}")
    table.add_section()
    mean_seconds = sum(update_seconds) / len(update_seconds)
    table.add_row("mean", "", *_cells(document["summary"][task][main], shown), f"{mean_seconds:.2f}")
    return table


def metric_table(document: Document, task: str) -> Table:
    """Every metric, averaged over the periods."""
    shown = shown_groups(document["data"]["groups"])
    table = new_table(f"All metrics on {TASK_NAMES[task]}, mean over the periods")
    table.add_column("metric", no_wrap=True)
    for heading in ("mean", *_gap_headings(shown)):
        table.add_column(heading, justify="right", no_wrap=True)
    for metric, score in document["summary"][task].items():
        table.add_row(metric, *_cells(score, shown))
    return table


def group_table(document: Document, task: str) -> Table:
    """Each group's value and gap to the rest, averaged over the periods."""
    main, score = next(iter(document["summary"][task].items()))
    table = new_table(f"{main} by {document['data']['group']}, mean over the periods", caption=_LEGEND)
    table.add_column("group", no_wrap=True)
    for heading in (main, "gap to the rest", "95 % interval", "p", "null"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in ordered(document["data"]["groups"]):
        gap = score["gaps"].get(name)
        cells = [number(score["by_group"][name]), *_gap_cells(gap)] if gap else ["set aside", "", "", "", ""]
        table.add_row(name, *cells)
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


def method_table(documents: Sequence[Document], task: str, metric: str) -> Table:
    """One row per method, averaged over its periods."""
    groups = documents[0]["data"]["groups"]
    table = new_table(f"{metric} on {TASK_NAMES[task]}, mean over the periods", caption=_LEGEND)
    table.add_column("method", no_wrap=True)
    for heading in (metric, *groups, "PD", "95 % interval", "mean |PD|", "s / update"):
        table.add_column(heading, justify="right", no_wrap=True)
    for document in documents:
        score, seconds = document["summary"][task][metric], _update_seconds(document)
        values = [number(score["by_group"][name]) for name in groups]
        gap, interval, *_ = _gap_cells(score["disparity"])
        size = number(score["abs_performance_disparity"])
        mean_seconds = f"{sum(seconds) / len(seconds):.2f}"
        table.add_row(document["config"]["method"], number(score["mean"]), *values, gap, interval, size, mean_seconds)
    return table


def _update_seconds(document: Document) -> list[float]:
    """What each period took: learning, and where the method chooses the lists anew, that too."""
    learning = document["timing"]["update_s"]
    return [sum(both) for both in zip(learning, document["timing"].get("rerank_s", [0.0] * len(learning)), strict=True)]


def recovery_line(found: Mapping[str, Any]) -> str:
    """How well the group can still be told from what Adver has filtered."""
    accuracy, interval = number(found["balanced_accuracy"]) + _plus_minus(found.get("seed_sd")), found["interval"]
    between = "" if interval is None else f"95 % interval {interval[0]:.4f} … {interval[1]:.4f}, "
    return (
        f"A fresh classifier tells the group of {found['n_users']:,} users from their filtered embeddings with a "
        f"balanced accuracy of {accuracy} ({between}by chance {number(found['chance'])})"
    )


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
    size = f"mean |PD| {number(score['abs_performance_disparity'])} (null mean {number(score['null_mean'])})"
    if spread := score["spread"]:
        p_value = "" if spread["p_value"] is None else f" (p = {spread['p_value']:.3f})"
        size += f", spread between groups {number(spread['value'])}{p_value}"
    aside: dict[str, int] = {}
    for period in document["periods"]:
        aside |= {name: max(n, aside.get(name, 0)) for name, n in period["tasks"][task]["excluded_groups"].items()}
    lines = [size, "null: the size it has on average (null mean) where the groups' means are equal", _LEGEND]
    if aside:
        groups = ", ".join(f"{name} (at most {n} users)" for name, n in sorted(aside.items()))
        lines.append(f"too small to judge in some period (fewer than {document['config']['min_group_size']}): {groups}")
    return "\n".join(lines)


def shown_groups(names: Sequence[str]) -> list[str]:
    """The groups that get a column each; of many, only the largest gap does."""
    return list(names) if len(names) <= _FEW_GROUPS else []


def _gap_headings(shown: Sequence[str]) -> list[str]:
    gap = [*shown, "PD", "95 % interval"] if shown else ["largest gap", "furthest"]
    return [*gap, "p", "null"]


def _cells(score: Mapping[str, Any], shown: Sequence[str]) -> list[str]:
    """The mean, each group's where they are few, and the gap with its null mean."""
    sd = score.get("seed_sd", {})
    mean = number(score["mean"]) + _plus_minus(sd.get("mean"))
    if shown:
        gap, *rest = _gap_cells(score["disparity"])
        gap += _plus_minus(sd.get("performance_disparity"))
        return [mean, *(number(score["by_group"].get(name)) for name in shown), gap, *rest]
    largest = score["largest_gap"]
    gap, _, p_value, null_mean = _gap_cells(largest)
    return [mean, gap.lstrip("+"), "–" if largest is None else largest["group"], p_value, null_mean]


def _gap_cells(gap: Mapping[str, Any] | None) -> list[str]:
    """Value with its mark, interval, p-value, and null mean."""
    if gap is None:
        return ["–", "–", "–", "–"]
    p_value, interval = gap["p_value"], gap["interval"]
    mark = CHANCE_MARK if p_value is not None and p_value >= SIGNIFICANCE else " "
    between = "–" if interval is None else f"{interval[0]:+.4f} … {interval[1]:+.4f}"
    return [
        signed(gap["value"]) + mark,
        between,
        "–" if p_value is None else f"{p_value:.3f}",
        number(gap["null_mean"]),
    ]


def _plus_minus(sd: float | None) -> str:
    return "" if sd is None else f" ± {sd:.4f}"


def new_table(title: str, caption: str | None = None) -> Table:
    """A table in the house style."""
    return Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
