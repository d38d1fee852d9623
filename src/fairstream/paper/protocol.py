"""The protocol of the published numbers, and its repairs one by one: `paper+ranking` shows the effect of one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
import torch

from fairstream.data import History, Rows, SeenItems
from fairstream.evaluation import DEFAULT_METRICS, Evaluation, Evaluator, ItemLists, Lists, Metric
from fairstream.evaluation.lists import Mask
from fairstream.evaluation.metrics import retrieved_ndcg, true_ndcg
from fairstream.evaluation.ranking import evaluating
from fairstream.evaluation.requests import Requests, rank_blocks
from fairstream.evaluation.top_k import backend_for, check_shape, chunks, decode
from fairstream.experiments.config import PAPER_TASKS, REPAIRS, Protocol
from fairstream.models import ContextBuilder, Scorer
from fairstream.paper.rerank import Rerank
from fairstream.sampling import NegativeSampler

N_SAMPLED_CANDIDATES: Final = 100
N_RERANKED: Final = 100  # the candidates of each user that Rerank chooses from, where all items are ranked


@dataclass(frozen=True)
class PaperProtocol(Protocol):
    """A protocol with weaknesses of the published one; each is repaired where its field is True."""

    point_in_time: bool = True
    """+leak: negatives and catalogue as of the period; else the user's future is excluded and all items are known."""
    full_ranking: bool = True  # +ranking: against all known items, less the user's own; else against 100 sampled ones
    cold_users: bool = True
    """+cold-users: users without history are tested too, on the fallback; else they are left out."""

    @classmethod
    def repaired(cls, *repairs: str, run: Callable[..., Any] | None = None) -> PaperProtocol:
        """The published protocol with some of `REPAIRS`.

        +ndcg divides by the best possible list, else by the best order of the hits in the list; +optimizer moves
        the rows that a batch touches, else every row at every step.

        >>> PaperProtocol.repaired("ranking").full_ranking, PaperProtocol.repaired().defaults["optimizer"]
        (True, 'dense')
        """
        leak, ranking, ndcg, cold_users, optimizer = (repair in repairs for repair in REPAIRS)
        return cls(
            metrics=DEFAULT_METRICS if ndcg else {**DEFAULT_METRICS, "ndcg": retrieved_ndcg, "true_ndcg": true_ndcg},
            defaults={"model": "mf", "optimizer": "row" if optimizer else "dense", "min_group_size": 1},
            tasks=PAPER_TASKS,
            way_of_testing=(ranking, ndcg, cold_users),
            cuts_whole_batches=True,
            run=run,
            point_in_time=leak,
            full_ranking=ranking,
            cold_users=cold_users,
        )


@dataclass(frozen=True)
class RerankReport:
    """The outcome of a reranking."""

    label_gap: float
    is_within: bool
    seconds: float = field(compare=False)  # the time of choosing, without that of ranking the candidates


@dataclass(frozen=True, repr=False)
class RerankedEvaluation(Evaluation):
    """An evaluation of lists that Rerank chose."""

    reranking: RerankReport | None = None

    @property
    def extras(self) -> dict[str, Any]:
        if self.reranking is None:
            return {}
        # Without the seconds, which are not reproducible.
        return {"reranking": {"label_gap": self.reranking.label_gap, "is_within": self.reranking.is_within}}


