"""The judge: a model, events that it has not learned from, and what comes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from fairstream.data import Groups, History, Rows, SeenItems
from fairstream.errors import ConfigurationError
from fairstream.evaluation.blocks import Lists
from fairstream.evaluation.by_group import GroupScores, group_statistics
from fairstream.evaluation.protocol import Protocol
from fairstream.evaluation.ranking import (
    N_SAMPLED_CANDIDATES,
    RankedHits,
    counts,
    evaluating,
    rank_all,
    rank_sampled,
)
from fairstream.evaluation.reranking import N_RERANKED, Reranker, RerankReport, rerank_hits
from fairstream.evaluation.resampling import GroupPanel
from fairstream.evaluation.slices import Slice, cut_slices
from fairstream.evaluation.user_results import UserResults, stack_periods
from fairstream.models import ContextBuilder, Reads, RecentPopularity, Scorer
from fairstream.randomness import Randomness


@dataclass(frozen=True)
class Evaluation:
    """How a model does on some events: `judgement["ndcg@20"]` is one metric by group."""

    metrics: Mapping[str, GroupScores]
    n_tested_users: int
    n_cold_users: int
    """Users of whom no earlier event was history; `strict` tests them too, on the fallback."""
    excluded_groups: Mapping[str, int]
    """Groups with too few tested users to judge, and how many those were."""
    slices: Mapping[str, Slice]
    tested: UserResults = field(compare=False, repr=False)
    reranking: RerankReport | None = None
    """Where the lists were chosen anew before they were judged: what came of it."""

    def __getitem__(self, metric: str) -> GroupScores:
        return self.metrics[metric]

    def to_dict(self) -> dict[str, Any]:
        reranking = {} if self.reranking is None else {"reranking": self.reranking.to_dict()}
        return {
            **{name: score.to_dict() for name, score in self.metrics.items()},
            "n_tested_users": self.n_tested_users,
            "n_cold_users": self.n_cold_users,
            "excluded_groups": dict(self.excluded_groups),
            **reranking,
            "slices": {name: part.to_dict() for name, part in self.slices.items()},
            "tested": self.tested.to_dict(),
        }


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Judges models by one protocol, and says how sure it is."""

    protocol: Protocol
    k: int
    groups: Groups
    randomness: Randomness
    min_group_size: int = 1
    """Groups with fewer tested users than this are set aside."""
    n_resamples: int = 0
    """Bootstrap samples and permutations; 0: no intervals and no p-values."""
    rerank: Reranker | None = None
    """Chooses the lists anew, of all users whom the model ranks for together; the fallback's stay as they are."""
    metrics: Any = None

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
    ) -> Evaluation:
        """Test a model on events that it has not learned.

        Parameters
        ----------
        model
            What to test.
        users, items
            The events to test on.
        history
            All that came before them.
        contexts
            What the model may know, and for whom it can score; the other users get the fallback.
        t
            The period, which decides the random draws.
        n_rankable
            How many items the model has rows for, where it was shown the future.

        """
        if not 1 <= self.k <= history.n_items:
            raise ConfigurationError(
                f"k must be between 1 and the number of history items, {history.n_items}, got {self.k}"
            )
        positives = SeenItems.from_pairs(users, items)
        present = positives.distinct_users()
        is_cold = present >= history.n_users
        n_cold = int(is_cold.sum())
        by_model = contexts.can_score(model, present)
        if not self.protocol.cold_users:
            present, is_cold = present[~is_cold], is_cold[~is_cold]
            by_model = np.ones(len(present), np.bool_)
        rank = partial(
            self._rank,
            device=model.device,
            positives=positives,
            contexts=contexts,
            history=history,
            n_rankable=n_rankable or history.n_items,
            draw=(t, len(users)),
        )
        if self.rerank is None:
            ranked, reranking = rank(model, present[by_model], self.k), None
        else:
            scored = present[by_model]
            ranked = rank(model, scored, self._n_candidates(positives, scored, history.n_items))
            ranked, reranking = rerank_hits(self.rerank, ranked, self.groups.codes[scored], self.k)
        if not by_model.all():
            ranked = ranked.merge(rank(None, present[~by_model], self.k), by_model)
        tested = UserResults(present, self.groups.codes[present], is_cold, ranked.hits, ranked.n_positives)
        n_groups = max(self.groups.n_groups_among(history.n_users), int(tested.codes.max(initial=-1)) + 1)
        scores, panel = self.scores([tested], n_groups, self.randomness.numpy("resampling", t, len(users)))
        few = zip(self.groups.names, panel.n_tested[:, 0], panel.judged[:, 0], strict=False)
        return Evaluation(
            metrics=scores,
            n_tested_users=len(present),
            n_cold_users=n_cold,
            excluded_groups={name: int(n) for name, n, is_judged in few if n and not is_judged},
            slices={
                name: self._slice(name, part, n_groups, (t, len(users)))
                for name, part in cut_slices(tested, ranked.items, Lists(*positives.lists(present)), history)
            },
            tested=tested,
            reranking=reranking,
        )

    def _n_candidates(self, positives: SeenItems, users: Rows, n_items: int) -> int:
        """How long the lists are that a reranker chooses from."""
        if self.protocol.full_ranking:
            return max(self.k, min(N_RERANKED, n_items))
        return max(self.k, N_SAMPLED_CANDIDATES + int(counts(positives, users).max(initial=0)))

    def _slice(self, name: str, part: UserResults, n_groups: int, draw: tuple[int, int]) -> Slice:
        is_of_users = name in ("warm_users", "cold_users")  # slices of items rest on too few users each
        rng = self.randomness.numpy(f"resampling of {name}", *draw) if is_of_users else None
        return Slice(len(part.users), int(part.n_positives.sum()), self.scores([part], n_groups, rng)[0])

    def scores(
        self, tested: Sequence[UserResults], n_groups: int, rng: np.random.Generator | None = None
    ) -> tuple[dict[str, GroupScores], GroupPanel]:
        """Each metric averaged over the given tests; with a generator, also how sure it is."""
        metrics = self.protocol.metrics
        panel = GroupPanel(*stack_periods(tested, list(metrics.values())), n_groups, self.min_group_size)
        found = group_statistics(panel, self.groups.names[:n_groups], rng, self.n_resamples)
        return {f"{name}@{self.k}": score for name, score in zip(metrics, found, strict=True)}, panel

    @torch.no_grad()
    def _rank(
        self,
        model: Scorer | None,
        users: Rows,
        k: int,
        *,
        device: torch.device,
        positives: SeenItems,
        contexts: ContextBuilder,
        history: History,
        n_rankable: int,
        draw: tuple[int, int],
    ) -> RankedHits:
        """Rank by the model, or, where there is none for these users, by the fallback."""
        name = "candidates" if model is not None else "candidates of newcomers"
        if model is None:
            model, contexts = (
                RecentPopularity.of(history, n_rankable).eval().to(device),
                ContextBuilder(Reads(), history),
            )
        with evaluating(model):
            if self.protocol.full_ranking:
                return rank_all(model, users, positives, history.seen, contexts=contexts, n_items=history.n_items, k=k)
            return rank_sampled(
                model,
                users,
                positives,
                history.seen,
                contexts=contexts,
                n_items=history.n_items,
                n_rankable=n_rankable,
                k=k,
                key=self.randomness.key(name, *draw),
            )
