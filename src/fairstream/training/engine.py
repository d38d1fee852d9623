"""The interface of an engine: it runs the steps of a training job. The reference engine specifies all others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fairstream.data import Rows
from fairstream.models import Context, ContextBuilder, Scorer
from fairstream.objectives import Objective
from fairstream.sampling import NegativeSampler, SharedNegatives
from fairstream.training.batches import Batches, Windows
from fairstream.training.schedule import Schedule


class Batch(NamedTuple):
    """One batch as an extra loss sees it."""

    users: Tensor
    """(B,)"""
    items: Tensor
    """(B, 1 + n), column 0 is the positive."""
    scores: Tensor
    """(B, 1 + n)"""
    context: Context


ExtraLoss = Callable[[Scorer, Batch], Tensor]
"""Added to the loss of every batch: distillation, a penalty on moving away from old weights …"""


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """A model and its optimizer, which training changes in place, and all that decides how."""

    model: Scorer
    optimizer: torch.optim.Optimizer
    objective: Objective
    batches: Batches | Windows
    sampler: NegativeSampler
    signs: tuple[float, ...]
    """a_g of each group: +1 for one that is ahead, −1 for one that is behind."""
    contexts: ContextBuilder
    same_batches_every_epoch: bool = False
    """Whether every epoch has all batches, in chronological order, with the same negatives."""
    extra_loss: ExtraLoss | None = None
    shared_negatives: SharedNegatives | None = None
    """What stands for all items, where there are too many to score at every step."""
    schedule: Schedule | None = None
    """How the learning rate changes from step to step; None: it does not."""


class Engine(ABC):
    """Runs the steps of one training job, an epoch at a time."""

    name: str

    def __init__(self, job: TrainingJob) -> None:
        model = job.model
        objective = job.objective.start(model.parameters(), len(job.signs), model.device)
        self.job = job if objective is job.objective else replace(job, objective=objective)
        """The job, with an objective whose state across batches is this training's own."""

    @staticmethod
    @abstractmethod
    def unsupported(job: TrainingJob) -> str | None:
        """Why this engine cannot run a job, or None where it can."""

    @staticmethod
    def works_on_copy(job: TrainingJob) -> bool:
        """Whether nothing of the model is touched before `finish`, so that it may share memory with older states."""
        return False

    def _mean_loss(self, losses: Iterable[Tensor]) -> float:
        """Take the steps that yield these losses, and return their mean."""
        taken = []
        for loss in losses:
            taken.append(loss)
            if self.job.schedule is not None:
                self.job.schedule.advance()
        return float(torch.stack(taken).mean())

    @abstractmethod
    def epoch(self, order: Rows, key: int) -> float:
        """One step on each batch of `order`, with the negatives of `key`; returns the mean loss."""

    def finish(self, *, in_place: bool) -> None:  # noqa: B027 (most engines work on the model itself)
        """Write the result into the model, once; `in_place`: into memory that older states share."""

    def undo(self) -> None:  # noqa: B027
        """Take back what `finish` has done in place."""
