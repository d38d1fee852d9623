"""Which engine takes the steps."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from fairstream.errors import ConfigurationError
from fairstream.models import ItemTable, MatrixFactorization, Scorer, UserTable
from fairstream.objectives import Objective
from fairstream.training.engine import Engine, Training
from fairstream.training.reference import ReferenceEngine
from fairstream.training.row_adam import RowAdam
from fairstream.training.runtime import EngineName

EngineMaker = Callable[[EngineName, Training], Engine]
"""Makes the engine that takes the steps of one training."""


def make_engine(name: EngineName, training: Training) -> Engine:
    """The engine of this name; "auto" is the fastest one that can do this training."""
    engine = None if name == "reference" else _fused_engine(training)
    if engine is None and name == "fused":
        surrogate = f" with surrogate={training.objective.surrogate!r}" if training.objective.is_fair else ""
        raise ConfigurationError(
            f"engine='fused' was asked for, but there is none for {type(training.model).__name__} on "
            f"{_device(training).type}{surrogate}; use auto or reference"
        )
    return engine or ReferenceEngine(training)


def fine_tunes_a_copy(name: EngineName, model: Scorer, optimizer: torch.optim.Optimizer, objective: Objective) -> bool:
    """Whether nothing happens to the rows of the model before a fine-tuning has gone well to its end."""
    return name != "reference" and _is_fused_on_cpu(model, objective) and isinstance(optimizer, RowAdam)


def _fused_engine(training: Training) -> Engine | None:
    """The fused engine for this model on its device, where there is one."""
    if _is_fused_on_cpu(training.model, training.objective):
        from fairstream.training.cpu import FusedEngine  # noqa: PLC0415 (loading compiled code takes a moment)

        return FusedEngine(training)
    if _device(training).type == "cuda":
        from fairstream.training.cuda import make_cuda_engine  # noqa: PLC0415

        return make_cuda_engine(training)
    return None


def _is_fused_on_cpu(model: Scorer, objective: Objective) -> bool:
    """Matrix factorisation itself: a class derived from it, or one with tables of another kind, may score otherwise.

    Its compiled loss has no Sinkhorn scaling.
    """
    return (
        type(model) is MatrixFactorization
        and all(p.dtype == torch.float32 and p.device.type == "cpu" and p.requires_grad for p in model.parameters())
        and all(type(table) in {UserTable, ItemTable} and table.decayed for table in model.tables())
        and not (objective.is_fair and objective.surrogate == "neural-ndcg")
        and hasattr(os, "sched_yield")
    )


def _device(training: Training) -> torch.device:
    return next(training.model.parameters()).device
