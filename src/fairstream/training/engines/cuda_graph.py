"""The reference's step of any model, recorded once as a CUDA graph and replayed.

A step launches a hundred small kernels, and the device waits for the host between them; a graph starts all at once. A
recorded step must have fixed shapes and must not read anything back from the device. Only a trial shows whether the
step of a model meets this; if it does not, the engine launches its kernels one by one.
"""

from __future__ import annotations

import gc
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fairstream.data import UNKNOWN, Rows
from fairstream.models import NO_CONTEXT, Context, WindowScorer
from fairstream.objectives import MEAN_LOSSES
from fairstream.training.batches import Batches, Windows
from fairstream.training.engine import Engine, TrainingJob
from fairstream.training.reference import ReferenceEngine, WindowEngine, descend, score_head
from fairstream.training.row_adam import RowAdam

_N_WARM_UPS: Final = 1
_MAX_ROWS: Final = 1 << 20
_MAX_HISTORY: Final = 1 << 28
_EVENTS_AT_ONCE: Final = 1 << 16
Kind = Hashable  # batches of one kind have the same shapes and are learned in the same way: they share a graph


class Replayed(Engine):
    """An engine that records its steps and replays them; the device reads which batch is next.

    The first step of each kind of batch sets up the libraries that it uses; the next is recorded.
    """

    name = "captured"

    def __init__(self, job: TrainingJob, **options: Any) -> None:
        super().__init__(job, **options)
        device, n = job.model.device, len(job.batches)
        self._forget_graphs()
        self._order = torch.zeros(n, dtype=torch.int64, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)  # the place in the order
        self._losses = torch.zeros(n, dtype=next(job.model.parameters()).dtype, device=device)
        self._kinds = [self._kind(b) for b in range(n)]
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._is_capturable = True

    def _forget_graphs(self) -> None:
        """Record all steps again: the tensors that they read have moved."""
        self._graphs: dict[Kind, torch.cuda.CUDAGraph] = {}
        self._n_warm_ups: Counter[Kind] = Counter()

    @abstractmethod
    def _kind(self, b: int) -> Kind:
        """The kind of a batch."""

    @abstractmethod
    def _draw(self, key: int) -> None:
        """Copy the negatives of `key` to where the steps read them."""

    @abstractmethod
    def _step_on(self, b: Tensor, kind: Kind) -> Tensor:
        """Take the step on batch b (1,); return its loss."""

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
                self._n_warm_ups[kind] += self._pool is not None  # nothing is recorded without a CUDA device
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
        addresses = _addresses(model)
        tensors = [(part, dict(part._parameters), dict(part._buffers)) for part in model.modules()]
        optimizer.zero_grad(set_to_none=True)
        try:
            with capturable(optimizer, is_recorded=True), captured(model.device, self._pool) as graph:
                self._next_step(kind)
            moved = next((name for name, at in _addresses(model).items() if addresses.get(name) != at), None)
            if moved is None:
                self._graphs[kind] = graph
            else:
                self._give_up(f"{moved} is replaced at every step, not changed in place")
        except CaptureError as error:
            self._give_up(str(error))
        finally:
            optimizer.zero_grad(set_to_none=True)  # these gradients belong to the graph
            if not self._is_capturable:  # a tensor that the step replaced was recorded, not computed
                for part, parameters, buffers in tensors:
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
        self._held_candidates = torch.zeros(shape, dtype=torch.int64, device=self._device)  # it does not move
        self._contexts = self._all_contexts(batches)

    @staticmethod
    def unsupported(job: TrainingJob) -> str | None:
        if not isinstance(job.batches, Batches):
            return "the batches are windows"
        return not_capturable(job, n_places=len(job.batches.users))

    def _all_contexts(self, batches: Batches) -> Context:
        """Return the contexts of all interactions: row i is the context of interaction i."""
        if not self.job.model.history_length:
            return NO_CONTEXT
        spans = range(0, len(batches.users), _EVENTS_AT_ONCE)
        parts = [self._context(slice(start, min(start + _EVENTS_AT_ONCE, len(batches.users)))) for start in spans]
        columns = ([p.history for p in parts], [p.n_events for p in parts], [p.times for p in parts])
        whole = ([part for part in column if part is not None] for column in columns)
        history, n_events, times = (torch.cat(column) if column else None for column in whole)
        return Context(history, n_events, times)

    def _kind(self, b: int) -> Kind:
        at, conditions = self.job.batches.span(b), self._conditions(b)
        if not self.job.objective.is_fair:
            conditions["has_two_groups"] = False
        return at.stop - at.start, tuple(conditions.items())

    def _draw(self, key: int) -> None:
        self._held_candidates.copy_(self._candidates(key))

    def _step_on(self, b: Tensor, kind: Any) -> Tensor:
        size, conditions = kind
        assert isinstance(self.job.batches, Batches)
        rows = b * self.job.batches.size + self._within[:size]  # (B,)
        users, candidates, groups = (
            column.index_select(0, rows) for column in (self._users, self._held_candidates, self._groups)
        )
        history, n_events, times = (
            None if column is None else column.index_select(0, rows)
            for column in (self._contexts.history, self._contexts.n_events, self._contexts.times)
        )
        context = Context(history, n_events, times)
        return self._learn(users, candidates, groups, context, **dict(conditions))


