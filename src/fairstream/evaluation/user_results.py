"""The results of a test for each user, and the scores computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fairstream.data import History, Rows
from fairstream.data.groups import Codes
from fairstream.errors import ConfigurationError
from fairstream.evaluation.by_group import GroupScores, panel_scores, scores_of
from fairstream.evaluation.lists import Lists, Mask, Truth
from fairstream.evaluation.metrics import BUILT_IN, HitCounts, Metric, MetricAtK, hit
from fairstream.evaluation.regret import LEVEL_DIGITS, LevelPanel, with_regret
from fairstream.evaluation.resampling import Array, GroupPanel, average_periods, furthest_behind

if TYPE_CHECKING:
    from fairstream.models import Level


@dataclass(frozen=True)
class AggregateMetric:
    """A metric with one number for all users: overall, for each group's users, and for all other groups' users."""

    overall: float
    by_group: tuple[float | None, ...]  # in the order of the group codes; None where too few users were tested
    rest: tuple[float | None, ...]  # of the users of all other compared groups, in the same order

    @classmethod
    def of(
        cls, overall: float, metric: MetricAtK, lists: Lists, truth: Truth, codes: Codes, n_groups: int, min_size: int
    ) -> AggregateMetric:
        """Compute the metric again for the lists of each group; `codes` (R,) are the groups of the lists' users."""
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
    def from_dict(cls, stored: Mapping[str, Any]) -> AggregateMetric:
        """Return what `to_dict` wrote."""
        return cls(stored["overall"], tuple(stored["by_group"]), tuple(stored["rest"]))


