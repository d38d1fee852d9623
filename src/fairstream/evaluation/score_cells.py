"""Scores by group as cells of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairstream.evaluation.by_group import SIGNIFICANCE, Estimate
from fairstream.evaluation.regret import MAX_WIDTH, UNDETERMINED
from fairstream.text import MISSING, between, number, percent, signed

CHANCE_MARK = "~"
LEGEND = f"{CHANCE_MARK} not significant (permutation p ≥ {SIGNIFICANCE:g})"
FEW_GROUPS = 2
ABOUT_REGRET = "regret: the share of its attainable value (at the level that is best for it) that a group does not get"
_INTERVAL = "95 % interval"


def shown_groups(names: Sequence[str]) -> list[str]:
    """Return the groups with a column each; none of more than two: the table shows the one furthest behind."""
    return list(names) if len(names) <= FEW_GROUPS else []


def gap_headings(shown: Sequence[str]) -> list[str]:
    """Return the headings of `score_cells` after the mean."""
    gap = [*shown, "PD", _INTERVAL] if shown else ["behind by", "furthest behind"]
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


def alignment(headings: Sequence[str], first: str = "l") -> str:
    """Return `Table.align`: `first`, then numbers on the right; columns of several words wrap on narrow screens.

    >>> alignment(["group", "ndcg@20", "95 % interval", "p"])
    'lrRr'
    """
    return first + "".join("R" if " " in heading else "r" for heading in headings[len(first) :])


def group_headings(score: Mapping[str, Any], metric: str) -> list[str]:
    """Return the headings of `group_cells`."""
    regret = ["attainable", "regret", _INTERVAL] if score.get("regret") else []
    return [metric, _INTERVAL, *regret, "gap to the rest", _INTERVAL, "p"]


def group_cells(score: Mapping[str, Any], name: str) -> list[str]:
    """Return a group's mean, what is attainable for it, its regret, and its gap to the rest, with intervals."""
    mean = [number(score["by_group"].get(name)), between((score.get("by_group_interval") or {}).get(name))]
    regret = []
    if score.get("regret"):
        regret = [number(score["attainable"].get(name)), *regret_cells(score["regret"].get(name))]
    return [*mean, *regret, *gap_cells((score.get("gaps") or {}).get(name))[:3]]


def regret_cells(regret: Mapping[str, Any] | None) -> list[str]:
    """Return a regret, unless its interval is too wide, and that interval.

    >>> regret_cells({"value": 0.018, "interval": [0.003, 0.03]}), regret_cells({"value": 0.2, "interval": [0.0, 0.6]})
    (['1.8 %', '0.3 % … 3.0 %'], ['cannot be determined', '0.0 % … 60.0 %'])
    """
    if regret is None:
        return [MISSING, MISSING]
    ends = regret["interval"]
    interval = MISSING if ends is None else " … ".join(map(percent, ends))
    return [UNDETERMINED if is_undetermined(regret) else percent(regret["value"]), interval]


def is_undetermined(regret: Mapping[str, Any]) -> bool:
    """Return whether there are too few users to tell a group's regret."""
    ends = regret["interval"]
    return ends is not None and ends[1] - ends[0] > MAX_WIDTH


def regret_sentences(score: Mapping[str, Any]) -> list[str]:
    """Say which group could be served better, and split the gap; nothing without levels and intervals."""
    known = {name: regret for name, regret in (score.get("regret") or {}).items() if regret["interval"] is not None}
    if not known:
        return []
    certain = {name: regret for name, regret in known.items() if not is_undetermined(regret)}
    proven = {name: regret for name, regret in certain.items() if regret["interval"][0] > 0}
    if proven:
        name = max(proven, key=lambda each: proven[each]["value"])
        value, interval = regret_cells(proven[name])
        best = f" (at {level})" if (level := (score.get("best_level") or {}).get(name)) else ""
        sentence = f"{name} gets {value} ({interval}) less than is attainable for it{best}."
    elif certain:
        sentence = "No group could be served better by more than chance."
    else:
        sentence = "Whether a group could be served better cannot be determined: too few users were tested."
    return [sentence, *split_sentence(score)]


def split_sentence(score: Mapping[str, Any]) -> list[str]:
    """Say which part of the gap is inherent and which avoidable, seen from the side that is behind.

    >>> disparity = {"value": -0.05}
    >>> score = {"disparity": disparity, "advantaged": "M", "by_group": {"M": 0.2, "F": 0.25}, "inherent_gap": -0.04}
    >>> split_sentence({**score, "avoidable_gap": -0.01, "avoidable_gap_interval": [-0.02, 0.0]})
    ['Of the gap of 0.0500, 0.0400 is inherent and 0.0100 avoidable (0.0000 … 0.0200).']
    """
    inherent, avoidable = score.get("inherent_gap"), score.get("avoidable_gap")
    if inherent is None or avoidable is None:
        return []
    sign, interval = 1.0 if inherent + avoidable >= 0 else -1.0, score.get("avoidable_gap_interval")
    if interval is not None:
        interval = sorted(sign * end + 0.0 for end in interval)
    ends = "" if interval is None else f" ({between(interval)})"
    # `furthest_behind` has its group with it; a score with PD names the advantaged one.
    first = score["advantaged"] if score.get("disparity") else score["furthest_behind"]["group"]
    whose = "" if len(score["by_group"]) <= FEW_GROUPS else f" between {first} and the rest"
    size, inherent, avoidable = (number(sign * part + 0.0) for part in (inherent + avoidable, inherent, avoidable))
    return [f"Of the gap of {size}{whose}, {inherent} is inherent and {avoidable} avoidable{ends}."]


def difference_cells(part: Estimate | None) -> list[str]:
    """Return a difference, marked where its interval includes 0, and that interval."""
    if part is None:
        return [MISSING, MISSING]
    return [signed(part.value) + (CHANCE_MARK if part.includes_zero else " "), between(part.interval, is_signed=True)]


def plus_minus(sd: float | None) -> str:
    """Return the standard deviation over seeds, if there is one."""
    return "" if sd is None else f" ± {number(sd)}"
