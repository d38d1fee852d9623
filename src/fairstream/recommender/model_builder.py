"""Builds models with their optimizers: fresh ones, twins of a state's model that grow, and stored ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from fairstream.data import History, Rows
from fairstream.data.features import Codes
from fairstream.models import ClosedFormScorer, Model, Scorer, Table, UserTable
from fairstream.models.tables import drawing_rows_from, without_rows
from fairstream.randomness import Randomness
from fairstream.recommender.state import State
from fairstream.training import Tensors, Training, optimizers

Trained = tuple[Scorer, torch.optim.Optimizer | None]  # a model, and its optimizer unless it is computed in closed form


@dataclass(frozen=True, eq=False)
class ModelBuilder:
    """Builds the models of a recipe, and their optimizers."""

    model: Model
    training: Training
    randomness: Randomness
    device: torch.device

    @cached_property
    def example(self) -> Scorer:
        """A model for one user and one item, which shows its kind."""
        with self.randomness.seeded("weights", 0):
            return self.model.build(1, 1)

    def rows(self, history: History) -> History:
        """The events whose users and items a model has rows for, as of this history."""
        return history

    def new(self, history: History, t: int, features: Codes | None = None, *, with_times: bool | None = None) -> Scorer:
        """Return a new model for the rows of a history; `with_times` None: it reads times if there are any."""
        rows, with_times = self.rows(history), history.has_times if with_times is None else with_times
        with self.randomness.seeded("weights", t):
            return self._build(rows.n_users, rows.n_items, features, with_times=with_times)

    def optimizer(self, model: Scorer) -> torch.optim.Optimizer | None:
        """Return a new optimizer; None for a closed-form model."""
        if isinstance(model, ClosedFormScorer):
            return None
        kind, rate, l2 = self.training.optimizer, self.training.learning_rate, self.training.l2
        return optimizers.make_optimizer(kind, model, learning_rate=rate, l2=l2)

    def grow(self, state: State, history: History, features: Codes | None, *, always: bool = False) -> Trained:
        """Return a twin of the state's model with rows for new users and items, over the same memory.

        Returns the model itself if nothing has changed, unless a twin is `always` needed.
        """
        rows, model = self.rows(history), state.model
        is_grown = model.n_users in (0, rows.n_users) and model.n_items in (0, rows.n_items)
        if is_grown and features is state.features and not always:
            return model, state.optimizer
        twin, optimizer = self._twin(state)
        # Several observes may add rows in one period; each needs its own seed.
        n_observed = len(state.history) - state.history.ends[-1]
        indices = (state.t + 1, n_observed) if n_observed else (state.t + 1,)
        generator = self.randomness.torch("growth", *indices)
        # A training may hold PyTorch's global generator for a whole epoch. Only custom growth has to wait for it.
        parts: list[Scorer | Table] = [twin, *twin.tables()]
        is_custom = not all(type(part).grow.__module__.startswith("fairstream.models.") for part in parts)
        with self.randomness.seeded("growth", *indices, needed=is_custom), drawing_rows_from(generator):
            twin.grow(rows.n_users, rows.n_items)
        _set_features(twin, features)
        if optimizer is not None:
            optimizers.grow_state(optimizer)
        return twin, optimizer

    def drop_users(self, state: State, rows: Rows) -> Trained:
        """Return a copy of the model and its optimizer without the rows of some users."""
        model, optimizer = self._twin(state)
        dropped = torch.from_numpy(rows)
        if optimizer is not None:
            optimizers.own_memory(optimizer, model)
            for name, parameter in model.named_parameters():
                if isinstance(model.get_submodule(name.rpartition(".")[0]), UserTable):
                    moments = optimizer.state.get(parameter, {})
                    moments |= {key: without_rows(value, dropped) for key, value in moments.items() if value.dim()}
        model.forget(dropped)
        return model, optimizer

    def load(
        self,
        history: History,
        tensors: Tensors,
        started_at: int,
        features: Codes | None = None,
        *,
        with_times: bool | None = None,
        frozen: bool = False,
    ) -> Trained:
        """Build the model and the optimizer of `tensors_of`; with `frozen` no optimizer, and nothing is copied."""
        model = self.new(history, started_at, features, with_times=with_times)
        optimizer = None if frozen else self.optimizer(model)
        optimizers.load_tensors(model, optimizer, tensors, assign=frozen)
        return model.eval(), optimizer

    def _twin(self, state: State) -> Trained:
        """A second model and optimizer over the memory of a state."""
        try:
            twin = state.model.sharing_memory()
        except RuntimeError:  # PyTorch refuses to copy activations that a model has cached
            sizes = state.model.n_users, state.model.n_items
            twin = self._build(*sizes, state.features, with_times=state.model.reads_times)
            twin.load_state_dict(state.model.state_dict())
        optimizer = self.optimizer(twin)
        if optimizer is not None and state.optimizer is not None:
            for parameter, shared in zip(state.model.parameters(), twin.parameters(), strict=True):
                if parameter in state.optimizer.state:
                    optimizer.state[shared] = dict(state.optimizer.state[parameter])
        return twin, optimizer

    def _build(self, n_users: int, n_items: int, features: Codes | None, *, with_times: bool) -> Scorer:
        options = {"with_features": features is not None, "with_times": with_times}
        model = self.model.build(n_users, n_items, **options).to(self.device)
        _set_features(model, features)
        return model


def tensors_of(state: State) -> Tensors:
    """The model and the optimizer of a state as named tensors, which are not copied."""
    return optimizers.named_tensors(state.model, state.optimizer)


def _set_features(model: Scorer, features: Codes | None) -> None:
    if features is not None:
        model.set_item_features(torch.from_numpy(features))
