"""The loop: batches of interactions in, an updated model out. This is the reference engine."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairstream.errors import DataError, ModelError
from fairstream.events import UNKNOWN, Groups, Rows
from fairstream.events.groups import Codes
from fairstream.models import Scorer, ScorerFactory
from fairstream.objectives import Objective
from fairstream.randomness import Randomness
from fairstream.sampling import NegativeSampler
from fairstream.training.hyperparameters import Hyperparameters
from fairstream.training.optimizers import grow_state, make_optimizer

OnEpoch = Callable[[int, int], None]
"""Called after each epoch with (epochs done, epochs in all)."""


@dataclass(frozen=True)
class TrainingReport:
    """What one training did."""

    n_interactions: int
    n_batches: int
    n_one_group_batches: int
    """Batches (per epoch) with users of one group only; they trained on L_rec alone."""
    n_without_negatives: int
    """Interactions left out because their user has too few items left to draw negatives from."""
    loss: float
    """Mean loss of the last epoch."""


class Trainer:
    """A model, its optimizer, and the loss that they minimise."""

    def __init__(
        self,
        factory: ScorerFactory,
        hyper: Hyperparameters,
        objective: Objective,
        *,
        randomness: Randomness,
        device: torch.device,
        n_users: int,
        n_items: int,
        t: int,
    ) -> None:
        self.hyper, self.objective = hyper, objective
        self._randomness, self._device = randomness, device
        with randomness.governing("weights", t):
            model = factory(n_users, n_items)
        if not isinstance(model, Scorer):
            raise ModelError(f"a model must be a fairstream.Scorer, got {type(model).__name__}; see Scorer for how")
        self.model: Scorer = model.to(device)
        self.t = t
        self.optimizer = make_optimizer(hyper.optimizer, self.model, learning_rate=hyper.learning_rate, l2=hyper.l2)

    def copied(self) -> tuple[Scorer, torch.optim.Optimizer]:
        """The model and the optimizer that holds its parameters, as they are now."""
        return copy.deepcopy((self.model, self.optimizer))

    def grow(self, n_users: int, n_items: int, t: int) -> None:
        """Make room, in the tables and in the optimizer, for who and what appeared in period t."""
        with self._randomness.governing("growth", t):
            self.model.grow(n_users, n_items)
        grow_state(self.optimizer)

    def train(
        self,
        users: Rows,
        items: Rows,
        groups: Groups,
        sampler: NegativeSampler,
        *,
        n_groups: int,
        t: int,
        epochs: int,
        shuffled: bool,
        on_epoch: OnEpoch | None = None,
    ) -> TrainingReport:
        """Train on interactions in chronological order, of users in the first `n_groups` groups.

        `shuffled` visits the batches in a new order and draws new negatives every epoch (the
        paper's pre-training); otherwise the batches stay in order and keep the negatives drawn
        once (its fine-tuning).
        """
        batches = self._batches(users, items, groups.codes, sampler)
        signs = torch.tensor(groups.signs(n_groups), device=self._device)
        draws = self._randomness.torch("negatives", t, device=self._device)
        orders = self._randomness.numpy("batch order", t)
        loss = math.nan
        for epoch in range(epochs):
            if shuffled or epoch == 0:
                negatives = sampler.draw(batches.users, self.objective.n_drawn, draws)
                candidates = torch.cat([batches.items[:, None], negatives], dim=1)  # (N, 1 + max(n, μ))
            order = orders.permutation(len(batches.spans)) if shuffled else range(len(batches.spans))
            with _one_thread(), self._randomness.governing("forward", t, epoch, device=self._device):
                loss = float(torch.stack([self._step(batches, candidates, signs, b) for b in order]).mean())
            if not math.isfinite(loss):
                raise ModelError(
                    f"training diverged: the loss of epoch {epoch + 1} is {loss}; "
                    f"lower learning_rate ({self.hyper.learning_rate:g}) or fairness_weight"
                )
            if on_epoch is not None:
                on_epoch(epoch + 1, epochs)
        return TrainingReport(
            n_interactions=len(users),
            n_batches=len(batches.spans),
            n_one_group_batches=batches.has_two_groups.count(False),
            n_without_negatives=len(users) - len(batches.users),
            loss=loss,
        )

    def _batches(self, users: Rows, items: Rows, codes: Codes, sampler: NegativeSampler) -> _Batches:
        """The interactions whose user has enough items left to draw from, cut into batches."""
        free = sampler.n_free(torch.from_numpy(users).to(self._device)).cpu().numpy()
        enough = free >= self.objective.n_drawn
        if not enough.any():
            raise DataError(
                f"{self.objective.n_drawn} distinct negatives an interaction (the larger of n_negatives and "
                f"n_fairness_negatives) are more than any user has items left to draw from; ask for fewer"
            )
        columns = (users[enough], items[enough], codes[users[enough]])
        starts = range(0, len(columns[0]), self.hyper.batch_size)
        spans = [slice(start, start + self.hyper.batch_size) for start in starts]
        user, item, group = (torch.from_numpy(column).to(self._device) for column in columns)
        return _Batches(user, item, group, spans, _has_two_groups(columns[2], list(starts)))

    def _step(self, batches: _Batches, candidates: Tensor, signs: Tensor, b: int) -> Tensor:
        at = batches.spans[b]
        scores = self.model(batches.users[at], candidates[at])  # (B, 1 + max(n, μ))
        if scores.shape != candidates[at].shape:
            raise ModelError(
                f"a model must give a score per candidate: expected the shape {tuple(candidates[at].shape)}, "
                f"got {tuple(scores.shape)}"
            )
        loss = self.objective.loss(scores, batches.groups[at], signs, has_two_groups=batches.has_two_groups[b])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()


class _Batches(NamedTuple):
    """Interactions in chronological order, and where each batch of them lies."""

    users: Tensor
    items: Tensor
    groups: Tensor
    spans: list[slice]
    has_two_groups: list[bool]
    """Decided on the host, once: asking the device at every step would make it wait."""


def _has_two_groups(codes: Codes, starts: list[int]) -> list[bool]:
    """Whether each batch has users of two groups or more."""
    highest = np.maximum.reduceat(codes, starts)
    lowest = np.minimum.reduceat(np.where(codes == UNKNOWN, np.iinfo(codes.dtype).max, codes), starts)
    return [bool(differ) for differ in lowest < highest]


@contextmanager
def _one_thread() -> Iterator[None]:
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
