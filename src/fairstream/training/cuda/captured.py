"""The reference's step for any model, recorded once as a CUDA graph and replayed.

Launched one by one, the hundred small kernels of a step keep the device waiting for the host. A graph
starts them all at once. What it records must have fixed shapes and must not ask the device for
anything. Whether the step of a model is like that shows when it is tried; where it is not, the
steps are launched one by one after all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fairstream.data import UNKNOWN, Rows
from fairstream.models import Context, WindowScorer
from fairstream.objectives import bpr_loss, sampled_softmax_loss, softmax_loss
from fairstream.training.batches import Batches, Windows
from fairstream.training.cuda.capture import CaptureError, aside, captured
from fairstream.training.engine import Engine, TrainingJob
from fairstream.training.reference import ReferenceEngine, WindowEngine, among_all_items, check_scores, descend
from fairstream.training.row_adam import RowAdam

_N_WARM_UPS: Final = 1
_MOST_ROWS: Final = 1 << 20
_MOST_HISTORY: Final = 1 << 28
_EVENTS_AT_ONCE: Final = 1 << 16
_MEANS: Final = (bpr_loss, sampled_softmax_loss, softmax_loss)
"""Losses that are means over interactions, which padding can be taken out of again."""
Kind = Hashable
"""Batches of one kind have the same shapes and are learned in the same way: one graph does for all of them."""


class Replayed(Engine):
    """An engine whose steps are recorded and replayed; which batch is next is read on the device.

    The first steps of each kind of batch are launched one by one, which sets up the libraries that
    they use; the next is recorded. The host waits once an epoch, for the loss.
    """

    name = "captured"

    def __init__(self, job: TrainingJob, **options: Any) -> None:
        super().__init__(job, **options)
        device, n = job.model.device, len(job.batches)
        self._order = torch.zeros(n, dtype=torch.int64, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        """How far in the order the epoch has come."""
        self._losses = torch.zeros(n, dtype=_dtype(job), device=device)
        self._kinds = [self._kind(b) for b in range(n)]
        self._graphs: dict[Kind, torch.cuda.CUDAGraph] = {}
        self._n_warm_ups: Counter[Kind] = Counter()
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._is_capturable = True

    @abstractmethod
    def _kind(self, b: int) -> Kind:
        """The kind of a batch."""

    @abstractmethod
    def _draw(self, key: int) -> None:
        """Put the negatives of `key` where the steps read them."""

    @abstractmethod
    def _step_on(self, b: Tensor, kind: Kind) -> Tensor:
        """The step on batch b (1,); returns its loss."""

    def epoch(self, order: Rows, key: int) -> float:
        self._draw(key)
        self._order[: len(order)].copy_(torch.from_numpy(order))
        self._at.zero_()
        for b in order.tolist():
            kind = self._kinds[b]
            if self._is_capturable and kind not in self._graphs and self._n_warm_ups[kind] == _N_WARM_UPS:
                self._capture(kind)
            if kind in self._graphs:
                self._graphs[kind].replay()
            elif self._is_capturable:
                self._n_warm_ups[kind] += self._pool is not None  # without a CUDA device nothing is ever recorded
                with aside(self.job.model.device), capturable(self.job.optimizer, is_recorded=False):
                    self._next_step(kind)
            else:
                self._next_step(kind)
            if self.job.schedule is not None:
                self.job.schedule.advance()
        return float(self._losses[: len(order)].mean())

    def _next_step(self, kind: Kind) -> None:
        b = self._order.index_select(0, self._at)  # (1,)
        loss = self._step_on(b, kind)
        self._losses.index_copy_(0, self._at, loss.view(1))
        self._at += 1

    def _capture(self, kind: Kind) -> None:
        model, optimizer = self.job.model, self.job.optimizer
        before, held = (
            _addresses(model),
            [(part, dict(part._parameters), dict(part._buffers)) for part in model.modules()],
        )
        optimizer.zero_grad(set_to_none=True)
        try:
            with capturable(optimizer, is_recorded=True), captured(model.device, self._pool) as graph:
                self._next_step(kind)
            moved = next((name for name, at in _addresses(model).items() if before.get(name) != at), None)
            if moved is None:
                self._graphs[kind] = graph
            else:
                self._give_up(f"{moved} is replaced at every step, not changed in place")
        except CaptureError as error:
            self._give_up(str(error))
        finally:
            optimizer.zero_grad(set_to_none=True)  # these gradients are the graph's own
            if not self._is_capturable:  # a tensor that the step has replaced holds what was recorded, not computed
                for part, parameters, buffers in held:
                    part._parameters.update(parameters)
                    part._buffers.update(buffers)

    def _give_up(self, reason: str) -> None:
        self._is_capturable = False
        self._graphs.clear()
        self.name = f"reference (not capturable: {reason})"


class CapturedEngine(Replayed, ReferenceEngine):
    """The reference's step on interactions with sampled negatives."""

    def __init__(self, job: TrainingJob, **options: Any) -> None:
        super().__init__(job, **options)
        batches = job.batches
        assert isinstance(batches, Batches)
        self._within = torch.arange(batches.size, device=self._device)
        shape = (len(batches.users), 1 + job.objective.n_drawn)
        self._drawn_here = torch.zeros(shape, dtype=torch.int64, device=self._device)
        """The candidates of the epoch, in a tensor that stays where it is."""
        self._contexts = self._all_contexts(batches)

    @staticmethod
    def unsupported(job: TrainingJob) -> str | None:
        if not isinstance(job.batches, Batches):
            return "the batches are windows"
        return not_capturable(job, n_places=len(job.batches.users))

    def _all_contexts(self, batches: Batches) -> Context:
        """The contexts of all interactions: row i is what was known before interaction i."""
        if not self.job.model.reads.history:
            return self._context(slice(0, 1))  # a graph is the same for all
        spans = range(0, len(batches.users), _EVENTS_AT_ONCE)
        parts = [self._context(slice(start, min(start + _EVENTS_AT_ONCE, len(batches.users)))) for start in spans]
        history, n_events = (
            torch.cat([part for part in column if part is not None])
            for column in ([p.history for p in parts], [p.n_events for p in parts])
        )
        return Context(history, n_events, parts[0].graph)

    def _kind(self, b: int) -> Kind:
        at, conditions = self.job.batches.span(b), self._conditions(b)
        if not self.job.objective.is_fair:
            conditions["has_two_groups"] = False
        return at.stop - at.start, tuple(conditions.items())

    def _draw(self, key: int) -> None:
        self._drawn_here.copy_(self._candidates(key))

    def _step_on(self, b: Tensor, kind: Any) -> Tensor:
        size, conditions = kind
        rows = b * self.job.batches.size + self._within[:size]  # (B,)
        users, candidates, groups = (
            column.index_select(0, rows) for column in (self._users, self._drawn_here, self._groups)
        )
        history, n_events = (
            None if column is None else column.index_select(0, rows)
            for column in (self._contexts.history, self._contexts.n_events)
        )
        context = Context(history, n_events, self._contexts.graph)
        return self._learn(users, candidates, groups, context, **dict(conditions))


