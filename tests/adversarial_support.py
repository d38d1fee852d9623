"""A small training job of a filtered model, for the tests of its engines."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairstream.data import History
from fairstream.models import ContextBuilder, resolve_model
from fairstream.objectives import Objective
from fairstream.paper.adver import Discriminator, FilteredModel, discriminator_of
from fairstream.sampling import NegativeSampler
from fairstream.training import TrainingJob, cut_batches, make_optimizer
from fairstream.training.optimizers import state_tensors

BATCH, N_BATCHES = 32, 6
N_INTERACTIONS = N_BATCHES * BATCH - 13  # the last batch is short


def job_of(
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
) -> TrainingJob:
    """A job on random events, of users whose groups are random too unless they are given."""
    rng = np.random.default_rng(0)
    pairs = rng.permutation(n_users * n_items)[:n_interactions].astype(np.int64)
    users, items = pairs // n_items, pairs % n_items
    codes = rng.integers(0, n_groups, n_users) if codes is None else codes
    history = History.of(users, items, n_users=n_users, n_items=n_items)
    sampler = NegativeSampler(history.seen, users, n_items=n_items, device=device)
    torch.manual_seed(0)
    scorer = FilteredModel(resolve_model(model, {"embedding_dim": embedding_dim})).build(n_users, n_items).to(device)
    if dropout is not None:
        for part in scorer.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = dropout
    objective = Objective(lambda_=0.0, n=4, mu=4)
    batches = cut_batches(
        history, range(len(users)), np.asarray(codes, np.int16), sampler, n_drawn=objective.n_drawn, size=BATCH
    )
    return TrainingJob(
        scorer,
        make_optimizer(optimizer, scorer, learning_rate=learning_rate, l2=1e-4),
        objective,
        batches,
        sampler,
        tuple(1.0 if g == 0 else -1.0 for g in range(n_groups)),
        ContextBuilder(scorer.history_length, history, None, device),
    )


def tensors(job: TrainingJob) -> dict[str, Tensor]:
    """Copies of all that a training changes."""
    state = state_tensors(job.optimizer, job.model)
    return {name: value.clone() for name, value in {**job.model.state_dict(), **state}.items()}


def discriminator(job: TrainingJob) -> Discriminator:
    return discriminator_of(job.model)
