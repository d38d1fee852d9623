"""The step of one worker: its users' part of a batch, and the loss and gradients of the whole batch with the others.

The scores of a batch are few beside its gradients: every worker gets those of all, in the order of the batch, and
computes the loss of the whole batch, so that a disparity is that of all its users whoever owns them. Backwards each
goes through its own rows alone. Gradients of what is replicated are summed over the workers in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from fairstream.data import Rows
from fairstream.errors import ModelError
from fairstream.models import Scorer
from fairstream.objectives import AmongAll
from fairstream.randomness import GOLDEN
from fairstream.sampling import uniform
from fairstream.training.distributed.exchange import Exchange
from fairstream.training.distributed.shards import BatchShard, WindowShard, user_parameters
from fairstream.training.engine import Engine, TrainingJob
from fairstream.training.reference import ReferenceEngine, WindowEngine

_NONE, _DENSE = -1, -2
_DRAWN_AT_ONCE = 1 << 17
"""Interactions."""
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
        """Join the other workers; what the objective has gathered since the training began is kept."""
        self.job = job
        self.exchange, self.n_steps, shard = exchange, n_steps, self.job.batches
        assert isinstance(shard, BatchShard | WindowShard)
        self.shard, self._dropout = shard, _Keys()
        _replace_dropout(self.job.model, self._dropout)
        of_users = {id(parameter) for parameter in user_parameters(self.job.model).values()}
        self._parameters = [(p, id(p) in of_users) for p in self.job.model.parameters() if p.requires_grad]

    def _together(self, b: int, scores: Tensor, groups: Tensor, among_all: AmongAll | None) -> Tensor:
        """The step on a batch of which this worker has scored its part; returns its part of the loss."""
        job, objective, n_of_each = self.job, self.job.objective, self.shard.counts[b].tolist()
        n, has_two_groups = n_of_each[self.exchange.rank], self._have_two_groups[b]
        is_fair = objective.is_fair_on(has_two_groups=has_two_groups)
        job.optimizer.zero_grad(set_to_none=True)
        own, shown = scores.new_zeros(()), None
        if not objective.is_weighted:
            shown = scores
        else:  # the softmax loss over all items: a mean over the interactions
            if n:
                assert among_all is not None
                own = objective.loss(*among_all) * (n / sum(n_of_each))
            if is_fair:
                shown = objective.fairness_scores(scores, among_all) if n else scores.new_zeros(0, self._fair_width)
        roots, grads = [own], [torch.ones_like(own)]
        loss = own.detach().clone()
        if shown is not None:
            everyone, groups_of_all = self._gathered(shown.detach(), groups, b)
            everyone.requires_grad_()
            if objective.is_weighted:
                common = objective.lambda_ * objective.fairness(everyone, groups_of_all, self._signs)
            else:
                common = objective(everyone, groups_of_all, self._signs, has_two_groups=has_two_groups)
            if common.requires_grad:
                (grad,) = torch.autograd.grad(common, everyone)
                roots.append(shown)
                grads.append(grad[torch.from_numpy(self.shard.places(b))])
            if self.exchange.rank == 0:
                loss += common.detach()
        if n:
            differentiable = [at for at, root in enumerate(roots) if root.requires_grad]
            torch.autograd.backward([roots[at] for at in differentiable], [grads[at] for at in differentiable])
        self._reduce()
        job.optimizer.step()
        self.n_steps += 1
        return loss

    def _no_scores(self) -> Tensor:
        """Those of a batch in which this worker has no part."""
        return self._parameters[0][0].detach().new_zeros(0, 1 + self.job.objective.n_drawn)

    @property
    def _fair_width(self) -> int:
        """Columns of the scores that the fairness loss is of, where the loss ranks all items."""
        objective = self.job.objective
        candidates = getattr(objective.fairness, "candidates", "sampled")
        return 1 + objective.mu if candidates == "sampled" else 2

    def _gathered(self, shown: Tensor, groups: Tensor, b: int) -> tuple[Tensor, Tensor]:
        """The scores and groups of a whole batch, in its order."""
        places, counts = torch.from_numpy(self.shard.places(b)), self.shard.counts[b].tolist()
        packed = torch.cat([shown.double(), groups[:, None].double(), places[:, None].double()], dim=1)
        everyone = self.exchange.concatenated(packed, counts)
        everyone = everyone[everyone[:, -1].argsort()]
        return everyone[:, :-2].to(shown.dtype), everyone[:, -2].long()

    def _reduce(self) -> None:
        """Sum the gradients of what is replicated; those of users' rows are the owner's."""
        kinds = self.exchange.numbers([_kind(parameter) for parameter, _ in self._parameters])  # (workers, parameters)
        dense = []
        for (parameter, is_users), kind in zip(self._parameters, kinds.T, strict=True):
            if (kind == _DENSE).any():
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
        """The gradient of a table's rows that any worker has touched; equal rows are added up by the optimizer."""
        grad = parameter.grad
        if grad is None:
            rows, values = torch.empty(0, dtype=torch.int64), parameter.detach().new_empty(0, *parameter.shape[1:])
        else:
            rows, values = grad.indices()[0], grad.values()
        rows, values = self.exchange.concatenated(rows, counts), self.exchange.concatenated(values, counts)
        return torch.sparse_coo_tensor(rows[None], values, parameter.shape, check_invariants=False)