@dataclass(frozen=True, eq=False)
class PaperEvaluator(Evaluator):
    """Evaluates under a protocol of the paper, and lists that Rerank chooses."""

    protocol: PaperProtocol = field(default_factory=PaperProtocol)
    rerank: Rerank | None = None
    """Chooses the lists of all users with a score together; the fallback's lists stay as they are."""
    n_items: int | None = None  # the number of items in the whole log, if the protocol knows the future
    reports: list[RerankReport] = field(default_factory=list)  # the report of the evaluation in progress

    @property
    def named_metrics(self) -> Mapping[str, Metric]:
        return self.protocol.metrics

    @property
    def plain(self) -> PaperEvaluator:
        return self if self.rerank is None else replace(self, rerank=None)

    def n_rankable(self, history: History) -> int:
        return self.n_items or history.n_items

    def evaluate(self, *events: Any, **about: Any) -> Evaluation:
        """Evaluate as `Evaluator.evaluate` does, with a report if Rerank chose the lists."""
        self.protocol.check_task(about.get("task", "next"), None if self.rerank is None else "Rerank")
        evaluation = super().evaluate(*events, **about)
        if self.rerank is None:
            return evaluation
        values = {each.name: getattr(evaluation, each.name) for each in fields(evaluation)}
        return RerankedEvaluation(**values, reranking=self.reports.pop())

    def _tested(self, is_cold: Mask) -> Mask:
        return np.ones_like(is_cold) if self.protocol.cold_users else ~is_cold

    def _by_model(self, model: Scorer, requests: Requests) -> Mask:
        return super()._by_model(model, requests) if self.protocol.cold_users else np.ones(len(requests), np.bool_)

    def _lists_of_model(self, model: Scorer, requests: Requests, history: History, draw: tuple[int, int]) -> Lists:
        if self.rerank is None:
            return super()._lists_of_model(model, requests, history, draw)
        n_candidates = min(N_RERANKED, history.n_items)
        if not self.protocol.full_ranking:
            n_candidates = N_SAMPLED_CANDIDATES + int(requests.positives.counts.max(initial=0))
        candidates = self._rank(model, requests, max(self.depth, n_candidates), history, draw)
        began = time.perf_counter()
        chosen = self.rerank(candidates.scores, self.groups.codes[requests.users], self.depth)
        self.reports.append(RerankReport(chosen.gap, chosen.is_within, time.perf_counter() - began))
        return candidates.at(chosen.columns)

    def _rank(
        self, model: Scorer, requests: Requests, k: int, history: History, draw: tuple[int, int], of_whom: str = ""
    ) -> Lists:
        if self.protocol.full_ranking:
            return super()._rank(model, requests, k, history, draw, of_whom)
        positives = requests.positives
        with evaluating(model):
            return rank_sampled(
                model,
                requests.users,
                SeenItems.from_pairs(requests.users[positives.positions], positives.items),
                history.seen,
                contexts=requests.contexts,
                n_items=history.n_items,
                n_rankable=self.n_rankable(history),
                k=k,
                key=self.randomness.key(f"candidates{of_whom}", *draw),
            )


def rank_sampled(
    model: Scorer,
    users: Rows,
    positives: SeenItems,
    seen: SeenItems,
    *,
    contexts: ContextBuilder,
    n_items: int,
    n_rankable: int,
    k: int,
    key: int,
) -> Lists:
    """Rank the positives among 100 sampled items that are known, not seen by the user, and not positive.

    Sampled candidates make every model look better than it is. The model has no rows for positives
    from `n_rankable` on, and misses them.
    """
    sampler = NegativeSampler(seen.union(positives), users, n_items=n_items, device=model.device)
    negatives = sampler.draw(users, N_SAMPLED_CANDIDATES, key).cpu().numpy()
    reachable = positives.below(n_rankable)
    width = N_SAMPLED_CANDIDATES + int(np.diff(reachable.lists(users)[0]).max(initial=0))
    shape = (len(users), k)
    lists = Lists(np.empty(shape, np.int64), np.empty(shape), np.empty(shape, np.bool_))

    def write(at: slice, ranked: Lists) -> None:
        lists.items[at], lists.scores[at], lists.hits[at] = ranked.items, ranked.scores, ranked.hits

    blocks = list(chunks(len(users), width=width, at_once=backend_for(model.device).scores_at_once))
    rank_blocks(_SampledRanking(model, users, negatives, reachable, contexts, k), blocks, write, model, contexts.index)
    return lists


@dataclass(frozen=True, eq=False)
class _SampledRanking:
    """Ranks the candidates of a block of users."""

    model: Scorer
    users: Rows
    negatives: Rows  # (U, 100)
    positives: SeenItems
    contexts: ContextBuilder
    k: int

    @torch.no_grad()
    def __call__(self, block: range) -> Lists:
        at, device = slice(block.start, block.stop), self.model.device
        users = self.users[at]
        table = ItemLists(*self.positives.lists(users)).table()
        candidates = np.concatenate([self.negatives[at], table], axis=1)  # (B, W), −1 where there is none
        rows, items = torch.from_numpy(users).to(device), torch.from_numpy(candidates.clip(0)).to(device)
        scores = check_shape(self.model(rows, items, self.contexts.at(users)), candidates.shape)
        is_positive = (candidates >= 0) & (np.arange(candidates.shape[1]) >= N_SAMPLED_CANDIDATES)
        absent, present = (ItemLists.from_mask(mask) for mask in (candidates < 0, is_positive))
        n = candidates.shape[1]
        best = decode(*backend_for(device).top_k([(0, scores)], absent, present, n, self.k), n)
        chosen = np.where(best.items < 0, -1, np.take_along_axis(candidates, best.items.clip(0), axis=1))
        return Lists(chosen, best.scores, best.hits)