class CapturedWindowEngine(Replayed, WindowEngine):
    """The reference's step on windows.

    Batches differ in their number of targets, so each is filled up to the largest. A filler has
    a positive far above its negatives, which adds 0 to the sum that the loss is the mean of, and
    no known group, so it has no part in the fairness loss either.
    """

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(job)
        windows, n_batches = self._windows, len(job.batches)
        counts = np.diff(windows.first_target)
        shape, length = (n_batches, int(counts.max())), windows.targets.shape[1]
        is_target = np.arange(shape[1]) < counts[:, None]  # (batches, M)
        window, place = np.nonzero(windows.targets >= 0)
        number = np.repeat(windows.first_target[:-1, None], shape[1], axis=1)  # a filler names items of its own batch
        number[is_target] = np.arange(counts.sum())
        places = np.full(shape, windows.size * length)  # behind the last place of a batch
        places[is_target] = window % windows.size * length + place
        groups = np.full(shape, UNKNOWN, dtype=np.int64)
        groups[is_target] = windows.codes[windows.users[window]]
        self._number, self._places, self._place_groups, self._counts = (
            torch.from_numpy(part).to(self._device) for part in (number, places, groups, counts)
        )
        self._within = torch.arange(windows.size, device=self._device)
        weights = np.zeros(shape, dtype=np.float32)  # a filler's is 0
        weights[is_target] = windows.weights[window]
        self._place_weights = torch.from_numpy(weights).to(self._device)
        self._shared = self._draw_shared(0)
        n_targets = len(self._target_items)
        self._negatives = torch.zeros(n_targets, 1 + job.objective.n_drawn, dtype=torch.int64, device=self._device)

    @staticmethod
    def unsupported(job: TrainingJob) -> str | None:
        if not isinstance(job.batches, Windows):
            return "the batches are single interactions"
        if job.objective.loss not in _MEANS or job.extra_loss is not None:
            return "a loss of your own on windows has a shape of its own in every batch"
        if job.objective.is_fair and not getattr(job.objective.fairness, "needs_groups", True):
            return "the fairness loss counts every interaction, and on windows the fillers of a batch would be counted"
        return not_capturable(job)

    def _kind(self, b: int) -> Kind:
        at = self._windows.span(b)
        return at.stop - at.start, self.job.objective.is_fair_on(has_two_groups=self._have_two_groups[b])

    def _draw(self, key: int) -> None:
        drawn = self.job.sampler.draw(self._target_users, self.job.objective.n_drawn, key)
        self._negatives.copy_(torch.cat([self._target_items[:, None], drawn], dim=1))
        for held, fresh in zip(self._shared, self._draw_shared(key), strict=True):
            held.copy_(fresh)

    def _draw_shared(self, key: int) -> tuple[Tensor, ...]:
        """(batches, S) the shared negatives of all batches and the log of their expected numbers, if there are any."""
        shared = self.job.shared_negatives
        if shared is None:
            return ()
        drawn = [shared.draw(key, b) for b in range(len(self.job.batches))]
        return tuple(torch.stack(column) for column in zip(*drawn, strict=True))

    def _step_on(self, b: Tensor, kind: Any) -> Tensor:
        size, is_fair = kind
        job, model, objective = self.job, self.job.model, self.job.objective
        assert isinstance(model, WindowScorer)
        rows = b * self._windows.size + self._within[:size]  # (W,)
        history = self._history.index_select(0, rows)  # (W, L)
        number, places, groups, weights, count = (
            column.index_select(0, b)[0]
            for column in (self._number, self._places, self._place_groups, self._place_weights, self._counts)
        )
        candidates = self._negatives.index_select(0, number)  # (M, 1 + n)
        is_filler = (places == self._windows.size * history.shape[1])[:, None]
        # In a short batch the fillers lie behind its last place as well; they all get the state of some place.
        states = model.states(history).flatten(0, 1).index_select(0, places.clamp(max=history.numel() - 1))
        among_all = None
        if objective.needs_all_items:
            shared = tuple(column.index_select(0, b)[0] for column in self._shared)
            among_all = among_all_items(
                model, states, candidates[:, 0], weights, (shared[0], shared[1]) if shared else None
            )
        scores = model.score_states(states, candidates)
        check_scores(scores, candidates)
        scores = _filled(scores, is_filler)
        if objective.loss is softmax_loss:
            assert among_all is not None
            l_rec = objective.loss(*among_all)
        else:
            l_rec = objective.loss(scores[:, : 1 + objective.n])
        loss = l_rec * (len(candidates) / count.to(l_rec.dtype))
        if is_fair:
            loss = loss + objective.lambda_ * objective.fairness_of(scores, groups, self._signs, among_all)
        return descend(job, loss)


