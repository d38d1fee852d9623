"""The result of an evaluation: of a model on new events, or of the lists of any recommender."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from fairstream.data import UNKNOWN, Groups, Rows
from fairstream.data.groups import Codes
from fairstream.display import Summary, Table, Tabular
from fairstream.evaluation.by_group import SCORE_COLUMNS, Estimate, GroupScores, ordered
from fairstream.evaluation.gap import GapExplanation, explain_evaluation
from fairstream.evaluation.lists import Lists, Mask, Truth
from fairstream.evaluation.metrics import MetricAtK
from fairstream.evaluation.resampling import Array, GroupPanel
from fairstream.evaluation.score_cells import (
    ABOUT_REGRET,
    FEW_GROUPS,
    LEGEND,
    gap_headings,
    group_cells,
    group_headings,
    regret_sentences,
    score_cells,
    shown_groups,
)
from fairstream.evaluation.user_results import UserResults
from fairstream.plotting import bar_chart
from fairstream.text import between, number


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


@dataclass(frozen=True, eq=False)
class EvaluatedLists:
    """The R lists of a test, with what was known before each of them."""

    lists: Lists
    truth: Truth
    metrics: tuple[MetricAtK, ...]
    codes: Codes  # (R,) the group of each list's user
    is_cold: Mask  # (R,) whether the user had no event before the period
    n_rankable: int  # items from this row on could not be recommended
    n_earlier: Rows | None = None  # (R,) in the tasks `event` and `moment`, the number of the user's events before each


@dataclass(frozen=True, repr=False)
class Evaluation(Tabular):
    """The quality of lists, overall and by group: `evaluation["ndcg@20"]` is one metric.

    `FairRecommender.evaluate` and `evaluate_recommendations` return it. It prints as a table.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from fairstream import evaluate_recommendations
    >>> lists = pa.table({"user": [1, 2], "item": ["a", "b"], "rank": [1, 1]})
    >>> truth = pa.table({"user": [1, 2], "item": ["a", "a"], "sex": ["M", "F"]})
    >>> evaluation = evaluate_recommendations(lists, truth, group="sex", k=1, min_group_size=1, n_resamples=0)
    >>> evaluation["hit@1"].mean, evaluation["hit@1"].by_group, evaluation["hit@1"].gap.value
    (0.5, {'F': 0.0, 'M': 1.0}, 1.0)

    """

    metrics: Mapping[str, GroupScores]
    n_users: int
    """Tested users."""
    group: str | None
    """The attribute that makes the groups; None: there are none."""
    n_users_by_group: Mapping[str, int]
    """Tested users of each group, in the order of the codes."""
    excluded_groups: Mapping[str, int]
    """Groups with too few tested users to compare, and their numbers of tested users."""
    tested: UserResults = field(compare=False)
    """The hits of each tested user, by row numbers."""
    values: Mapping[str, Array] = field(default_factory=dict, compare=False)
    """NAME@K → (U,) each tested user's value; of metrics with one value a user."""
    users: pa.Array | None = field(default=None, compare=False)
    """(U,) the ids of the tested users, in the order of `values`; None: only their row numbers are known."""
    notes: tuple[str, ...] = ()
    """What was left out, assumed, or is unusual: one sentence each."""
    n_cold_users: int | None = None
    """Users without history; `strict` tests them too, on the fallback (with several lists, until they
    have one). None: unknown for the lists of other recommenders."""
    n_without_list: int = 0
    """Users without a list in those of another recommender: tested with an empty one, or excluded."""
    slices: Mapping[str, Slice] = field(default_factory=dict)
    """Parts of the test of a model, by name."""
    lists: EvaluatedLists | None = field(default=None, compare=False)
    """The lists themselves, on request."""

    @classmethod
    def of(
        cls,
        tested: UserResults,
        scores: Mapping[str, GroupScores],
        panel: GroupPanel,
        groups: Groups,
        *,
        notes: tuple[str, ...] = (),
        **fields: Any,
    ) -> Evaluation:
        """Return the evaluation of one period from its results, their scores, and the users' values."""
        sizes = dict(zip(groups.names, panel.n_tested[:, 0].astype(int).tolist(), strict=False))
        is_compared = dict(zip(sizes, panel.judged[:, 0].tolist(), strict=True))
        by_user = [name for name in scores if name not in tested.totals]
        note = next((score.note_on_advantaged(name) for name, score in scores.items()), None)  # of the first metric
        return cls(
            metrics=scores,
            n_users=len(tested.users),
            group=groups.attribute or None,
            n_users_by_group=sizes,
            excluded_groups={name: n for name, n in sizes.items() if n and not is_compared[name]},
            tested=tested,
            values={name: panel.values[:, 0, m] for m, name in enumerate(by_user)},
            notes=notes if note is None else (*notes, note),
            **fields,
        )

    def __getitem__(self, metric: str) -> GroupScores:
        if metric not in self.metrics:
            raise KeyError(f"{metric}; there are {', '.join(self.metrics)}")
        return self.metrics[metric]

    @property
    def verdict(self) -> str:
        """The gap between the groups in the first metric: who is furthest behind, and who could be served better."""
        name, score = next(iter(self.metrics.items()))
        if self.group is None:
            over = f"over {self.n_users:,} users"
            return f"{name} is {number(score.mean)} {over}; without groups there is no disparity."
        if score.furthest_behind is None or score.largest_gap is None:
            return f"{name} is {number(score.mean)}; too few users of the groups were tested to compare them."
        last, first = score.furthest_behind_group, score.largest_gap_group
        rest = "the rest" if len(self.n_users_by_group) > FEW_GROUPS else next(o for o in score.gaps if o != last)
        verdict = f"{self.group} {last} is {number(score.furthest_behind.value)} behind {rest} in {name}"
        verdict += _chance(score.furthest_behind)
        if len(score.gaps) > FEW_GROUPS and first is not None and score.gaps[first].value > 0:
            size = f"{number(score.largest_gap.value)} ahead"
            verdict += f"; the largest gap is that of {first}, {size}{_chance(score.largest_gap)}"
        return " ".join([f"{verdict}.", *regret_sentences(score.to_dict())])

    def cells(self, score: GroupScores) -> list[str]:
        """Return the mean and its interval, and the gap if there are groups."""
        shown = shown_groups(list(self.n_users_by_group))
        mean, *gap = score_cells(score.to_dict(), shown, has_groups=self.group is not None)
        return [mean, between(score.interval), *gap]

    @property
    def headings(self) -> list[str]:
        """The headings of `cells`."""
        gap = gap_headings(shown_groups(list(self.n_users_by_group))) if self.group else []
        return ["mean", "95 % interval", *gap]

    def _summary(self) -> Summary:
        by_group, names = self.n_users_by_group, ordered(list(self.n_users_by_group))
        rows = [[name, *self.cells(score)] for name, score in self.metrics.items()]
        more = [self._group_table()] if self.group and len(names) >= FEW_GROUPS else []
        sizes = ", ".join(f"{name} {by_group[name]:,}" for name in names)
        captions = [f"{self.n_users:,} users" + (f" by {self.group}: {sizes}" if self.group else "")]
        if any(score.furthest_behind and score.furthest_behind.p_value for score in self.metrics.values()):
            captions += [LEGEND, "null: the size of the gap on average (null mean) where the groups' means are equal"]
        if any(score.regret for score in self.metrics.values()):
            captions.append(ABOUT_REGRET)
        if self.excluded_groups:
            captions.append(f"excluded, too few users: {', '.join(self.excluded_groups)}")
        title = self.verdict
        if self.n_cold_users is not None:
            cold = f"{self.n_cold_users:,} of them without history"
            title = f"Evaluation: {self.n_users:,} tested users, {cold}\n{title}"
        return Summary(title, ["", *self.headings], rows, self.notes, more, captions)

    def _group_table(self) -> Table:
        """Return the mean, the regret and the gap of each group in the first metric."""
        name, stored = next(iter(self.metrics)), next(iter(self.metrics.values())).to_dict()
        sizes = self.n_users_by_group
        rows = [[group, f"{sizes[group]:,}", *group_cells(stored, group)] for group in ordered(list(sizes))]
        return Table([str(self.group), "users", *group_headings(stored, name)], rows)

    @property
    def extras(self) -> dict[str, Any]:
        """Further entries of the JSON, of a subclass."""
        return {}

    def to_arrow(self) -> pa.Table:
        """As an Arrow table, a row for each metric and group, "all" being all users.

        Columns: metric, group, value, its interval low and high, attainable, regret, its interval regret_low and
        regret_high, gap (to the other groups' users), its interval gap_low and gap_high, p_value (of the gap).
        """
        return pa.Table.from_pylist(
            [{"metric": name, **row} for name, score in self.metrics.items() for row in score.rows()],
            pa.schema([("metric", pa.string()), *SCORE_COLUMNS]),
        )

    def plot(self, metric: str | None = None) -> Any:
        """Draw a metric (by default the first) for all users and by group, with what is attainable for each group.

        Needs altair (`fairstream[report]`).
        """
        name = metric or next(iter(self.metrics))
        return bar_chart([row for row in self[name].rows() if row["value"] is not None], name)

    def explain_gap(self) -> GapExplanation:
        """Say why the group furthest behind is behind, in the first metric.

        Raises DataError without two groups, or if the lists were not tested at levels.
        """
        return explain_evaluation(self)

    def to_dict(self) -> dict[str, Any]:
        """As JSON; without the users and their values."""
        slices = {name: part.to_dict() for name, part in self.slices.items()}
        return {
            "metrics": {name: score.to_dict() for name, score in self.metrics.items()},
            "verdict": self.verdict,
            "n_users": self.n_users,
            **({} if self.n_cold_users is None else {"n_cold_users": self.n_cold_users}),
            "n_without_list": self.n_without_list,
            "group": self.group,
            "n_users_by_group": dict(self.n_users_by_group),
            "excluded_groups": dict(self.excluded_groups),
            "notes": list(self.notes),
            **self.extras,
            **({"slices": slices} if slices else {}),
        }


