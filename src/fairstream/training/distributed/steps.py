"""One worker's part of a data-parallel step.

The scores of a batch are much smaller than its gradients: an all-gather gives them to every worker, in the order of
the batch, and each computes the loss of the whole batch, so that a disparity is that of all its users whoever owns
them. The backward pass of a worker goes through its own rows alone. Gradients of replicated parameters are summed over
the workers in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from fairstream.data import Rows
from fairstream.errors import ConfigurationError, ModelError
from fairstream.models import Scorer
from fairstream.objectives import AmongAll
from fairstream.randomness import GOLDEN
from fairstream.sampling import uniform
from fairstream.training.distributed.exchange import Exchange
from fairstream.training.distributed.shards import (
    BatchShard,
    WindowShard,
    has_sparse_users,
    own_rows,
    user_parameters,
)
from fairstream.training.engine import Engine, TrainingJob
from fairstream.training.reference import ReferenceEngine, WindowEngine

_NONE, _DENSE = -1, -2
"""Kinds of gradients, beside the number of rows of a sparse one."""
_DRAWN_AT_ONCE = 1 << 17
"""Interactions whose negatives are in memory at a time."""
_MASK = (1 << 63) - 1


class ShardEngine(Engine):
    """Takes one worker's part in the steps of a job that `cut_job` has cut."""

    name = "distributed"
    exchange: Exchange
    shard: BatchShard | WindowShard
    n_steps: int
    """Steps taken since the training began, by whatever number of workers."""
    _signs: Tensor
    _have_two_groups: list[bool]

    def prepare(self, job: TrainingJob, exchange: Exchange, n_steps: int) -> None:
        """Join the other workers; the objective keeps the statistics that it has accumulated so far."""
        self.job = job  # as it is: `Engine` begins with new statistics
        self.exchange, self.n_steps, shard = exchange, n_steps, self.job.batches
        assert isinstance(shard, BatchShard | WindowShard)
        self.shard, self._dropout = shard, _DropoutKeys()
        _replace_dropout(self.job.model, self._dropout)
        of_users = {id(parameter) for parameter in user_parameters(self.job.model).values()}
        self._has_sparse_users = has_sparse_users(self.job.model)
        self._parameters = [(p, id(p) in of_users) for p in self.job.model.parameters() if p.requires_grad]

    def _global_step(self, b: int, scores: Tensor, groups: Tensor, among_all: AmongAll | None) -> Tensor:
        """A step on global batch b, of which this worker has scored its rows; returns this worker's part of the loss.

        The global loss is computed by all workers alike, and is part of the first one's.
        """
        job, objective, counts = self.job, self.job.objective, self.shard.counts[b].tolist()
        n, has_two_groups = counts[self.exchange.rank], self._have_two_groups[b]
        is_fair = objective.is_fair_on(has_two_groups=has_two_groups)
        job.optimizer.zero_grad(set_to_none=True)
        local_loss, local_scores = scores.new_zeros(()), None
        if not objective.is_weighted:
            local_scores = scores
        else:  # the softmax loss over all items: a mean over the interactions
            if n:
                assert among_all is not None
                local_loss = objective.loss(*among_all) * (n / sum(counts))
            if is_fair:
                empty = scores.new_zeros(0, self._fair_width)
                local_scores = objective.fairness_scores(scores, among_all) if n else empty
        roots, grads = [local_loss], [torch.ones_like(local_loss)]
        loss = local_loss.detach().clone()
        if local_scores is not None:
            offsets = torch.from_numpy(self.shard.offsets(b))
            global_scores, global_groups = self._all_gather(local_scores.detach(), groups, offsets, counts)
            global_scores.requires_grad_()
            if objective.is_weighted:
                global_loss = objective.lambda_ * objective.fairness(global_scores, global_groups, self._signs)
            else:
                global_loss = objective(global_scores, global_groups, self._signs, has_two_groups=has_two_groups)
            if global_loss.requires_grad:
                (grad,) = torch.autograd.grad(global_loss, global_scores)
                roots.append(local_scores)
                grads.append(grad[offsets])
            if self.exchange.rank == 0:
                loss += global_loss.detach()
        if n:
            differentiable = [at for at, root in enumerate(roots) if root.requires_grad]
            torch.autograd.backward([roots[at] for at in differentiable], [grads[at] for at in differentiable])
        self._reduce()
        job.optimizer.step()
        self.n_steps += 1
        return loss

    def _no_scores(self) -> Tensor:
        """The scores of a batch without rows of this worker."""
        return self._parameters[0][0].detach().new_zeros(0, 1 + self.job.objective.n_drawn)

    @property
    def _fair_width(self) -> int:
        """Columns of the scores that the fairness loss reads, where the loss ranks all items."""
        objective = self.job.objective
        candidates = getattr(objective.fairness, "candidates", "sampled")
        return 1 + objective.mu if candidates == "sampled" else 2

    def _all_gather(self, scores: Tensor, groups: Tensor, offsets: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        """The scores and groups of a whole batch, in its order."""
        packed = torch.cat([scores.double(), groups[:, None].double(), offsets[:, None].double()], dim=1)
        gathered = self.exchange.concatenated(packed, counts)
        gathered = gathered[gathered[:, -1].argsort()]
        return gathered[:, :-2].to(scores.dtype), gathered[:, -2].long()

    def _reduce(self) -> None:
        """Sum the gradients of replicated parameters over the workers; each user's rows are on one worker alone."""
        kinds = self.exchange.numbers([_kind(parameter) for parameter, _ in self._parameters])  # (workers, parameters)
        dense = []
        for (parameter, is_users), kind in zip(self._parameters, kinds.T, strict=True):
            if (kind == _DENSE).any():
                if is_users and self._has_sparse_users:
                    raise ConfigurationError(
                        "the model reads the whole table of users, which workers do not have; look up rows by calling "
                        "the table, or train with optimizer='dense'"
                    )
                parameter.grad = _as_dense(parameter)
                if not is_users:
                    dense.append(parameter.grad)
            elif not is_users and (kind >= 0).any():
                parameter.grad = self._summed_rows(parameter, [max(0, n) for n in kind.tolist()])
        if dense:
            flat = torch.cat([grad.reshape(-1) for grad in dense])
            self.exchange.add_up(flat)
            for grad, part in zip(dense, torch.split(flat, [grad.numel() for grad in dense]), strict=True):
                grad.copy_(part.view_as(grad))

    def _summed_rows(self, parameter: Tensor, counts: list[int]) -> Tensor:
        """The sparse gradient of a table, of all workers' rows; the optimizer adds up those of the same row."""
        grad = parameter.grad
        if grad is None:
            rows, values = torch.empty(0, dtype=torch.int64), parameter.detach().new_empty(0, *parameter.shape[1:])
        else:
            rows, values = grad.indices()[0], grad.values()
        rows, values = self.exchange.concatenated(rows, counts), self.exchange.concatenated(values, counts)
        return torch.sparse_coo_tensor(rows[None], values, parameter.shape, check_invariants=False)


class BatchShardEngine(ShardEngine, ReferenceEngine):
    """Steps on interactions."""

    def __init__(self, job: TrainingJob, exchange: Exchange, n_steps: int = 0) -> None:
        ReferenceEngine.__init__(self, job)
        self.prepare(job, exchange, n_steps)
        assert isinstance(self.shard, BatchShard)
        if any(is_users for _, is_users in self._parameters):
            self._users = torch.from_numpy(own_rows(job, exchange.size))

    def epoch(self, order: Rows, key: int) -> float:
        self._dropout.key = key
        return self._mean_loss(self._steps(order, key))

    def _steps(self, order: Rows, key: int) -> Iterator[Tensor]:
        """The steps on these batches, with the negatives of a few batches in memory at a time."""
        shard = self.shard
        assert isinstance(shard, BatchShard)
        at_once = max(1, _DRAWN_AT_ONCE // shard.size)
        for first in range(0, len(order), at_once):
            batches = order[first : first + at_once].tolist()
            spans = [shard.span(b) for b in batches]
            rows = np.concatenate([np.arange(at.start, at.stop) for at in spans])
            n_drawn, positions = self.job.objective.n_drawn, shard.rows[rows]
            negatives = self.job.sampler.draw(shard.users[rows], n_drawn, key, positions=positions)
            candidates = torch.cat([self._items[rows, None], negatives], dim=1)
            for b, part in zip(batches, torch.split(candidates, [at.stop - at.start for at in spans]), strict=True):
                yield self._step_on(b, part)

    def _step_on(self, b: int, candidates: Tensor) -> Tensor:
        at = self.shard.span(b)
        self._dropout.begin(self.n_steps, self.shard.offsets(b))
        scores, among_all = self._no_scores(), None
        if at.start < at.stop:
            scores, among_all = self._scores(self._users[at], candidates, self._context(at))
        return self._global_step(b, scores, self._groups[at], among_all)


class WindowShardEngine(ShardEngine, WindowEngine):
    """Steps on windows of users' sequences."""

    def __init__(self, job: TrainingJob, exchange: Exchange, n_steps: int = 0) -> None:
        WindowEngine.__init__(self, job)
        self.prepare(job, exchange, n_steps)

    def epoch(self, order: Rows, key: int) -> float:
        self._dropout.key = key
        return super().epoch(order, key)

    def _draw_negatives(self, b: int, key: int) -> Tensor:
        assert isinstance(self.shard, WindowShard)
        begin, end = self._target_span(b)
        positions, n_drawn = self.shard.target_positions[begin:end], self.job.objective.n_drawn
        return self.job.sampler.draw(self._target_users[begin:end], n_drawn, key, positions=positions)

    def _step(self, b: int, key: int) -> Tensor:
        begin, end = self._target_span(b)
        if begin < end:
            groups, _, scores, among_all = self._scores(b, key)
        else:
            groups, scores, among_all = self._groups[:0], self._no_scores(), None
        return self._global_step(b, scores, groups, among_all)

    def _read(self, b: int, history: Tensor, rows: Tensor | slice) -> Tensor:
        assert isinstance(self.shard, WindowShard)
        positions = self.shard.rows[self.shard.span(b)]
        self._dropout.begin(self.n_steps, positions[rows if isinstance(rows, slice) else rows.numpy()])
        return super()._read(b, history, rows)


def shard_engine(job: TrainingJob, exchange: Exchange, n_steps: int = 0) -> BatchShardEngine | WindowShardEngine:
    """The engine of one worker."""
    kind = BatchShardEngine if isinstance(job.batches, BatchShard) else WindowShardEngine
    return kind(job, exchange, n_steps)


def _kind(parameter: Tensor) -> int:
    """The kind of a parameter's gradient on this worker: none, dense, or the number of rows of a sparse one."""
    if parameter.grad is None:
        return _NONE
    if not parameter.grad.is_sparse:
        return _DENSE
    parameter.grad = parameter.grad.coalesce()
    return len(parameter.grad.indices()[0])


def _as_dense(parameter: Tensor) -> Tensor:
    grad = parameter.grad
    if grad is None:
        return torch.zeros_like(parameter)
    if not grad.is_sparse:
        return grad
    rows, values = grad.indices()[0], grad.values()
    is_row = rows >= 0
    return torch.zeros_like(parameter).index_add_(0, rows[is_row], values[is_row])


class _DropoutKeys:
    """Seeds dropout by step, layer and row of the global batch, so that it does not matter which worker has the row."""

    def __init__(self) -> None:
        self.key, self._step, self._n_calls = 0, 0, 0
        self._rows = torch.empty(0, dtype=torch.int64)

    def begin(self, step: int, rows: Rows) -> None:
        """Seed the next call of the model, on these rows of the global batch."""
        self._step, self._n_calls, self._rows = step, 0, torch.from_numpy(rows)

    def uniform(self, shape: torch.Size) -> Tensor:
        """Numbers in [0, 1) for the next layer of the call."""
        if shape[0] != len(self._rows):
            raise ModelError(
                f"on a cluster dropout must be of tensors with a row for each of the {len(self._rows)} requests of a "
                f"batch, got the shape {tuple(shape)}; train this model on one machine"
            )
        self._n_calls += 1
        key = (self.key ^ (GOLDEN * (self._step * 256 + self._n_calls))) & _MASK
        per_row = shape[1:].numel()
        return uniform(key, self._rows[:, None] * per_row + torch.arange(per_row)).view(shape)


class _KeyedDropout(nn.Module):
    """`nn.Dropout` whose draws do not depend on which worker has which row."""

    def __init__(self, p: float, keys: _DropoutKeys) -> None:
        super().__init__()
        self.p, self._keys = p, keys

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0 or not len(x):
            return x
        return x * (self._keys.uniform(x.shape) >= self.p) / (1 - self.p)


def _replace_dropout(model: Scorer | nn.Module, keys: _DropoutKeys) -> None:
    for name, part in model.named_children():
        if type(part) is nn.Dropout:
            setattr(model, name, _KeyedDropout(part.p, keys).train(part.training))
        else:
            _replace_dropout(part, keys)
