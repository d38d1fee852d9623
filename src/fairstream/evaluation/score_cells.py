"""Scores as cells of tables, as every table of results shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairstream.evaluation.by_group import SIGNIFICANCE
from fairstream.text import number, signed

CHANCE_MARK = "~"
LEGEND = f"{CHANCE_MARK} not significant (permutation p ≥ {SIGNIFICANCE:g})"
_FEW_GROUPS = 2


def ordered(names: Sequence[str]) -> list[str]:
    """Two groups with the advantaged one first; more in the order of their values, numbers as numbers."""
    if len(names) <= 2:
        return list(names)
    return sorted(names, key=lambda name: [(not p.isdigit(), int(p) if p.isdigit() else 0, p) for p in name.split(",")])


def shown_groups(names: Sequence[str]) -> list[str]:
    """The groups that get a column each; of many, only the largest gap does."""
    return list(names) if len(names) <= _FEW_GROUPS else []


def gap_headings(shown: Sequence[str]) -> list[str]:
    """Above the cells of the gap: of two groups PD, of more the largest gap."""
    gap = [*shown, "PD", "95 % interval"] if shown else ["largest gap", "furthest"]
    return [*gap, "p", "null"]


def score_cells(score: Mapping[str, Any], shown: Sequence[str]) -> list[str]:
    """The mean, each group's where they are few, and the gap with its null mean."""
    sd = score.get("seed_sd", {})
    mean = number(score["mean"]) + plus_minus(sd.get("mean"))
    if shown:
        gap, *rest = gap_cells(score["disparity"])
        gap += plus_minus(sd.get("performance_disparity"))
        return [mean, *(number(score["by_group"].get(name)) for name in shown), gap, *rest]
    largest = score["largest_gap"]
    gap, _, p_value, null_mean = gap_cells(largest)
    return [mean, gap.lstrip("+"), "–" if largest is None else largest["group"], p_value, null_mean]


def gap_cells(gap: Mapping[str, Any] | None) -> list[str]:
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


def plus_minus(sd: float | None) -> str:
    """The standard deviation over seeds, where there is one."""
    return "" if sd is None else f" ± {sd:.4f}"
