"""Evaluation of a model on events that it has not been trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from fairstream.data import Groups, History, Rows
from fairstream.data.kinds import Marks
from fairstream.errors import ConfigurationError
from fairstream.evaluation.by_group import GroupScores, check_resampling
from fairstream.evaluation.lists import Floats, Lists, Mask, PeriodTask, Truth
from fairstream.evaluation.metrics import DEFAULT_METRICS, Metric, MetricAtK, built_in, resolve_metrics
from fairstream.evaluation.ranking import evaluating
from fairstream.evaluation.requests import Moments, Requests
from fairstream.evaluation.resampling import GroupPanel
from fairstream.evaluation.results import EvaluatedLists, Evaluation, Slice, cut_slices
from fairstream.evaluation.top_k import top_k_at_levels, top_k_of_all
from fairstream.evaluation.user_results import UserResults, score_periods, strata_of
from fairstream.models import ContextBuilder, Level, RecentPopularityScorer, Scorer, Tilt, levels_of, tilts
from fairstream.models.levels import COARSE_LADDER
from fairstream.randomness import Randomness


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Evaluates models over all items known at the time, with the uncertainty of the results.

    A subclass is another protocol: see the methods from `named_metrics` to `n_rankable`, and from `_tested` on.
    """

    k: int
    groups: Groups
    randomness: Randomness
    min_group_size: int = 1  # groups with fewer tested users are excluded from the comparison
    n_resamples: int = 0  # permutations; 0: no intervals and no p-values
    metrics: Sequence[str] | Mapping[str, Metric] | None = None
    """Names ("ndcg", "recall@10"), or functions of (lists, truth) by name; None: `named_metrics`."""
    keep_lists: bool = False  # whether evaluations keep their `lists`
    at_levels: bool = False
    """Whether to test the lists at every level of the groups, too (`models.levels`); regret needs it."""

    def __post_init__(self) -> None:
        _ = self.resolved_metrics  # an unknown name is an error now, not after the training
        check_resampling(self.min_group_size, self.n_resamples)

    @cached_property
    def resolved_metrics(self) -> list[MetricAtK]:
        """The metrics in force."""
        return resolve_metrics(self.metrics, self.k, self.named_metrics)

    @cached_property
    def stored_metrics(self) -> list[MetricAtK]:
        """The metrics whose values results must store, because the hits and the name do not determine them."""
        named = self.named_metrics
        return [metric for metric in self.resolved_metrics if metric != built_in(metric.name, named)]

    @property
    def named_metrics(self) -> Mapping[str, Metric]:
        """The default metrics; they take precedence over registered ones."""
        return DEFAULT_METRICS

    @property
    def plain(self) -> Evaluator:
        """The evaluator of the model's own lists, if this one changes them."""
        return self

    def n_rankable(self, history: History) -> int:
        """Return the number of items that a model has rows for."""
        return history.n_items

    @property
    def depth(self) -> int:
        """The length of the ranked lists: the largest cut-off of any metric, at least k."""
        return max([self.k, *(metric.k for metric in self.resolved_metrics)])

    def evaluate(
        self,
        model: Scorer,
        users: Rows,
        items: Rows,
        *,
        history: History,
        contexts: ContextBuilder,
        t: int,
        task: PeriodTask = "next",
        times: Floats | None = None,
        moments: Moments | None = None,
        marks: Marks | None = None,
    ) -> Evaluation:
        """Test a model on the events `users`, `items`, in chronological order, which come after `history`.

        `contexts` says what the model may know, and which users it can score; the fallback serves the others. The
        period t seeds the random draws.

        By default there is one list for each user after `history`, tested on all of the user's events (the tasks `next`
        and `remain`). In the task `event` there is one for each event, from everything that the user did before it,
        tested on its item; a user's value is the mean over the user's events. The `times` of the events, in seconds
        since 1970, are then those of the requests. In the task `moment` a user's events with equal `moments`, times in
        any unit, share one list; without `moments` they all differ. `marks` say which events test, and which items may
        return to a list; None: all, and none.
        """
        if not 1 <= self.depth <= history.n_items:
            raise ConfigurationError(
                f"k must be between 1 and the number of known items, {history.n_items}, got {self.depth}"
            )
        contexts = replace(contexts, task="next" if task == "next" else "event")
        if task == "next":
            judged = slice(None) if marks is None else marks.judged
            requests = Requests.of_period(users[judged], items[judged], history, contexts)
        else:
            moments = moments if task == "moment" else None
            requests = Requests.of_events(users, items, history, contexts, times, moments, marks)
        is_cold = requests.users >= history.n_users
        n_cold = len(np.unique(requests.users[is_cold]))
        is_tested = self._tested(is_cold)
        requests, is_cold, draw = requests.where(is_tested), is_cold[is_tested], (t, len(users))
        levels, hits = self._levels(history, task), None
        with torch.no_grad():
            if levels:
                lists, hits = self._lists_at_levels(model, requests, history, tilts(history, self.groups, levels))
            else:
                lists = self._lists(model, requests, history, draw)
        truth, codes = requests.truth(history), self.groups.codes[requests.users]
        metrics = tuple(self.resolved_metrics)
        test = EvaluatedLists(lists, truth, metrics, codes, is_cold, self.n_rankable(history), requests.n_earlier)
        n_groups = max(self.groups.n_groups_among(history.n_users), int(codes.max(initial=-1)) + 1)
        tested = self._results(lists, truth, is_cold, n_groups)
        if hits is not None:
            tested = tested.with_levels(levels, hits, self.resolved_metrics[0])
        tested = replace(tested, strata=strata_of(history, tested.users))
        scores, panel = self.scores([tested], n_groups, self.randomness.numpy("resampling", *draw))
        return Evaluation.of(
            tested,
            scores,
            panel,
            self.groups,
            n_cold_users=n_cold,
            slices=self._slices(test, n_groups, draw),
            lists=test if self.keep_lists else None,
        )

    def scores(
        self, tested: Sequence[UserResults], n_groups: int, rng: np.random.Generator | None = None
    ) -> tuple[dict[str, GroupScores], GroupPanel]:
        """Average each metric over the given tests; with a generator, also compute its uncertainty."""
        names, has_advantaged = self.groups.names[:n_groups], self.groups.has_advantaged
        options = (self.min_group_size, rng, self.n_resamples)
        return score_periods(tested, self.resolved_metrics, names, *options, has_advantaged=has_advantaged)

    def _results(self, lists: Lists, truth: Truth, is_cold: Mask, n_groups: int) -> UserResults:
        codes = self.groups.codes[truth.users]
        return UserResults.of(lists, truth, codes, is_cold, self.stored_metrics, n_groups, self.min_group_size)

    def _slices(self, test: EvaluatedLists, n_groups: int, draw: tuple[int, int]) -> dict[str, Slice]:
        slices = {}
        for name, mask, part_lists, part_truth in cut_slices(test):
            part = self._results(part_lists, part_truth, test.is_cold[mask], n_groups)
            of_users = name in ("warm_users", "cold_users")  # the other slices rest on too few users each
            rng = self.randomness.numpy(f"resampling of {name}", *draw) if of_users else None
            n_positives = int(part_truth.n_positives.sum())
            slices[name] = Slice(len(part.users), n_positives, self.scores([part], n_groups, rng)[0])
        return slices

    def _tested(self, is_cold: Mask) -> Mask:
        """(R,) whether the request is tested."""
        return np.ones_like(is_cold)

    def _lists(self, model: Scorer, requests: Requests, history: History, draw: tuple[int, int]) -> Lists:
        """The model's lists, and the fallback's for users that the model cannot score."""
        by_model = self._by_model(model, requests)
        lists = self._lists_of_model(model, requests.where(by_model), history, draw)
        if by_model.all():
            return lists
        fallback, others = self._newcomers(model, requests.where(~by_model), history)
        return lists.merge(self._rank(fallback, others, self.depth, history, draw, " of newcomers"), by_model)

    def _levels(self, history: History, task: PeriodTask) -> tuple[Level, ...]:
        """The levels of the groups that the history knows; none where the main metric needs more than the hits.

        The tasks `event` and `moment` have many more lists, so they are tested at fewer levels.
        """
        names, main = self.groups.names[: self.groups.n_groups_among(history.n_users)], self.resolved_metrics[0]
        if not self.at_levels or len(names) < 2 or main in self.stored_metrics:
            return ()
        return levels_of(names, None if task == "next" else COARSE_LADDER)

    def _lists_at_levels(self, model: Scorer, requests: Requests, history: History, tilts: Tilt) -> tuple[Lists, Mask]:
        """The lists as served, and (L, R, depth) their hits at each level."""
        by_model, n_items, k = self._by_model(model, requests), history.n_items, self.depth
        with evaluating(model):
            lists, hits = top_k_at_levels(model, requests.where(by_model), tilts, n_items=n_items, k=k)
        if by_model.all():
            return lists, hits
        fallback, others = self._newcomers(model, requests.where(~by_model), history)
        more, hits_of_more = top_k_at_levels(fallback, others, tilts, n_items=n_items, k=k)
        both = np.empty((len(tilts), len(requests), k), np.bool_)
        both[:, by_model], both[:, ~by_model] = hits, hits_of_more
        return lists.merge(more, by_model), both

    def _newcomers(self, model: Scorer, requests: Requests, history: History) -> tuple[Scorer, Requests]:
        """The fallback, and these requests to it."""
        fallback = RecentPopularityScorer.of(history, self.n_rankable(history)).eval().to(model.device)
        return fallback, replace(requests, contexts=ContextBuilder(0, history, tilt=requests.contexts.tilt))

    def _by_model(self, model: Scorer, requests: Requests) -> Mask:
        """(R,) whether the model ranks the list."""
        return requests.can_score(model)

    def _lists_of_model(self, model: Scorer, requests: Requests, history: History, draw: tuple[int, int]) -> Lists:
        return self._rank(model, requests, self.depth, history, draw)

    def _rank(
        self, model: Scorer, requests: Requests, k: int, history: History, draw: tuple[int, int], of_whom: str = ""
    ) -> Lists:
        """The lists of one model; `draw` and `of_whom` name the random draws of a subclass."""
        with evaluating(model):
            return top_k_of_all(model, requests, n_items=history.n_items, k=k)
