"""A small training of a filtered model, for the tests of its engines."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairstream.baselines import Discriminator, filtered
from fairstream.baselines.filtered import discriminator_of
from fairstream.data import SeenItems
from fairstream.models import built_in_model
from fairstream.objectives import Objective
from fairstream.sampling import NegativeSampler
from fairstream.training.batches import cut_batches
from fairstream.training.engine import Training
from fairstream.training.optimizers import make_optimizer, state_tensors

BATCH, N_BATCHES = 32, 6
N_INTERACTIONS = N_BATCHES * BATCH - 13  # the last batch is short


def training_of(
    model: str = "mf",
    optimizer: Literal["row", "dense"] = "dense",
    *,
    codes: Any = None,
    n_groups: int = 2,
    dropout: float | None = None,
    n_users: int = 40,
    n_items: int = 60,
    n_interactions: int = N_INTERACTIONS,
    embedding_dim: int = 8,
    learning_rate: float = 1e-2,
    device: str = "cpu",
) -> Training:
    """A training on random events, of users whose groups are random too unless they are given."""
    rng = np.random.default_rng(0)
    pairs = rng.permutation(n_users * n_items)[:n_interactions].astype(np.int64)
    users, items = pairs // n_items, pairs % n_items
    codes = rng.integers(0, n_groups, n_users) if codes is None else codes
    sampler = NegativeSampler(SeenItems.from_pairs(users, items), users, n_items=n_items, device=device)
    torch.manual_seed(0)
    scorer = filtered(built_in_model(model, embedding_dim))(n_users, n_items).to(device)
    if dropout is not None:
        for part in scorer.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = dropout
    aim = Objective(lambda_=0.0, tau=3.0, n=4, mu=4)
    batches = cut_batches(users, items, np.asarray(codes, np.int16), sampler, n_drawn=aim.n_drawn, size=BATCH)
    made = make_optimizer(optimizer, scorer, learning_rate=learning_rate, l2=1e-4)
    return Training(scorer, made, aim, batches, sampler, tuple(1.0 if g == 0 else -1.0 for g in range(n_groups)))


def tensors(training: Training) -> dict[str, Tensor]:
    """Copies of all that a training changes."""
    state = state_tensors(training.optimizer, training.model)
    return {name: value.clone() for name, value in {**training.model.state_dict(), **state}.items()}


def discriminator(training: Training) -> Discriminator:
    return discriminator_of(training.model)
