"""Popularity: the fallback for unknown users, and the baseline that any model has to beat."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fairstream.data import History
from fairstream.data.history import HALF_LIFE, Floats, Positions
from fairstream.models.config import ModelConfig
from fairstream.models.context import NO_CONTEXT, Context
from fairstream.models.scorer import ClosedFormScorer, UserWeights


class PopularityScorer(ClosedFormScorer):
    """s_ui = Σ_e w_e over the events e of item i, the same for every user; see `Popularity`."""

    popularity: Tensor

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.register_buffer("popularity", torch.zeros(n_items, dtype=torch.float64))
        self._logarithm: tuple[Tensor, int, Tensor] | None = None  # the tensor, its version, and its logarithm

    @property
    def n_items(self) -> int:
        return len(self.popularity)

    def grow(self, n_users: int, n_items: int) -> None:
        self.popularity = torch.cat([self.popularity, self.popularity.new_zeros(n_items - len(self.popularity))])

    def learn(self, history: History, new: Positions, weights: UserWeights | None = None) -> None:
        per_event: Any = history.weights_at(new)
        if weights is not None:
            own = weights[history.users_at(new)]
            per_event = own if per_event is None else own * per_event
        counts = np.bincount(history.items_at(new), per_event, minlength=self.n_items)
        self.popularity = self.popularity + torch.from_numpy(counts).to(self.popularity)

    def logarithm(self) -> Tensor:
        """(n_items,) log(1 + popularity) in float32, computed once for each popularity."""
        counts, cached = self.popularity, self._logarithm
        if cached is None or cached[0] is not counts or cached[1] != counts._version:
            cached = self._logarithm = counts, counts._version, torch.log(counts + 1).float()
        return cached[2]

    def forward(self, users: Tensor, items: Tensor, context: Context = NO_CONTEXT) -> Tensor:
        return self.popularity[items]

    def score_range(self, users: Tensor, start: int, stop: int, context: Context = NO_CONTEXT) -> Tensor:
        return self.popularity[start:stop].expand(len(users), -1)

    def tilted(self, scores: Tensor, tilt: Tensor, context: Context = NO_CONTEXT) -> Tensor:
        return scores * tilt.double().exp()


class RecentPopularityScorer(PopularityScorer):
    """s_ui = Σ_e w_e 2^(−age_e / h) over the events e of item i; see `RecentPopularity`.

    With h a tenth of all events it is the fallback for users that a model cannot score.
    """

    def __init__(self, n_users: int, n_items: int, *, half_life: float = HALF_LIFE) -> None:
        super().__init__(n_users, n_items)
        self._half_life = half_life

    @classmethod
    def of(cls, history: History, n_items: int | None = None) -> RecentPopularityScorer:
        """Return the fallback: the `recent_popularity` of a history, with zeros up to `n_items`."""
        model = cls(history.n_users, n_items or history.n_items)
        model._set(history.recent_popularity)
        return model

    @classmethod
    def capped(cls, history: History) -> RecentPopularityScorer:
        """Return the fallback in which newcomers cannot raise an item alone; for a service that anybody may visit.

        Newcomers have no event before the last period. An item with popularity r among all others and n among
        newcomers gets r + min(n, c (r + r̄)): r̄ is the mean of r over the items that have any, and c is the popularity
        of all items among newcomers over that among the others, or 1 if that is less.
        """
        model = cls.of(history)
        is_regular = np.zeros(history.n_users)
        is_regular[history.users_at(range(history.ends[-2] if len(history.ends) > 1 else 0))] = 1.0
        regular = history.decayed_counts(is_regular)
        if not regular.any():
            return model
        newcomers = np.maximum(history.recent_popularity - regular, 0.0)
        ratio = max(1.0, float(newcomers.sum() / regular.sum()))
        model._set(regular + np.minimum(newcomers, ratio * (regular + regular[regular > 0].mean())))
        return model

    def learn(self, history: History, new: Positions, weights: UserWeights | None = None) -> None:
        self._set(history.decayed_counts(weights, self._half_life))

    def _set(self, counts: Floats) -> None:
        popularity = torch.zeros_like(self.popularity)
        popularity[: len(counts)] = torch.from_numpy(counts).to(popularity)
        self.popularity = popularity


class Popularity(ModelConfig):
    """The number of events of each item: s_ui = Σ_e w_e over the events e of item i, the same for every user.

    w_e is the weight of the event, times the group weight of its user; both are 1 by default.

    Cost: 8 bytes per item; an update takes one pass over the new events.

    References
    ----------
    Cremonesi et al., "Performance of Recommender Algorithms on Top-N Recommendation Tasks", 2010.

    Examples
    --------
    >>> model = Popularity().build(n_users=2, n_items=3)
    >>> model.learn(History.of(np.array([0, 0, 1]), np.array([0, 1, 1])), range(3))
    >>> model(torch.tensor([0]), torch.tensor([[0, 1, 2]])).tolist()
    [[1.0, 2.0, 0.0]]

    """

    scorer = PopularityScorer


class RecentPopularity(ModelConfig):
    """Popularity in which older events count less: s_ui = Σ_e w_e 2^(−age_e / h) over the events e of item i.

    The age of e is the number of events since e, and h is a share of all events, so neither depends on the unit of
    time. w_e is as in `Popularity`. Any model should beat this baseline.

    Cost: 8 bytes per item; an update takes one pass over all events.

    Parameters
    ----------
    half_life
        h as a share of all events.

    References
    ----------
    Ji et al., "A Re-visit of the Popularity Baseline in Recommender Systems", 2020.

    Examples
    --------
    >>> model = RecentPopularity(half_life=0.5).build(n_users=2, n_items=3)
    >>> model.learn(History.of(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 2])), range(4))
    >>> model(torch.tensor([0]), torch.tensor([[0, 1, 2]])).numpy().round(3).tolist()
    [[0.354, 1.207, 1.0]]

    """

    scorer = RecentPopularityScorer
    half_life: float = Field(HALF_LIFE, gt=0)
