"""The reference engine: autograd and a PyTorch optimizer, for any model on any device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fairstream.data import Rows
from fairstream.errors import ModelError
from fairstream.training.engine import Engine, Training


class ReferenceEngine(Engine):
    """Says what a step is."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        batches = training.batches
        self._device = next(training.model.parameters()).device
        columns = (batches.users, batches.items, batches.codes[batches.users])
        self._users, self._items, self._groups = (torch.tensor(column, device=self._device) for column in columns)
        self._signs = torch.tensor(training.signs, device=self._device)
        # Decided on the host, once: asking the device at every step would make it wait.
        self._have_two_groups = batches.have_two_groups.tolist()
        self._drawn: tuple[int, Tensor] | None = None

    def epoch(self, order: Rows, key: int) -> float:
        candidates = self._candidates(key)
        with one_thread():
            return float(torch.stack([self._step(candidates, b) for b in order.tolist()]).mean())

    def _candidates(self, key: int) -> Tensor:
        """(N, 1 + max(n, μ)) each positive and its negatives."""
        if self._drawn is None or self._drawn[0] != key:
            training = self.training
            negatives = training.sampler.draw(training.batches.users, training.objective.n_drawn, key)
            self._drawn = key, torch.cat([self._items[:, None], negatives], dim=1)
        return self._drawn[1]

    def _step(self, candidates: Tensor, b: int) -> Tensor:
        training, at = self.training, self.training.batches.span(b)
        loss = self._loss(self._users[at], candidates[at], self._groups[at], has_two_groups=self._have_two_groups[b])
        training.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        training.optimizer.step()
        return loss.detach()

    def _loss(self, users: Tensor, candidates: Tensor, groups: Tensor, *, has_two_groups: bool) -> Tensor:
        training = self.training
        scores = training.model(users, candidates)  # (B, 1 + max(n, μ))
        if scores.shape != candidates.shape:
            raise ModelError(
                f"a model must give a score per candidate: expected the shape {tuple(candidates.shape)}, "
                f"got {tuple(scores.shape)}"
            )
        return training.objective.loss(scores, groups, self._signs, has_two_groups=has_two_groups)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one CPU thread inside the block.

    A batch is too small to share out: threads gain nothing on an idle machine, cost dearly on a
    busy one, and would make the rounding of sums depend on the number of cores.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)
