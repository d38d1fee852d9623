"""A model and its optimizer: made, copied, grown, without some users, and restored from tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from fairstream.data import History, Rows
from fairstream.data.features import Codes
from fairstream.methods import MethodConfig
from fairstream.models import (
    Blend,
    ClosedFormScorer,
    ItemItem,
    ItemTable,
    ModelFactory,
    Popularity,
    Scorer,
    Table,
    UserTable,
    copy_model,
    make_model,
)
from fairstream.models.tables import drawing_rows_from
from fairstream.randomness import Randomness
from fairstream.recommender.state import State
from fairstream.training import Tensors, make_optimizer
from fairstream.training.optimizers import (
    copy_state,
    drop_state_rows,
    grow_state,
    restore_state,
    share_state,
    state_tensors,
)

_GROWTHS = {kind.grow for kind in (Scorer, Blend, ItemItem, Popularity, Table, ItemTable)}
"""What grows by rows of tables alone."""
Trained = tuple[Scorer, torch.optim.Optimizer | None]
"""A model, and its optimizer unless it is computed in closed form."""


@dataclass(frozen=True, eq=False)
class ModelBuilder:
    """Makes the models of a method, and their optimizers."""

    config: MethodConfig
    factory: ModelFactory
    randomness: Randomness
    device: torch.device
    oracle: History | None
    """All events, future ones included, where models have rows for their users and items from the beginning."""

    def new(self, history: History, t: int, features: Codes | None = None) -> Scorer:
        """A freshly initialised model for the users and items of a history."""
        rows = self.oracle or history
        with self.randomness.seeded("weights", t):
            model = make_model(self._factory(features), rows.n_users, rows.n_items).to(self.device)
        return _described(model, features)

    def optimizer(self, model: Scorer) -> torch.optim.Optimizer | None:
        """A new optimizer; None for a closed-form model."""
        if isinstance(model, ClosedFormScorer):
            return None
        config = self.config
        return make_optimizer(config.optimizer, model, learning_rate=config.learning_rate, l2=config.l2)

    def copied(self, model: Scorer, optimizer: torch.optim.Optimizer | None, features: Codes | None = None) -> Trained:
        """A model and its optimizer in memory of their own."""
        twin = _described(copy_model(model, self._factory(features)), features)
        its_optimizer = self.optimizer(twin)
        if its_optimizer is not None and optimizer is not None:
            copy_state(optimizer, model, its_optimizer, twin)
        return twin, its_optimizer

    def grown(self, state: State, history: History, features: Codes | None, *, always: bool = False) -> Trained:
        """The model with rows for the users and items that have appeared, over the same memory.

        Where nobody has, and the features are the same, the model itself, unless a copy is `always` needed.
        """
        rows, model = self.oracle or history, state.model
        always = always or features is not state.features
        if not always and model.n_users in (0, rows.n_users) and model.n_items in (0, rows.n_items):
            return model, state.optimizer
        try:
            twin = model.sharing_memory()
            optimizer = self.optimizer(twin)
            if optimizer is not None and state.optimizer is not None:
                share_state(state.optimizer, model, optimizer, twin)
        except RuntimeError:  # PyTorch refuses to copy activations that a model has cached
            twin, optimizer = self.copied(model, state.optimizer, state.features)
        # A period can bring rows in several goes, which must not begin with the same draws.
        n_observed = len(state.history) - state.history.ends[-1]
        indices = (state.t + 1, n_observed) if n_observed else (state.t + 1,)
        generator = self.randomness.torch("growth", *indices)
        # A training may hold PyTorch's global generator for a whole epoch. Only custom growth has to wait for it.
        parts: list[Scorer | Table] = [twin, *twin.tables()]
        is_custom = any(type(part).grow not in _GROWTHS for part in parts)
        with self.randomness.seeded("growth", *indices, needed=is_custom), drawing_rows_from(generator):
            twin.grow(rows.n_users, rows.n_items)
        _described(twin, features)
        if optimizer is not None:
            grow_state(optimizer)
        return twin, optimizer

    def forgotten(self, state: State, rows: Rows) -> Trained:
        """A copy of the model and its optimizer without the rows of some users."""
        model, optimizer = self.copied(state.model, state.optimizer, state.features)
        gone = torch.from_numpy(rows)
        if optimizer is not None:
            for name, parameter in model.named_parameters():
                if isinstance(model.get_submodule(name.rpartition(".")[0]), UserTable):
                    drop_state_rows(optimizer, parameter, gone)
        model.forget(gone)
        return model, optimizer

    def restored(
        self,
        history: History,
        tensors: Tensors,
        started_at: int,
        features: Codes | None = None,
        *,
        mapped: bool = False,
    ) -> Trained:
        """The model and the optimizer of `tensors_of`; with `mapped` no optimizer, and nothing is copied."""
        model = self.new(history, started_at, features)
        if mapped:
            model.load_state_dict(_under("model/", tensors), assign=True)
            return model.eval(), None
        optimizer = self.optimizer(model)
        model.load_state_dict(_under("model/", tensors))
        if optimizer is not None:
            restore_state(optimizer, model, _under("optimizer/", tensors))
        return model.eval(), optimizer

    def _factory(self, features: Codes | None) -> ModelFactory:
        """Makes the model, with tables for features where there are any."""
        factory: Callable[..., Scorer] = self.factory
        return factory if features is None else partial(factory, feature_buckets=self.config.feature_buckets)


def tensors_of(state: State) -> Tensors:
    """The model and the optimizer of a state as named tensors, which are not copied."""
    parts = {f"model/{name}": value for name, value in state.model.state_dict().items()}
    if state.optimizer is None:
        return parts
    moments = state_tensors(state.optimizer, state.model)
    return parts | {f"optimizer/{name}": value for name, value in moments.items()}


def _described(model: Scorer, features: Codes | None) -> Scorer:
    """The model itself, which knows the features of its items from now on."""
    if features is not None:
        model.describe(torch.from_numpy(features))
    return model


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