class CapturedWindowEngine(Replayed, WindowEngine):
    """The reference's step on windows, each batch padded to the largest number of targets.

    The positive of a filler is far above its negatives, which adds 0 to the loss, and its group is unknown.
    """

    _capacity = 0  # targets that a batch has room for

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(job)
        self._within = torch.arange(int(np.diff(self._windows.bounds).max()), device=self._device)
        self._shared = self._draw_shared(0)
        n_targets = len(self._target_items)
        # (heads, N, 1 + n) the candidates of each head
        n_heads = 1 if getattr(job.model, "period_head", None) is None else 2
        shape = (n_heads, n_targets, 1 + job.objective.n_drawn)
        self._candidates = torch.zeros(shape, dtype=torch.int64, device=self._device)

    def _load(self, windows: Windows) -> None:
        self._windows = windows
        counts = np.diff(windows.first_target)
        if counts.max() > self._capacity:  # graphs read the tensors of the first load, unless these become too small
            self._capacity = math.ceil(1.1 * counts.max())
            self._columns: tuple[Tensor, ...] = ()
            self._forget_graphs()
        shape = len(windows), self._capacity
        is_target = np.arange(shape[1]) < counts[:, None]  # (batches, M)
        window, place = np.nonzero(windows.targets >= 0)
        number = np.repeat(windows.first_target[:-1, None], shape[1], axis=1)  # fillers repeat the first target
        number[is_target] = np.arange(counts.sum())
        batch = np.repeat(np.arange(len(windows)), counts)
        width, skipped = windows.widths[batch], windows.targets.shape[1] - windows.widths[batch]
        places = np.full(shape, -1)  # among those of the batch
        places[is_target] = (window - windows.bounds[batch]) * width + place - skipped
        groups = np.full(shape, UNKNOWN, dtype=np.int64)
        groups[is_target] = windows.codes[windows.users[window]]
        weights = np.zeros(shape, dtype=np.float32)  # a filler's is 0
        weights[is_target] = windows.target_weights
        self._target_users = windows.users[window]
        n_of_window = np.bincount(window, minlength=len(windows.users))
        self._last_targets = np.repeat(np.cumsum(n_of_window) - 1, n_of_window)
        items = windows.targets[window, place]
        parts = [windows.history, items, number, places, groups, weights, counts, windows.bounds[:-1]]
        columns = [torch.from_numpy(part) for part in (*parts, windows.times) if part is not None]
        if self._columns:
            for column, fresh in zip(self._columns, columns, strict=True):
                column.copy_(fresh)
        else:
            self._columns = tuple(column.to(self._device) for column in columns)
        self._history, self._target_items, *self._by_batch = self._columns[: len(parts)]
        self._times = self._columns[-1] if windows.times is not None else None

    @staticmethod
    def unsupported(job: TrainingJob) -> str | None:
        if not isinstance(job.batches, Windows):
            return "the batches are single interactions"
        if job.objective.loss not in MEAN_LOSSES or job.extra_loss is not None:
            return "a custom loss on windows has another shape in every batch"
        return not_capturable(job)

    def _kind(self, b: int) -> Kind:
        at = self._windows.span(b)
        is_fair = self.job.objective.is_fair_on(has_two_groups=self._have_two_groups[b])
        return at.stop - at.start, int(self._windows.widths[b]), is_fair

    def _draw(self, key: int) -> None:
        self._cut_again(key)
        drawn = self.job.sampler.draw(self._target_users, self.job.objective.n_drawn, key)
        self._candidates[:, :, 1:] = drawn
        self._candidates[0, :, 0] = self._target_items
        if len(self._candidates) > 1:
            self._candidates[1, :, 0] = self._target_items[self._later_targets(key, 0, len(self._target_users))]
        for column, fresh in zip(self._shared, self._draw_shared(key), strict=True):
            column.copy_(fresh)

    def _draw_shared(self, key: int) -> tuple[Tensor, ...]:
        """(batches, S) the shared negatives of all batches and the log of their expected counts, if any."""
        shared = self.job.shared_negatives
        if shared is None:
            return ()
        drawn = [shared.draw(key, b) for b in range(len(self.job.batches))]
        return tuple(torch.stack(column) for column in zip(*drawn, strict=True))

    def _step_on(self, b: Tensor, kind: Any) -> Tensor:
        size, width, is_fair = kind
        job, model = self.job, self.job.model
        assert isinstance(model, WindowScorer)
        number, places, groups, weights, count, start = (column.index_select(0, b)[0] for column in self._by_batch)
        rows = start + self._within[:size]  # (W,)
        history = self._history.index_select(0, rows)[:, -width:]  # (W, width)
        candidates = self._candidates.index_select(1, number)  # (heads, M, 1 + n)
        is_filler = (places < 0)[:, None]
        times = None if self._times is None else self._times.index_select(0, rows)[:, -width - 1 :]
        # The clamp gives fillers some state, and the loss ignores it.
        states = model.states_at(history, times).flatten(0, 1).index_select(0, places.clamp(min=0))
        shared: Any = tuple(column.index_select(0, b)[0] for column in self._shared) or None
        losses = []
        for head, objective, of_head in zip(model.heads(states), self._objectives, candidates, strict=False):
            _, _, scores, among_all = score_head(*head, objective, of_head, weights, shared)
            filler = torch.zeros_like(scores[:1])
            filler[:, 0] = 1e4
            scores = torch.where(is_filler, filler, scores)
            l_rec = objective.recommendation(scores, among_all)
            losses.append(l_rec * (len(scores) / count.to(l_rec.dtype)))
            if is_fair:
                fairness = objective.fairness_of(scores, groups, self._signs, among_all)
                losses.append(objective.lambda_ * fairness)
        return descend(job, sum(losses[1:], losses[0]))


