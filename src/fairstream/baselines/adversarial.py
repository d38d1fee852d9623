"""The step of Adver: a model that learns to recommend and to hide the group, a discriminator that learns to find it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fairstream.baselines.filtered import capture_outputs, discriminator_of
from fairstream.data import UNKNOWN
from fairstream.errors import ModelError
from fairstream.models import Context
from fairstream.training.cuda.captured import CapturedEngine
from fairstream.training.engine import TrainingJob
from fairstream.training.optimizers import grow_state
from fairstream.training.reference import ReferenceEngine
from fairstream.training.row_adam import RowAdam

N_DISCRIMINATOR_STEPS: Final = 10
"""Steps of the discriminator for one of the model's."""


class AdversarialEngine(ReferenceEngine):
    """min over the model, max over the discriminator: L_rec − γ L_D   (appendix, "Adver").

    On each batch the discriminator takes ten steps down L_D on the filtered embeddings as they
    are, then the model one step down the whole, against the discriminator as it has become. One
    optimizer holds the parameters of both; a step moves those that have a gradient.
    """

    def __init__(self, job: TrainingJob, *, gamma: float) -> None:
        super().__init__(job)
        self._gamma = gamma
        self._groups = self._groups.long()
        discriminator = self._discriminator = discriminator_of(job.model)
        discriminator.grow(len(job.signs))
        grow_state(job.optimizer)
        self._against = [p for p in discriminator.parameters() if p.requires_grad]
        theirs = {id(p) for p in discriminator.parameters()}
        self._for = [p for p in job.model.parameters() if p.requires_grad and id(p) not in theirs]
        batches = job.batches
        is_known = batches.codes[batches.users] != UNKNOWN
        # Decided on the host, once: asking the device at every step would make it wait.
        self._have_known = np.logical_or.reduceat(is_known, np.arange(0, len(is_known), batches.size))

    def _conditions(self, b: int) -> dict[str, bool]:
        return {**super()._conditions(b), "has_known": bool(self._have_known[b])}

    def _learn(
        self,
        users: Tensor,
        candidates: Tensor,
        groups: Tensor,
        context: Context,
        *,
        has_known: bool = True,
        **conditions: bool,
    ) -> Tensor:
        """The steps on one batch. A batch in which nobody's group is known trains on L_rec alone."""
        with capture_outputs(self.job.model) as heard:
            loss = self._loss(users, candidates, groups, context, **conditions)
        if not heard:
            raise ModelError("Adver filters user embeddings, but this model scores without its own; use another method")
        if has_known:
            rows, codes = torch.cat(heard), groups.repeat(len(heard))  # (m B, d), (m B,) with m embeddings a user
            as_they_are = rows.detach()
            for _ in range(N_DISCRIMINATOR_STEPS):
                self._descend(self._discriminator.loss(as_they_are, codes), self._against)
            loss = loss - self._gamma * self._discriminator.loss(rows, codes)
        self._descend(loss, self._for)
        return loss.detach()

    def _descend(self, loss: Tensor, parameters: Sequence[Tensor]) -> None:
        """One step of these parameters, and of no others: those stay without a gradient."""
        optimizer = self.job.optimizer
        optimizer.zero_grad(set_to_none=True)
        loss.backward(inputs=parameters)  # type: ignore[no-untyped-call]
        optimizer.step()


class CapturedAdversarialEngine(CapturedEngine, AdversarialEngine):
    """The same steps on CUDA, the eleven of a batch in one graph. Dropout draws from PyTorch's generator, as ever."""

    @staticmethod
    def unsupported(job: TrainingJob) -> str | None:
        if isinstance(job.optimizer, RowAdam):
            return "row Adam moves the discriminator's rows otherwise when recorded; use the dense optimizer"
        return CapturedEngine.unsupported(job)
