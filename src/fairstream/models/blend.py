"""A blend of a sequence model, item–item regression and popularity, weighed by what the last period showed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from fairstream.data import History, Rows
from fairstream.data.history import Positions
from fairstream.models.context import TASKS, Context, ContextBuilder, Reads, Task
from fairstream.models.item_item import ItemItem
from fairstream.models.popularity import Popularity, RecentPopularity
from fairstream.models.scorer import BlockScorer, Scorer, UserWeights, WindowScorer
from fairstream.models.sequence import LENGTH, SASRec

LENGTHS = (1, 2, 5, 20)
"""Where one range of history lengths ends and the next begins: 0, 1, 2–4, 5–19, 20 and more."""
N_REQUESTS = 400
"""The most requests of a period that weights are learned from, for each task and range of lengths."""
N_CANDIDATES = 1_000
"""The most items beside the requested ones that each request is compared with to learn weights."""
MEMORY = 8
"""Over how many periods the weights are averaged before older ones begin to fade."""
HALF_LIVES = (0.1, 0.05, 0.02)
"""Of recent popularity, as shares of all events."""
PARTS = ("sequence", "item-item", "log item-item", "popularity", *(f"popularity of {share}" for share in HALF_LIVES))
_PRIOR: Mapping[Task, tuple[float, ...]] = {
    "event": (0.8, 0.2, 0.2, 0.0, 0.1, 0.0, 0.0),
    "next": (0.1, 0.2, 0.3, 0.2, 0.3, 0.0, 0.0),
}
_PRIOR_OF_NEWCOMERS = (0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
_PULL = 0.01
_TOLERANCE = 1e-6
"""Of the likelihood; the differences between parts that matter are hundreds of times as large."""
_LEAST_REQUESTS = 30
_SCORES_AT_ONCE = 1 << 20
_ITEM_ITEM_SCALE = 10.0
"""Brings scores of item–item, mostly below 1, to the range of the other parts."""
_LEAST_ITEM_ITEM = 1e-2


class Blend(Scorer):
    """s_ui = Σ_p w_p f_p(u, i): a log-linear blend of its parts.

    The parts are a sequence model (its logits), item–item regression and its logarithm, and the
    logarithms of the items' popularity, of all time and more or less recent. The weights depend
    on the task, the very next event or a list for the whole period, and on the length of the
    user's history. They are learned by maximum likelihood from how the parts would have ranked new
    events before learning them: in `fit` the last 5 % of the events, in each update the new period.
    They are the mean of all these so far; from the ninth on older ones fade. Where there were too
    few events to learn them, they are a guess.

    The sequence model is trained by gradient descent, with a fairness loss if there is one; the
    other parts, and the weights of the blend, are computed with group weights if there are any.
    """

    reads: ClassVar[Reads] = Reads(history=ItemItem.reads.history)
    answers_newcomers: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = SASRec.defaults
    weights: Tensor
    """(tasks, lengths, parts)"""
    n_periods: Tensor
    """(tasks, lengths) periods that the weights were learned from."""

    def __init__(self, n_users: int, n_items: int, *, embedding_dim: int = 64, feature_buckets: int = 0) -> None:
        super().__init__()
        self.sequence = SASRec(n_users, n_items, embedding_dim=embedding_dim, feature_buckets=feature_buckets)
        self.item_item = ItemItem(n_users, n_items)
        recent = (RecentPopularity(n_users, n_items, half_life=share) for share in HALF_LIVES)
        self.popular = nn.ModuleList([Popularity(n_users, n_items), *recent])
        prior = [[_prior(task, length) for length in range(len(LENGTHS) + 1)] for task in TASKS]
        self.register_buffer("weights", torch.tensor(prior))
        self.register_buffer("n_periods", torch.zeros(len(TASKS), len(LENGTHS) + 1, dtype=torch.int64))

    @property
    def gradient_part(self) -> WindowScorer:
        return self.sequence

    @property
    def notes(self) -> tuple[str, ...]:
        guessed = "there were too few events to learn the blend's weights, so they are a guess: update it with more"
        return (*self.item_item.notes, *(() if bool(self.n_periods.any()) else (guessed,)))

    def grow(self, n_users: int, n_items: int) -> None:
        super().grow(n_users, n_items)
        for part in (self.item_item, *self._popularities()):
            part.grow(n_users, n_items)

    # ── scoring ──────────────────────────────────────────────────────────────────────────

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        parts = [
            self.sequence(users, items, _latest(context)),
            *_item_item_parts(self.item_item(users, items, context)),
            *(popular[items] for popular in self._log_popularity()),
        ]
        return self._blended(self._weights_of(context), parts)

    def score_range(self, users: Tensor, start: int, stop: int, context: Context) -> Tensor:
        return self.block_scorer(users, context)(start, stop)

    def block_scorer(self, users: Tensor, context: Context) -> BlockScorer:
        weights, parts = self._weights_of(context), self._part_scorer(users, context)
        return lambda start, stop: self._blended(weights, parts(start, stop))

    def _part_scorer(self, users: Tensor, context: Context) -> Callable[[int, int], list[Tensor]]:
        """(start, stop) → what each part says of the items from `start` to `stop`."""
        sequence = self.sequence.block_scorer(users, _latest(context))
        item_item = self.item_item.block_scorer(users, context)
        popular = self._log_popularity()
        return lambda start, stop: [
            sequence(start, stop),
            *_item_item_parts(item_item(start, stop)),
            *(part[start:stop].expand(len(users), -1) for part in popular),
        ]

    def _popularities(self) -> list[Popularity]:
        return [part for part in self.popular if isinstance(part, Popularity)]

    def _log_popularity(self) -> list[Tensor]:
        return [part.logarithm() for part in self._popularities()]

    def _weights_of(self, context: Context) -> Tensor:
        """(B, P)"""
        assert context.n_events is not None
        return self.weights[TASKS.index(context.task)][_length_range(context.n_events)]

    @staticmethod
    def _blended(weights: Tensor, parts: list[Tensor]) -> Tensor:
        total = weights[:, :1] * parts[0]
        for p, part in enumerate(parts[1:], start=1):
            total = torch.addcmul(total, weights[:, p : p + 1], part)
        return total

    # ── learning the weights ─────────────────────────────────────────────────────────────

    @torch.no_grad()
    def inherit(
        self,
        previous: Scorer,
        history: History,
        new: Positions,
        contexts: ContextBuilder,
        user_weights: UserWeights | None = None,
    ) -> None:
        assert isinstance(previous, Blend)
        previous.eval()
        weights, n_periods = previous.weights.clone(), previous.n_periods.clone()
        for at, task in enumerate(TASKS):
            requests = _requests(task, history, np.asarray(history.firsts(new), dtype=np.int64), contexts.n_items)
            ranges = _length_range(torch.from_numpy(requests.n_events)).numpy()
            for length in range(len(LENGTHS) + 1):
                chosen = requests.where(_spread(ranges == length, N_REQUESTS)).weighted(user_weights)
                if len(chosen.users) < _LEAST_REQUESTS:
                    continue  # as before
                evidence = previous._evidence(task, chosen, history, contexts)
                learned = evidence.most_likely(torch.tensor(_prior(task, length))).to(weights)
                weights[at, length].lerp_(learned, 1 / min(1 + int(n_periods[at, length]), MEMORY))
                n_periods[at, length] += 1
        self.weights, self.n_periods = weights, n_periods

    def _evidence(self, task: Task, requests: _Requests, history: History, contexts: ContextBuilder) -> _Evidence:
        """What each part would have said to some requests."""
        candidates, offset = _candidates(requests.items, contexts.n_items)
        known, columns = contexts.observing(history).for_task(task), torch.from_numpy(candidates).to(self.device)
        shape = len(requests.users), len(candidates)
        features = torch.empty(*shape, len(PARTS), device=self.device)
        shift = torch.from_numpy(offset).to(features).repeat(shape[0], 1)
        at_once = max(1, _SCORES_AT_ONCE // contexts.n_items)
        for start in range(0, shape[0], at_once):
            at = slice(start, start + at_once)
            rows, before = requests.users[at], requests.before[at]
            said = self._part_scorer(torch.from_numpy(rows).to(self.device), known.at(rows, before))
            for p, part in enumerate(said(0, contexts.n_items)):
                features[at, :, p] = part[:, columns]
            bounds, items = history.items_of(rows, before)
            place = np.searchsorted(candidates, items).clip(max=len(candidates) - 1)
            is_candidate = candidates[place] == items
            owner = start + np.repeat(np.arange(len(rows)), np.diff(bounds))
            shift[owner[is_candidate], place[is_candidate]] = -torch.inf
        return _Evidence(features, shift, requests, np.searchsorted(candidates, requests.items))


class _Evidence:
    """What the parts said to R requests of C candidates, and what was wanted."""

    def __init__(self, features: Tensor, shift: Tensor, requests: _Requests, wanted: Rows) -> None:
        self._features = features
        """(R, C, P)"""
        self._shift = shift
        """(R, C) the log of how many items a candidate stands for; −∞ for what the user has had."""
        self._weights = torch.from_numpy(requests.weights / requests.weights.sum()).to(features)
        row, place = (torch.from_numpy(part).to(features.device) for part in (requests.row, wanted))
        share = (self._weights / row.bincount())[row]
        self._wanted = share @ features[row, place]
        """(P,) the mean of what the parts said of what was wanted."""

    def most_likely(self, prior: Tensor) -> Tensor:
        """(P,) the weights ≥ 0 that make what was wanted most likely, pulled slightly to the prior."""
        found = minimize(
            self.loss,
            prior.double().numpy(),
            (prior.to(self._wanted),),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0, None)] * len(prior),
            options={"ftol": _TOLERANCE},
        )
        return torch.tensor(found.x, dtype=torch.float32)

    def loss(self, values: Any, prior: Tensor) -> tuple[float, Any]:
        """How unlikely what was wanted is by these weights, plus how far they are from the prior; and the gradient."""
        weights = torch.from_numpy(values).to(self._wanted)
        scores = self._features @ weights + self._shift
        totals = scores.logsumexp(dim=1)
        expected = ((scores - totals[:, None]).exp()[:, None] @ self._features).squeeze(1)  # (R, P)
        away = weights - prior
        value = float(self._weights @ totals - self._wanted @ weights + _PULL * away @ away)
        gradient = self._weights @ expected - self._wanted + 2 * _PULL * away
        return value, gradient.double().numpy(force=True)


class _Requests(NamedTuple):
    """Lists that would have been made in a period, and what was wanted of them."""

    users: Rows
    """(R,)"""
    before: Rows
    """(R,) the position in the history at which each was made."""
    n_events: Rows
    """(R,) how many events of the user there had been."""
    weights: np.ndarray[Any, np.dtype[np.float64]]
    """(R,) how much each counts."""
    row: Rows
    """(W,) which request each wanted item belongs to."""
    items: Rows
    """(W,)"""

    def where(self, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> _Requests:
        number, is_kept = np.cumsum(mask) - 1, mask[self.row]
        return _Requests(
            self.users[mask],
            self.before[mask],
            self.n_events[mask],
            self.weights[mask],
            number[self.row[is_kept]],
            self.items[is_kept],
        )

    def weighted(self, user_weights: UserWeights | None = None) -> _Requests:
        """The same, with every user counting the same, or as much as the weights say."""
        if not len(self.users):
            return self
        weights = 1.0 / np.bincount(self.users)[self.users]
        return self._replace(weights=weights if user_weights is None else weights * user_weights[self.users])


def _requests(task: Task, history: History, new: Rows, n_items: int) -> _Requests:
    """The requests that the new events make: one an event, or one a user."""
    users, items = history.users_at(new), history.items_at(new)
    if task == "event":
        asking, row, before = users, np.arange(len(new)), new
    else:
        asking, row = np.unique(users, return_inverse=True)
        before = np.full(len(asking), new.min(initial=len(history)))
    n_events = history.latest(asking, 1, before)[1]
    is_wanted = items < n_items
    rows, row = np.unique(row[is_wanted], return_inverse=True)
    return _Requests(asking[rows], before[rows], n_events[rows], np.ones(len(rows)), row, items[is_wanted])


def _spread(mask: np.ndarray[Any, np.dtype[np.bool_]], n: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """At most n of the places that a mask marks, evenly spread."""
    places = np.flatnonzero(mask)
    spread = np.zeros_like(mask)
    if len(places):
        spread[places[np.linspace(0, len(places) - 1, min(n, len(places))).astype(np.int64)]] = True
    return spread


def _candidates(wanted: Rows, n_items: int) -> tuple[Rows, np.ndarray[Any, np.dtype[np.float64]]]:
    """(C,) the items that requests are compared with: all, or those wanted and some that stand for the others.

    Also (C,) the log of how many items each stands for.
    """
    wanted = np.unique(wanted)
    others = np.setdiff1d(np.arange(n_items), wanted, assume_unique=True)
    if len(others) <= N_CANDIDATES:
        return np.arange(n_items), np.zeros(n_items)
    sampled = others[np.linspace(0, len(others) - 1, N_CANDIDATES).astype(np.int64)]
    offset = np.full(n_items, np.log(len(others) / len(sampled)))
    offset[wanted] = 0.0
    candidates = np.union1d(wanted, sampled)
    return candidates, offset[candidates]


def _prior(task: Task, length: int) -> tuple[float, ...]:
    """The weights of a range of lengths before anything is known."""
    return _PRIOR[task] if length else _PRIOR_OF_NEWCOMERS


def _item_item_parts(scores: Tensor) -> tuple[Tensor, Tensor]:
    return scores * _ITEM_ITEM_SCALE, scores.clamp(min=0).add(_LEAST_ITEM_ITEM).log()


def _latest(context: Context) -> Context:
    """What the sequence model reads of a context."""
    assert context.history is not None
    return replace(context, history=context.history[:, -LENGTH:])


def _length_range(n_events: Tensor) -> Tensor:
    """Which range of history lengths each number of events is in."""
    return torch.bucketize(n_events, torch.tensor(LENGTHS, device=n_events.device), right=True)
