"""Evaluation of lists that any recommender has made: quality by group, uncertainty, and systems compared in pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import numpy as np

from fairstream.data.groups import AUTO, UNKNOWN, Codes, Groups, GroupValues, only_two_valued
from fairstream.data.inputs import to_table
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation.by_group import GroupScores, group_statistics
from fairstream.evaluation.list_tables import ListColumns, ReadLists, TruthTable
from fairstream.evaluation.lists import Lists, Mask, Truth
from fairstream.evaluation.metrics import Metric, MetricAtK, resolve_metrics
from fairstream.evaluation.paired import Interval, Paired, PointValue
from fairstream.evaluation.protocol import Protocol
from fairstream.evaluation.resampling import Array, GroupPanel
from fairstream.evaluation.score_cells import CHANCE_MARK, LEGEND, Scored, shown_groups
from fairstream.evaluation.totals import Total, total_scores
from fairstream.randomness import Randomness
from fairstream.text import signed, text_table

Missing = Literal["zero", "exclude"]
Difference = Interval | PointValue


@dataclass(frozen=True, repr=False)
class RecommendationEvaluation(Scored):
    """The quality of one system's lists: `evaluation["ndcg@20"]` is one metric, overall and by group.

    Prints as a table. Make one with `evaluate_recommendations`.
    """

    metrics: Mapping[str, GroupScores]
    n_users: int
    """Tested users: those of the truth."""
    n_without_list: int
    """Users of the truth without a list; they are tested with an empty one, or excluded."""
    group: str | None
    """The column that makes the groups."""
    n_users_by_group: Mapping[str, int]
    """Tested users of each group, in the order of the codes."""
    excluded_groups: Mapping[str, int]
    """Groups with too few tested users to compare, and their numbers of tested users."""
    notes: tuple[str, ...]
    """What was left out or assumed."""
    values: Mapping[str, Array] = field(compare=False)
    """NAME@K → (U,) the users' values, in the order of `users`; of metrics with one value a user."""
    users: Sequence[Any] = field(compare=False)
    """The ids of the tested users."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON; without the users' values."""
        return {
            "metrics": {name: score.to_dict() for name, score in self.metrics.items()},
            "verdict": self.verdict,
            "n_users": self.n_users,
            "n_without_list": self.n_without_list,
            "group": self.group,
            "n_users_by_group": dict(self.n_users_by_group),
            "excluded_groups": dict(self.excluded_groups),
            "notes": list(self.notes),
        }

    def _n_users(self) -> int:
        return self.n_users


