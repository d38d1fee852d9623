"""Metrics that are one number for all users: overall and by group, without uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairstream.data import Rows
from fairstream.data.groups import Codes
from fairstream.evaluation.by_group import Estimate, GroupScores
from fairstream.evaluation.lists import Lists, Truth
from fairstream.evaluation.metrics import MetricAtK
from fairstream.evaluation.resampling import Array


@dataclass(frozen=True)
class Total:
    """A metric that is one number for all users: overall, of each group's users, and of all other groups' users."""

    overall: float
    by_group: tuple[float | None, ...]
    """In the order of the group codes; None where too few users were tested."""
    rest: tuple[float | None, ...]

    @classmethod
    def of(
        cls, overall: float, metric: MetricAtK, lists: Lists, truth: Truth, codes: Codes, n_groups: int, min_size: int
    ) -> Total:
        """A number for all users, of each group's users, and of the users of all other compared groups.

        Parameters
        ----------
        overall
            The number for all users.
        metric, lists, truth
            What it was computed from.
        codes
            (R,) the group of each list's user.
        n_groups
            How many groups there are.
        min_size
            The fewest tested users with which a group is compared.

        """
        of_users = codes[np.unique(truth.users, return_index=True)[1]]
        sizes = np.bincount(of_users[of_users >= 0], minlength=n_groups)
        is_compared = sizes >= max(1, min_size)

        def among(groups: Rows) -> float | None:
            mask = np.isin(codes, groups)
            return float(metric(lists.where(mask), truth.where(mask))) if mask.any() else None

        compared = np.flatnonzero(is_compared)
        return cls(
            overall,
            tuple(among(np.array([code])) if is_compared[code] else None for code in range(n_groups)),
            tuple(among(compared[compared != code]) if is_compared[code] else None for code in range(n_groups)),
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"overall": self.overall, "by_group": list(self.by_group), "rest": list(self.rest)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Total:
        """The inverse of `to_dict`."""
        return cls(stored["overall"], tuple(stored["by_group"]), tuple(stored["rest"]))


def total_scores(totals: Sequence[Total], names: Sequence[str], *, has_advantaged: bool = True) -> GroupScores:
    """The scores of a metric that is one number for all users, averaged over periods; without uncertainty.

    The gap of a group is its number minus that of the users of all other groups. `has_advantaged` is as for
    `group_statistics`.
    """

    def table(rows: Sequence[tuple[float | None, ...]]) -> Array:
        """(P, G), NaN where there is no number; groups that later periods bring have none before."""
        padded = [[*row, *[None] * len(names)][: len(names)] for row in rows]
        return np.array(padded, dtype=np.float64).reshape(len(rows), len(names))

    by_group, rest = table([total.by_group for total in totals]), table([total.rest for total in totals])
    gap = by_group - rest
    is_compared = ~np.isnan(gap)
    # Group means and gaps are means over the same periods, so that for two groups they agree.
    by_group = np.where(is_compared | ~is_compared.any(axis=0), by_group, np.nan)
    gaps = {name: Estimate(value) for name, g in zip(names, gap.T, strict=True) if (value := _mean(g)) is not None}
    largest, behind = (_mean(_over_groups(np.nanmax, part)) for part in (np.abs(gap), -gap))
    compared = np.where(is_compared, by_group, np.nan)
    spread = _mean(_over_groups(np.nanmax, compared) - _over_groups(np.nanmin, compared))
    sizes = [_mean(np.abs(g)) for g in gap.T]
    return GroupScores(
        mean=_mean(np.array([total.overall for total in totals])),
        interval=None,
        by_group={name: _mean(values) for name, values in zip(names, by_group.T, strict=True)},
        gaps=gaps,
        largest_gap=None if largest is None else Estimate(largest),
        largest_gap_group=max(zip(names, sizes, strict=True), key=lambda pair: pair[1] or -1.0)[0] if gaps else None,
        spread=None if spread is None else Estimate(spread),
        disparity=gaps.get(names[0]) if names and has_advantaged else None,
        abs_performance_disparity=sizes[0] if names and has_advantaged else None,
        abs_performance_disparity_debiased=None,
        null_mean=None,
        advantaged=names[0] if names and has_advantaged else None,
        furthest_behind=None if behind is None else Estimate(behind),
        furthest_behind_group=min(gaps, key=lambda name: gaps[name].value) if gaps else None,
    )


def _mean(values: Array) -> float | None:
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else None


def _over_groups(reduce: Callable[[Array], Any], table: Array) -> Array:
    return np.array([reduce(row) if (~np.isnan(row)).any() else np.nan for row in table], dtype=np.float64)
