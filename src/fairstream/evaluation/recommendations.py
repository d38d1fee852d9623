"""Evaluation of the lists of any recommender: quality by group, uncertainty, and comparison of systems in pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from fairstream.data import Columns
from fairstream.data.groups import UNKNOWN, Groups, GroupValues, only_two_valued
from fairstream.data.reading import to_table
from fairstream.display import ReprMixin, Summary, Table
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation.by_group import Estimate, GroupScores, check_resampling
from fairstream.evaluation.list_tables import ReadLists, TruthTable
from fairstream.evaluation.lists import Mask, Truth
from fairstream.evaluation.metrics import DEFAULT_METRICS, Metric, MetricAtK, resolve_metrics
from fairstream.evaluation.paired import Paired
from fairstream.evaluation.resampling import GroupPanel
from fairstream.evaluation.results import Evaluation
from fairstream.evaluation.score_cells import CHANCE_MARK, LEGEND, difference_cells, shown_groups
from fairstream.evaluation.user_results import UserResults, score_periods
from fairstream.randomness import Randomness


@dataclass(frozen=True)
class SystemDifference:
    """One system minus another in one metric, on the same users."""

    metric: str
    system: str
    against: str
    mean: Estimate
    """The difference of the means over all users; no interval for a metric with one number for all users."""
    by_group: Mapping[str, Estimate]
    """The difference of the means of each compared group."""
    furthest_behind: Estimate | None
    """The difference in how far the worst-served group is behind the rest (for two groups |PD|); below 0: this system
    is fairer."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return _DIFFERENCE.dump_python(self, mode="json")


_DIFFERENCE = TypeAdapter(SystemDifference)


@dataclass(frozen=True, repr=False)
class RecommendationComparison(ReprMixin):
    """Several systems on the same users: `comparison["name"]` is the evaluation of one. Prints as tables."""

    systems: Mapping[str, Evaluation]
    differences: tuple[SystemDifference, ...]
    """Every ordered pair of systems, in every metric."""

    def __getitem__(self, system: str) -> Evaluation:
        if system not in self.systems:
            raise KeyError(f"{system}; there are {', '.join(self.systems)}")
        return self.systems[system]

    def against(self, system: str, metric: str | None = None) -> list[SystemDifference]:
        """Return every other system minus this one, in one metric (None: the first)."""
        metric = metric or next(iter(self[system].metrics))
        _ = self[system][metric]  # an unknown name is an error
        return [part for part in self.differences if part.against == system and part.metric == metric]

    @property
    def verdict(self) -> str:
        """One sentence: which system leads in the first metric, and which ones are not significantly worse."""
        metric = next(iter(next(iter(self.systems.values())).metrics))
        means = {name: system[metric].mean or 0.0 for name, system in self.systems.items()}
        best = max(means, key=means.__getitem__)
        level = [part.system for part in self.against(best, metric) if not part.mean.excludes_zero]
        if not level:
            return f"{best} is ahead in {metric}: no other's interval of the difference contains 0."
        return f"{best} leads in {metric}, but cannot be told from {', '.join(level)}."

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        systems = {name: system.to_dict() for name, system in self.systems.items()}
        differences = [part.to_dict() for part in self.differences]
        return {"verdict": self.verdict, "systems": systems, "differences": differences}

    def _summary(self) -> Summary:
        first, *_ = self.systems
        like = self[first]
        shown = shown_groups(list(like.n_users_by_group))
        tables = [
            Table([name, *like.headings], [[label, *one.cells(one[name])] for label, one in self.systems.items()])
            for name in like.metrics
        ]
        headings = [f"minus {first}", "metric", "mean", "95 % interval"]
        headings += [*shown, "|PD|" if shown else "behind by", "95 % interval"] if like.group else []
        rows = []
        for part in (part for metric in like.metrics for part in self.against(first, metric)):
            cells = [part.system, part.metric, *difference_cells(part.mean)]
            if like.group:
                cells += [difference_cells(part.by_group.get(name))[0] for name in shown]
                cells += difference_cells(part.furthest_behind)
            rows.append(cells)
        shared = [note for note in like.notes if all(note in system.notes for system in self.systems.values())]
        own = [f"{n}: {note}" for n, system in self.systems.items() for note in system.notes if note not in shared]
        captions = [f"{like.n_users:,} users, the same for all", *([LEGEND] if like.group else [])]
        captions.append(f"{CHANCE_MARK} of a difference: its interval contains 0")
        return Summary(self.verdict, notes=[*shared, *own], more=[*tables, Table(headings, rows)], captions=captions)


