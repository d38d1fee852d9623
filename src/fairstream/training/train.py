"""The training loop, and the choice of its engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec

import numpy as np
from torch import nn

from fairstream.draws import dropout_from
from fairstream.errors import ConfigurationError, ModelError
from fairstream.models import Scorer
from fairstream.randomness import Randomness
from fairstream.reporting import COMPILING
from fairstream.training.config import EngineName
from fairstream.training.engine import Engine, TrainingJob
from fairstream.training.reference import ReferenceEngine, WindowEngine

OnEpoch = Callable[[int, int], None]  # called after each epoch with (epochs done, epochs in all)
EngineChoice = Callable[[EngineName, TrainingJob], Callable[[TrainingJob], Engine]]
"""Chooses the engine of a job, or a function that creates it."""


@dataclass(frozen=True)
class TrainingReport:
    """The report of one training."""

    n_interactions: int
    n_batches: int
    n_one_group_batches: int
    """Batches (per epoch) with users of one group only; without group statistics across batches \
they trained on the recommendation loss alone."""
    n_without_negatives: int  # interactions left out because their user has too few items left to draw negatives from
    loss: float  # mean loss of the last epoch
    engine: str = "reference"  # the engine that took the steps
    losses: Sequence[float] = field(default=(), compare=False)  # mean loss of each epoch
    fairness_weight: float = 0.0  # λ, on average over the steps that had a fairness loss; 0 where none had


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
    """Run the epochs of a job; the engine may hold the result until `Engine.finish`.

    Every epoch has a new order of batches and new negatives (the paper's pre-training), unless the job has the same
    batches every epoch (its fine-tuning).
    """
    orders, batches = randomness.numpy("batch order", t), job.batches
    losses: list[float] = []
    for epoch in range(epochs):
        order = np.arange(len(batches)) if job.same_batches_every_epoch else orders.permutation(len(batches))
        key = randomness.key("negatives", t, 0 if job.same_batches_every_epoch else epoch)
        with _draws(job.model, randomness, t, epoch, *engine.worker):
            loss = engine.epoch(order, key)
        losses.append(loss)
        if not math.isfinite(loss):
            raise ModelError(
                f"training diverged: the loss of epoch {epoch + 1} is {loss}; "
                f"lower learning_rate ({learning_rate:g}) or fairness_weight"
            )
        if on_epoch is not None:
            on_epoch(epoch + 1, epochs)
    objective, have_two_groups = engine.job.objective, np.unique(engine.job.batches.have_two_groups)
    is_fair = any(objective.is_fair_on(has_two_groups=bool(has_two)) for has_two in have_two_groups)
    return TrainingReport(
        n_interactions=n_interactions,
        n_batches=len(batches),
        n_one_group_batches=int((~batches.have_two_groups).sum()),
        n_without_negatives=batches.n_without_negatives,
        loss=losses[-1] if losses else math.nan,
        engine=engine.name,
        losses=tuple(losses),
        fairness_weight=objective.lambda_ if is_fair else 0.0,
    )


def _draws(model: Scorer, randomness: Randomness, *indices: int) -> AbstractContextManager[None]:
    """Seed the random draws of the model in one epoch; plain dropout on a CPU gets a private generator."""
    parts = [part for part in model.modules() if draws_itself(part)]
    if not parts:
        return nullcontext()
    dropouts = [part for part in parts if type(part) is nn.Dropout]
    if model.device.type == "cpu" and len(dropouts) == len(parts):
        return dropout_from(randomness.torch("forward", *indices), dropouts)
    return randomness.seeded("forward", *indices, device=model.device)


def draws_itself(part: nn.Module) -> bool:
    """Return whether a module itself, not one of its children, draws random numbers."""
    return (
        getattr(part, "random_forward", False)
        or isinstance(part, nn.modules.dropout._DropoutNd | nn.RReLU)
        or (isinstance(part, nn.RNNBase | nn.MultiheadAttention) and part.dropout > 0)
    )


def choose_engine(name: EngineName, job: TrainingJob) -> type[Engine]:
    """Return the engine of this name; "auto" is the fastest one that can run the job."""
    reasons = []
    for engine in () if name == "reference" else _fast_engines(job):
        reason = engine.unsupported(job)
        if reason is None:
            return engine
        reasons.append(reason)
    if name == "fused":
        raise ConfigurationError(
            f"no fused engine can run this job: {'; '.join(reasons) or 'there is none for this device'}; "
            f"use auto or reference"
        )
    return ReferenceEngine if ReferenceEngine.unsupported(job) is None else WindowEngine


def _fast_engines(job: TrainingJob) -> Sequence[type[Engine]]:
    """Return the engines for the device of the model, fastest first; loading them takes a moment."""
    if job.model.device.type != "cuda":
        from fairstream.training.engines.cpu_mf import CpuMF  # noqa: PLC0415

        return (CpuMF,)
    from fairstream.training.engines.cuda_graph import CapturedEngine, CapturedWindowEngine  # noqa: PLC0415

    if find_spec("triton") is None:
        return CapturedEngine, CapturedWindowEngine
    _log_compilation()
    from fairstream.training.engines.cuda_mf import CudaMF  # noqa: PLC0415

    return CudaMF, CapturedEngine, CapturedWindowEngine


@cache
def _log_compilation() -> None:
    COMPILING.info("Loading CUDA kernels; the first time on a machine they are compiled, which can take a minute.")
