"""Disaggregate, then compare: from users' values to groups' means to the disparity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairstream.events import ADVANTAGED, DISADVANTAGED, Groups, Rows


@dataclass(frozen=True)
class GroupScores:
    """One metric: over all tested users, by group, and the gap. None: nobody was there to test."""

    overall: float | None
    by_group: dict[str, float | None]
    performance_disparity: float | None
    """PD = Perf(a = 0) − Perf(a = 1), advantaged minus disadvantaged   (Section 2)."""

    @property
    def abs_performance_disparity(self) -> float | None:
        return None if self.performance_disparity is None else abs(self.performance_disparity)

    def to_dict(self) -> dict[str, Any]:
        return {
            "overall": self.overall,
            "by_group": dict(self.by_group),
            "performance_disparity": self.performance_disparity,
        }


def disaggregate(values: np.ndarray[Any, Any], users: Rows, groups: Groups) -> GroupScores:
    """The mean of `values` (one per tested user) over everyone and over each group.

    >>> groups = Groups.from_values("gender", ["M", "F", "M"], advantaged="M")
    >>> disaggregate(np.array([0.5, 0.25, 1.0]), np.array([0, 1, 2]), groups)
    GroupScores(overall=0.5833333333333334, by_group={'M': 0.75, 'F': 0.25}, performance_disparity=0.5)
    """
    codes = groups.codes[users]
    advantaged, disadvantaged = (_mean(values[codes == code]) for code in (ADVANTAGED, DISADVANTAGED))
    gap = None if advantaged is None or disadvantaged is None else advantaged - disadvantaged
    return GroupScores(_mean(values), dict(zip(groups.names, (advantaged, disadvantaged), strict=True)), gap)


def _mean(values: np.ndarray[Any, Any]) -> float | None:
    return float(values.mean()) if len(values) else None
