"""W_t, everything seen so far, and how to take the next step."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from fairstream.data import Groups, History, Rows
from fairstream.models import Scorer, ScorerFactory
from fairstream.objectives import Objective
from fairstream.randomness import Randomness
from fairstream.sampling import NegativeSampler
from fairstream.strategies.strategy import Step, Strategy
from fairstream.training import (
    EngineMaker,
    EngineName,
    Hyperparameters,
    OnEpoch,
    Tensors,
    Trainer,
    TrainingReport,
    make_engine,
)


@dataclass(frozen=True)
class Update:
    """What became of one period."""

    t: int
    step: Step
    seconds: float
    report: TrainingReport | None
    """None where the model was kept as it was."""


class Learner:
    """Carries a model through the periods.

    What it knows after period t are the events of D_0 … D_t and nothing else, unless it is given
    `foresight`: the paper's protocol lets the whole catalogue and every user's future in.
    """

    def __init__(
        self,
        factory: ScorerFactory,
        hyper: Hyperparameters,
        objective: Objective,
        strategy: Strategy,
        *,
        randomness: Randomness,
        device: torch.device,
        engine: EngineName = "auto",
        engine_maker: EngineMaker = make_engine,
        foresight: History | None = None,
    ) -> None:
        self.factory, self.hyper, self.objective, self.strategy = factory, hyper, objective, strategy
        self.randomness, self.device, self.engine, self._engine_maker = randomness, device, engine, engine_maker
        self._foresight = foresight
        self.t = -1
        nobody: Rows = np.empty(0, dtype=np.int64)
        self.known = History.of(nobody, nobody)
        self.n_learned_users = 0
        """Users whom the model in service has been trained on; later ones it has only made room for."""
        self._trainer: Trainer | None = None

    @property
    def model(self) -> Scorer:
        """The model in service, W_t."""
        return self.trainer.model

    @property
    def trainer(self) -> Trainer:
        if self._trainer is None:
            raise RuntimeError("fit first")
        return self._trainer

    def fit(self, users: Rows, items: Rows, groups: Groups, on_epoch: OnEpoch | None = None) -> Update:
        """Pre-train on D_0; `groups` tells of every user row."""
        return self._take(Step.RETRAIN, users, items, groups, on_epoch)

    def update(
        self, users: Rows, items: Rows, groups: Groups, quality: float | None = None, on_epoch: OnEpoch | None = None
    ) -> Update:
        """Make W_t of W_{t−1} and D_t; `quality` is how W_{t−1} did on D_t, where known.

        An update that fails or is interrupted leaves everything as it was.
        """
        memory = self.strategy.state()
        try:
            return self._take(self.strategy.next_step(quality), users, items, groups, on_epoch)
        except BaseException:
            self.strategy.restore(memory)
            raise

    def observe(self, users: Rows, items: Rows, groups: Groups) -> None:
        """Know of events without learning from them."""
        self._take(Step.KEEP, users, items, groups, None)

    def forget(self, user: int) -> None:
        """Know and have learned nothing of a user any more; the rows of later ones move up."""
        self.trainer.forget(user)
        self.known = self.known.without(user)
        self.n_learned_users -= user < self.n_learned_users

    def _take(self, step: Step, users: Rows, items: Rows, groups: Groups, on_epoch: OnEpoch | None) -> Update:
        begin = time.perf_counter()
        standing = (self.t, self.known, self.n_learned_users, self._trainer)
        savepoint = self.trainer.savepoint() if step is Step.FINE_TUNE else None
        try:
            self.t, self.known = self.t + 1, self.known.after(users, items)
            report = self._act(step, users, items, groups, on_epoch)
        except BaseException:
            self.t, self.known, self.n_learned_users, self._trainer = standing
            if savepoint is not None:
                savepoint.restore()
            raise
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return Update(self.t, step, time.perf_counter() - begin, report)

    def _act(
        self, step: Step, users: Rows, items: Rows, groups: Groups, on_epoch: OnEpoch | None
    ) -> TrainingReport | None:
        room = self._foresight or self.known
        if step is Step.RETRAIN:
            self._trainer = self._new_trainer(room.n_users, room.n_items, self.t)
            return self._train(self.known.users, self.known.items, groups, self.hyper.pretrain_epochs, True, on_epoch)
        # A kept model makes room for newcomers too: it has to be able to score them.
        self.trainer.grow(room.n_users, room.n_items, self.t)
        if step is Step.KEEP:
            return None
        return self._train(users, items, groups, self.hyper.update_epochs, False, on_epoch)

    def _new_trainer(self, n_users: int, n_items: int, t: int) -> Trainer:
        """A freshly started model and optimizer."""
        return Trainer(
            self.factory,
            self.hyper,
            self.objective,
            randomness=self.randomness,
            device=self.device,
            n_users=n_users,
            n_items=n_items,
            t=t,
            engine=self.engine,
            engine_maker=self._engine_maker,
        )

    def restore(self, t: int, known: History, *, n_learned_users: int, started_at: int) -> Trainer:
        """Stand where a saved learner stood; gives the trainer whose tensors are to be filled in.

        `started_at` is the period in which its model was (re)started.
        """
        self.t, self.known, self.n_learned_users = t, known, n_learned_users
        room = self._foresight or known
        self._trainer = self._new_trainer(room.n_users, room.n_items, started_at)
        return self._trainer

    def load_pretrained(self, users: Rows, items: Rows, weights: Tensors) -> None:
        """Stand where another learner stood after pre-training on these events; `weights` are its trainer's tensors."""
        known = self.known.after(users, items)
        self.restore(0, known, n_learned_users=known.n_users, started_at=0).fill(weights)

    def start_at(self, t: int, known: History) -> None:
        """Know all that came before period t, having learned nothing of it: enough for who retrains on everything."""
        self.t, self.known = t - 1, known

    def _train(
        self, users: Rows, items: Rows, groups: Groups, epochs: int, shuffled: bool, on_epoch: OnEpoch | None
    ) -> TrainingReport:
        room = self._foresight or self.known
        sampler = NegativeSampler(room.seen, users, n_items=room.n_items, device=self.device)
        self.n_learned_users = self.known.n_users
        return self.trainer.train(
            users,
            items,
            groups,
            sampler,
            n_groups=groups.n_groups_among(room.n_users),
            t=self.t,
            epochs=epochs,
            shuffled=shuffled,
            on_epoch=on_epoch,
        )
