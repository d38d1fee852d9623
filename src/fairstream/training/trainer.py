"""The loop: batches of interactions in, an updated model out."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from fairstream.data import Groups, Rows
from fairstream.errors import ModelError
from fairstream.models import Scorer, ScorerFactory, UserTable
from fairstream.objectives import Objective
from fairstream.randomness import Randomness
from fairstream.sampling import NegativeSampler
from fairstream.training.batches import cut_batches
from fairstream.training.engine import Training
from fairstream.training.engines import EngineMaker, fine_tunes_a_copy, make_engine
from fairstream.training.hyperparameters import Hyperparameters
from fairstream.training.optimizers import (
    Tensors,
    drop_state_row,
    grow_state,
    make_optimizer,
    restore_state,
    state_tensors,
)
from fairstream.training.runtime import EngineName
from fairstream.training.savepoint import Savepoint

OnEpoch = Callable[[int, int], None]
"""Called after each epoch with (epochs done, epochs in all). What an update learns may show in the
model only once the update is done."""


@dataclass(frozen=True)
class TrainingReport:
    """What one training did."""

    n_interactions: int
    n_batches: int
    n_one_group_batches: int
    """Batches (per epoch) with users of one group only; they trained on L_rec alone."""
    n_without_negatives: int
    """Interactions left out because their user has too few items left to draw negatives from."""
    loss: float
    """Mean loss of the last epoch."""


class Trainer:
    """A model, its optimizer, and the loss that they minimise."""

    def __init__(
        self,
        factory: ScorerFactory,
        hyper: Hyperparameters,
        objective: Objective,
        *,
        randomness: Randomness,
        device: torch.device,
        n_users: int,
        n_items: int,
        t: int,
        engine: EngineName = "auto",
        engine_maker: EngineMaker = make_engine,
    ) -> None:
        self.hyper, self.objective = hyper, objective
        self._randomness, self._device, self._engine, self._make_engine = randomness, device, engine, engine_maker
        with randomness.seeded("weights", t):
            model = factory(n_users, n_items)
        if not isinstance(model, Scorer):
            raise ModelError(f"a model must be a fairstream.Scorer, got {type(model).__name__}; see Scorer for how")
        if 0 < model.n_users < n_users or 0 < model.n_items < n_items:
            raise ModelError(
                f"a model must have room for {n_users} users and {n_items} items, as it was asked for; this one has "
                f"room for {model.n_users} and {model.n_items}: pass what its constructor is given on to its tables"
            )
        self.model: Scorer = model.to(device)
        self.t = t
        self._savepoint: Callable[[], Savepoint | None] = lambda: None
        self.optimizer = make_optimizer(hyper.optimizer, self.model, learning_rate=hyper.learning_rate, l2=hyper.l2)

    def savepoint(self) -> Savepoint:
        """What can put back the model and the optimizer as they are now, should fine-tuning fail."""
        kept = Savepoint(self, is_light=fine_tunes_a_copy(self._engine, self.model, self.optimizer, self.objective))
        self._savepoint = weakref.ref(kept)
        return kept

    def tensors(self) -> Tensors:
        """The model and the optimizer, taken apart; they are not copied."""
        parts = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        state = state_tensors(self.optimizer, self.model)
        return parts | {f"optimizer/{name}": value for name, value in state.items()}

    def fill(self, tensors: Tensors) -> None:
        """Put in what `tensors` gave."""
        self.model.load_state_dict(_under("model/", tensors))
        restore_state(self.optimizer, self.model, _under("optimizer/", tensors))

    def grow(self, n_users: int, n_items: int, t: int) -> None:
        """Make room, in the tables and in the optimizer, for who and what appeared in period t."""
        with self._randomness.seeded("growth", t):
            self.model.grow(n_users, n_items)
        grow_state(self.optimizer)

    def forget(self, user: int) -> None:
        """Take a user's rows out of the tables and the optimizer; the later ones move up."""
        for table in self.model.tables():
            if isinstance(table, UserTable):
                drop_state_row(self.optimizer, table.weight, user)
                table.drop(user)

    def train(
        self,
        users: Rows,
        items: Rows,
        groups: Groups,
        sampler: NegativeSampler,
        *,
        n_groups: int,
        t: int,
        epochs: int,
        shuffled: bool,
        on_epoch: OnEpoch | None = None,
    ) -> TrainingReport:
        """Train on interactions in chronological order, of users in the first `n_groups` groups.

        `shuffled` visits the batches in a new order and draws new negatives every epoch (the
        paper's pre-training); otherwise the batches stay in order and keep the negatives drawn
        once (its fine-tuning).
        """
        batches = cut_batches(
            users, items, groups.codes, sampler, n_drawn=self.objective.n_drawn, size=self.hyper.batch_size
        )
        signs = tuple(groups.signs(n_groups))
        engine = self._make_engine(
            self._engine,
            Training(self.model, self.optimizer, self.objective, batches, sampler, signs, repeats=not shuffled),
        )
        orders = self._randomness.numpy("batch order", t)
        loss = math.nan
        for epoch in range(epochs):
            order = orders.permutation(len(batches)) if shuffled else np.arange(len(batches))
            key = self._randomness.key("negatives", t, epoch if shuffled else 0)
            with self._randomness.seeded("forward", t, epoch, device=self._device):
                loss = engine.epoch(order, key)
            if not math.isfinite(loss):
                raise ModelError(
                    f"training diverged: the loss of epoch {epoch + 1} is {loss}; "
                    f"lower learning_rate ({self.hyper.learning_rate:g}) or fairness_weight"
                )
            if on_epoch is not None:
                on_epoch(epoch + 1, epochs)
        report = TrainingReport(
            n_interactions=len(users),
            n_batches=len(batches),
            n_one_group_batches=int((~batches.have_two_groups).sum()),
            n_without_negatives=len(users) - len(batches.users),
            loss=loss,
        )
        if (kept := self._savepoint()) is not None:
            kept.engine = engine
        engine.finish()
        return report


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
