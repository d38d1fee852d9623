"""Who takes the steps. Several engines, one meaning: the reference is the specification of the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from fairstream.data import Rows
from fairstream.models import Scorer
from fairstream.objectives import Objective
from fairstream.sampling import NegativeSampler
from fairstream.training.batches import Batches


@dataclass(frozen=True, eq=False)
class Training:
    """What an engine is given: a model and its optimizer, which it changes in place, and all that decides how."""

    model: Scorer
    optimizer: torch.optim.Optimizer
    objective: Objective
    batches: Batches
    sampler: NegativeSampler
    signs: tuple[float, ...]
    """a_g of each group: +1 for one that is ahead, −1 for one that is behind."""
    repeats: bool = False
    """Whether every epoch has all batches, in chronological order, with the same negatives."""


class Engine(ABC):
    """Takes the steps of one training, an epoch at a time."""

    def __init__(self, training: Training) -> None:
        self.training = training

    @abstractmethod
    def epoch(self, order: Rows, key: int) -> float:
        """One step on each batch of `order`, with the negatives of `key`; gives the mean loss."""

    def finish(self) -> None:  # noqa: B027 (most engines work in place)
        """Called after the last epoch, where all has gone well."""

    def undo(self) -> None:  # noqa: B027
        """Take back what `finish` has done."""
