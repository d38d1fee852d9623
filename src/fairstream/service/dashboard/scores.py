"""From stored documents back to scores by group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairstream.evaluation.by_group import Estimate, GroupScores


def scores_from(found: Mapping[str, Any] | None) -> GroupScores | None:
    """What `GroupScores.to_dict` wrote; None where there is nothing."""
    if not found:
        return None
    largest = found.get("largest_gap")
    return GroupScores(
        mean=found.get("mean"),
        interval=_interval(found.get("interval")),
        by_group=dict(found.get("by_group") or {}),
        gaps={name: gap for name, told in (found.get("gaps") or {}).items() if (gap := estimate_from(told))},
        largest_gap=estimate_from(largest),
        largest_gap_group=largest.get("group") if largest else None,
        spread=estimate_from(found.get("spread")),
        disparity=estimate_from(found.get("disparity")),
        abs_performance_disparity=found.get("abs_performance_disparity"),
        abs_performance_disparity_debiased=found.get("abs_performance_disparity_debiased"),
        null_mean=found.get("null_mean"),
    )


def ndcg_from(evaluation: Mapping[str, Any] | None, metric: str) -> GroupScores | None:
    """The scores that the gate judges by; lists are shorter than it asks for where there are not that many items."""
    metrics: Mapping[str, Any] = (evaluation or {}).get("metrics") or {}
    shorter = (name for name in metrics if name.startswith("ndcg@"))
    return scores_from(metrics.get(metric if metric in metrics else next(shorter, "")))


def estimate_from(found: Mapping[str, Any] | None) -> Estimate | None:
    """What `Estimate.to_dict` wrote."""
    if not found or found.get("value") is None:
        return None
    return Estimate(found["value"], _interval(found.get("interval")), found.get("p_value"), found.get("null_mean"))


def largest_gap_group(scores: GroupScores | None) -> str | None:
    """The group with the largest gap; of two, whose gaps are the same, the one that is behind."""
    if scores is None:
        return None
    behind = [name for name, gap in scores.gaps.items() if gap.value < 0]
    return behind[0] if len(scores.gaps) == 2 and len(behind) == 1 else scores.largest_gap_group


def largest_gap(scores: GroupScores | None) -> Estimate | None:
    """The largest gap as a size, with the interval of the gap that it is the size of.

    >>> behind = Estimate(-0.04, (-0.07, 0.01))
    >>> scores_from({"gaps": {"b": behind.to_dict()}, "largest_gap": {"group": "b", "value": 0.04}}).largest_gap
    Estimate(value=0.04, interval=None, p_value=None, null_mean=None)
    >>> scores = scores_from({"gaps": {"b": behind.to_dict()}, "largest_gap": {"group": "b", "value": 0.04}})
    >>> largest_gap(scores).interval
    (0.0, 0.07)
    """
    if scores is None or scores.largest_gap is None:
        return None
    found, gap = scores.largest_gap, scores.gaps.get(largest_gap_group(scores) or "")
    if found.interval is not None or gap is None or gap.interval is None:
        return found
    low, high = gap.interval if gap.value >= 0 else (-gap.interval[1], -gap.interval[0])
    return Estimate(found.value, (max(0.0, low), high), found.p_value, found.null_mean)


def _interval(found: Any) -> tuple[float, float] | None:
    return None if found is None else (found[0], found[1])