def not_capturable(job: TrainingJob, n_places: int = 0) -> str | None:
    """Why the steps of a job cannot or should not be recorded, as far as it can be said beforehand."""
    n_rows = sum(table.num_embeddings for table in job.model.tables())
    reasons = {
        "the model is not on a CUDA device": job.model.device.type != "cuda",
        "its fairness weight is computed anew at every step": job.objective.is_auto,
        "the model says `capturable = False`": not getattr(job.model, "capturable", True),
        "row Adam in a graph visits every row, and the tables have more than a million": isinstance(
            job.optimizer, RowAdam
        )
        and n_rows > _MOST_ROWS,
        "the histories of all interactions do not fit": n_places * job.model.reads.history > _MOST_HISTORY,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


@contextmanager
def capturable(optimizer: torch.optim.Optimizer, *, is_recorded: bool) -> Iterator[None]:
    """Let an optimizer take steps that a graph can record.

    Row Adam has a form of its own for that, which the steps before have to use too. PyTorch's
    optimizers warn of the setting where nothing is recorded.
    """
    groups = [group for group in optimizer.param_groups if "capturable" in group]
    groups = groups if is_recorded or isinstance(optimizer, RowAdam) else []
    before = [group["capturable"] for group in groups]
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group, value in zip(groups, before, strict=True):
            group["capturable"] = value


def _filled(scores: Tensor, is_filler: Tensor) -> Tensor:
    """Scores (M, C) in which a filler's positive, column 0, is far above its negatives."""
    filler = torch.zeros_like(scores[:1])
    filler[:, 0] = 1e4
    return torch.where(is_filler, filler, scores)


def _addresses(model: torch.nn.Module) -> dict[str, int]:
    """Where the parameters and buffers of a model lie."""
    return {name: value.data_ptr() for name, value in (*model.named_parameters(), *model.named_buffers())}


def _dtype(job: TrainingJob) -> torch.dtype:
    return next(job.model.parameters()).dtype
