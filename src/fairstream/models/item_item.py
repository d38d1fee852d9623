"""Item–item regression in closed form (EASE)."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fairstream.compiled import njit, parallel_ranges
from fairstream.data import History, Rows, SeenItems
from fairstream.data.history import Floats, Positions
from fairstream.data.log import pair_keys
from fairstream.errors import ModelError
from fairstream.models.config import ModelConfig
from fairstream.models.context import Context
from fairstream.models.scorer import ClosedFormScorer, UserWeights

_SCORES_AT_ONCE = 1 << 22
STRIPES = 64  # each thread adds to the rows of some stripes


class ItemPairScorer(ClosedFormScorer):
    """s_ui = Σ_j a_j W_ji over the items j of the user's history, with W computed from sums over pairs of items."""

    name: ClassVar[str]
    """Of the model, in notes."""
    counts: Tensor  # (m, m) the sums, over pairs of the items `rows`
    weight: Tensor  # (m, m) W of the same items
    rows: Tensor  # (m,) the items of both, ascending

    def __init__(self, n_items: int, max_items: int) -> None:
        super().__init__()
        self._max_items, self._n_items = max_items, n_items
        m = min(n_items, max_items)
        self.register_buffer("counts", torch.zeros(m, m, dtype=torch.float64))
        self.register_buffer("weight", torch.zeros(m, m))
        self.register_buffer("rows", torch.arange(m))

    @property
    def n_items(self) -> int:
        return self._n_items

    @property
    def notes(self) -> tuple[str, ...]:
        n_kept = len(self.rows)
        if n_kept == self._n_items:
            return ()
        return (f"{self.name} knows the {n_kept} most popular of {self._n_items} items; all others score 0",)

    def grow(self, n_users: int, n_items: int) -> None:
        """Items beyond `max_items` wait for the next `learn`, which may find them popular."""
        before, m = len(self.rows), min(n_items, self._max_items)
        self._n_items = max(n_items, self._n_items)
        if m > before:
            more = (0, m - before, 0, m - before)
            self.counts, self.weight = F.pad(self.counts, more), F.pad(self.weight, more)
            self.rows = torch.cat([self.rows, torch.arange(before, m, device=self.rows.device)])

    # ── learning ─────────────────────────────────────────────────────────────────────────

    def learn(self, history: History, new: Positions, weights: UserWeights | None = None) -> None:
        rows = self._chosen(history)
        counts = self.counts.numpy(force=True).copy()  # older states keep theirs
        if not np.array_equal(rows, self.rows.numpy(force=True)):
            counts, new = np.zeros_like(counts), range(len(history))
        if len(new) > 0:
            places = np.full(self._n_items, -1, np.int64)
            places[rows] = np.arange(len(rows))
            self._add(counts, places, history, new, weights)
        self.rows = torch.from_numpy(rows).to(self.device)
        self.counts = torch.from_numpy(counts).to(self.device)
        self.weight = self._solve()

    def _chosen(self, history: History) -> Rows:
        """The most popular items, at most `max_items`; of equals the earlier ones."""
        m = len(self.rows)
        if m == self._n_items:
            return np.arange(m)
        counts = np.bincount(history.items, minlength=self._n_items)
        return np.sort(np.argsort(-counts, kind="stable")[:m])

    @abstractmethod
    def _add(self, counts: Floats, places: Rows, history: History, new: Positions, weights: UserWeights | None) -> None:
        """Add new events to the sums; `places` (n_items,) are the items' places in `rows`, −1 if they have none."""

    @abstractmethod
    def _solve(self) -> Tensor:
        """W from the sums."""

    # ── scoring ──────────────────────────────────────────────────────────────────────────

    def _importance(self, history: Tensor) -> Tensor | None:
        """(B, L) a_j of each place of the histories; None: 1."""
        return None

    def score_range(self, users: Tensor, start: int, stop: int, context: Context) -> Tensor:
        assert context.history is not None
        begin, end = torch.searchsorted(self.rows, torch.tensor([start, stop], device=self.rows.device)).tolist()
        sums = self._sums(context.history[:, -self.history_length :], begin, end)
        if end - begin == stop - start:
            return sums
        scores = sums.new_zeros(len(sums), stop - start)
        scores[:, self.rows[begin:end] - start] = sums
        return scores

    def _sums(self, history: Tensor, begin: int, end: int) -> Tensor:
        """(B, L) → (B, end − begin): the sums of the rows of W that belong to each history."""
        if begin == end:  # a block of items without rows, of which PyTorch can make no sum
            return self.weight.new_zeros(len(history), 0)
        history = history.contiguous()
        places = torch.searchsorted(self.rows, history).clamp(max=len(self.rows) - 1)
        is_item = self.rows[places] == history
        n_items, places, weight = is_item.sum(dim=1), places[is_item], self.weight
        if end - begin < weight.shape[1] and len(places):
            # PyTorch would copy all rows of a block of columns; copy only those of the histories.
            used, places = torch.unique(places, return_inverse=True)
            weight = weight[used, begin:end]
        importance = self._importance(history)
        return F.embedding_bag(
            places,
            weight[:, : end - begin],
            n_items.cumsum(0) - n_items,
            mode="sum",
            per_sample_weights=None if importance is None else importance[is_item],
        )

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        assert context.history is not None
        at_once = max(1, _SCORES_AT_ONCE // max(1, self._n_items))
        scores = torch.empty(items.shape, device=items.device)
        for start in range(0, len(users), at_once):
            at = slice(start, start + at_once)
            everything = self.score_range(users[at], 0, self._n_items, Context(context.history[at]))
            scores[at] = everything.gather(1, items[at])
        return scores


class ItemItemScorer(ItemPairScorer):
    """s_ui = Σ_j B_ji over the items j of the user's history; see `ItemItem`."""

    name = "item-item"
    history_length = 1000

    def __init__(
        self, n_users: int, n_items: int, *, ridge: float = 10.0, activity: float = 0.5, max_items: int = 10_000
    ) -> None:
        super().__init__(n_items, max_items)
        self._ridge, self._activity = ridge, activity

    def _add(self, counts: Floats, places: Rows, history: History, new: Positions, weights: UserWeights | None) -> None:
        """Replace the parts of the users who have new events."""
        pairs = SeenItems.from_pairs(history.users_at(new), history.items_at(new))
        if len(history) > len(history.pairs):  # x_u holds zeros and ones: repeats change nothing
            old = np.setdiff1d(np.arange(len(history)), new)
            pairs = pairs.without(SeenItems.from_pairs(history.users_at(old), history.items_at(old)))
        users = pairs.distinct_users()
        bounds, items = history.pairs.lists(users)
        owners = np.repeat(users, np.diff(bounds))
        is_new, values = pairs.has(owners, items), _values(history, owners, items)
        n_after = np.add.reduceat(values**2, bounds[:-1])
        n_before = n_after - np.add.reduceat(values**2 * is_new, bounds[:-1])
        times = np.ones(len(users)) if weights is None else weights[users]
        before, after = (times * _activity_weights(n, self._activity) for n in (n_before, n_after))
        parallel_ranges(STRIPES, partial(_add_pairs, counts, bounds, places[items], values, is_new, before, after))

    def _solve(self) -> Tensor:
        return _regression(self.counts, self._ridge)

    def _sums(self, history: Tensor, begin: int, end: int) -> Tensor:
        return super()._sums(_without_repeats(history), begin, end)


def _without_repeats(history: Tensor) -> Tensor:
    """Replace each item of a history (B, L) that is in it before by padding.

    >>> _without_repeats(torch.tensor([[-1, 5, 3, 5]]))
    tensor([[-1,  5,  3, -1]])
    """
    items, order = history.sort(dim=1, stable=True)
    is_repeat = F.pad(items[:, 1:] == items[:, :-1], (1, 0))
    return history.masked_fill(torch.zeros_like(is_repeat).scatter(1, order, is_repeat), -1)


def _values(history: History, users: Rows, items: Rows) -> Floats:
    """The values of these pairs, sorted, in x_u: √v, with v the largest weight of the pair's events."""
    if not history.is_weighted:
        return np.ones(len(users))
    keys, weights = pair_keys(history.users, history.items), history.weights_at(range(len(history)))
    assert weights is not None
    order = np.lexsort((weights, keys))
    last = np.searchsorted(keys[order], pair_keys(users, items), "right") - 1
    return np.sqrt(weights[order[last]].astype(np.float64))


def _activity_weights(n_items: Floats, activity: float) -> Floats:
    """n^−activity, and 0 for users without any item."""
    return np.where(n_items > 0, np.maximum(n_items, 1.0) ** -activity, 0.0)


def _regression(gram: Tensor, ridge: float) -> Tensor:
    """B = I − P / diag(P) with P = (G + λ I)^−1, λ relative to the mean diagonal of the items that have events."""
    diagonal = gram.diagonal()
    has_events = diagonal > 0
    if not bool(has_events.any()):
        return torch.zeros_like(gram, dtype=torch.float32)
    # No eigenvalue of G + λ I is below λ, so float32 suffices, in half the time and memory.
    matrix = gram.float()
    matrix.diagonal().add_(ridge * float(diagonal[has_events].mean()))
    try:
        # LAPACK writes columns, and scoring sums rows: the transpose of the symmetric inverse has them in memory.
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(matrix)).mT.contiguous()
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        raise ModelError(
            "item-item has no solution in single precision; raise ridge, or lower the group weight"
        ) from None
    return inverse.div_(-inverse.diagonal().clone()).fill_diagonal_(0.0)