def _chance(gap: Estimate) -> str:
    if gap.p_value is None:
        return ""
    chance = "which may be chance" if gap.may_be_chance else "more than chance explains"
    return f", {chance} (permutation p = {gap.p_value:.3f}, null mean {number(gap.null_mean)})"


HISTORY_LENGTHS = {
    "history_0": (0, 1),
    "history_1": (1, 2),
    "history_2_4": (2, 5),
    "history_5_19": (5, 20),
    "history_20_plus": (20, np.inf),
}
"""Slice → the user's number of events before the tested one: from, and below."""


def cut_slices(test: EvaluatedLists) -> Iterator[tuple[str, Mask, Lists, Truth]]:
    """Yield the slices by name, each with its rows (a mask), lists and truth.

    `warm_users`, `cold_users` and `no_group` are parts of the users. In `cold_items` (items without
    events, which only a recommender that knows their content can rank) and `new_items` (items that
    arrived with the last period) only these items count as positives. The tasks `event` and
    `moment` have more slices, by the number of the user's events before each list.
    """
    lists, truth, history, n_earlier = test.lists, test.truth, test.truth.past.history, test.n_earlier
    masks = {"warm_users": ~test.is_cold, "cold_users": test.is_cold, "no_group": test.codes == UNKNOWN}
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