@dataclass(frozen=True, eq=False)
class UserResults:
    """The tested users and the ranks of their hits: enough to compute the built-in metrics again.

    A user has one list, or in the task `event` one for each event and in `moment` one for each moment; a user's value
    is the mean over the user's lists.
    """

    users: Rows
    codes: Codes  # (U,) the group of each
    is_cold: Mask  # (U,) whether the user had no history
    hits: Mask  # (R, k) in ranked order, a row for each list; a user's lists follow each other
    n_positives: Rows  # (R,)
    values: Mapping[str, Array] = field(default_factory=dict)
    """NAME@K → (U,) values of metrics that the hits and the name do not determine; empty if no user was tested."""
    totals: Mapping[str, AggregateMetric] = field(default_factory=dict)
    """NAME@K → metrics with one number for all users."""
    n_lists: Rows | None = None  # (U,) in these tasks, the number of each user's lists; None: one each
    levels: tuple[Level, ...] = ()  # the levels of `level_values`, `NO_LEVEL` first
    level_values: Array | None = None  # (U, L) the users' values of the main metric at each level
    strata: Codes | None = None  # (U,) what the user's history is like, see `strata_of`

    @classmethod
    def of(
        cls,
        lists: Lists,
        truth: Truth,
        codes: Codes,
        is_cold: Mask,
        metrics: Sequence[MetricAtK],
        n_groups: int,
        min_size: int,
    ) -> UserResults:
        """Test R lists; `codes` and `is_cold` (R,) describe their users.

        `metrics` are those whose values the hits do not determine. Groups with fewer tested users than `min_size` are
        not compared.
        """
        users, first, n_lists = truth.users, np.arange(len(truth.users)), None
        if truth.before is not None:
            users, first, n_lists = np.unique(users, return_index=True, return_counts=True)
        values, totals = dict[str, Array](), dict[str, AggregateMetric]()
        for metric in metrics if len(codes) else ():
            value = metric(lists, truth)
            if value.ndim:
                values[metric.name] = user_means(value, n_lists)
            else:
                total = AggregateMetric.of(float(value), metric, lists, truth, codes, n_groups, min_size)
                totals[metric.name] = total
        return cls(users, codes[first], is_cold[first], lists.hits, truth.n_positives, values, totals, n_lists)

    def with_levels(self, levels: tuple[Level, ...], hits: Mask, metric: MetricAtK) -> UserResults:
        """Add the values of a built-in metric from the hits (L, R, k) at each level."""
        values = [metric.metric(HitCounts(part[:, : metric.k], self.n_positives), self) for part in hits]
        by_user = [user_means(np.asarray(part, np.float64), self.n_lists) for part in values]
        # Rounded as in files, so that a stored run has the regrets of the run itself.
        return replace(self, levels=levels, level_values=np.stack(by_user, axis=1).round(LEVEL_DIGITS))

    def values_of(self, metric: str | Metric | MetricAtK) -> Array:
        """(U,) the values of a stored metric by its name, or of a built-in one computed from the hits."""
        name = metric.name if isinstance(metric, MetricAtK) else metric
        if len(self.users) == 0:
            return np.empty(0)
        if isinstance(name, str) and name in self.values:
            return self.values[name]
        hits = self.hits
        if isinstance(metric, MetricAtK) and metric.metric in BUILT_IN.values():
            hits, metric = hits[:, : metric.k], metric.metric
        if isinstance(metric, str | MetricAtK):
            raise ConfigurationError(
                f"there are no users' values of the metric {name} in these results; compute them again with this metric"
            )
        stored = HitCounts(hits, self.n_positives)
        return user_means(np.asarray(metric(stored, stored), dtype=np.float64), self.n_lists)

    def where(self, chosen: Mask) -> UserResults:
        """Select users; metrics with one number for all users are left out, because they cannot be split."""
        mask = chosen if self.n_lists is None else np.repeat(chosen, self.n_lists)
        return UserResults(
            self.users[chosen],
            self.codes[chosen],
            self.is_cold[chosen],
            self.hits[mask],
            self.n_positives[mask],
            {name: values[chosen] for name, values in self.values.items()},
            n_lists=None if self.n_lists is None else self.n_lists[chosen],
            levels=self.levels,
            level_values=None if self.level_values is None else self.level_values[chosen],
            strata=None if self.strata is None else self.strata[chosen],
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        row, column = np.nonzero(self.hits)
        ends = np.cumsum(np.bincount(row, minlength=len(self.hits)))
        optional = {
            "n_lists": None if self.n_lists is None else self.n_lists.tolist(),
            "values": {name: values.tolist() for name, values in self.values.items()},
            "totals": {name: total.to_dict() for name, total in self.totals.items()},
            "levels": [list(level) for level in self.levels] or None,
            "level_values": None if self.level_values is None else self.level_values.tolist(),
            "strata": None if self.strata is None else self.strata.tolist(),
        }
        return {
            "k": self.hits.shape[1],
            "users": self.users.tolist(),
            "groups": self.codes.tolist(),
            "cold": np.flatnonzero(self.is_cold).tolist(),
            "n_positives": self.n_positives.tolist(),
            "hit_ranks": [ranks.tolist() for ranks in np.split(column + 1, ends[:-1])] if len(ends) else [],
            **{name: part for name, part in optional.items() if part or part == []},
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> UserResults:
        """Return what `to_dict` wrote."""
        from fairstream.models import Level  # noqa: PLC0415 (it loads PyTorch, which tables of lists do without)

        users, hit_ranks = np.array(stored["users"], dtype=np.int64), stored["hit_ranks"]
        is_cold = np.zeros(len(users), dtype=np.bool_)
        is_cold[np.array(stored["cold"], dtype=np.int64)] = True
        hits = np.zeros((len(hit_ranks), stored["k"]), dtype=np.bool_)
        row = np.repeat(np.arange(len(hit_ranks)), [len(ranks) for ranks in hit_ranks])
        hits[row, np.array([rank - 1 for ranks in hit_ranks for rank in ranks], dtype=np.int64)] = True
        return cls(
            users,
            np.array(stored["groups"], dtype=np.int16),
            is_cold,
            hits,
            np.array(stored["n_positives"], dtype=np.int64),
            {name: np.array(values, dtype=np.float64) for name, values in stored.get("values", {}).items()},
            {name: AggregateMetric.from_dict(total) for name, total in stored.get("totals", {}).items()},
            np.array(stored["n_lists"], dtype=np.int64) if "n_lists" in stored else None,
            tuple(Level(*level) for level in stored.get("levels", ())),
            np.array(stored["level_values"], dtype=np.float64) if "level_values" in stored else None,
            np.array(stored["strata"], dtype=np.int16) if "strata" in stored else None,
        )


def user_means(values: Array, n_lists: Rows | None) -> Array:
    """(R,) values of lists → (U,) each user's mean, given the number of each user's lists.

    >>> user_means(np.array([1.0, 0.0, 0.5]), np.array([2, 1]))
    array([0.5, 0.5])
    """
    if n_lists is None:
        return values
    owner = np.repeat(np.arange(len(n_lists)), n_lists)
    return np.asarray(np.bincount(owner, weights=values, minlength=len(n_lists)) / n_lists)


HISTORY_STARTS = (1, 2, 5, 20)
"""Where ranges of history lengths begin: 0, 1, 2 to 4, 5 to 19, 20 and more events."""
N_TASTES = 3


def strata_of(history: History, users: Rows) -> Codes:
    """(U,) each user's stratum: the range of the history's length, and how popular its items are (a third each).

    The stratum is 3 · range + third; users without a history are in stratum 0.
    """
    rows = np.where(users < history.n_users, users, -1)
    lengths = np.where(rows >= 0, history.n_events_of(np.maximum(rows, 0)), 0)
    popularity = np.log1p(np.bincount(history.items, minlength=history.n_items))
    bounds, items = history.items_of(np.maximum(rows, 0))
    sums = np.bincount(np.repeat(np.arange(len(users)), np.diff(bounds)), popularity[items], minlength=len(users))
    taste, thirds = sums / np.maximum(1, np.diff(bounds)), np.zeros(len(users), np.int64)
    if (lengths > 0).any():
        thirds = np.searchsorted(np.quantile(taste[lengths > 0], [1 / 3, 2 / 3]), taste)
    stratum = N_TASTES * np.searchsorted(HISTORY_STARTS, lengths, side="right") + thirds
    return np.where(lengths > 0, stratum, 0).astype(np.int16)


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
    """Average each metric over the tests of several periods; with a generator, also compute its uncertainty.

    `metrics` are built-in ones, and names NAME@K of stored ones; the other parameters are those of `GroupPanel` and
    `panel_scores`. Returns the scores by name, and a panel of the metrics with one value a user, in that order.
    """
    by_name = {metric if isinstance(metric, str) else metric.name: metric for metric in metrics}
    totals = {name: parts for name in by_name if (parts := [t.totals[name] for t in tested if name in t.totals])}
    by_user = {name: metric for name, metric in by_name.items() if name not in totals}
    # Without a metric of one value a user, the panel still holds who was tested.
    values, codes = stack_periods(tested, list(by_user.values()) or [hit])
    panel = GroupPanel(values, codes, len(names), min_size)
    n_resamples = n_resamples if by_user else 0
    statistics = panel_scores(panel, names, rng, n_resamples, has_advantaged=has_advantaged)
    scores = dict(zip(by_user, statistics, strict=False))
    if by_user and (main := next(iter(by_name))) in by_user:
        levels = LevelPanel.of(tested, by_user[main], names, min_size)
        if levels is not None and levels.levels:
            scores[main] = with_regret(scores[main], levels, rng, n_resamples)
    scores |= {name: aggregate_scores(parts, names, has_advantaged=has_advantaged) for name, parts in totals.items()}
    return {name: scores[name] for name in by_name}, panel


def aggregate_scores(
    periods: Sequence[AggregateMetric], names: Sequence[str], *, has_advantaged: bool = True
) -> GroupScores:
    """Return the scores averaged over periods; a group's gap is its number minus that of all other groups' users."""

    def table(rows: Sequence[tuple[float | None, ...]]) -> Array:
        """(G, P, 1), NaN where there is no number; groups that appear later have none before."""
        padded = [[*row, *[None] * len(names)][: len(names)] for row in rows]
        return np.array(padded, dtype=np.float64).reshape(len(rows), len(names)).T[..., None]

    mean, rest = table([period.by_group for period in periods]), table([period.rest for period in periods])
    overall, gap = np.array([[period.overall] for period in periods]), mean - rest
    statistics = average_periods(overall, mean, gap, ~np.isnan(gap[..., 0]), furthest_behind(gap))
    return scores_of(0, names, statistics, has_advantaged=has_advantaged)
