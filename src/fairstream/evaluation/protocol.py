"""The two protocols, `paper` and `strict`: what is ranked, and what NDCG means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from fairstream.errors import ConfigurationError
from fairstream.evaluation.by_group import GroupScores, disaggregate
from fairstream.evaluation.metrics import Metric, f1, retrieved_ndcg, true_ndcg
from fairstream.evaluation.ranking import evaluating, rank_all, rank_sampled
from fairstream.events import Groups, Rows, SeenItems
from fairstream.models import Scorer
from fairstream.randomness import Randomness

Protocol = Literal["paper", "strict"]

_METRICS: dict[Protocol, dict[str, Metric]] = {
    "paper": {"ndcg": retrieved_ndcg, "f1": f1, "true_ndcg": true_ndcg},
    "strict": {"ndcg": true_ndcg, "f1": f1},
}


@dataclass(frozen=True)
class Judgement:
    """How a model does on some events: `judgement["ndcg@20"]` is one metric by group.

    >>> score = GroupScores(0.5, {"M": 0.6, "F": 0.4}, 0.2)
    >>> Judgement({"ndcg@20": score}, n_tested_users=10, n_cold_users=1)["ndcg@20"].by_group["F"]
    0.4
    """

    metrics: Mapping[str, GroupScores]
    n_tested_users: int
    n_cold_users: int
    """Users of whom no earlier event was known; they are not in the metrics."""

    def __getitem__(self, metric: str) -> GroupScores:
        return self.metrics[metric]

    def to_dict(self) -> dict[str, Any]:
        scores = {name: score.to_dict() for name, score in self.metrics.items()}
        return {**scores, "n_tested_users": self.n_tested_users, "n_cold_users": self.n_cold_users}


@dataclass(frozen=True, eq=False)
class Judge:
    """Judges a model on events that it has not been trained on."""

    protocol: Protocol
    k: int
    groups: Groups
    randomness: Randomness

    @torch.no_grad()
    def judge(
        self, model: Scorer, users: Rows, items: Rows, *, seen: SeenItems, n_users: int, n_items: int, t: int
    ) -> Judgement:
        """Test on the events (users, items), knowing `seen`, the first `n_users` and `n_items` rows."""
        if not 1 <= self.k <= n_items:
            raise ConfigurationError(f"k must be between 1 and the number of known items, {n_items}, got {self.k}")
        present = np.unique(users)
        tested = present[present < n_users]
        positives = SeenItems.from_pairs(users, items)
        with evaluating(model):
            if self.protocol == "strict":
                ranked = rank_all(model, tested, positives, seen, n_items=n_items, k=self.k)
            else:
                device = next(model.parameters()).device
                generator = self.randomness.torch("candidates", t, len(users), device=device)
                ranked = rank_sampled(model, tested, positives, seen, n_items=n_items, k=self.k, generator=generator)
        scores = {
            f"{name}@{self.k}": disaggregate(metric(ranked.hits, ranked.n_positives).numpy(), tested, self.groups)
            for name, metric in _METRICS[self.protocol].items()
        }
        return Judgement(scores, len(tested), len(present) - len(tested))