@njit
def _add_pairs(
    gram: Any, bounds: Any, places: Any, values: Any, is_new: Any, before: Any, after: Any, first: int, end: int
) -> None:
    """Add the change of the weights of the users' pairs of items, in the rows of some stripes."""
    for u in range(len(bounds) - 1):
        change = after[u] - before[u]
        for a in range(bounds[u], bounds[u + 1]):
            i = places[a]
            if i < 0 or not first <= i % STRIPES < end:
                continue
            for b in range(bounds[u], bounds[u + 1]):
                j = places[b]
                if j >= 0:
                    gram[i, j] += (after[u] if is_new[a] or is_new[b] else change) * values[a] * values[b]


class ItemItem(ModelConfig):
    """Item–item regression in closed form (EASE).

    s_ui = Σ_j B_ji over the items j of the user's history, with B = I − P / diag(P), P = (G + λ I)^−1 and
    G = Σ_u w_u x_u x_uᵀ, where x_u holds the user's items as zeros and ones. B is the ridge regression of each item on
    all others. A user with n_u items counts w_u = n_u^−activity times, so that the most active users do not dominate,
    and λ is `ridge` times the mean diagonal of G, so that it suits a log of any size. Where events have weights v,
    x_u holds √v in place of ones, and n_u = Σ v.

    There is no user table: the model serves every user from the first event on. An update adds the new events to G,
    in float64, and solves for B again, in float32. The result equals a computation from scratch, and forgetting a
    user leaves no trace.

    Cost: G and B are dense, 12 bytes per pair of items (160 MB for 3,600 items, 1.2 GB for 10,000), and solving for B
    takes the cube of their number (1 and 15 seconds of CPU time). Each update cuts a catalogue larger than `max_items`
    to its most popular items; all other items score 0, like items without events.

    Parameters
    ----------
    ridge
        λ as a multiple of the mean diagonal of G; more of it makes lists more popular.
    activity
        How much less an event of an active user counts; 0: all events count the same.
    max_items
        The largest catalogue that G and B cover.

    References
    ----------
    Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", 2019.

    Examples
    --------
    >>> history = History.of(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 2]))
    >>> model = ItemItem(ridge=10).build(n_users=3, n_items=3)
    >>> model.learn(history, range(5))
    >>> context = Context(history=torch.tensor([[-1, 0]]))  # a user who has had item 0
    >>> model.score_range(torch.tensor([7]), 0, 3, context)
    tensor([[0.0000, 0.0998, 0.0000]])

    """

    scorer = ItemItemScorer
    ridge: float = Field(10.0, gt=0)
    activity: float = Field(0.5, ge=0)
    max_items: int = Field(10_000, ge=1)
