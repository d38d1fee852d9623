"""Popularity: the fallback for users of whom nothing is known, and the baseline that any model has to beat."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairstream.data import History
from fairstream.data.history import HALF_LIFE, Positions
from fairstream.models.context import NO_CONTEXT, Context
from fairstream.models.scorer import ClosedFormScorer, UserWeights


class Popularity(ClosedFormScorer):
    """s_ui = Σ_e w_e over the events e of item i, the same for every user; w_e = 1 but for weighted users.

    >>> model = Popularity(2, 3)
    >>> model.learn(History.of(np.array([0, 0, 1]), np.array([0, 1, 1])), np.arange(3))
    >>> model(torch.tensor([7]), torch.tensor([[1, 0, 2]]))
    tensor([[2., 1., 0.]], dtype=torch.float64)
    """

    popularity: Tensor

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.register_buffer("popularity", torch.zeros(n_items, dtype=torch.float64))
        self._logarithm: tuple[Tensor, int, Tensor] | None = None
        """Of which tensor, in which version, and the logarithm itself."""

    @property
    def n_items(self) -> int:
        return len(self.popularity)

    def grow(self, n_users: int, n_items: int) -> None:
        self.popularity = torch.cat([self.popularity, self.popularity.new_zeros(n_items - len(self.popularity))])

    def learn(self, history: History, new: Positions, weights: UserWeights | None = None) -> None:
        per_event = None if weights is None else weights[history.users_at(new)]
        counts = np.bincount(history.items_at(new), per_event, minlength=self.n_items)
        self.popularity = self.popularity + torch.from_numpy(counts).to(self.popularity)

    def logarithm(self) -> Tensor:
        """(n_items,) log(1 + popularity) in float32, computed once for each popularity."""
        of, kept = self.popularity, self._logarithm
        if kept is None or kept[0] is not of or kept[1] != of._version:
            kept = self._logarithm = of, of._version, torch.log(of + 1).float()
        return kept[2]

    def forward(self, users: Tensor, items: Tensor, context: Context = NO_CONTEXT) -> Tensor:
        return self.popularity[items]

    def score_range(self, users: Tensor, start: int, stop: int, context: Context = NO_CONTEXT) -> Tensor:
        return self.popularity[start:stop].expand(len(users), -1)


class RecentPopularity(Popularity):
    """s_ui = Σ_e w_e 2^(−age_e / h) over the events e of item i, the same for every user.

    The age counts the events since e, and the half-life h is a share of all events so far: free
    of the unit of time and of the size of the log. This is what users get whom a model cannot
    score (cold start), with a share of a tenth.
    """

    def __init__(self, n_users: int, n_items: int, *, half_life: float = HALF_LIFE) -> None:
        super().__init__(n_users, n_items)
        self._half_life = half_life

    @classmethod
    def of(cls, history: History, n_items: int | None = None) -> RecentPopularity:
        """The recent popularity of the items of `history`, with zeros up to `n_items`."""
        model = cls(history.n_users, n_items or history.n_items)
        model.learn(history, range(0))
        return model

    def learn(self, history: History, new: Positions, weights: UserWeights | None = None) -> None:
        popularity = torch.zeros_like(self.popularity)
        is_usual = weights is None and self._half_life == HALF_LIFE
        recent = history.recent_popularity if is_usual else history.faded_counts(weights, self._half_life)
        popularity[: len(recent)] = torch.tensor(recent).to(popularity)
        self.popularity = popularity
