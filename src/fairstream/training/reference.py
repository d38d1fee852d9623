"""The reference engine: autograd and a PyTorch optimizer, for any model on any device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairstream.data import Rows
from fairstream.errors import ModelError
from fairstream.models import NO_CONTEXT, Context, ItemHead, WindowScorer
from fairstream.objectives import AmongAll, FactoredAmongAll, Objective, Ranked
from fairstream.sampling import uniform
from fairstream.training.batches import Batches, Windows
from fairstream.training.engine import Batch, Engine, TrainingJob


class ReferenceEngine(Engine):
    """The specification of a training step, on interactions with sampled negatives."""

    name = "reference"

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(job)
        batches = job.batches
        assert isinstance(batches, Batches)
        self._device = job.model.device
        columns = (batches.users, batches.items, batches.codes[batches.users].astype(np.int64))
        self._users, self._items, self._groups = (torch.tensor(column, device=self._device) for column in columns)
        self._signs = torch.tensor(job.signs, device=self._device)
        # Decided on the host, once: asking the device at every step would make it wait.
        self._have_two_groups = batches.have_two_groups.tolist()
        self._drawn: tuple[int, Tensor] | None = None

    @staticmethod
    def unsupported(job: TrainingJob) -> str | None:
        return None if isinstance(job.batches, Batches) else "the batches are windows"

    def epoch(self, order: Rows, key: int) -> float:
        candidates = self._candidates(key)
        return self._mean_loss(self._step(candidates, b) for b in order.tolist())

    def _candidates(self, key: int) -> Tensor:
        """Return (N, 1 + max(n, μ)) items: each positive and its negatives."""
        if self._drawn is None or self._drawn[0] != key:
            negatives = self.job.sampler.draw(self.job.batches.users, self.job.objective.n_drawn, key)
            self._drawn = key, torch.cat([self._items[:, None], negatives], dim=1)
        return self._drawn[1]

    def _context(self, at: slice) -> Context:
        batches = self.job.batches
        if not self.job.model.history_length:
            return NO_CONTEXT
        assert isinstance(batches, Batches)
        return self.job.contexts.at(batches.users[at], np.asarray(batches.positions[at], dtype=np.int64))

    def _step(self, candidates: Tensor, b: int) -> Tensor:
        at = self.job.batches.span(b)
        return self._learn(self._users[at], candidates[at], self._groups[at], self._context(at), **self._conditions(b))

    def _conditions(self, b: int) -> dict[str, bool]:
        """Return the flags of a batch that select how to learn it."""
        return {"has_two_groups": self._have_two_groups[b]}

    def _learn(self, users: Tensor, candidates: Tensor, groups: Tensor, context: Context, **conditions: bool) -> Tensor:
        return descend(self.job, self._loss(users, candidates, groups, context, **conditions))

    def _loss(
        self, users: Tensor, candidates: Tensor, groups: Tensor, context: Context, *, has_two_groups: bool
    ) -> Tensor:
        job, among_all = self.job, None
        if job.objective.needs_all_items:
            everything = job.model.score_range(users, 0, job.sampler.n_items, context)
            scores = everything.gather(1, candidates)
            among_all = AmongAll(everything, candidates[:, 0], everything.new_ones(len(users)))
        else:
            scores = job.model(users, candidates, context)  # (B, 1 + max(n, μ))
        check_scores(scores, candidates)
        loss = job.objective(scores, groups, self._signs, has_two_groups=has_two_groups, among_all=among_all)
        if job.extra_loss is not None:
            loss = loss + job.extra_loss(job.model, Batch(users, candidates, scores, context))
        return loss


class HeadScores(NamedTuple):
    """The scores of one head at the targets of a batch."""

    objective: Objective
    candidates: Tensor  # (M, 1 + n)
    scores: Tensor  # (M, 1 + n)
    among_all: Ranked | None  # the scores of all items if a loss needs them


class WindowEngine(Engine):
    """The same step on windows of users' sequences: a loss at every place of a window.

    The next event is the target of the model, and any later event of the window that of its `period_head`, if any.
    """

    name = "reference"

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(job)
        windows = job.batches
        assert isinstance(windows, Windows)
        # A fairness loss with state has one for each head.
        self._objectives = self.job.objective, job.objective.start(len(job.signs), job.model.device)
        self._device = job.model.device
        self._groups = torch.tensor(windows.codes[windows.users].astype(np.int64), device=self._device)
        self._signs = torch.tensor(job.signs, device=self._device)
        self._have_two_groups = windows.have_two_groups.tolist()
        self._load(windows)

    def _load(self, windows: Windows) -> None:
        """Move windows to the device."""
        self._windows = windows
        columns = (windows.history, windows.targets)
        self._history, self._targets = (torch.tensor(column, device=self._device) for column in columns)
        self._times = None if windows.times is None else torch.tensor(windows.times, device=self._device)
        is_target = windows.targets >= 0
        counts = is_target.sum(axis=1)
        self._target_users = windows.users.repeat(counts)
        self._last_targets = np.repeat(np.cumsum(counts) - 1, counts)  # (N,) of the window of each target
        self._target_items = torch.tensor(windows.targets[is_target], device=self._device)
        self._weights = torch.tensor(windows.target_weights, dtype=torch.float32, device=self._device)

    @staticmethod
    def unsupported(job: TrainingJob) -> str | None:
        return None if isinstance(job.batches, Windows) else "the batches are single interactions"

    def epoch(self, order: Rows, key: int) -> float:
        self._cut_again(key)
        return self._mean_loss(self._step(b, key) for b in order.tolist())

    def _cut_again(self, key: int) -> None:
        if not self.job.same_batches_every_epoch:
            self._load(self._windows.cut_again(key))

    def _step(self, b: int, key: int) -> Tensor:
        job, (begin, end) = self.job, self._target_span(b)
        groups, heads = self._heads(b, key)
        options = {"groups": groups, "signs": self._signs, "has_two_groups": self._have_two_groups[b]}
        losses = [head.objective(head.scores, **options, among_all=head.among_all) for head in heads]
        if job.extra_loss is not None:
            rows = torch.from_numpy(self._target_users[begin:end]).to(self._device)
            losses.append(job.extra_loss(job.model, Batch(rows, *heads[0][1:3], self._context(b))))
        return descend(job, sum(losses[1:], losses[0]))

    def _target_span(self, b: int) -> tuple[int, int]:
        """Return the index of the first target of a batch, and of the first after it."""
        begin, end = self._windows.first_target[b : b + 2]
        return int(begin), int(end)

    def _heads(self, b: int, key: int) -> tuple[Tensor, list[HeadScores]]:
        """Return the groups (M,) of a batch and the scores of each head."""
        job, (begin, end) = self.job, self._target_span(b)
        assert isinstance(job.model, WindowScorer)
        is_target = self._targets[self._windows.span(b)] >= 0
        groups = self._groups[self._windows.span(b), None].expand_as(is_target)[is_target]
        heads, negatives = job.model.heads(self._states(b, is_target)), self._draw_negatives(b, key)
        shared = None if job.shared_negatives is None else job.shared_negatives.draw(key, b)
        targets = [self._target_items[begin:end]]
        if len(heads) > 1:
            targets.append(self._target_items[self._later_targets(key, begin, end)])
        candidates = [torch.cat([items[:, None], negatives], dim=1) for items in targets]  # (M, 1 + n)
        weights = self._weights[begin:end]
        parts = zip(heads, self._objectives, candidates, strict=False)
        return groups, [score_head(*head, objective, of, weights, shared) for head, objective, of in parts]

    def _later_targets(self, key: int, begin: int, end: int) -> Tensor:
        """(M,) for each of these targets, which of the targets from it to the end of its window is its later event."""
        at = np.arange(begin, end)
        draws = uniform((key + 1) % (1 << 64), torch.from_numpy(self._positions[begin:end])).numpy()
        later = at + np.floor(draws * (self._last_targets[begin:end] - at + 1)).astype(np.int64)
        return torch.from_numpy(later).to(self._device)

    @property
    def _positions(self) -> Rows:
        """(N,) the position of each target in the job, which decides its draws."""
        return np.arange(len(self._target_users))

    def _draw_negatives(self, b: int, key: int) -> Tensor:
        """(M, max(n, μ))"""
        begin, end = self._target_span(b)
        return self.job.sampler.draw(self._target_users[begin:end], self.job.objective.n_drawn, key, begin)

    def _context(self, b: int) -> Context:
        at = self._windows.span(b)
        history, is_target = self._history[at], self._targets[at] >= 0
        window, place = torch.nonzero(is_target, as_tuple=True)
        back = place[:, None] - torch.arange(history.shape[1] - 1, -1, -1, device=self._device)  # (M, L)
        known = history[window[:, None], back.clamp(min=0)].masked_fill(back < 0, -1)
        times = None
        if self._times is not None:
            of_window = self._times[at][window]  # (M, L + 1)
            before = of_window.gather(1, back.clamp(min=0)).masked_fill(back < 0, -1)
            times = torch.cat([before, of_window.gather(1, place[:, None] + 1)], dim=1)
        return Context(known, (known >= 0).sum(dim=1), times)

    def _states(self, b: int, is_target: Tensor) -> Tensor:
        """Return the states (M, d) at the targets of a batch."""
        model, rows, width = self.job.model, self._windows.span(b), int(self._windows.widths[b])
        assert isinstance(model, WindowScorer)
        times = None if self._times is None else self._times[rows, -width - 1 :]
        return model.states_at(self._history[rows, -width:], times)[is_target[:, -width:]]


def descend(job: TrainingJob, loss: Tensor) -> Tensor:
    """Take one step of the optimizer; return the loss before it."""
    if not loss.requires_grad:
        raise ModelError(
            "the loss does not depend on the model's parameters; compute it from the scores, with gradients"
        )
    job.optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    job.optimizer.step()
    return loss.detach()


def among_all_items(
    head: ItemHead, states: Tensor, positives: Tensor, weights: Tensor, shared: tuple[Tensor, Tensor] | None
) -> Ranked:
    """Score M places against all items, or against a `shared` sample of them: (items, log of their expected counts).

    In a sample, log(expected count) is subtracted from the score of each item, so that Σ e^s estimates the sum over
    all items.
    """
    factors = head.factors() if shared is None else None
    if factors is not None:
        return FactoredAmongAll(states, *factors, positives, weights)
    if shared is None:
        return AmongAll(head.score_states(states, None), positives, weights)
    items, log_expected = shared  # (S,)
    others = head.score_states(states, items) - log_expected
    others = others.masked_fill(items == positives[:, None], -torch.inf)
    scores = torch.cat([head.score_states(states, positives[:, None]), others], dim=1)
    return AmongAll(scores, torch.zeros_like(positives), weights)


def score_head(
    head: ItemHead,
    states: Tensor,
    objective: Objective,
    candidates: Tensor,
    weights: Tensor,
    shared: tuple[Tensor, Tensor] | None,
) -> HeadScores:
    """Score the candidates (M, 1 + n) for states (M, d), and all items if the objective needs them."""
    among_all = None
    if objective.needs_all_items:
        among_all = among_all_items(head, states, candidates[:, 0], weights, shared)
    scores = head.score_states(states, candidates)
    check_scores(scores, candidates)
    return HeadScores(objective, candidates, scores, among_all)


def check_scores(scores: Tensor, candidates: Tensor) -> None:
    """Raise a `ModelError` unless there is one score for each candidate."""
    if not isinstance(scores, Tensor) or scores.shape != candidates.shape:
        found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ModelError(
            f"a model must return one score for each candidate: expected the shape {tuple(candidates.shape)}, "
            f"got {found}"
        )
