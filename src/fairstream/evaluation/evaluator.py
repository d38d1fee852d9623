"""Evaluation of a model on events that it has not been trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from fairstream.cluster import Cluster
from fairstream.data import Groups, History, Rows, SeenItems
from fairstream.display import SIZE, Tabular, charts, colour
from fairstream.errors import ConfigurationError
from fairstream.evaluation.breakdown import Breakdown
from fairstream.evaluation.by_group import SCORE_COLUMNS, GroupScores
from fairstream.evaluation.lists import Lists, Mask, Truth
from fairstream.evaluation.metrics import Metric, MetricAtK, resolve_metrics
from fairstream.evaluation.protocol import Protocol
from fairstream.evaluation.ranking import N_SAMPLED_CANDIDATES, evaluating, rank_sampled
from fairstream.evaluation.requests import Requests
from fairstream.evaluation.reranking import N_RERANKED, Reranker, RerankReport, rerank_hits
from fairstream.evaluation.resampling import Array, GroupPanel
from fairstream.evaluation.score_cells import Scored
from fairstream.evaluation.top_k import top_k_of_all
from fairstream.evaluation.totals import Total
from fairstream.evaluation.user_results import Slice, UserResults, cut_slices, score_periods, user_means
from fairstream.models import ContextBuilder, Reads, RecentPopularity, Scorer
from fairstream.randomness import Randomness


@dataclass(frozen=True, repr=False)
class Evaluation(Scored, Tabular):
    """The quality of a model on some events: `evaluation["ndcg@20"]` is one metric by group.

    Prints as `evaluate_recommendations` prints the same lists.
    """

    metrics: Mapping[str, GroupScores]
    n_tested_users: int
    n_cold_users: int
    """Users without history; `strict` tests them too, on the fallback (in the task `event` until they have one)."""
    excluded_groups: Mapping[str, int]
    """Groups with too few tested users to compare, and their numbers of tested users."""
    slices: Mapping[str, Slice]
    tested: UserResults = field(compare=False, repr=False)
    reranking: RerankReport | None = None
    """The outcome of reranking, if there was any."""
    breakdown: Breakdown | None = field(default=None, compare=False, repr=False)
    """What the test consisted of, where that was asked for."""
    group: str | None = None
    """What makes the groups; None: there are none."""
    n_users_by_group: Mapping[str, int] = field(default_factory=dict)
    """Tested users of each group, in the order of the codes."""
    notes: tuple[str, ...] = ()
    """What is unusual: one sentence each."""

    def _title(self) -> str:
        cold = f"{self.n_cold_users:,} of them without history"
        return f"Evaluation: {self.n_tested_users:,} tested users, {cold}\n{self.verdict}"

    def _n_users(self) -> int:
        return self.n_tested_users

    def to_arrow(self) -> pa.Table:
        """As an Arrow table, a row for each metric and group, "all" being everyone.

        Columns: metric, group, value, its interval low and high, gap (to the other groups' users), its interval
        gap_low and gap_high, p_value (of the gap).
        """
        return pa.Table.from_pylist(
            [{"metric": name, **row} for name, score in self.metrics.items() for row in score.rows()],
            pa.schema([("metric", pa.string()), *SCORE_COLUMNS]),
        )

    def plot(self, metric: str | None = None) -> Any:
        """Draw one metric for everyone and by group, with intervals; needs altair (`fairstream[report]`).

        Parameters
        ----------
        metric
            NAME@K; by default the first.

        Returns
        -------
        altair.Chart

        """
        alt, name = charts(), metric or next(iter(self.metrics))
        rows = [row for row in self[name].rows() if row["value"] is not None]
        groups = [row["group"] for row in rows]
        base = alt.Chart(alt.Data(values=rows)).encode(alt.Y("group:N", sort=groups, title=None))
        bars = base.mark_bar(height=14).encode(alt.X("value:Q", title=name), colour("group", groups))
        interval = base.transform_filter("isValid(datum.low)").mark_rule()
        chart = bars + interval.encode(alt.X("low:Q", title=name), alt.X2("high:Q"))
        return chart.properties(width=SIZE["width"])

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        reranking = {} if self.reranking is None else {"reranking": self.reranking.to_dict()}
        return {
            **{name: score.to_dict() for name, score in self.metrics.items()},
            "n_tested_users": self.n_tested_users,
            "n_cold_users": self.n_cold_users,
            "excluded_groups": dict(self.excluded_groups),
            "notes": list(self.notes),
            **reranking,
            "slices": {name: part.to_dict() for name, part in self.slices.items()},
            "tested": self.tested.to_dict(),
        }


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Evaluates models by one protocol, with the uncertainty of the results.

    Raises
    ------
    ConfigurationError
        If there is no metric of a given name.

    """

    protocol: Protocol
    k: int
    groups: Groups
    randomness: Randomness
    min_group_size: int = 1
    """Groups with fewer tested users are excluded from the comparison."""
    n_resamples: int = 0
    """Bootstrap samples and permutations; 0: no intervals and no p-values."""
    rerank: Reranker | None = None
    """Chooses the lists of all users together whom the model can score; the fallback's stay as they are."""
    metrics: Sequence[str] | Mapping[str, Metric] | None = None
    """Names ("ndcg", "recall@10"), or functions of (lists, truth) by name; None: the protocol's."""
    breaks_down: bool = False
    """Whether evaluations have a `breakdown`."""
    cluster: Cluster | None = None
    """Whose tasks make the lists, with the same results; None: this process makes them."""

    def __post_init__(self) -> None:
        _ = self.resolved_metrics  # an unknown name is an error now, not after the training

    @cached_property
    def resolved_metrics(self) -> list[MetricAtK]:
        """The metrics in force."""
        return resolve_metrics(self.metrics, self.k, self.protocol.metrics)

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
        n_rankable: int | None = None,
        by_event: bool = False,
    ) -> Evaluation:
        """Test a model on events that it has not been trained on.

        Parameters
        ----------
        model
            The model to test.
        users, items
            The test events, in chronological order.
        history
            All events before them.
        contexts
            What the model may know, and whom it can score; the other users get the fallback.
        t
            The period, which decides the random draws.
        n_rankable
            The number of items that the model has rows for, if that is not the number of known items.
        by_event
            False: one list for each user, made after `history` and tested on all of the user's events
            (the tasks `next` and `remain`). True: one list for each event, made from everything that
            the user did before it and tested on its item; a user's value is the mean over the user's
            events (the task `event`).

        Returns
        -------
        Evaluation
            Every metric by group, with slices and users' results.

        Raises
        ------
        ConfigurationError
            If k exceeds the number of known items, a metric returns something else than one value
            a list or one number, or lists of single events cannot be tested in this way.

        """
        if by_event:
            check_by_event(self.protocol, reranks=self.rerank is not None)
        if not 1 <= self.depth <= history.n_items:
            raise ConfigurationError(
                f"k must be between 1 and the number of known items, {history.n_items}, got {self.depth}"
            )
        make_requests = Requests.of_events if by_event else Requests.of_period
        requests = make_requests(users, items, history, contexts.for_task("event" if by_event else "next"))
        is_cold = requests.users >= history.n_users
        n_cold = _n_distinct(requests.users[is_cold])
        by_model = requests.can_score(model)
        if not self.protocol.cold_users:
            requests, is_cold = requests.where(~is_cold), is_cold[~is_cold]
            by_model = np.ones(len(requests), np.bool_)
        n_rankable, draw = n_rankable or history.n_items, (t, len(users))
        truth = requests.truth(history)
        scored, reranking = requests.where(by_model), None
        if self.rerank is None:
            lists = self._rank(model, scored, self.depth, history, n_rankable, draw)
        else:
            n_candidates = self._n_candidates(scored.positives.counts, history.n_items)
            lists = self._rank(model, scored, n_candidates, history, n_rankable, draw)
            lists, reranking = rerank_hits(self.rerank, lists, self.groups.codes[scored.users], self.depth)
        if not by_model.all():
            fallback = RecentPopularity.of(history, n_rankable).eval().to(model.device)
            others = replace(requests.where(~by_model), contexts=ContextBuilder(Reads(), history))
            of_fallback = self._rank(fallback, others, self.depth, history, n_rankable, draw, " of newcomers")
            lists = lists.merge(of_fallback, by_model)
        codes = self.groups.codes[requests.users]
        n_groups = max(self.groups.n_groups_among(history.n_users), int(codes.max(initial=-1)) + 1)
        tested = self._results(lists, truth, is_cold, n_groups)
        scores, panel = self.scores([tested], n_groups, self.randomness.numpy("resampling", *draw))
        sizes = dict(zip(self.groups.names, panel.n_tested[:, 0].astype(int).tolist(), strict=False))
        few = zip(sizes.items(), panel.judged[:, 0], strict=True)
        breakdown = None
        if self.breaks_down:
            n_earlier = history.latest(requests.users, 1)[1] if requests.n_earlier is None else requests.n_earlier
            breakdown = Breakdown.of(lists, truth, self.resolved_metrics, codes, is_cold, n_earlier, n_rankable)
        slices = {}
        for name, mask, part_lists, part_truth in cut_slices(lists, truth, codes, is_cold, history, requests.n_earlier):
            part = self._results(part_lists, part_truth, is_cold[mask], n_groups)
            of_users = name in ("warm_users", "cold_users")  # the other slices rest on too few users each
            rng = self.randomness.numpy(f"resampling of {name}", *draw) if of_users else None
            n_positives = int(part_truth.n_positives.sum())
            slices[name] = Slice(len(part.users), n_positives, self.scores([part], n_groups, rng)[0])
        return Evaluation(
            metrics=scores,
            n_tested_users=len(tested.users),
            n_cold_users=n_cold,
            excluded_groups={name: n for (name, n), is_compared in few if n and not is_compared},
            slices=slices,
            tested=tested,
            reranking=reranking,
            breakdown=breakdown,
            group=self.groups.attribute or None,
            n_users_by_group=sizes,
            notes=self.notes_on(scores),
        )

    def notes_on(self, scores: Mapping[str, GroupScores]) -> tuple[str, ...]:
        """A sentence where, in the main metric, the group that was said to be better served is the one behind."""
        note = next((score.note_on_advantaged(name) for name, score in scores.items()), None)
        return () if note is None or self.groups.choice == "auto" else (note,)

    def scores(
        self, tested: Sequence[UserResults], n_groups: int, rng: np.random.Generator | None = None
    ) -> tuple[dict[str, GroupScores], GroupPanel]:
        """Each metric averaged over the given tests; with a generator, also its uncertainty."""
        names = self.groups.names[:n_groups]
        return score_periods(
            tested,
            self.resolved_metrics,
            names,
            self.min_group_size,
            rng,
            self.n_resamples,
            has_advantaged=self.groups.has_advantaged,
        )

    def _results(self, lists: Lists, truth: Truth, is_cold: Mask, n_groups: int) -> UserResults:
        """What is kept of a test: the hits, and the values of metrics that these and a name do not determine."""
        codes, users, n_lists = self.groups.codes[truth.users], truth.users, None
        if truth.before is not None:
            users, first, n_lists = np.unique(users, return_index=True, return_counts=True)
            is_cold = is_cold[first]
        values, totals = dict[str, Array](), dict[str, Total]()
        stored = [metric for metric in self.resolved_metrics if metric != self.protocol.built_in(metric.name)]
        for metric in stored if len(codes) else ():
            value = metric(lists, truth)
            if value.ndim:
                values[metric.name] = user_means(value, n_lists)
            else:
                totals[metric.name] = Total.of(float(value), metric, lists, truth, codes, n_groups, self.min_group_size)
        hits, n_positives = torch.from_numpy(lists.hits).double(), torch.from_numpy(truth.n_positives).double()
        return UserResults(users, self.groups.codes[users], is_cold, hits, n_positives, values, totals, n_lists)

    def _n_candidates(self, n_positives: Rows, n_items: int) -> int:
        """The length of the lists that a reranker chooses from."""
        if self.protocol.full_ranking:
            return max(self.depth, min(N_RERANKED, n_items))
        return max(self.depth, N_SAMPLED_CANDIDATES + int(n_positives.max(initial=0)))

    @torch.no_grad()
    def _rank(
        self,
        model: Scorer,
        requests: Requests,
        k: int,
        history: History,
        n_rankable: int,
        draw: tuple[int, int],
        of_whom: str = "",
    ) -> Lists:
        """The lists of a model; `of_whom` keeps the sampled candidates of two models apart."""
        with evaluating(model):
            if self.protocol.full_ranking:
                return top_k_of_all(model, requests, n_items=history.n_items, k=k, cluster=self.cluster)
            positives = requests.positives
            return rank_sampled(
                model,
                requests.users,
                SeenItems.from_pairs(requests.users[positives.positions], positives.items),
                history.seen,
                contexts=requests.contexts,
                n_items=history.n_items,
                n_rankable=n_rankable,
                k=k,
                key=self.randomness.key(f"candidates{of_whom}", *draw),
                cluster=self.cluster,
            )


def check_by_event(protocol: Protocol, *, reranks: bool) -> None:
    """Raise a `ConfigurationError` where lists of single events cannot be evaluated."""
    if reranks:
        raise ConfigurationError(
            "the task event makes a list for one user at a time, and a method that reranks chooses the lists of all "
            "users together; evaluate it on the tasks next and remain"
        )
    if not (protocol.full_ranking and protocol.true_ndcg):
        raise ConfigurationError(
            "the task event ranks all known items and needs the true NDCG; use the protocol strict, or at least "
            "paper+ranking+ndcg"
        )


def _n_distinct(rows: Rows) -> int:
    """How many different ones are among sorted rows."""
    return int(np.count_nonzero(np.diff(rows, prepend=-1)))
