"""Scores by group as cells of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairstream.evaluation.by_group import SIGNIFICANCE, Estimate
from fairstream.text import MISSING, between, number, signed

CHANCE_MARK = "~"
LEGEND = f"{CHANCE_MARK} not significant (permutation p ≥ {SIGNIFICANCE:g})"
FEW_GROUPS = 2


def shown_groups(names: Sequence[str]) -> list[str]:
    """Return the groups with a column each; none of more than two: the table shows the one furthest behind."""
    return list(names) if len(names) <= FEW_GROUPS else []


def gap_headings(shown: Sequence[str]) -> list[str]:
    """Return the headings of `score_cells` after the mean."""
    gap = [*shown, "PD", "95 % interval"] if shown else ["behind by", "furthest behind"]
    return [*gap, "p", "null"]


def score_cells(score: Mapping[str, Any], shown: Sequence[str], *, has_groups: bool = True) -> list[str]:
    """Return the mean; with groups also the mean of each shown group, and the gap with its null mean."""
    sd = score.get("seed_sd", {})
    mean = number(score["mean"]) + plus_minus(sd.get("mean"))
    if not has_groups:
        return [mean]
    if shown:
        gap, *rest = gap_cells(score["disparity"])
        gap += plus_minus(sd.get("performance_disparity"))
        return [mean, *(number(score["by_group"].get(name)) for name in shown), gap, *rest]
    behind = score.get("furthest_behind")  # missing in runs stored by old versions
    gap, _, p, null_mean = gap_cells(behind)
    return [mean, gap.lstrip("+±"), MISSING if behind is None else behind["group"], p, null_mean]


def gap_cells(gap: Mapping[str, Any] | None) -> list[str]:
    """Return the value with its mark, its interval, its p-value, and its null mean."""
    if gap is None:
        return [MISSING] * 4
    p, interval = gap["p_value"], gap["interval"]
    mark = CHANCE_MARK if p is not None and p >= SIGNIFICANCE else " "
    return [signed(gap["value"]) + mark, between(interval, is_signed=True), number(p, 3), number(gap["null_mean"])]


def difference_cells(part: Estimate | None) -> list[str]:
    """Return a difference, marked where its interval includes 0, and that interval."""
    if part is None:
        return [MISSING, MISSING]
    return [signed(part.value) + (CHANCE_MARK if part.includes_zero else " "), between(part.interval, is_signed=True)]


def plus_minus(sd: float | None) -> str:
    """Return the standard deviation over seeds, if there is one."""
    return "" if sd is None else f" ± {number(sd)}"
