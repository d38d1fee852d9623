"""The interface of a model."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairstream.data import History
from fairstream.data.history import Positions
from fairstream.errors import ModelError
from fairstream.models.context import Context, ContextBuilder
from fairstream.models.tables import ItemTable, Table, UserTable, keep_capacity

BlockScorer = Callable[[int, int], Tensor]  # (start, stop) → the scores of the items from `start` to `stop`
_SCORES_AT_ONCE = 1 << 18
_PAIRS_AT_ONCE = 1 << 22  # pairs of places whose attention is computed at once outside of training
WIDTHS = (1, 2, 4, 8, 32)  # a short history is computed in the smallest of these widths that holds it
_N_SHIFTS = 20  # of the biases in `match_shares`; by then they hardly move
_MIN_EXPECTED = 1e-30  # of an item's expected count there
_MIN_VARIANCE = 0.5  # of its count

UserWeights = np.ndarray[Any, np.dtype[np.float64]]  # (n_users,) how many times the events of each user count


class Scorer(nn.Module, ABC):
    """A model that scores items for users, trained by gradient descent.

    A subclass keeps the embeddings of users in a `UserTable` and those of items in an `ItemTable`, and defines
    `forward`. Growth, training, evaluation, forgetting and checkpoints then work as for the built-in models. The
    constructor takes (n_users, n_items). A checkpoint holds parameters and persistent buffers; anything else must
    follow from the constructor.

    A model has no loss. `history_length` declares how many of the user's latest items it reads; they arrive as the
    `context` of each call. `fairstream.testing.check_model` checks a custom model.

    Examples
    --------
    >>> class Popular(Scorer):
    ...     def __init__(self, n_users, n_items):
    ...         super().__init__()
    ...         self.item = ItemTable(n_items, 1)
    ...     def forward(self, users, items, context):
    ...         return self.item(items).squeeze(-1)
    >>> model = Popular(3, 5)
    >>> model.grow(4, 7)
    >>> model.n_items, tuple(model(torch.tensor([0, 3]), torch.tensor([[1], [6]]), Context()).shape)
    (7, (2, 1))

    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Training settings, as in `Training` and `FineTune`, that suit the model better than the paper's."""
    history_length: int = 0
    """How many of the user's latest items `context.history` holds; 0: none."""
    reads_times: bool = False
    """Whether `context.times` holds the times of these events and of the request. The constructor of a model that can
    read them takes `with_times`: whether the events have timestamps."""
    pauses: tuple[int, ...] = ()
    """The minutes since the user's latest event after which scores change at once."""
    answers_newcomers: ClassVar[bool] = False
    """Whether a model that reads histories also answers users without any; else they get the popularity fallback."""

    @abstractmethod
    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        """Users (B,), items (B, C), context of the B users → scores (B, C)."""

    def score_range(self, users: Tensor, start: int, stop: int, context: Context) -> Tensor:
        """Users (B,) → scores of the items from `start` to `stop` (B, stop − start), in bounded memory."""
        width = max(1, _SCORES_AT_ONCE // max(1, len(users)))
        parts = torch.split(torch.arange(start, stop, device=users.device), width)
        return torch.cat([self(users, part.expand(len(users), -1), context) for part in parts], dim=1)

    def block_scorer(self, users: Tensor, context: Context) -> BlockScorer:
        """Return a function (start, stop) → scores of these items (B, stop − start), called block by block.

        Override it if blocks share much of the work.
        """
        return lambda start, stop: self.score_range(users, start, stop, context)

    @property
    def has_levels(self) -> bool:
        """Whether levels change its scores."""
        return type(self).tilted is not Scorer.tilted

    def tilted(self, scores: Tensor, tilt: Tensor, context: Context) -> Tensor:
        """Scores (B, C) and the tilts (C,) of the same items → the scores at that level (see `models.levels`).

        By default popularity is no part of the model, so no level changes its scores.
        """
        return scores

    def vectors(self, users: Tensor, context: Context) -> tuple[Tensor, Tensor] | None:
        """Users (B,) → vectors of the users (B, d) and of all items (n_items, d) whose inner products are the scores.

        None, the default: the scores are not inner products.
        """
        return None

    def can_score(self, context: Context) -> Tensor:
        """(B,) whether the model can score each user; the others get the popularity fallback.

        By default a model with user tables scores the users that it was trained on, a model that reads histories the
        users with one (all users if it `answers_newcomers`), and any other model all users.
        """
        assert context.is_trained is not None
        if any(isinstance(table, UserTable) for table in self.tables()):
            return context.is_trained
        if context.n_events is None or self.answers_newcomers:
            return torch.ones_like(context.is_trained)
        return context.n_events > 0

    def can_score_items(self, trained: Tensor) -> Tensor:
        """(n_items,) whether the model can score each item; the others are never recommended.

        `trained` (n_items,) marks the positives of training. By default a model with item tables scores these items
        and those that share a feature with one of them, and any other model all items.
        """
        known = torch.ones_like(trained)
        for table in self.tables():
            if isinstance(table, ItemTable):
                known &= table.is_known(trained)
        return known

    def forget(self, users: Tensor) -> None:
        """Remove these user rows; the rows of later users move up.

        Override it if the model stores anything about users outside of user tables.
        """
        for table in self.tables():
            if isinstance(table, UserTable):
                table.drop(users)

    @property
    def gradient_part(self) -> Scorer:
        """The part that gradient descent trains: all of it, unless a model is composed of several."""
        return self

    def calibrate_from(
        self,
        previous: Scorer,
        history: History,
        new: Positions,
        contexts: ContextBuilder,
        user_weights: UserWeights | None = None,
    ) -> None:
        """Calibrate a trained model by how the previous one predicts new events that it has not learned.

        Every update calls it after training. `previous` is the serving model, `history` holds all events, `new` the
        positions of the new ones; `contexts` is what `previous` knew, and `user_weights` how many times the events of
        each user count (None: once).
        """

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence for each thing worth knowing about the model."""
        return ()

    @property
    def n_users(self) -> int:
        """Rows of the user tables (0 in a model without any)."""
        return max((table.num_embeddings for table in self.tables() if isinstance(table, UserTable)), default=0)

    @property
    def n_items(self) -> int:
        """Rows of the item tables (0 in a model without any)."""
        return max((table.num_embeddings for table in self.tables() if isinstance(table, ItemTable)), default=0)

    def grow(self, n_users: int, n_items: int) -> None:
        """Add rows for new users and items."""
        for table in self.tables():
            if isinstance(table, UserTable):
                table.grow(n_users)
            elif isinstance(table, ItemTable):
                table.grow(n_items)

    def set_item_features(self, codes: Tensor) -> None:
        """Set the features of all items in the tables with `feature_buckets` (see `ItemTable.set_features`)."""
        for table in self.tables():
            if isinstance(table, ItemTable) and table.features is not None:
                table.set_features(codes)

    def tables(self) -> Iterator[Table]:
        """All tables of the model."""
        return (module for module in self.modules() if isinstance(module, Table))

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        tensor = next(chain(self.parameters(), self.buffers()), None)
        return torch.device("cpu") if tensor is None else tensor.device

    def sharing_memory(self) -> Self:
        """Return a copy over the same memory; it can grow without changing this model."""
        memo: dict[int, object] = {}
        for parameter in self.parameters():
            twin = nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)
            keep_capacity(twin, getattr(parameter, "capacity", None))
            memo[id(parameter)] = twin
        memo |= {id(buffer): buffer for buffer in self.buffers()}
        return copy.deepcopy(self, memo)


class ItemHead(nn.Module):
    """Scores items for states: ⟨state, item⟩ + bias with the tables `item` and, if there is one, `bias`."""

    item: ItemTable

    def score_states(self, states: Tensor, items: Tensor | None) -> Tensor:
        """States (M, d), items (M, C), or (C,) for all states, or None for all items → scores (M, C)."""
        rows = self.item.embeddings() if items is None else self.item(items)
        table: ItemTable | None = getattr(self, "bias", None)  # (n_items, 1)
        bias = None if table is None else (table.embeddings() if items is None else table(items)).squeeze(-1)
        if rows.dim() == 2:
            return F.linear(states, rows, bias)
        scores = (rows @ states.unsqueeze(-1)).squeeze(-1)
        return scores if bias is None else scores + bias

    def factors(self) -> tuple[Tensor, Tensor | None] | None:
        """Rows (n_items, d) and biases (n_items,) of all items: scores are ⟨state, row⟩ + bias; else None."""
        if type(self).score_states is not ItemHead.score_states:
            return None
        bias: ItemTable | None = getattr(self, "bias", None)
        return self.item.embeddings(), None if bias is None else bias.embeddings().squeeze(-1)

    @torch.no_grad()
    def match_shares(self, states: Tensor, weights: Tensor, counts: Tensor, is_trained: Tensor) -> None:
        """Let new items begin at 0, then shift the biases until the expected counts follow those of a period.

        e_i = Σ_r w_r softmax_i(s_r) is what the head expects of R requests, given their `states` (R, d) and `weights`
        (R,), which add up to Σ_i c_i. A new item is to be expected c_i times, an item with a trained row
        e_i (c_i + a) / (e_i + a) times: the posterior mean of a Poisson rate whose prior has the mean e_i and the
        variance e_i² / a. a follows from the trained items (`is_trained`), whose `counts` (n_items,) must come from the
        same requests: where they deviate from e_i by chance alone, the biases stay.
        """
        bias: ItemTable | None = getattr(self, "bias", None)  # (n_items, 1)
        if bias is None or not bool(is_trained.any()):
            return
        is_new, is_known = ~is_trained & (counts > 0), is_trained | (counts > 0)
        for table in (self.item, bias):
            table.weight[is_new] = 0.0
        scores = self.score_states(states, None).masked_fill(~is_known, -torch.inf)  # (R, n_items)
        shift = torch.zeros_like(counts)

        def expect() -> Tensor:  # a probability may be too small for float32
            return (weights @ (scores + shift).softmax(dim=1)).clamp(min=_MIN_EXPECTED)

        expected = expect()
        floored = expected.clamp(min=_MIN_VARIANCE)  # else one nearly impossible item outweighs all others
        excess = ((counts - expected) ** 2 - expected)[is_trained] / floored[is_trained]
        prior = 1 / (excess.sum() / (expected**2 / floored)[is_trained].sum()).clamp(1e-6, 1e12)
        target = torch.where(is_trained, expected * (counts + prior) / (expected + prior), counts)
        target *= counts.sum() / target.sum()
        for _ in range(_N_SHIFTS):
            shift[is_known] += (target / expect())[is_known].log()
        shift -= shift[is_trained].mean()  # items without events keep their place
        bias.weight[is_known] += shift[is_known, None]


class PeriodHead(ItemHead):
    """Predicts any of the user's later events, for lists of a whole period (dense all-action).

    It has its own rows of items and reads the states x of a model that predicts the next event: y = x + W₂ SiLU(W₁ x).
    Its loss does not reach the model, which stays as good at the next event.
    """

    def __init__(self, n_items: int, d: int, *, std: float, feature_buckets: int = 0) -> None:
        super().__init__()
        self.item = ItemTable(n_items, d, std=std, feature_buckets=feature_buckets)
        self.bias = ItemTable(n_items, 1, weight_decay=False, feature_buckets=feature_buckets)
        self.inner, self.outer = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, states: Tensor) -> Tensor:
        """(M, d) → (M, d)"""
        added: Tensor = states + self.outer(F.silu(self.inner(states)))
        return added


class WindowScorer(Scorer, ItemHead):
    """A model that reads a sequence of items and predicts the next item at every place.

    It is trained on windows of users' sequences: one pass over a window of L items gives L predictions. A subclass
    defines `states`. Scores are those of an `ItemHead` with the tables `item` and, if there is one, `bias`; override
    `score_states` for other scores. A model with a `period_head` scores lists of a period by that.
    """

    item: ItemTable
    ignores_padding: ClassVar[bool] = False
    """Whether padding does not change `states`; training on short histories then costs less."""

    @abstractmethod
    def states(self, history: Tensor) -> Tensor:
        """History (B, L) padded with −1 at the front → (B, L, d) states; none may depend on later places.

        If the model `reads_times`, it also gets `times` (B, L + 1) as in `Context`: the state at a place may depend on
        the time of the event that follows it, which is the time of its request.
        """

    def states_at(self, history: Tensor, times: Tensor | None) -> Tensor:
        """`states`, with the times if the model reads them."""
        states: Callable[..., Tensor] = self.states
        return states(history) if times is None else states(history, times)

    def heads(self, states: Tensor) -> list[tuple[ItemHead, Tensor]]:
        """States (..., d) → the heads to train, with their states: the model itself, and its `period_head` if any."""
        period: PeriodHead | None = getattr(self, "period_head", None)
        return [(self, states)] if period is None else [(self, states), (period, period(states.detach()))]

    def _head(self, context: Context) -> tuple[ItemHead, Tensor]:
        """The head for the task of a context, and its states (B, d) now."""
        return self.heads_at(context)[-1 if context.task == "next" else 0]

    def heads_at(self, context: Context) -> list[tuple[ItemHead, Tensor]]:
        """The heads with their states (B, d) now."""
        history, times = context.history, context.times
        assert history is not None
        length = max(1, history.shape[1])
        widths = torch.tensor([*(w for w in WIDTHS if self.ignores_padding and w < length), length])
        kinds = torch.bucketize((history >= 0).sum(dim=1), widths.to(history.device))
        rows, states = [], []
        for kind in torch.unique(kinds).tolist():  # short histories are computed without their padding
            width = int(widths[kind])
            for part in (kinds == kind).nonzero().squeeze(1).split(max(1, _PAIRS_AT_ONCE // width**2)):
                of_part = None if times is None else times[part, -width - 1 :]
                states.append(self.states_at(history[part, -width:], of_part)[:, -1])
                rows.append(part)
        if len(rows) == 1:
            return self.heads(states[0])
        if not rows:
            return self.heads(self.states_at(history, times)[:, -1])
        return self.heads(torch.cat(states)[torch.cat(rows).argsort()])

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        head, states = self._head(context)
        return head.score_states(states, items)

    def score_range(self, users: Tensor, start: int, stop: int, context: Context) -> Tensor:
        return self.block_scorer(users, context)(start, stop)

    def block_scorer(self, users: Tensor, context: Context) -> BlockScorer:
        head, states = self._head(context)  # once for all blocks

        def score(start: int, stop: int) -> Tensor:
            if stop - start == self.item.num_embeddings:  # nothing has to be copied
                return head.score_states(states, None)
            return head.score_states(states, torch.arange(start, stop, device=states.device))

        return score

    def vectors(self, users: Tensor, context: Context) -> tuple[Tensor, Tensor] | None:
        """The states and the items' rows; a bias is the last number of an item, with 1 in the user's vector."""
        head, states = self._head(context)
        factors = head.factors()
        if factors is None or factors[1] is None:
            return None if factors is None else (states, factors[0])
        rows, bias = factors[0], factors[1]
        return torch.cat([states, states.new_ones(len(states), 1)], 1), torch.cat([rows, bias[:, None]], 1)


class ClosedFormScorer(Scorer):
    """A model that is computed from the events, not trained by gradient descent.

    It has no loss, and no fairness loss: if `learn` takes `weights`, the events of a group can count more. Its tensors
    are buffers. To forget users it is computed again from the events of the others.
    """

    @abstractmethod
    def learn(self, history: History, new: Positions, weights: UserWeights | None = None) -> None:
        """Add events; the result equals a computation from all events.

        Replace the tensors, do not change them: earlier states still use theirs.

        Parameters
        ----------
        history
            All events that the model is computed from; a (user, item) pair repeats only where repeats are kept.
        new
            The positions of those that the model has not learned.
        weights
            How many times the events of each user count, learned events included; None: once. A model without this
            parameter takes no group weights.

        """


def takes_weights(model: ClosedFormScorer | type[ClosedFormScorer]) -> bool:
    """Whether the events of some users can count more than once in a closed-form model."""
    return "weights" in inspect.signature(model.learn).parameters


def closed_forms(model: Scorer) -> dict[str, ClosedFormScorer]:
    """The parts of a model that are computed in closed form, by name; "" is the model itself."""
    return {name: part for name, part in model.named_modules() if isinstance(part, ClosedFormScorer)}


ModelFactory = Callable[[int, int], Scorer]  # (n_users, n_items) → a freshly initialised model


def check_kind(kind: type) -> type[Scorer]:
    """Return the class of a model; raise a ModelError if it is no `Scorer`."""
    if not issubclass(kind, Scorer):
        raise ModelError(f"a model must be a fairstream.Scorer, got {kind.__name__}; see Scorer for how")
    return kind


def make_model(factory: ModelFactory, n_users: int, n_items: int) -> Scorer:
    """Call a factory and check what it returns."""
    model = factory(n_users, n_items)
    check_kind(type(model))
    if model.n_users not in (0, n_users) or model.n_items not in (0, n_items):
        raise ModelError(
            f"a model must have tables for exactly the {n_users} users and {n_items} items it was asked for; this one "
            f"has {model.n_users} and {model.n_items}: pass the constructor's n_users and n_items to the tables (for "
            f"padding use ItemTable(n_items, d, padding=True), for anything else Table)"
        )
    if not isinstance(model, ClosedFormScorer) and not any(p.requires_grad for p in model.parameters()):
        raise ModelError(
            f"{type(model).__name__} has no trainable parameters; derive a model that is computed from the events "
            f"from ClosedFormScorer"
        )
    return model
