"""A training job cut into one for each worker: users with their rows and events; all the rest is replicated."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor, nn

from fairstream.data import History, Rows
from fairstream.models import ContextBuilder, Scorer, UserTable
from fairstream.objectives import softmax_loss
from fairstream.training.batches import Batches, Windows
from fairstream.training.engine import TrainingJob
from fairstream.training.train import draws_itself

Flags = np.ndarray[Any, np.dtype[np.bool_]]


def unsupported(job: TrainingJob) -> str | None:
    """Why a job cannot be divided among workers, or None where it can."""
    model, objective = job.model, job.objective
    draws_otherwise = any(draws_itself(part) and type(part) is not nn.Dropout for part in model.modules())
    reasons = {
        "a GPU computes": model.device.type != "cpu",
        "there is an extra loss": job.extra_loss is not None,
        "its fairness weight is computed anew at every step": objective.is_auto,
        "its model reads the graph of all users": model.reads.graph,
        "its loss ranks all items and is not softmax": objective.is_weighted and objective.loss is not softmax_loss,
        "its model draws random numbers by other means than nn.Dropout": draws_otherwise,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Shard:
    """What one worker has of the batches, which are those of all workers together."""

    bounds: Rows
    """(batches + 1,) where each batch begins among what this worker has."""
    counts: Rows
    """(batches, workers) interactions of each worker in each batch."""
    two_groups: Flags
    """Whether each batch, of all workers, has users of two groups."""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def span(self, b: int) -> slice:
        return slice(int(self.bounds[b]), int(self.bounds[b + 1]))

    @property
    def have_two_groups(self) -> Flags:
        return self.two_groups


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchShard(_Shard, Batches):
    """The interactions of one worker's users."""

    positions_of_all: Rows
    """(N,) the number of each interaction among those of all workers."""

    def places(self, b: int) -> Rows:
        """Where each interaction stands in its batch."""
        return self.positions_of_all[self.span(b)] - b * self.size


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowShard(_Shard, Windows):
    """The windows of one worker's users."""

    numbers: Rows
    """(W,) the number of each window among those of all workers."""
    target_numbers: Rows
    """(M,) the number of each target among those of all workers."""
    first_of_all: Rows
    """(batches + 1,) how many targets of all workers there are before each batch."""

    @cached_property
    def first_target(self) -> Rows:
        """(batches + 1,) how many targets of this worker there are before each batch."""
        counts = (self.targets >= 0).sum(axis=1)
        return np.append(0, np.cumsum(counts))[self.bounds]

    def places(self, b: int) -> Rows:
        """Where each target stands in its batch."""
        begin, end = self.first_target[b : b + 2]
        return self.target_numbers[begin:end] - self.first_of_all[b]


def cut_job(job: TrainingJob, rank: int, size: int) -> TrainingJob:
    """What one of `size` workers does: user row u belongs to worker u mod `size`, where it is row u // `size`.

    Everything is copied; the job itself stays as it is.
    """
    own: dict[int, Any] = {}  # what stands in the copy for a tensor with all users: copying that first costs W tables
    for parameter in user_parameters(job.model).values():
        own[id(parameter)] = nn.Parameter(parameter.detach()[rank::size].clone(), parameter.requires_grad)
        for value in job.optimizer.state.get(parameter, {}).values():
            own[id(value)] = value[rank::size].clone() if value.dim() else value.clone()
    whole = job.model, job.optimizer, job.schedule, job.objective
    model, optimizer, schedule, objective = copy.deepcopy(whole, own)
    for table in model.tables():
        table.num_embeddings = len(table.weight)
    batches: BatchShard | WindowShard
    if isinstance(job.batches, Batches):
        batches = _cut_batches(job.batches, rank, size)
    else:
        batches = _cut_windows(job.batches, rank, size)
    contexts = job.contexts
    if not (job.model.reads.history and isinstance(job.batches, Batches)):  # windows bring their histories along
        nothing = np.empty(0, np.int64)
        contexts = ContextBuilder(job.model.reads, History.of(nothing, nothing))
    return replace(
        job,
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        objective=objective,
        batches=batches,
        sampler=job.sampler.only(batches.users),
        contexts=contexts,
    )


def user_parameters(model: Scorer) -> dict[str, Tensor]:
    """The parameters with one row per user, by name."""
    return {f"{name}.weight": module.weight for name, module in model.named_modules() if isinstance(module, UserTable)}


def _cut_batches(batches: Batches, rank: int, size: int) -> BatchShard:
    owner = batches.users % size
    own = np.flatnonzero(owner == rank)
    starts = np.append(np.arange(len(batches)) * batches.size, len(batches.users))
    return BatchShard(
        batches.users[own],
        batches.items[own],
        batches.codes,
        batches.size,
        np.asarray(batches.positions)[own],
        batches.n_without_negatives,
        positions_of_all=own,
        bounds=np.searchsorted(own, starts),
        counts=_counts(owner, np.arange(len(owner)) // batches.size, len(batches), size),
        two_groups=batches.have_two_groups,
    )


def _cut_windows(windows: Windows, rank: int, size: int) -> WindowShard:
    owner = windows.users % size
    own = np.flatnonzero(owner == rank)
    n_targets = (windows.targets >= 0).sum(axis=1)
    before = np.append(0, np.cumsum(n_targets))
    starts = np.append(np.arange(len(windows)) * windows.size, len(windows.users))
    batch = np.repeat(np.arange(len(owner)) // windows.size, n_targets)
    return WindowShard(
        windows.history[own],
        windows.targets[own],
        windows.users[own],
        windows.codes,
        windows.size,
        windows.weights[own],
        windows.n_without_negatives,
        numbers=own,
        target_numbers=np.flatnonzero(np.repeat(owner == rank, n_targets)),
        first_of_all=before[starts],
        bounds=np.searchsorted(own, starts),
        counts=_counts(np.repeat(owner, n_targets), batch, len(windows), size),
        two_groups=windows.have_two_groups,
    )


def _counts(owner: Rows, batch: Rows, n_batches: int, size: int) -> Rows:
    return np.bincount(batch * size + owner, minlength=n_batches * size).reshape(n_batches, size)


def own_tensors(job: TrainingJob, *, with_replicated: bool) -> dict[str, Tensor]:
    """A worker's rows of the user tables with their moments; with all other parameters, if they are wanted."""
    of_users, tensors = user_parameters(job.model), {}
    for name, parameter in job.model.named_parameters():
        if name in of_users or with_replicated:
            tensors[name] = parameter.detach()
            for key, value in job.optimizer.state.get(parameter, {}).items():
                tensors[f"{name}/{key}"] = value
    return tensors


def join_tensors(job: TrainingJob, parts: Sequence[Mapping[str, Tensor]]) -> None:
    """Write what `own_tensors` gave of all workers, the first with what is replicated, into the whole job."""
    of_users = user_parameters(job.model)
    for name, parameter in job.model.named_parameters():
        of_workers = parts if name in of_users else parts[:1]
        parameter.data.copy_(_joined([part[name] for part in of_workers], parameter.shape))
        for key in [key for key in parts[0] if key.rpartition("/")[0] == name]:
            held = [part[key] for part in of_workers]
            shape = (*parameter.shape[:1], *held[0].shape[1:]) if held[0].dim() else ()
            job.optimizer.state[parameter][key.rpartition("/")[2]] = _joined(held, shape)


def _joined(parts: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """The rows of all workers in the order of the users."""
    if len(parts) == 1 or not shape:
        return parts[0].clone()
    whole = parts[0].new_empty(*shape)
    for rank, part in enumerate(parts):
        whole[rank :: len(parts)] = part
    return whole