def evaluate_recommendations(
    recommendations: Any,
    truth: Any,
    *,
    users: Any = None,
    group: str | Sequence[str] | None = None,
    advantaged: object = None,
    k: int = 20,
    metrics: Sequence[str] | Mapping[str, Metric] | None = None,
    user_column: str | None = None,
    item_column: str | None = None,
    rank_column: str | None = None,
    score_column: str | None = None,
    rating_above: float | None = None,
    missing: Literal["zero", "exclude"] = "zero",
    min_group_size: int = 20,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Any:
    """Evaluate the lists of any recommender: quality overall and by group, with uncertainty.

    Nothing is trained. The statistics are those of `FairRecommender.evaluate`: 95 % confidence intervals over users,
    a permutation test of the disparity, and for several systems a paired bootstrap of their differences.

    Parameters
    ----------
    recommendations
        A table (pandas, Polars, DuckDB, Arrow) or a file with a user, an item, and a rank or a score column, one row
        for each item of a list; or several of them by name, `{"als": lists, "bpr": lists}`, to compare the systems.
        A rank comes before a score where a table has both; ranks may start at 0 or 1.
    truth
        A table or file with a user and an item column: what the users did after the lists were made. These users are
        tested.
    users
        A table or file with a user column and the group column; without it, the group is a column of `truth`.
    group, advantaged
        As for `read_events`; without `group` and `users`, there are no groups.
    k
        The cut-off of metrics without one.
    metrics
        Names ("ndcg", "recall@10"), or functions of (lists, truth) by name; None: NDCG, recall, precision, F1, hit
        and MRR.
    user_column, item_column, rank_column, score_column
        Names of the columns, in all tables; by default the usual names.
    rating_above
        Only rows of the truth with a rating above this count; None: all do.
    missing
        How to test users of the truth without a list: "zero" gives them an empty list, "exclude" leaves them out (with
        several systems, users for whom any system has no list).
    min_group_size
        Groups with fewer tested users are not compared.
    n_resamples
        Permutations and bootstrap samples; 0: no intervals and no p-values.
    seed
        Of the permutations.

    Returns
    -------
    Evaluation or RecommendationComparison
        The evaluation of one system, or those of several by name with their differences.

    Raises
    ------
    DataError
        If a table cannot be read, lacks a column or holds an item twice in a list, or if users of different tables do
        not match.
    ConfigurationError
        If a metric is unknown, or an option is out of range.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from fairstream import evaluate_recommendations
    >>> lists = pa.table({"user": [1, 1, 2, 2], "item": ["a", "b", "b", "c"], "rank": [1, 2, 1, 2]})
    >>> truth = pa.table({"user": [1, 2, 2], "item": ["a", "a", "c"]})
    >>> people = pa.table({"user": [1, 2], "gender": ["M", "F"]})
    >>> options = dict(users=people, group="gender", advantaged="M", k=2, min_group_size=1, n_resamples=0)
    >>> evaluation = evaluate_recommendations(lists, truth, **options)
    >>> evaluation["recall@2"].by_group, evaluation["recall@2"].performance_disparity
    ({'M': 1.0, 'F': 0.5}, 0.5)
    >>> systems = {"mine": lists, "theirs": lists.slice(0, 2)}
    >>> both = evaluate_recommendations(systems, truth, k=2, metrics=["recall", "hit"], n_resamples=100)
    >>> [difference.mean.value for difference in both.against("theirs", "recall@2")]
    [0.25]

    """
    check_resampling(min_group_size, n_resamples)
    if k < 1:
        raise ConfigurationError(f"k must be >= 1, got {k}")
    if missing not in ("zero", "exclude"):
        raise ConfigurationError(f"missing must be zero or exclude, got {missing!r}")
    resolved = resolve_metrics(metrics, k, DEFAULT_METRICS)
    columns = Columns(user=user_column, item=item_column)
    depth = max([k, *(metric.k for metric in resolved)])
    tested = TruthTable.read(truth, columns, rating_above)
    is_one = not isinstance(recommendations, Mapping)
    sources = {"": recommendations} if is_one else recommendations
    if not is_one and (len(sources) < 2 or n_resamples < 1):
        raise ConfigurationError(
            f"to compare systems takes two of them or more and n_resamples >= 1, got {len(sources)} and {n_resamples}"
        )
    tables = {}
    for name, source in sources.items():
        what = "the recommendations" if is_one else f"the recommendations of {name}"
        tables[name] = ReadLists.read(source, tested, columns, rank_column, score_column, depth, what=what)
    groups = _groups(tested, users, group, advantaged, columns)
    has_list = np.logical_and.reduce([table.has_list for table in tables.values()])
    chosen = has_list if missing == "exclude" else np.ones(len(has_list), np.bool_)
    if not chosen.any():
        raise DataError("no user of the truth has a list of every system; use missing='zero', or check the ids")
    setting = _Setting(resolved, tested, groups, chosen, min_group_size, n_resamples, seed)
    systems = {name: setting.evaluate(table) for name, table in tables.items()}
    return systems[""] if is_one else RecommendationComparison(systems, tuple(setting.compare(systems)))


@dataclass(frozen=True, eq=False)
class _Setting:
    """The arguments that all systems of a call share."""

    metrics: Sequence[MetricAtK]
    tested: TruthTable
    groups: Groups
    chosen: Mask  # (U,) the users of the truth who are tested
    min_size: int
    n_resamples: int
    seed: int

    def evaluate(self, table: ReadLists) -> Evaluation:
        """Evaluate the lists of one system."""
        rows, names = np.flatnonzero(self.chosen), self.groups.names
        lists, codes = table.lists.where(self.chosen), self.groups.codes[rows]
        truth = Truth(rows, self.tested.positives.where(self.chosen), len(self.tested.items))
        # Tables do not say who had a history.
        is_cold = np.zeros(len(rows), np.bool_)
        tested = UserResults.of(lists, truth, codes, is_cold, self.metrics, len(names), self.min_size)
        options = (self.min_size, Randomness(self.seed).numpy("recommendations"), self.n_resamples)
        has_advantaged = self.groups.has_advantaged
        scores, panel = score_periods([tested], self.metrics, names, *options, has_advantaged=has_advantaged)
        return Evaluation.of(
            tested,
            scores,
            panel,
            self.groups,
            notes=self._notes(table),
            n_without_list=int((~table.has_list).sum()),
            users=self.tested.users.ids.take(rows),
        )

    def compare(self, systems: Mapping[str, Evaluation]) -> list[SystemDifference]:
        """Return every system minus every other one, in every metric."""
        differences, places = [], {name: place for place, name in enumerate(systems)}
        codes, names = self.groups.codes[self.chosen], self.groups.names
        for metric in (metric.name for metric in self.metrics):
            columns = [system.values[metric] for system in systems.values() if metric in system.values]
            if not columns:
                pairs = permutations(systems, 2)
                differences += [_points(metric, a, b, systems[a][metric], systems[b][metric]) for a, b in pairs]
                continue
            # (U, 1 period, systems): the panel resamples the same users for every system.
            panel = GroupPanel(np.stack(columns, axis=-1)[:, None, :], codes, len(names), self.min_size)
            paired = Paired(panel, 1, self.n_resamples)
            compared = {name: code for code, name in enumerate(names) if panel.compared[code].any()}
            for a, b in permutations(systems, 2):
                both = places[a], places[b]
                by_group = {name: paired.interval("by_group", *both, group=code) for name, code in compared.items()}
                behind = paired.furthest_behind(*both) if compared else None
                mean = paired.interval("mean", *both)
                differences.append(SystemDifference(metric, a, b, mean, by_group, behind))
        return differences

    def _notes(self, table: ReadLists) -> tuple[str, ...]:
        n_missing, n_excluded, n_all = int((~table.has_list).sum()), int((~self.chosen).sum()), len(self.chosen)
        codes = self.groups.codes[self.chosen]
        n_unknown = 0 if self.groups.is_empty else int((codes == UNKNOWN).sum())
        notes = [*self.tested.notes, *table.notes]
        if n_missing and not n_excluded:
            notes.append(f"{n_missing} of {n_all} users of the truth have no list and count with an empty one")
        if n_excluded:
            notes.append(f"{n_excluded} of {n_all} users of the truth are excluded: they have no list")
        if n_unknown:
            notes.append(f"{n_unknown} of {len(codes)} users have no known group: they count overall and in no group")
        return tuple(notes)


def _groups(
    tested: TruthTable, users: Any, group: str | Sequence[str] | None, advantaged: object, columns: Columns
) -> Groups:
    if users is None and group is None:
        if advantaged is not None:
            raise DataError("advantaged says which group is meant, but there are no groups; give group=COLUMN too")
        return Groups.none(len(tested.users))
    what = "the truth" if users is None else "the users table"
    table = tested.table if users is None else to_table(users, what=what)
    column = only_two_valued(table, columns, what=what) if group is None else group
    values = GroupValues.from_table(table, column, columns, what=what).of(tested.users.ids)
    if values.null_count == len(values):
        raise DataError(f"none of the {len(values)} users of the truth has a group in {what}; are the ids the same?")
    return Groups.from_values(column if isinstance(column, str) else ",".join(column), values, advantaged=advantaged)


def _points(metric: str, a: str, b: str, one: GroupScores, other: GroupScores) -> SystemDifference:
    """Return the differences of a metric with one number for all users, which has no intervals."""

    def minus(first: float | None, second: float | None) -> Estimate | None:
        return None if first is None or second is None else Estimate(first - second)

    by_group = {name: minus(one.by_group[name], other.by_group[name]) for name in one.by_group}
    behind = [None if score.furthest_behind is None else score.furthest_behind.value for score in (one, other)]
    mean = Estimate((one.mean or 0.0) - (other.mean or 0.0))
    known = {name: part for name, part in by_group.items() if part is not None}
    return SystemDifference(metric, a, b, mean, known, minus(*behind))
