"""MovieLens-1M as the paper cuts it, ready to train on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fairstream.data import EventLog, History, read_events
from fairstream.methods import MethodConfig
from fairstream.models import ContextBuilder
from fairstream.randomness import Randomness
from fairstream.recommender.state import NewEvents, State
from fairstream.recommender.trainer import Trainer
from fairstream.sampling import NegativeSampler
from fairstream.training import Engine, EngineName, TrainingJob, choose_engine, cut_batches

D_0, D_1 = slice(0, 1960 * 256), slice(1960 * 256, 2090 * 256)
"""The pre-training data and the first period (33,280 interactions)."""
PAIRS = 4
"""Positive–negative pairs that each interaction makes: n = μ = 4."""


def read(folder: Path) -> EventLog:
    """The log, men the advantaged group."""
    return read_events(folder / "movielens-1m", group="gender", advantaged="M")


def learning(
    *, lambda_: float = 0.5, n: int = PAIRS, mu: int = PAIRS, device: str = "cpu", engine: EngineName = "fused",
    **options: object,
) -> Trainer:  # fmt: skip
    """FADE with these options."""
    config = MethodConfig(fairness_weight=lambda_, n_negatives=n, n_fairness_negatives=mu, **options)
    return Trainer(config.recipe(), Randomness(0), torch.device(device), engine)


def untrained(method: Trainer, log: EventLog, at: slice = D_0) -> State:
    """The state before `at.stop`, of a model that has rows for everyone and has learned nothing."""
    history = History.of(log.users[: at.stop], log.items[: at.stop], n_users=log.n_users, n_items=log.n_items)
    model = method.models.new(history, 0)
    optimizer = method.models.optimizer(model)
    trained, trained_items = np.zeros(log.n_users, np.bool_), np.zeros(log.n_items, np.bool_)
    return State(
        model.eval(), optimizer, history, log.require_groups(), log.user_ids, log.item_ids, trained, trained_items,
        t=0, started_at=0,
    )  # fmt: skip


def events(log: EventLog, at: slice) -> NewEvents:
    """The events of `at` in the rows of the log."""
    return NewEvents(log.users[at], log.items[at], log.user_ids, log.item_ids, log.require_groups())


def engine_on(log: EventLog, at: slice, method: Trainer, state: State) -> Engine:
    """The engine of a method, ready for epochs over `at`; trains the model of the state itself."""
    history = History.of(log.users[: at.stop], log.items[: at.stop], n_users=log.n_users, n_items=log.n_items)
    positions, objective = range(at.start, at.stop), method.recipe.objective
    sampler = NegativeSampler(history.seen, log.users[at], n_items=log.n_items, device=method.device)
    size = method.recipe.training.batch_size
    batches = cut_batches(history, positions, state.groups.codes, sampler, n_drawn=objective.n_drawn, size=size)
    assert state.optimizer is not None
    contexts = ContextBuilder(state.model.history_length, history, None, method.device)
    job = TrainingJob(state.model, state.optimizer, objective, batches, sampler, (1.0, -1.0), contexts)
    return choose_engine(method.engine, job)(job)
