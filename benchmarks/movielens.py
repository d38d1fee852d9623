"""MovieLens-1M as the paper cuts it, ready to train on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from fairstream.data import EventLog, SeenItems, read_events
from fairstream.models import built_in_model
from fairstream.objectives import Objective
from fairstream.randomness import Randomness
from fairstream.sampling import NegativeSampler
from fairstream.training import EngineName, Hyperparameters, Trainer
from fairstream.training.batches import cut_batches
from fairstream.training.engine import Engine, Training
from fairstream.training.engines import make_engine

D_0, D_1 = slice(0, 1960 * 256), slice(1960 * 256, 2090 * 256)
"""The pre-training data and the first period (33,280 interactions)."""
PAIRS = 4
"""Positive–negative pairs that each interaction makes: n = μ = 4."""


def read(folder: Path) -> EventLog:
    """The log, men the advantaged group."""
    return read_events(folder / "movielens-1m", group="gender", advantaged="M")


def trainer(
    log: EventLog, *, lambda_: float = 0.5, device: str = "cpu", engine: EngineName = "fused", model: str = "mf",
    n: int = PAIRS, mu: int = PAIRS, optimizer: Literal["row", "dense"] = "row", **hyper: object,
) -> Trainer:  # fmt: skip
    """A fresh model with room for everyone."""
    options = Hyperparameters(optimizer=optimizer, **hyper)
    return Trainer(
        built_in_model(model, options.embedding_dim), options, Objective(lambda_=lambda_, tau=3.0, n=n, mu=mu),
        randomness=Randomness(0), device=torch.device(device), n_users=log.n_users, n_items=log.n_items, t=0,
        engine=engine,
    )  # fmt: skip


def sampler(log: EventLog, at: slice, device: str = "cpu") -> NegativeSampler:
    """Excludes what everybody has had by the end of `at`."""
    seen = SeenItems.from_pairs(log.users[: at.stop], log.items[: at.stop])
    return NegativeSampler(seen, log.users[at], n_items=log.n_items, device=device)


def engine_on(log: EventLog, at: slice, trained: Trainer, engine: EngineName) -> Engine:
    """The engine of a trainer, ready for epochs over `at`."""
    negatives = sampler(log, at)
    batches = cut_batches(
        log.users[at], log.items[at], log.require_groups().codes, negatives,
        n_drawn=trained.objective.n_drawn, size=trained.hyper.batch_size,
    )  # fmt: skip
    training = Training(trained.model, trained.optimizer, trained.objective, batches, negatives, (1.0, -1.0))
    return make_engine(engine, training)
