"""Transitions: which items follow which."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fairstream.compiled import njit, parallel_ranges
from fairstream.data import History, Rows
from fairstream.data.history import Floats, Positions
from fairstream.models.config import ModelConfig
from fairstream.models.item_item import STRIPES, ItemPairScorer
from fairstream.models.scorer import UserWeights


class TransitionsScorer(ItemPairScorer):
    """s_ui = Σ_d a_d P_ji over the user's latest items j, d = 0 the last; see `Transitions`."""

    name = "transitions"

    def __init__(
        self,
        n_users: int,
        n_items: int,
        *,
        decay: float = 0.5,
        length: int = 5,
        smoothing: float = 5.0,
        max_items: int = 10_000,
    ) -> None:
        super().__init__(n_items, max_items)
        self.history_length, self._smoothing = length, smoothing
        self._decays = np.exp(-np.arange(length) / decay)  # by distance; the event just before has 0

    def _add(self, counts: Floats, places: Rows, history: History, new: Positions, weights: UserWeights | None) -> None:
        """Add the pairs that end at each user's first new event or later; take off those that ended there before."""
        new = np.asarray(new, np.int64)
        users = np.unique(history.users_at(new))
        bounds, positions = history.positions_of(users)
        is_old, items = ~np.isin(positions, new), places[history.items[positions]]
        n_old = np.append(0, np.cumsum(is_old))
        first = np.minimum.reduceat(np.where(is_old, len(items), np.arange(len(items))), bounds[:-1])
        times = np.repeat(np.ones(len(users)) if weights is None else weights[users], np.diff(bounds))  # of each event
        if history.is_weighted:
            own = history.weights_at(range(len(history)))
            assert own is not None
            times = times * own[positions]
        add = partial(_add_transitions, counts, self._decays)
        parallel_ranges(STRIPES, partial(add, n_old[bounds], n_old[first], items[is_old], -times[is_old]))
        parallel_ranges(STRIPES, partial(add, bounds, first, items, times))

    def _solve(self) -> Tensor:
        totals = self.counts.sum(dim=1, keepdim=True)
        return self.counts.float().div_((totals + self._smoothing).float())  # a float64 copy would double the peak

    def _importance(self, history: Tensor) -> Tensor:
        latest_last = torch.from_numpy(self._decays[: history.shape[1]][::-1].copy()).to(self.weight)
        return latest_last.expand(len(history), -1)


@njit
def _add_transitions(
    counts: Any, decays: Any, bounds: Any, first: Any, items: Any, times: Any, begin: int, end: int
) -> None:
    """Add the pairs that end at each user's event `first` or later, in the rows of some stripes."""
    for u in range(len(bounds) - 1):
        for at in range(max(first[u], bounds[u] + 1), bounds[u + 1]):
            j = items[at]
            if j < 0:
                continue
            for d in range(min(len(decays), at - bounds[u])):
                i = items[at - 1 - d]
                if i >= 0 and begin <= i % STRIPES < end:
                    counts[i, j] += times[at] * decays[d]


class Transitions(ModelConfig):
    """Which items follow which, in closed form: s_ui = Σ_d a_d P_ji over the user's latest items j, d = 0 the last.

    P_ji = N_ji / (Σ_k N_jk + smoothing). N_ji adds, for each event of item i, a_d = exp(−d / decay) for the item j that
    the same user had d events before the previous one, up to `length` items back: a Markov chain whose memory fades. An
    event of weight v counts v times.

    There is no user table: the model serves every user from the first event on. An update adds the new events to N, in
    float64. The result equals a computation from scratch, and forgetting a user leaves no trace.

    Cost: N and P are dense, 12 bytes per pair of items, and an update takes O(length) additions per event and one pass
    over N. Each update cuts a catalogue larger than `max_items` to its most popular items; all other items score 0,
    like items without events.

    Parameters
    ----------
    decay
        After how many events an item counts 1 / e.
    length
        How many of the latest items count.
    smoothing
        How many events without a follower are added to each item's; more of them trust rare items less.
    max_items
        The largest catalogue that N and P cover.

    References
    ----------
    Shani et al., "An MDP-Based Recommender System", 2005, for transitions that skip events.

    Examples
    --------
    >>> from fairstream.models import Context
    >>> history = History.of(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 2]))
    >>> model = Transitions().build(n_users=3, n_items=3)
    >>> model.learn(history, range(5))
    >>> context = Context(history=torch.tensor([[-1, 0], [-1, 1]]))  # item 1 has followed item 0, and nothing item 1
    >>> model.score_range(torch.tensor([7, 8]), 0, 3, context)
    tensor([[0.0000, 0.2857, 0.0000],
            [0.0000, 0.0000, 0.0000]])

    """

    scorer = TransitionsScorer
    decay: float = Field(0.5, gt=0)
    length: int = Field(5, ge=1)
    smoothing: float = Field(5.0, gt=0)
    max_items: int = Field(10_000, ge=1)
