"""Small training jobs, and models of all kinds, for the tests of the engines."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fairstream.data import History
from fairstream.models import (
    Context,
    ContextBuilder,
    ItemTable,
    Scorer,
    UserTable,
    WindowScorer,
    resolve_model,
)
from fairstream.models.sequence import GRU4RecScorer, SASRecScorer
from fairstream.objectives import DisparityLoss, Objective, bpr_loss
from fairstream.sampling import NegativeSampler
from fairstream.training import TrainingJob, cut_batches, cut_windows, make_optimizer
from fairstream.training.optimizers import state_tensors

BATCH = 64
N_INTERACTIONS = 20 * BATCH - 13  # the last batch is short


class Recurrent(Scorer):
    """The latest items of a user through a GRU; has no user table."""

    history_length: ClassVar[int] = 6

    def __init__(self, n_users: int, n_items: int, *, embedding_dim: int = 16) -> None:
        super().__init__()
        self.item = ItemTable(n_items, embedding_dim, padding=True)
        self.gru = nn.GRU(embedding_dim, embedding_dim, batch_first=True)

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        assert context.history is not None
        hidden, _ = self.gru(self.item(context.history))
        return (self.item(items) @ hidden[:, -1, :, None]).squeeze(-1)


class Dropping(Scorer):
    """Matrix factorisation with dropout."""

    def __init__(self, n_users: int, n_items: int, *, embedding_dim: int = 16) -> None:
        super().__init__()
        self.user, self.item = UserTable(n_users, embedding_dim), ItemTable(n_items, embedding_dim)
        self.dropout = nn.Dropout(0.5)

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        return (self.item(items) @ self.dropout(self.user(users)).unsqueeze(-1)).squeeze(-1)


class Asking(Dropping):
    """Asks the device for a number at every step, which no graph can record."""

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        scale = 1.0 if users.sum().item() > 0 else 2.0
        return scale * (self.item(items) @ self.user(users).unsqueeze(-1)).squeeze(-1)


class Rebinding(Dropping):
    """Replaces a buffer at every step instead of changing it."""

    n_calls: Tensor

    def __init__(self, n_users: int, n_items: int, *, embedding_dim: int = 16) -> None:
        super().__init__(n_users, n_items, embedding_dim=embedding_dim)
        self.register_buffer("n_calls", torch.zeros(()))

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        self.n_calls = self.n_calls + 1
        return (self.item(items) @ self.user(users).unsqueeze(-1)).squeeze(-1)


class Windowed(WindowScorer):
    """A GRU over windows."""

    history_length: ClassVar[int] = 6

    def __init__(self, n_users: int, n_items: int, *, embedding_dim: int = 16) -> None:
        super().__init__()
        self.item = ItemTable(n_items, embedding_dim, padding=True)
        self.gru = nn.GRU(embedding_dim, embedding_dim, batch_first=True)

    def states(self, history: Tensor) -> Tensor:
        return self.gru(self.item(history))[0]  # (B, L, d)


class Timed(SASRecScorer):
    """Self-attention with biases of elapsed time that are not 0."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items, embedding_dim=8, length=12, with_times=True, dropout=0.0)
        for table in (self.since, *(block.elapsed for block in self.blocks)):
            nn.init.normal_(table[1:])


OWN: dict[str, type[Scorer]] = {
    "gru": Recurrent,
    "dropout": Dropping,
    "asking": Asking,
    "rebinding": Rebinding,
    "windows": Windowed,
    "gru4rec": GRU4RecScorer,
    "timed": Timed,
}


def job_of(
    model: str = "mf",
    optimizer: Literal["row", "dense"] = "row",
    *,
    n_groups: int = 2,
    unknown: bool = False,
    one_group: bool = False,
    embedding_dim: int = 64,
    n_users: int = 90,
    n_items: int = 300,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    extra_loss: Any = None,
    **objective: Any,
) -> TrainingJob:
    """A job on random events in an order in which users come in sessions, as they do in a log."""
    rng = np.random.default_rng(0)
    pairs = rng.permutation(n_users * n_items)[:N_INTERACTIONS].astype(np.int64)
    pairs = pairs[np.argsort(pairs // n_items + rng.normal(0, 3, len(pairs)))]
    users, items = pairs // n_items, pairs % n_items
    codes = rng.integers(0, n_groups, n_users).astype(np.int16)
    if unknown:
        codes[rng.random(n_users) < 0.3] = -1
    if one_group:
        codes[users[: 7 * BATCH]] = 1
    times = 1.7e9 + rng.exponential(1_000, len(users)).cumsum()
    history = History.of(users, items, times, n_users=n_users, n_items=n_items)
    sampler = NegativeSampler(history.seen, users, n_items=n_items, device=device)
    torch.manual_seed(0)
    scorer = (
        OWN[model](n_users, n_items)
        if model in OWN
        else resolve_model(model, {"embedding_dim": embedding_dim}).build(n_users, n_items)
    )
    if model == "mf":  # scores as far apart as those of a trained model; NCF would become chaotic
        for parameter in scorer.parameters():
            parameter.data.mul_(10)
    scorer.to(device, dtype)
    fairness = objective.pop("fairness_loss", None) or DisparityLoss(
        objective.pop("fairness", "signed"), objective.pop("surrogate", "hit"), objective.pop("tau", 3.0)
    )
    aim = Objective(**{"lambda_": 0.5, "n": 4, "mu": 4, "loss": bpr_loss, "fairness": fairness, **objective})
    events = range(len(users))
    return TrainingJob(
        scorer.train(),
        make_optimizer(optimizer, scorer, learning_rate=1e-3, l2=1e-4),
        aim,
        cut_windows(
            history,
            events,
            codes,
            sampler,
            n_drawn=aim.n_drawn,
            length=scorer.history_length,
            size=BATCH,
            with_times=scorer.reads_times,
        )
        if isinstance(scorer, WindowScorer)
        else cut_batches(history, events, codes, sampler, n_drawn=aim.n_drawn, size=BATCH),
        sampler,
        tuple(1.0 if g == 0 else -1.0 for g in range(n_groups)),
        ContextBuilder(scorer.history_length, history, None, device, reads_times=scorer.reads_times),
        extra_loss=extra_loss,
    )


def tensors(job: TrainingJob) -> dict[str, Tensor]:
    """All that training changes, as it is now."""
    state = state_tensors(job.optimizer, job.model)
    return {name: value.detach().clone() for name, value in {**job.model.state_dict(), **state}.items()}
