"""A blend of a sequence model, item–item regression, transitions and popularity; it learns its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from fairstream.data import History, Rows
from fairstream.data.history import Positions
from fairstream.models.config import ModelConfig
from fairstream.models.context import TASKS, Context, ContextBuilder, Task
from fairstream.models.item_item import ItemItem
from fairstream.models.popularity import PopularityScorer, RecentPopularityScorer
from fairstream.models.scorer import BlockScorer, Scorer, UserWeights, WindowScorer
from fairstream.models.sequence import SASRec, SASRecScorer
from fairstream.models.transitions import Transitions

LENGTHS = (1, 2, 5, 20)  # where ranges of history lengths begin: 0, 1, 2–4, 5–19, 20 and more
PAUSES = (60, 20_160)  # where ranges of the minutes since the last event begin: below an hour, below two weeks, more
MAX_REQUESTS = 400  # requests of a period that the weights of a task and a range are learned from, at most
MAX_FOLLOWING = 20_000  # items that followed these requests, together, at most
MAX_CANDIDATES = 1_000  # items that all these are compared with, at most
MEMORY = 8  # periods that count equally in the weights; older ones fade
HALF_LIVES = (0.1, 0.05, 0.02, 0.01)  # of recent popularity, as shares of all events
_PAIRS = ("item-item", "log item-item", "transitions", "log transitions")
PARTS = ("sequence", *_PAIRS, "popularity", *(f"popularity of {share}" for share in HALF_LIVES))
_PRIOR: Mapping[Task, tuple[float, ...]] = {
    "event": (0.8, 0.2, 0.2, 0.2, 0.3, 0.0, 0.1, 0.0, 0.0, 0.0),
    "next": (0.1, 0.2, 0.3, 0.0, 0.0, 0.2, 0.3, 0.0, 0.0, 0.0),
}
_PRIOR_OF_NEWCOMERS = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
_PRIOR_STRENGTH = 0.01
_TOLERANCE = 1e-6  # of the likelihood; relevant differences between parts are hundreds of times as large
_MIN_REQUESTS = 30
_SCORES_AT_ONCE = 1 << 20
_PAIR_SCALE = 10.0  # brings scores of item–item and transitions, mostly below 1, to the range of the other parts
_MIN_PAIR = 1e-2


class BlendScorer(Scorer):
    """s_ui = Σ_p w_p f_p(u, i): a log-linear blend of its parts; see `Blend`."""

    answers_newcomers: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = SASRecScorer.defaults
    weights: Tensor  # (tasks, ranges, parts)
    n_periods: Tensor  # (tasks, ranges) periods that the weights were learned from

    def __init__(
        self,
        n_users: int,
        n_items: int,
        *,
        sequence: SASRec | None = None,
        item_item: ItemItem | None = None,
        transitions: Transitions | None = None,
        with_features: bool = False,
        with_times: bool = False,
    ) -> None:
        super().__init__()
        options = {"with_features": with_features, "with_times": with_times}
        self.sequence = (sequence or SASRec()).build(n_users, n_items, **options)
        self.reads_times = self.sequence.reads_times
        self.item_item = (item_item or ItemItem()).build(n_users, n_items)
        self.transitions = (transitions or Transitions()).build(n_users, n_items)
        self.history_length = max(part.history_length for part in (self.sequence, self.item_item, self.transitions))
        recent = (RecentPopularityScorer(n_users, n_items, half_life=share) for share in HALF_LIVES)
        self.popular = nn.ModuleList([PopularityScorer(n_users, n_items), *recent])
        self.pauses = PAUSES if self.reads_times else ()
        self.n_pauses = len(self.pauses) + 1
        n_ranges = 1 + len(LENGTHS) * self.n_pauses
        prior = [[_prior(task, at) for at in range(n_ranges)] for task in TASKS]
        self.register_buffer("weights", torch.tensor(prior))
        self.register_buffer("n_periods", torch.zeros(len(TASKS), n_ranges, dtype=torch.int64))

    @property
    def gradient_part(self) -> WindowScorer:
        assert isinstance(self.sequence, WindowScorer)
        return self.sequence

    @property
    def notes(self) -> tuple[str, ...]:
        guess = "there were too few events to learn the blend's weights, so they are a guess: update it with more"
        return (*self.item_item.notes, *self.transitions.notes, *(() if bool(self.n_periods.any()) else (guess,)))

    def grow(self, n_users: int, n_items: int) -> None:
        super().grow(n_users, n_items)
        for part in (self.item_item, self.transitions, *self._popularities()):
            part.grow(n_users, n_items)

    # ── scoring ──────────────────────────────────────────────────────────────────────────

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        parts = [
            self.sequence(users, items, self._latest(context)),
            *_with_logarithm(self.item_item(users, items, context)),
            *_with_logarithm(self.transitions(users, items, context)),
            *(popular[items] for popular in self._log_popularity()),
        ]
        return self._blended(self._weights_of(context), parts)

    def score_range(self, users: Tensor, start: int, stop: int, context: Context) -> Tensor:
        return self.block_scorer(users, context)(start, stop)

    def block_scorer(self, users: Tensor, context: Context) -> BlockScorer:
        weights, parts = self._weights_of(context), self._part_scorer(users, context)
        return lambda start, stop: self._blended(weights, parts(start, stop))

    def tilted(self, scores: Tensor, tilt: Tensor, context: Context) -> Tensor:
        """A tilt is added to the logarithm of each popularity."""
        of_popularity = self._weights_of(context)[:, -len(self.popular) :].sum(dim=1, keepdim=True)  # (B, 1)
        return torch.addcmul(scores, of_popularity, tilt)

    def _part_scorer(self, users: Tensor, context: Context) -> Callable[[int, int], list[Tensor]]:
        sequence = self.sequence.block_scorer(users, self._latest(context))
        item_item, transitions = (part.block_scorer(users, context) for part in (self.item_item, self.transitions))
        popular = self._log_popularity()
        return lambda start, stop: [
            sequence(start, stop),
            *_with_logarithm(item_item(start, stop)),
            *_with_logarithm(transitions(start, stop)),
            *(part[start:stop].expand(len(users), -1) for part in popular),
        ]

    def _latest(self, context: Context) -> Context:
        assert context.history is not None
        length, times = self.sequence.history_length, context.times
        times = None if times is None else times[:, -length - 1 :]
        return replace(context, history=context.history[:, -length:], times=times)

    def _popularities(self) -> list[PopularityScorer]:
        return [part for part in self.popular if isinstance(part, PopularityScorer)]

    def _log_popularity(self) -> list[Tensor]:
        return [part.logarithm() for part in self._popularities()]

    def _weights_of(self, context: Context) -> Tensor:
        """(B, P)"""
        return self.weights[TASKS.index(context.task)][self._ranges(context)]

    def _ranges(self, context: Context) -> Tensor:
        """(B,) 0 for newcomers, then for each range of history lengths one for each range of pauses.

        A pause that is not known counts as a short one, and so does each before a list for a period.
        """
        n_events, times = context.n_events, context.times
        assert n_events is not None
        length = torch.bucketize(n_events, torch.tensor(LENGTHS, device=n_events.device), right=True)
        pause = torch.zeros_like(length)
        if times is not None and context.task == "event":
            minutes = (times[:, -1] - times[:, -2]).masked_fill((times[:, -2:] < 0).any(dim=1), 0)
            pause = torch.bucketize(minutes, torch.tensor(PAUSES, device=times.device), right=True)
        return torch.where(length > 0, 1 + (length - 1) * self.n_pauses + pause, 0)

    @staticmethod
    def _blended(weights: Tensor, parts: list[Tensor]) -> Tensor:
        total = weights[:, :1] * parts[0]
        for p, part in enumerate(parts[1:], start=1):
            total = torch.addcmul(total, weights[:, p : p + 1], part)
        return total

    # ── learning the weights ─────────────────────────────────────────────────────────────

    @torch.no_grad()
    def calibrate_from(
        self,
        previous: Scorer,
        history: History,
        new: Positions,
        contexts: ContextBuilder,
        user_weights: UserWeights | None = None,
    ) -> None:
        assert isinstance(previous, BlendScorer)
        previous.eval()
        weights, n_periods = previous.weights.clone(), previous.n_periods.clone()
        for at, task in enumerate(TASKS):
            first = np.asarray(history.first_interactions(new), dtype=np.int64)
            requests = _requests(task, history, first, contexts.scorable_items)
            if not len(requests.users):
                continue
            # A list for a period is requested before it, one for an event at its own time.
            now = history.latest_time(int(requests.before[0])) if task == "next" else None
            known = replace(contexts, observed=history, task=task, now=now)
            latest = replace(known, history_length=1).at(requests.users, requests.before)
            ranges = previous._ranges(latest).numpy(force=True)
            for which in range(weights.shape[1]):
                chosen = requests.where(_spread(ranges == which, MAX_REQUESTS), user_weights)
                if len(chosen.users) < _MIN_REQUESTS:
                    if not n_periods[at, which]:
                        weights[at, which] = weights[at, previous._stand_in(which, n_periods[at])]
                    continue
                data = previous._calibration_data(chosen, known)
                learned = data.fit_weights(torch.tensor(_prior(task, which))).to(weights)
                weights[at, which].lerp_(learned, 1 / min(1 + int(n_periods[at, which]), MEMORY))
                n_periods[at, which] += 1
        if previous.n_pauses != self.n_pauses:  # the times have become known: each pause begins with the same weights
            weights, n_periods = (
                torch.cat([part[:, :1], part[:, 1 :: previous.n_pauses].repeat_interleave(self.n_pauses, dim=1)], dim=1)
                for part in (weights, n_periods)
            )
        self.weights, self.n_periods = weights, n_periods

    def _stand_in(self, which: int, n_periods: Tensor) -> int:
        """Return the range to copy until this one has learned weights: shorter histories, or else a shorter pause."""
        shorter, has_pause = which - self.n_pauses, which > 0 and (which - 1) % self.n_pauses > 0
        if shorter > 0 and (not has_pause or n_periods[shorter] > 0):
            return shorter
        return which - 1 if has_pause else which

    def _calibration_data(self, requests: _Requests, known: ContextBuilder) -> _CalibrationData:
        history = known.observed
        assert history is not None
        candidates, offset = _candidates(requests.items, known.scorable_items)
        columns = torch.from_numpy(candidates).to(self.device)
        shape = len(requests.users), len(candidates)
        features = torch.empty(*shape, len(PARTS), device=self.device)
        shift = torch.from_numpy(offset).to(features).repeat(shape[0], 1)
        at_once = max(1, _SCORES_AT_ONCE // known.n_items)
        for start in range(0, shape[0], at_once):
            at = slice(start, start + at_once)
            rows, before = requests.users[at], requests.before[at]
            part_scores = self._part_scorer(torch.from_numpy(rows).to(self.device), known.at(rows, before))
            for p, part in enumerate(part_scores(0, known.n_items)):
                features[at, :, p] = part[:, columns]
            bounds, items = history.items_of(rows, before)
            place = np.searchsorted(candidates, items).clip(max=len(candidates) - 1)
            is_candidate = candidates[place] == items
            owner = start + np.repeat(np.arange(len(rows)), np.diff(bounds))
            shift[owner[is_candidate], place[is_candidate]] = -torch.inf
        return _CalibrationData(features, shift, requests, np.searchsorted(candidates, requests.items))


class _CalibrationData:
    """The scores of the parts for the C candidates of R requests, and the items that followed."""

    def __init__(self, features: Tensor, shift: Tensor, requests: _Requests, wanted: Rows) -> None:
        self._features = features  # (R, C, P)
        self._shift = shift  # (R, C) the log of how many items a candidate stands for; −∞ for the user's own items
        self._weights = torch.from_numpy(requests.weights / requests.weights.sum()).to(features)
        row, place = (torch.from_numpy(part).to(features.device) for part in (requests.row, wanted))
        share = (self._weights / row.bincount())[row]
        self._target_scores = share @ features[row, place]  # (P,) the parts' mean scores of the items that followed

    def fit_weights(self, prior: Tensor) -> Tensor:
        """(P,) the weights ≥ 0 of maximum likelihood, with a weak prior."""
        optimum = minimize(
            self.loss,
            prior.double().numpy(),
            (prior.to(self._target_scores),),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0, None)] * len(prior),
            options={"ftol": _TOLERANCE},
        )
        return torch.tensor(optimum.x, dtype=torch.float32)

    def loss(self, values: Any, prior: Tensor) -> tuple[float, Any]:
        """The negative log-likelihood of the items that followed, plus the distance from the prior; its gradient."""
        weights = torch.from_numpy(values).to(self._target_scores)
        scores = self._features @ weights + self._shift
        totals = scores.logsumexp(dim=1)
        expected = ((scores - totals[:, None]).exp()[:, None] @ self._features).squeeze(1)  # (R, P)
        away = weights - prior
        value = float(self._weights @ totals - self._target_scores @ weights + _PRIOR_STRENGTH * away @ away)
        gradient = self._weights @ expected - self._target_scores + 2 * _PRIOR_STRENGTH * away
        return value, gradient.double().numpy(force=True)


class _Requests(NamedTuple):
    """Requests of lists in a period, and the items that followed."""

    users: Rows  # (R,)
    before: Rows  # (R,) the position of the request in the history
    weights: np.ndarray[Any, np.dtype[np.float64]]  # (R,)
    row: Rows  # (W,) the request of each item that followed
    items: Rows  # (W,)

    def where(self, mask: np.ndarray[Any, np.dtype[np.bool_]], user_weights: UserWeights | None) -> _Requests:
        """Return some of the requests; every user has the same weight, or that of `user_weights`."""
        wanted = _spread(mask[self.row], MAX_FOLLOWING)
        rows, row = np.unique(self.row[wanted], return_inverse=True)
        users, before = self.users[rows], self.before[rows]
        weights = self.weights[rows]
        weights = weights / np.bincount(users, weights)[users] * (1.0 if user_weights is None else user_weights[users])
        return _Requests(users, before, weights, row, self.items[wanted])


def _requests(task: Task, history: History, new: Rows, scorable: Rows) -> _Requests:
    """One request for each new event of a `scorable` item, or one for each user of them."""
    users, items = history.users_at(new), history.items_at(new)
    if task == "event":
        requesters, row, before = users, np.arange(len(new)), new
    else:
        requesters, row = np.unique(users, return_inverse=True)
        before = np.full(len(requesters), new.min(initial=len(history)))
    is_wanted = np.isin(items, scorable)
    rows, row = np.unique(row[is_wanted], return_inverse=True)
    weights = history.weights_at(new) if task == "event" else None
    of_requests = np.ones(len(rows)) if weights is None else weights[rows].astype(np.float64)
    return _Requests(requesters[rows], before[rows], of_requests, row, items[is_wanted])


def _spread(mask: np.ndarray[Any, np.dtype[np.bool_]], n: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """At most n of the marked places, evenly spread."""
    places = np.flatnonzero(mask)
    spread = np.zeros_like(mask)
    if len(places):
        spread[places[np.linspace(0, len(places) - 1, min(n, len(places))).astype(np.int64)]] = True
    return spread


def _candidates(wanted: Rows, scorable: Rows) -> tuple[Rows, np.ndarray[Any, np.dtype[np.float64]]]:
    """(C,) the candidates of the requests: all `scorable` items, or the wanted ones and a sample of the others.

    Also (C,) the log of how many items each candidate stands for.
    """
    wanted = np.unique(wanted)
    others = np.setdiff1d(scorable, wanted, assume_unique=True)
    if len(others) <= MAX_CANDIDATES:
        return scorable, np.zeros(len(scorable))
    sampled = others[np.linspace(0, len(others) - 1, MAX_CANDIDATES).astype(np.int64)]
    candidates = np.union1d(wanted, sampled)
    return candidates, np.where(np.isin(candidates, wanted), 0.0, np.log(len(others) / len(sampled)))


def _prior(task: Task, at: int) -> tuple[float, ...]:
    return _PRIOR[task] if at else _PRIOR_OF_NEWCOMERS


def _with_logarithm(scores: Tensor) -> tuple[Tensor, Tensor]:
    return scores * _PAIR_SCALE, scores.clamp(min=0).add(_MIN_PAIR).log()


class Blend(ModelConfig):
    """A log-linear blend of a sequence model, two closed forms and popularity: s_ui = Σ_p w_p f_p(u, i).

    The parts f_p are the logits of `sequence` (of its head for the task), the scores of `item_item` and `transitions`
    and their logarithms, and the logarithms of the items' popularity, overall and with four half-lives. The weights w_p
    depend on the task (the very next event, or a list for the coming period), on the length of the user's history and,
    for the next event, on the time since the last one if events have timestamps.
    Maximum likelihood sets them from how the parts rank new events before learning them: in `fit` the last 5 % of the
    events, in each update the new period. They are the mean of all periods so far; from the ninth on, older ones fade.
    A range of lengths without enough events so far has the weights of the next shorter one. With too few events to
    learn any, they are fixed values, and a note says so.

    Gradient descent trains the sequence model, with a fairness loss if there is one. Group weights act on all parts
    and on the weights of the blend.

    Cost: that of `SASRec`, `ItemItem` and `Transitions` together.

    Parameters
    ----------
    sequence
        The sequence model.
    item_item
        The item–item regression.
    transitions
        Which items follow which.

    References
    ----------
    Hinton, "Training Products of Experts by Minimizing Contrastive Divergence", 2002, for log-linear blends.

    Examples
    --------
    >>> model = Blend(sequence=SASRec(length=100)).build(n_users=3, n_items=5)
    >>> model.sequence.history_length, [round(weight, 1) for weight in model.weights[0, 3].tolist()]
    (100, [0.8, 0.2, 0.2, 0.2, 0.3, 0.0, 0.1, 0.0, 0.0, 0.0])

    """

    scorer = BlendScorer
    sequence: SASRec = SASRec()
    item_item: ItemItem = ItemItem()
    transitions: Transitions = Transitions()

    def build(self, n_users: int, n_items: int, *, with_features: bool = False, with_times: bool = False) -> Scorer:
        parts: dict[str, Any] = {name: getattr(self, name) for name in ("sequence", "item_item", "transitions")}
        return BlendScorer(n_users, n_items, **parts, with_features=with_features, with_times=with_times)

    def defaults_on(self, device: str) -> Mapping[str, Any]:
        return self.sequence.defaults_on(device)

    def sized(self, device: str, n_events: int) -> Self:
        sequence = self.sequence.sized(device, n_events)
        return self if sequence is self.sequence else self.with_options(sequence=sequence)

    @property
    def reads_features(self) -> bool:
        return True