def not_capturable(job: TrainingJob, n_places: int = 0) -> str | None:
    """Return why the steps of a job cannot or should not be recorded, as far as that is known before a trial."""
    n_rows = sum(table.num_embeddings for table in job.model.tables())
    reasons = {
        "the model is not on a CUDA device": job.model.device.type != "cuda",
        "the model says `capturable = False`": not getattr(job.model, "capturable", True),
        "row Adam in a graph visits every row, and the tables have more than a million": isinstance(
            job.optimizer, RowAdam
        )
        and n_rows > _MAX_ROWS,
        "the histories of all interactions do not fit": n_places * job.model.history_length > _MAX_HISTORY,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


@contextmanager
def capturable(optimizer: torch.optim.Optimizer, *, is_recorded: bool) -> Iterator[None]:
    """Let an optimizer take steps that a graph can record.

    Row Adam has another form for that, which the warm-up needs too. PyTorch's optimizers warn if nothing is recorded.
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


def _addresses(model: torch.nn.Module) -> dict[str, int]:
    return {name: value.data_ptr() for name, value in (*model.named_parameters(), *model.named_buffers())}


class CaptureError(Exception):
    """The step cannot be recorded; nothing of it was executed."""


@contextmanager
def captured(device: torch.device, pool: Any = None) -> Iterator[torch.cuda.CUDAGraph]:
    """Record the launches of the block in a graph; they are executed only when the graph is replayed.

    Graphs with the same `pool` share memory; they must not run at the same time.
    """
    graph = torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    random = generator.clone_state()
    with aside(device), _no_collection():
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            yield graph
            graph.capture_end()
        except BaseException as error:
            _abandon(graph, index, pool)
            generator.graphsafe_set_state(random)  # the old state waits for the end of the capture
            if isinstance(error, Exception):
                first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise CaptureError(first_line.removeprefix("CUDA error: ")) from error
            raise


def _abandon(graph: torch.cuda.CUDAGraph, device: int, pool: Any) -> None:
    """End a failed capture, and let PyTorch allocate memory as usual again."""
    try:
        graph.capture_end()
    except RuntimeError:  # PyTorch stops at the error
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            with suppress(AttributeError, RuntimeError):
                getattr(torch._C, name)(device, pool)


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Launch on another stream, after all earlier launches and before all later ones."""
    if device.type != "cuda":
        yield
        return
    current = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause garbage collection: it could free an older graph, which breaks a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
