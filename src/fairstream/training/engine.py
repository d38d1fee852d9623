"""The interface of an engine, which takes the steps of a training job. The reference engine specifies all others."""

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
from fairstream.training.optimizers import Schedule


class Batch(NamedTuple):
    """The batch that an extra loss gets."""

    users: Tensor  # (B,)
    items: Tensor  # (B, 1 + n), column 0 is the positive
    scores: Tensor  # (B, 1 + n)
    context: Context


ExtraLoss = Callable[[Scorer, Batch], Tensor]
"""A loss to add to that of every batch: distillation, a penalty on changes of old weights …"""


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """A model and its optimizer, which training changes in place, with all settings of the training."""

    model: Scorer
    optimizer: torch.optim.Optimizer
    objective: Objective
    batches: Batches | Windows
    sampler: NegativeSampler
    signs: tuple[float, ...]  # a_g of each group: +1 for an advantaged group, −1 for a disadvantaged one
    contexts: ContextBuilder
    same_batches_every_epoch: bool = False  # all of them, in chronological order, with the same negatives
    extra_loss: ExtraLoss | None = None
    shared_negatives: SharedNegatives | None = None  # the sample that stands for all items, if they are many
    schedule: Schedule | None = None  # the schedule of the learning rate; None: it is constant


class Engine(ABC):
    """Takes the steps of one training job, an epoch at a time."""

    name: str
    worker: tuple[int, ...] = ()  # an index of random draws: workers that share a job must not draw the same dropout

    def __init__(self, job: TrainingJob) -> None:
        objective = job.objective.start(len(job.signs), job.model.device)
        self.job = job if objective is job.objective else replace(job, objective=objective)
        """The job; statistics that its objective keeps across batches belong to this training."""

    @staticmethod
    @abstractmethod
    def unsupported(job: TrainingJob) -> str | None:
        """Return why this engine cannot run a job, or None where it can."""

    @staticmethod
    def works_on_copy(job: TrainingJob) -> bool:
        """Return whether the model is unchanged before `finish`, so that it may share memory with older states."""
        return False

    def _mean_loss(self, losses: Iterable[Tensor]) -> float:
        """Take the steps that yield these losses; return the mean loss."""
        step_losses = []
        for loss in losses:
            step_losses.append(loss)
            if self.job.schedule is not None:
                self.job.schedule.advance()
        return float(torch.stack(step_losses).mean())

    @abstractmethod
    def epoch(self, order: Rows, key: int) -> float:
        """Take one step on each batch of `order`, with the negatives of `key`; return the mean loss."""

    def finish(self, *, in_place: bool) -> None:  # noqa: B027 (most engines work on the model itself)
        """Write the result into the model, once; with `in_place` into memory that older states share."""

    def undo(self) -> None:  # noqa: B027
        """Undo what `finish` wrote in place."""
