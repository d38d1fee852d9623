"""The training loop, and the choice of its engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from fairstream.errors import ConfigurationError, ModelError
from fairstream.models import Scorer
from fairstream.randomness import Randomness
from fairstream.training.config import EngineName
from fairstream.training.engine import Engine, TrainingJob
from fairstream.training.reference import ReferenceEngine, WindowEngine

OnEpoch = Callable[[int, int], None]
"""Called after each epoch with (epochs done, epochs in all)."""
EngineChoice = Callable[[EngineName, TrainingJob], Callable[[TrainingJob], Engine]]
"""Which engine, or function that makes one, runs a job."""


@dataclass(frozen=True)
class TrainingReport:
    """What one training did."""

    n_interactions: int
    n_batches: int
    n_one_group_batches: int
    """Batches (per epoch) with users of one group only; without group statistics across batches \
they trained on the recommendation loss alone."""
    n_without_negatives: int
    """Interactions left out because their user has too few items left to draw negatives from."""
    loss: float
    """Mean loss of the last epoch."""
    engine: str = "reference"
    """What ran the steps."""
    losses: Sequence[float] = field(default=(), compare=False)
    """Mean loss of each epoch."""
    fairness_weight: float = 0.0
    """λ, on average over the steps that had a fairness loss; 0 where none had."""


def train(
    job: TrainingJob,
    engine: Engine,
    *,
    n_interactions: int,
    t: int,
    epochs: int,
    randomness: Randomness,
    learning_rate: float,
    on_epoch: OnEpoch | None = None,
) -> TrainingReport:
    """Run the epochs of a job; the result is in the engine until `Engine.finish` is called.

    Unless the job has the same batches every epoch, they are visited in a new order and with new
    negatives every epoch (the paper's pre-training); otherwise they stay in chronological order
    and keep the negatives drawn once (its fine-tuning).
    """
    orders, batches = randomness.numpy("batch order", t), job.batches
    is_random = draws_at_random(job.model)
    losses: list[float] = []
    for epoch in range(epochs):
        order = np.arange(len(batches)) if job.same_batches_every_epoch else orders.permutation(len(batches))
        key = randomness.key("negatives", t, 0 if job.same_batches_every_epoch else epoch)
        with randomness.seeded("forward", t, epoch, device=job.model.device, needed=is_random):
            loss = engine.epoch(order, key)
        losses.append(loss)
        if not math.isfinite(loss):
            raise ModelError(
                f"training diverged: the loss of epoch {epoch + 1} is {loss}; "
                f"lower learning_rate ({learning_rate:g}) or fairness_weight"
            )
        if on_epoch is not None:
            on_epoch(epoch + 1, epochs)
    return TrainingReport(
        n_interactions=n_interactions,
        n_batches=len(batches),
        n_one_group_batches=int((~batches.have_two_groups).sum()),
        n_without_negatives=batches.n_without_negatives,
        loss=losses[-1] if losses else math.nan,
        engine=engine.name,
        losses=tuple(losses),
        fairness_weight=_mean_weight(engine.job),
    )


def _mean_weight(job: TrainingJob) -> float:
    """λ on average over the steps with a fairness loss, or 0."""
    objective = job.objective
    is_used = any(objective.is_fair_on(has_two_groups=bool(two)) for two in np.unique(job.batches.have_two_groups))
    return objective.mean_weight if is_used else 0.0


def draws_at_random(model: Scorer) -> bool:
    """Whether the model draws random numbers when it is called: dropout, or `random_forward = True`."""
    return any(map(draws_itself, model.modules()))


def draws_itself(part: nn.Module) -> bool:
    """Whether a module draws random numbers, apart from those it is made of."""
    return (
        getattr(part, "random_forward", False)
        or isinstance(part, nn.modules.dropout._DropoutNd | nn.RReLU)
        or (isinstance(part, nn.RNNBase | nn.MultiheadAttention) and part.dropout > 0)
    )


def choose_engine(name: EngineName, job: TrainingJob) -> type[Engine]:
    """The engine of this name; "auto" is the fastest one that can run the job."""
    reasons = []
    for engine in () if name == "reference" else _fast_engines(job):
        reason = engine.unsupported(job)
        if reason is None:
            return engine
        reasons.append(reason)
    if name == "fused":
        raise ConfigurationError(
            f"engine='fused' was asked for, but no fused engine can run this job: "
            f"{'; '.join(reasons) or 'there is none for this device'}; use auto or reference"
        )
    return ReferenceEngine if ReferenceEngine.unsupported(job) is None else WindowEngine


def _fast_engines(job: TrainingJob) -> Sequence[type[Engine]]:
    """The engines for the device of the model, fastest first."""
    if job.model.device.type == "cuda":
        from fairstream.training.cuda import engines  # noqa: PLC0415

        return engines(job)
    from fairstream.training.cpu import FusedEngine  # noqa: PLC0415 (loading compiled code takes a moment)

    return (FusedEngine,)
