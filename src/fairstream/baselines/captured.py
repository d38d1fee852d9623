"""Adver's step on CUDA, recorded once and replayed: launched one by one, its kernels would keep the device waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch

from fairstream.baselines.adversarial import AdversarialEngine
from fairstream.data import Rows
from fairstream.models import MatrixFactorization, NeuralCollaborativeFiltering
from fairstream.training.cuda.capture import aside, captured
from fairstream.training.engine import TrainingJob
from fairstream.training.optimizers import ensure_state

_N_WARM_UPS: Final = 3


def can_capture(job: TrainingJob) -> bool:
    """Whether the step never asks the host for anything.

    Row Adam does, and a model of one's own may. PyTorch's fused Adam counts its steps on the device.
    """
    optimizer = job.optimizer
    return (
        next(job.model.parameters()).is_cuda
        and type(job.model) in {MatrixFactorization, NeuralCollaborativeFiltering}
        and type(optimizer) is torch.optim.Adam
        and all(group["fused"] for group in optimizer.param_groups)
    )


class CapturedEngine(AdversarialEngine):
    """The same step; which batch is next is read on the device, and the host waits once an epoch, for the loss.

    What has another shape (the short last batch) or another step (nobody's group is known) is
    not replayed but computed as ever. Dropout draws from PyTorch's generator, as it stands at
    each replay.
    """

    def __init__(self, job: TrainingJob, *, gamma: float) -> None:
        super().__init__(job, gamma=gamma)
        batches, device = job.batches, self._users.device
        n_full = len(batches.users) // batches.size
        self._is_replayed = self._have_known & (np.arange(len(batches)) < n_full)
        self._order = torch.zeros(len(batches), dtype=torch.int64, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        """How far in the order the epoch has come."""
        self._within = torch.arange(batches.size, device=device)
        self._drawn_here = torch.zeros(len(batches.users), 1 + job.objective.n_drawn, dtype=torch.int64, device=device)
        """The candidates of the epoch, in a tensor that stays where it is."""
        self._losses = torch.zeros(len(batches), dtype=next(job.model.parameters()).dtype, device=device)
        self._replay: Callable[[], None] | None = None

    def epoch(self, order: Rows, key: int) -> float:
        candidates = self._candidates(key)
        self._drawn_here.copy_(candidates)
        replayed = order[self._is_replayed[order]]
        self._order[: len(replayed)].copy_(torch.from_numpy(replayed))
        if self._replay is None and len(replayed):
            self._replay = self._capture()
        self._at.zero_()
        others = []
        for b in order.tolist():
            if self._is_replayed[b]:
                assert self._replay is not None
                self._replay()
            else:
                others.append(self._step(candidates, b))
        return float(torch.cat([self._losses[: len(replayed)], *(loss.view(1) for loss in others)]).mean())

    def _next_step(self) -> None:
        """The steps on the next batch of the order, with nothing in it that the host would have to know."""
        b = self._order.index_select(0, self._at)
        rows = b * self.job.batches.size + self._within  # (B,)
        columns = (column.index_select(0, rows) for column in (self._users, self._drawn_here, self._groups))
        loss = self._learn(*columns, has_two_groups=False, has_known=True)
        self._losses.index_copy_(0, self._at, loss.view(1))
        self._at += 1

    def _capture(self) -> Callable[[], None]:
        optimizer, device = self.job.optimizer, self._users.device
        ensure_state(optimizer)  # made during the capture, it would be made anew by every replay
        with self._unchanged(), aside(device):
            for _ in range(_N_WARM_UPS):  # libraries set themselves up at the first calls, which a capture must not
                self._at.zero_()
                self._next_step()
        optimizer.zero_grad(set_to_none=True)
        with self._capturable(), captured(device) as graph:
            self._next_step()
        optimizer.zero_grad(set_to_none=True)  # these gradients are the graph's own
        return graph.replay

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Put the model, the optimizer and the generators back as they are now."""
        job = self.job
        state = [value for values in job.optimizer.state.values() for value in values.values()]
        tensors = [value.detach() for value in (*job.model.parameters(), *job.model.buffers(), *state)]
        before = [value.clone() for value in tensors]
        with torch.random.fork_rng(devices=[self._users.device]):
            yield
        for value, old in zip(tensors, before, strict=True):
            value.copy_(old)

    @contextmanager
    def _capturable(self) -> Iterator[None]:
        """Tell Adam that it is being captured; outside of that it would warn of the setting."""
        groups = self.job.optimizer.param_groups
        for group in groups:
            group["capturable"] = True
        try:
            yield
        finally:
            for group in groups:
                group["capturable"] = False
