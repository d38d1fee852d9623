"""The stored results of a test, user by user, and the slices that a mean would hide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fairstream.data import UNKNOWN, History, Rows
from fairstream.data.groups import Codes
from fairstream.errors import ConfigurationError
from fairstream.evaluation.by_group import GroupScores, group_statistics
from fairstream.evaluation.lists import Lists, Mask, Truth
from fairstream.evaluation.metrics import HitCounts, Metric, MetricAtK, hit
from fairstream.evaluation.resampling import Array, GroupPanel
from fairstream.evaluation.totals import Total, total_scores


@dataclass(frozen=True, eq=False)
class UserResults:
    """The tested users and the ranks of their hits: enough to compute the built-in metrics again.

    A user has one list, or in the task `event` one for each event; values of a user are means over the user's lists.
    """

    users: Rows
    codes: Codes
    """The group of each."""
    is_cold: Mask
    """Whether the user had no history."""
    hits: torch.Tensor
    """(R, k) of 0 and 1 in ranked order, a row for each list; a user's lists follow each other."""
    n_positives: torch.Tensor
    """(R,)"""
    values: Mapping[str, Array] = field(default_factory=dict)
    """NAME@K → (U,) values of metrics that the hits and the name do not determine; none where nobody was tested."""
    totals: Mapping[str, Total] = field(default_factory=dict)
    """NAME@K → metrics that are one number for all users."""
    n_lists: Rows | None = None
    """(U,) in the task `event`, how many lists each user has; None: one each."""

    def values_of(self, metric: str | Metric | MetricAtK) -> Array:
        """(U,) the values of a stored metric by its name, or of a built-in one computed from the hits."""
        name = metric.name if isinstance(metric, MetricAtK) else metric
        if len(self.users) == 0:
            return np.empty(0)
        if isinstance(name, str) and name in self.values:
            return self.values[name]
        if isinstance(metric, MetricAtK) and metric.is_from_hits:
            return user_means(metric.from_hits(self.hits.numpy() > 0, self.n_positives.numpy()), self.n_lists)
        if isinstance(metric, str | MetricAtK):
            raise ConfigurationError(
                f"there are no users' values of the metric {name} in these results; compute them again with this metric"
            )
        stored = HitCounts(self.hits.numpy() > 0, self.n_positives.numpy())
        return user_means(np.asarray(metric(stored, stored), dtype=np.float64), self.n_lists)

    def where(self, chosen: Mask) -> UserResults:
        """Only the chosen users; numbers for all users cannot be cut and are left out."""
        mask = torch.from_numpy(chosen if self.n_lists is None else np.repeat(chosen, self.n_lists))
        return UserResults(
            self.users[chosen],
            self.codes[chosen],
            self.is_cold[chosen],
            self.hits[mask],
            self.n_positives[mask],
            {name: values[chosen] for name, values in self.values.items()},
            n_lists=None if self.n_lists is None else self.n_lists[chosen],
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        row, column = np.nonzero(self.hits.numpy())
        ends = np.cumsum(np.bincount(row, minlength=len(self.hits)))
        n_lists = {} if self.n_lists is None else {"n_lists": self.n_lists.tolist()}
        values = {"values": {name: values.tolist() for name, values in self.values.items()}} if self.values else {}
        totals = {"totals": {name: total.to_dict() for name, total in self.totals.items()}} if self.totals else {}
        return {
            "k": self.hits.shape[1],
            "users": self.users.tolist(),
            "groups": self.codes.tolist(),
            "cold": np.flatnonzero(self.is_cold).tolist(),
            **n_lists,
            "n_positives": self.n_positives.int().tolist(),
            "hit_ranks": [ranks.tolist() for ranks in np.split(column + 1, ends[:-1])] if len(ends) else [],
            **values,
            **totals,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> UserResults:
        """The inverse of `to_dict`."""
        users = np.array(stored["users"], dtype=np.int64)
        is_cold = np.zeros(len(users), dtype=np.bool_)
        is_cold[np.array(stored["cold"], dtype=np.int64)] = True
        n_rows = len(stored["hit_ranks"])
        hits = torch.zeros(n_rows, stored["k"], dtype=torch.float64)
        row = np.repeat(np.arange(n_rows), [len(ranks) for ranks in stored["hit_ranks"]])
        column = np.array([rank - 1 for ranks in stored["hit_ranks"] for rank in ranks], dtype=np.int64)
        hits[row, column] = 1.0
        return cls(
            users,
            np.array(stored["groups"], dtype=np.int16),
            is_cold,
            hits,
            torch.tensor(stored["n_positives"], dtype=torch.float64),
            {name: np.array(values, dtype=np.float64) for name, values in stored.get("values", {}).items()},
            {name: Total.from_dict(total) for name, total in stored.get("totals", {}).items()},
            np.array(stored["n_lists"], dtype=np.int64) if "n_lists" in stored else None,
        )


def user_means(values: Array, n_lists: Rows | None) -> Array:
    """(R,) values of lists → (U,) each user's mean, given how many lists each user has.

    >>> user_means(np.array([1.0, 0.0, 0.5]), np.array([2, 1]))
    array([0.5, 0.5])
    """
    if n_lists is None:
        return values
    owner = np.repeat(np.arange(len(n_lists)), n_lists)
    return np.asarray(np.bincount(owner, weights=values, minlength=len(n_lists)) / n_lists)


def stack_periods(tested: Sequence[UserResults], metrics: Sequence[str | Metric | MetricAtK]) -> tuple[Array, Codes]:
    """(U, P, M) values of all users tested in any of P periods, NaN where they were not; and their groups."""
    users = tested[0].users if len(tested) == 1 else np.unique(np.concatenate([part.users for part in tested]))
    values = np.full((len(users), len(tested), len(metrics)), np.nan)
    codes = np.empty(len(users), dtype=np.int16)
    for p, part in enumerate(tested):
        at = np.searchsorted(users, part.users)
        codes[at] = part.codes
        for m, metric in enumerate(metrics):
            values[at, p, m] = part.values_of(metric)
    return values, codes


def score_periods(
    tested: Sequence[UserResults],
    metrics: Sequence[str | MetricAtK],
    names: Sequence[str],
    min_size: int,
    rng: np.random.Generator | None = None,
    n_resamples: int = 0,
    *,
    has_advantaged: bool = True,
) -> tuple[dict[str, GroupScores], GroupPanel]:
    """Each metric averaged over the given tests, and who was tested; with a generator, also its uncertainty.

    Parameters
    ----------
    tested
        The results of each period.
    metrics
        Built-in metrics, and names NAME@K of stored ones.
    names
        The groups' names, in the order of their codes.
    min_size
        The fewest tested users with which a group is compared.
    rng, n_resamples, has_advantaged
        As for `group_statistics`.

    """
    by_name = {metric if isinstance(metric, str) else metric.name: metric for metric in metrics}
    totals = {name: found for name in by_name if (found := [t.totals[name] for t in tested if name in t.totals])}
    by_user = {name: metric for name, metric in by_name.items() if name not in totals}
    # With numbers for all users alone, the panel still has to hold who was tested.
    values, codes = stack_periods(tested, list(by_user.values()) or [hit])
    panel = GroupPanel(values, codes, len(names), min_size)
    n_resamples = n_resamples if by_user else 0
    statistics = group_statistics(panel, names, rng, n_resamples, has_advantaged=has_advantaged)
    scores = dict(zip(by_user, statistics, strict=False))
    scores |= {name: total_scores(parts, names, has_advantaged=has_advantaged) for name, parts in totals.items()}
    return {name: scores[name] for name in by_name}, panel


@dataclass(frozen=True)
class Slice:
    """The scores of a part of the users, or with only some of the items as positives."""

    n_users: int
    n_positives: int
    metrics: Mapping[str, GroupScores]

    def __getitem__(self, metric: str) -> GroupScores:
        return self.metrics[metric]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        scores = {name: score.to_dict() for name, score in self.metrics.items()}
        return {"n_users": self.n_users, "n_positives": self.n_positives, **scores}


HISTORY_LENGTHS = {
    "history_0": (0, 1),
    "history_1": (1, 2),
    "history_2_4": (2, 5),
    "history_5_19": (5, 20),
    "history_20_plus": (20, np.inf),
}
"""Slice → from and below how many events the user had before the event that is tested."""


def cut_slices(
    lists: Lists, truth: Truth, codes: Codes, is_cold: Mask, history: History, n_earlier: Rows | None = None
) -> Iterator[tuple[str, Mask, Lists, Truth]]:
    """The slices by name, each with its rows (a mask), lists and truth.

    `warm_users`, `cold_users` and `no_group` are parts of the users. In `cold_items` (items without
    any event, which no recommender without knowledge of their content can rank) and `new_items`
    (items that came with the last period) only these items count as positives. In the task `event`
    the lists are also cut by the number of events `n_earlier` that the user had before each.
    """
    masks = {"warm_users": ~is_cold, "cold_users": is_cold, "no_group": codes == UNKNOWN}
    if n_earlier is not None:
        masks |= {name: (n_earlier >= start) & (n_earlier < stop) for name, (start, stop) in HISTORY_LENGTHS.items()}
    for name, mask in masks.items():
        yield name, mask, lists.where(mask), truth.where(mask)
    spans = {"cold_items": (history.n_items, np.inf)}
    if history.n_items_before:
        spans["new_items"] = (history.n_items_before, history.n_items)
    for name, (start, stop) in spans.items():
        part = truth.only((truth.positives.items >= start) & (truth.positives.items < stop))
        hits = lists.hits & (lists.items >= start) & (lists.items < stop)
        mask = part.n_positives > 0
        yield name, mask, Lists(lists.items, lists.scores, hits).where(mask), part.where(mask)