class BatchShardEngine(ShardEngine, ReferenceEngine):
    """On interactions."""

    def __init__(self, job: TrainingJob, exchange: Exchange, n_steps: int = 0) -> None:
        ReferenceEngine.__init__(self, job)
        self.prepare(job, exchange, n_steps)
        assert isinstance(self.shard, BatchShard)
        if any(is_users for _, is_users in self._parameters):
            self._users = torch.from_numpy(self.shard.users // exchange.size)

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
            n_drawn, positions = self.job.objective.n_drawn, shard.positions_of_all[rows]
            negatives = self.job.sampler.draw(shard.users[rows], n_drawn, key, positions=positions)
            candidates = torch.cat([self._items[rows, None], negatives], dim=1)
            for b, part in zip(batches, torch.split(candidates, [at.stop - at.start for at in spans]), strict=True):
                yield self._step_together(b, part)

    def _step_together(self, b: int, candidates: Tensor) -> Tensor:
        at = self.shard.span(b)
        self._dropout.begin(self.n_steps, self.shard.places(b))
        scores, among_all = self._no_scores(), None
        if at.start < at.stop:
            scores, among_all = self._scores(self._users[at], candidates, self._context(at))
        return self._together(b, scores, self._groups[at], among_all)


class WindowShardEngine(ShardEngine, WindowEngine):
    """On windows."""

    def __init__(self, job: TrainingJob, exchange: Exchange, n_steps: int = 0) -> None:
        WindowEngine.__init__(self, job)
        self.prepare(job, exchange, n_steps)

    def epoch(self, order: Rows, key: int) -> float:
        self._dropout.key = key
        return super().epoch(order, key)

    def _draw_negatives(self, b: int, key: int) -> Tensor:
        assert isinstance(self.shard, WindowShard)
        begin, end = self._target_span(b)
        positions, n_drawn = self.shard.target_numbers[begin:end], self.job.objective.n_drawn
        return self.job.sampler.draw(self._target_users[begin:end], n_drawn, key, positions=positions)

    def _step(self, b: int, key: int) -> Tensor:
        begin, end = self._target_span(b)
        if begin < end:
            groups, _, scores, among_all = self._scores(b, key)
        else:
            groups, scores, among_all = self._groups[:0], self._no_scores(), None
        return self._together(b, scores, groups, among_all)

    def _read(self, b: int, history: Tensor, rows: Tensor | slice) -> Tensor:
        assert isinstance(self.shard, WindowShard)
        numbers = self.shard.numbers[self.shard.span(b)]
        self._dropout.begin(self.n_steps, numbers[rows if isinstance(rows, slice) else rows.numpy()])
        return super()._read(b, history, rows)


def shard_engine(job: TrainingJob, exchange: Exchange, n_steps: int = 0) -> BatchShardEngine | WindowShardEngine:
    """The engine of one worker."""
    kind = BatchShardEngine if isinstance(job.batches, BatchShard) else WindowShardEngine
    return kind(job, exchange, n_steps)


def _kind(parameter: Tensor) -> int:
    """What gradient a parameter has here: none, a dense one, or of so many rows."""
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


class _Keys:
    """Which random numbers dropout takes: those of a step, a layer and a row of the batch, whoever computes the row."""

    def __init__(self) -> None:
        self.key, self._step, self._n_calls = 0, 0, 0
        self._rows = torch.empty(0, dtype=torch.int64)

    def begin(self, step: int, rows: Rows) -> None:
        """A call of the model, on these rows."""
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
    """`nn.Dropout` whose draws do not depend on who computes which row."""

    def __init__(self, p: float, keys: _Keys) -> None:
        super().__init__()
        self.p, self._keys = p, keys

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0 or not len(x):
            return x
        return x * (self._keys.uniform(x.shape) >= self.p) / (1 - self.p)


def _replace_dropout(model: Scorer | nn.Module, keys: _Keys) -> None:
    for name, part in model.named_children():
        if type(part) is nn.Dropout:
            setattr(model, name, _KeyedDropout(part.p, keys).train(part.training))
        else:
            _replace_dropout(part, keys)