@dataclass(frozen=True)
class SystemDifference:
    """One system minus another in one metric, on the same users."""

    metric: str
    system: str
    against: str
    mean: Difference
    """Of the means over all users."""
    by_group: Mapping[str, Difference]
    """Of each compared group's means."""
    furthest_behind: Difference | None
    """Of how far each system's worst-served group is behind the rest (for two groups |PD|); below 0: this system is the
    fairer one."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "metric": self.metric,
            "system": self.system,
            "against": self.against,
            "mean": _as_json(self.mean),
            "by_group": {name: _as_json(part) for name, part in self.by_group.items()},
            "furthest_behind": None if self.furthest_behind is None else _as_json(self.furthest_behind),
        }


@dataclass(frozen=True)
class RecommendationComparison:
    """Several systems on the same users: `comparison["name"]` is one of them. Prints as tables."""

    systems: Mapping[str, RecommendationEvaluation]
    differences: tuple[SystemDifference, ...]
    """Every ordered pair of systems, in every metric."""

    def __getitem__(self, system: str) -> RecommendationEvaluation:
        if system not in self.systems:
            raise KeyError(f"{system}; there are {', '.join(self.systems)}")
        return self.systems[system]

    def against(self, system: str, metric: str | None = None) -> list[SystemDifference]:
        """Every other system minus this one, in one metric (None: the first)."""
        metric = metric or next(iter(self[system].metrics))
        _ = self[system][metric]  # an unknown name is an error
        return [part for part in self.differences if part.against == system and part.metric == metric]

    @property
    def verdict(self) -> str:
        """Who leads in the first metric, and whom it cannot be told from."""
        metric = next(iter(next(iter(self.systems.values())).metrics))
        means = {name: system[metric].mean or 0.0 for name, system in self.systems.items()}
        best = max(means, key=means.__getitem__)
        level = [part.system for part in self.against(best, metric) if not part.mean.excludes_zero]
        if not level:
            return f"{best} is ahead in {metric}: no other's interval of the difference contains 0."
        return f"{best} leads in {metric}, but cannot be told from {', '.join(level)}."

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "verdict": self.verdict,
            "systems": {name: system.to_dict() for name, system in self.systems.items()},
            "differences": [part.to_dict() for part in self.differences],
        }

    def __str__(self) -> str:
        first, *_ = self.systems
        like = self[first]
        shown = shown_groups(list(like.n_users_by_group))
        tables = []
        for metric in like.metrics:
            rows = [[name, *system.cells(system[metric])] for name, system in self.systems.items()]
            tables.append(text_table([metric, *like.headings], rows))
        gap = "|PD|" if shown else "behind by"
        headings = [f"minus {first}", "metric", "mean", "95 % interval"]
        headings += [*shown, gap, "95 % interval"] if like.group else []
        rows = []
        for part in (part for metric in like.metrics for part in self.against(first, metric)):
            cells = [part.system, part.metric, *_difference_cells(part.mean)]
            if like.group:
                cells += [_difference_cells(part.by_group.get(name))[0] for name in shown]
                cells += _difference_cells(part.furthest_behind)
            rows.append(cells)
        shared = [note for note in like.notes if all(note in system.notes for system in self.systems.values())]
        own = [f"{n}: {note}" for n, system in self.systems.items() for note in system.notes if note not in shared]
        lines = [
            f"{like.n_users:,} users, the same for all",
            *([LEGEND] if like.group else []),
            f"{CHANCE_MARK} of a difference: its interval contains 0",
            *(f"Note: {note}" for note in (*shared, *own)),
        ]
        return "\n\n".join([self.verdict, *tables, text_table(headings, rows), "\n".join(lines)])

    __repr__ = __str__


@overload
def evaluate_recommendations(
    recommendations: Mapping[str, Any],
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
    missing: Missing = "zero",
    min_group_size: int = 20,
    n_resamples: int = 1000,
    seed: int = 0,
) -> RecommendationComparison: ...


@overload
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
    missing: Missing = "zero",
    min_group_size: int = 20,
    n_resamples: int = 1000,
    seed: int = 0,
) -> RecommendationEvaluation: ...


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
    missing: Missing = "zero",
    min_group_size: int = 20,
    n_resamples: int = 1000,
    seed: int = 0,
) -> RecommendationEvaluation | RecommendationComparison:
    """Evaluate lists that any recommender has made: quality overall and by group, with uncertainty.

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
        A table or file with a user column and the group column; without it, the group column is looked for in `truth`.
    group
        The column that makes the groups; several ("gender,age", or a list) make their intersections. Without it, the
        only column of `users` with two values; without `users` too, there are no groups.
    advantaged
        The value of the advantaged group, from which the disparity counts; without it, of two groups the larger one,
        and of more none.
    k
        The cut-off of metrics without one.
    metrics
        Names ("ndcg", "recall@10"), or functions of (lists, truth) by name; None: NDCG, recall, precision, F1, hit
        and MRR.
    user_column, item_column, rank_column, score_column
        Names of the columns, in all tables; usual names are recognised.
    rating_above
        Only rows of the truth with a rating above this count; None: all do.
    missing
        What becomes of users of the truth without a list: "zero" tests them with an empty list, "exclude" leaves them
        out (of several systems, users without a list of any).
    min_group_size
        Groups with fewer tested users are not compared.
    n_resamples
        Permutations and bootstrap samples; 0: no intervals and no p-values.
    seed
        Of the permutations.

    Returns
    -------
    RecommendationEvaluation or RecommendationComparison
        The evaluation of one system, or of several by name with their differences.

    Raises
    ------
    DataError
        If a table cannot be read, lacks a column or holds an item twice in a list, or if users of different tables do
        not match.
    ConfigurationError
        If there is no metric of a name, or an option is out of range.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from fairstream import evaluate_recommendations
    >>> lists = pa.table({"user": [1, 1, 2, 2], "item": ["a", "b", "b", "c"], "rank": [1, 2, 1, 2]})
    >>> truth = pa.table({"user": [1, 2, 2], "item": ["a", "a", "c"]})
    >>> people = pa.table({"user": [1, 2], "gender": ["M", "F"]})
    >>> options = dict(users=people, group="gender", advantaged="M", k=2, min_group_size=1, n_resamples=0)
    >>> found = evaluate_recommendations(lists, truth, **options)
    >>> found["recall@2"].by_group, found["recall@2"].performance_disparity
    ({'M': 1.0, 'F': 0.5}, 0.5)
    >>> systems = {"mine": lists, "theirs": lists.slice(0, 2)}
    >>> both = evaluate_recommendations(systems, truth, k=2, metrics=["recall", "hit"], n_resamples=100)
    >>> [difference.mean.value for difference in both.against("theirs", "recall@2")]
    [0.25]

    """
    if k < 1 or min_group_size < 1 or n_resamples < 0:
        raise ConfigurationError(
            f"k and min_group_size must be >= 1 and n_resamples >= 0, got {k}, {min_group_size} and {n_resamples}"
        )
    if missing not in ("zero", "exclude"):
        raise ConfigurationError(f"missing must be zero or exclude, got {missing!r}")
    resolved = resolve_metrics(metrics, k, Protocol.named("strict").metrics)
    columns = ListColumns(user_column, item_column, rank_column, score_column)
    depth = max([k, *(metric.k for metric in resolved)])
    tested = TruthTable.read(truth, columns, rating_above)
    is_one = not isinstance(recommendations, Mapping)
    sources = {"": recommendations} if is_one else recommendations
    if not is_one and (len(sources) < 2 or n_resamples < 1):
        raise ConfigurationError(
            f"to compare systems takes two of them or more and n_resamples >= 1, got {len(sources)} and {n_resamples}"
        )
    tables = {
        name: ReadLists.read(
            source, tested, columns, depth, what="the recommendations" if is_one else f"the recommendations of {name}"
        )
        for name, source in sources.items()
    }
    groups = _groups(tested, users, group, advantaged, columns)
    has_list = np.logical_and.reduce([table.has_list for table in tables.values()])
    chosen = has_list if missing == "exclude" else np.ones(len(has_list), np.bool_)
    if not chosen.any():
        raise DataError("no user of the truth has a list of every system; use missing='zero', or check the ids")
    setting = _Setting(resolved, tested, groups, chosen, missing, min_group_size, n_resamples, seed)
    if is_one:
        return setting.evaluate(tables[""])
    systems = {name: setting.evaluate(table) for name, table in tables.items()}
    return RecommendationComparison(systems, tuple(setting.differences(systems)))


@dataclass(frozen=True, eq=False)
class _Setting:
    """How all systems of a call are evaluated."""

    metrics: Sequence[MetricAtK]
    tested: TruthTable
    groups: Groups | None
    chosen: Mask
    """(U,) the users of the truth who are tested."""
    missing: Missing
    min_size: int
    n_resamples: int
    seed: int

    @property
    def names(self) -> tuple[str, ...]:
        return () if self.groups is None else self.groups.names

    @property
    def has_advantaged(self) -> bool:
        return self.groups is not None and self.groups.has_advantaged

    @property
    def codes(self) -> Codes:
        """(U,) of the tested users."""
        if self.groups is None:
            return np.full(int(self.chosen.sum()), UNKNOWN, np.int16)
        return self.groups.codes[self.chosen]

    def evaluate(self, table: ReadLists) -> RecommendationEvaluation:
        rows = np.flatnonzero(self.chosen)
        lists = table.lists.where(self.chosen)
        truth = Truth.without_past(rows, self.tested.positives.where(self.chosen), len(self.tested.items))
        values, scores = dict[str, Array](), dict[str, GroupScores]()
        for metric in self.metrics:
            value = metric(lists, truth)
            if value.ndim:
                values[metric.name] = value
            else:
                scores[metric.name] = self._total(float(value), metric, lists, truth)
        if values:
            rng = Randomness(self.seed).numpy("recommendations")
            panel = self._panel(list(values.values()))
            found = group_statistics(panel, self.names, rng, self.n_resamples, has_advantaged=self.has_advantaged)
            scores |= dict(zip(values, found, strict=True))
        sizes = np.bincount(self.codes[self.codes >= 0], minlength=len(self.names)).tolist()
        by_group = dict(zip(self.names, sizes, strict=True))
        scores = {metric.name: scores[metric.name] for metric in self.metrics}
        behind = next(score.note_on_advantaged(name) for name, score in scores.items())
        return RecommendationEvaluation(
            metrics=scores,
            n_users=len(rows),
            n_without_list=int((~table.has_list).sum()),
            group=None if self.groups is None else self.groups.attribute,
            n_users_by_group=by_group,
            excluded_groups={name: n for name, n in by_group.items() if n < self.min_size},
            notes=(*self._notes(table), *([] if behind is None else [behind])),
            values=values,
            users=self.tested.users.ids.take(rows),
        )

    def differences(self, systems: Mapping[str, RecommendationEvaluation]) -> list[SystemDifference]:
        found = []
        pairs = [(a, b) for a in systems for b in systems if a != b]
        for metric in (metric.name for metric in self.metrics):
            columns = [system.values[metric] for system in systems.values() if metric in system.values]
            if not columns:
                found += [_points(metric, a, b, systems[a][metric], systems[b][metric]) for a, b in pairs]
                continue
            panel = self._panel(columns)
            paired, place = Paired(panel, 1, self.n_resamples), {name: at for at, name in enumerate(systems)}
            compared = [code for code in range(len(self.names)) if panel.compared[code].any()]
            for a, b in pairs:
                both = place[a], place[b]
                found.append(
                    SystemDifference(
                        metric,
                        a,
                        b,
                        paired.interval("mean", *both),
                        {self.names[code]: paired.interval("by_group", *both, group=code) for code in compared},
                        paired.furthest_behind(*both) if compared else None,
                    )
                )
        return found

    def _panel(self, columns: Sequence[Array]) -> GroupPanel:
        return GroupPanel(np.stack(columns, axis=-1)[:, None, :], self.codes, len(self.names), self.min_size)

    def _total(self, overall: float, metric: MetricAtK, lists: Lists, truth: Truth) -> GroupScores:
        total = Total.of(overall, metric, lists, truth, self.codes, len(self.names), self.min_size)
        return total_scores([total], self.names, has_advantaged=self.has_advantaged)

    def _notes(self, table: ReadLists) -> tuple[str, ...]:
        n_missing, n_excluded = int((~table.has_list).sum()), int((~self.chosen).sum())
        n_unknown = int((self.codes == UNKNOWN).sum())
        notes = {
            f"{n_missing} of {len(self.chosen)} users of the truth have no list and count with an empty one": n_missing
            and self.missing == "zero",
            f"{n_excluded} of {len(self.chosen)} users of the truth are excluded: they have no list": n_excluded,
            f"{n_unknown} of {len(self.codes)} users have no known group: they count overall and in no group": n_unknown
            and self.groups is not None,
        }
        return (*self.tested.notes, *table.notes, *(note for note, is_so in notes.items() if is_so))


def _groups(
    tested: TruthTable, users: Any, group: str | Sequence[str] | None, advantaged: object, columns: ListColumns
) -> Groups | None:
    """The groups of the users of the truth; None where there are none to compare."""
    if users is None and group is None:
        if advantaged is not None:
            raise DataError("advantaged says which group is meant, but there are no groups; give group=COLUMN too")
        return None
    if advantaged == AUTO:
        raise ConfigurationError("advantaged='auto' needs periods to learn from; name a group, or leave it out")
    what = "the truth" if users is None else "the users table"
    table = tested.table if users is None else to_table(users, what=what)
    column = only_two_valued(table, columns.ids, what=what) if group is None else group
    values = GroupValues.from_table(table, column, columns.ids, what=what).of(tested.users.ids)
    if values.null_count == len(values):
        raise DataError(f"none of the {len(values)} users of the truth has a group in {what}; are the ids the same?")
    return Groups.from_values(column if isinstance(column, str) else ",".join(column), values, advantaged=advantaged)


def _points(metric: str, a: str, b: str, one: GroupScores, other: GroupScores) -> SystemDifference:
    """The differences of a metric that is one number for all users."""

    def minus(first: float | None, second: float | None) -> PointValue | None:
        return None if first is None or second is None else PointValue(first - second)

    by_group = {name: minus(one.by_group[name], other.by_group[name]) for name in one.by_group}
    behind = [None if score.furthest_behind is None else score.furthest_behind.value for score in (one, other)]
    return SystemDifference(
        metric,
        a,
        b,
        PointValue((one.mean or 0.0) - (other.mean or 0.0)),
        {name: part for name, part in by_group.items() if part is not None},
        minus(*behind),
    )


def _difference_cells(part: Difference | None) -> list[str]:
    if part is None:
        return ["–", "–"]
    if part.low is None:
        return [signed(part.value) + " ", "–"]
    mark = " " if part.excludes_zero else CHANCE_MARK
    return [signed(part.value) + mark, f"{signed(part.low)} … {signed(part.high)}"]


def _as_json(part: Difference) -> dict[str, Any]:
    return {"value": part.value, "interval": None if part.low is None else [part.low, part.high]}
