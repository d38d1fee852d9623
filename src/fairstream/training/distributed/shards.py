"""A training job divided into one for each worker: users and their events are sharded, the rest is replicated."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairstream.data import History, Rows
from fairstream.models import ContextBuilder, Scorer, UserTable
from fairstream.objectives import softmax_loss
from fairstream.sampling import distinct_rows
from fairstream.training.batches import Batches, Windows
from fairstream.training.engine import TrainingJob
from fairstream.training.train import draws_itself

Array = np.ndarray[Any, np.dtype[Any]]
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
    """One worker's rows (interactions, or windows) of the global batches.

    "Global" are the batches of the whole job, and positions in them, before it is divided among the workers.
    """

    rows: Rows
    """The global position of each of this worker's rows, ascending."""
    bounds: Rows
    """(batches + 1,) where each batch begins among this worker's rows."""
    counts: Rows
    """(batches, workers) interactions of each worker in each batch."""
    two_groups: Flags
    """Whether each global batch has users of two groups."""

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

    def offsets(self, b: int) -> Rows:
        """The offset of each interaction in its global batch."""
        return self.rows[self.span(b)] - b * self.size


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowShard(_Shard, Windows):
    """The windows of one worker's users."""

    target_positions: Rows
    """(M,) the global position of each target of this worker's windows."""
    first_global_target: Rows
    """(batches + 1,) how many targets there are before each global batch."""

    def offsets(self, b: int) -> Rows:
        """The offset of each target in its global batch."""
        begin, end = self.first_target[b : b + 2]
        return self.target_positions[begin:end] - self.first_global_target[b]


def cut_job(job: TrainingJob, rank: int, size: int) -> TrainingJob:
    """The job of one of `size` workers, whose tables of users hold the rows of `own_users`.

    Everything is copied; the job itself stays as it is.
    """
    # Given to deepcopy as already copied: it would copy the tables of all users before they could be cut.
    memo: dict[int, Any] = {}
    for parameter in user_parameters(job.model).values():
        rows = torch.from_numpy(own_users(job, rank, size))
        memo[id(parameter)] = nn.Parameter(parameter.detach()[rows], parameter.requires_grad)
        for value in job.optimizer.state.get(parameter, {}).values():
            memo[id(value)] = value[rows] if value.dim() else value.clone()
    whole = job.model, job.optimizer, job.schedule, job.objective
    model, optimizer, schedule, objective = copy.deepcopy(whole, memo)
    for table in model.tables():
        table.num_embeddings = len(table.weight)
    batches, contexts = _cut_batches(job.batches, rank, size), job.contexts
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


def own_users(job: TrainingJob, rank: int, size: int) -> Rows:
    """The users of a worker: u mod `size` is its rank. Where no other rows can change, only those with interactions."""
    if not has_sparse_users(job.model):
        return np.arange(rank, job.model.n_users, size)
    users = distinct_rows(job.batches.users)
    return users[users % size == rank]


def own_rows(job: TrainingJob, size: int) -> Rows:
    """The rows in a worker's tables that the users of its interactions have, given its part of a job."""
    users = job.batches.users
    return np.searchsorted(distinct_rows(users), users) if has_sparse_users(job.model) else users // size


def has_sparse_users(model: Scorer) -> bool:
    """Whether a step changes only the rows of users who are in its batch."""
    return all(module.sparse for module in model.modules() if isinstance(module, UserTable))


def user_parameters(model: Scorer) -> dict[str, Tensor]:
    """The parameters with one row per user, by name."""
    return {f"{name}.weight": module.weight for name, module in model.named_modules() if isinstance(module, UserTable)}


def _cut_batches(batches: Batches | Windows, rank: int, size: int) -> BatchShard | WindowShard:
    owner = batches.users % size
    own = np.flatnonzero(owner == rank)
    starts = np.append(np.arange(len(batches)) * batches.size, len(batches.users))
    batch = np.arange(len(owner)) // batches.size
    shard: dict[str, Any] = {"rows": own, "bounds": np.searchsorted(own, starts), "two_groups": batches.have_two_groups}
    if isinstance(batches, Batches):
        return BatchShard(
            batches.users[own],
            batches.items[own],
            batches.codes,
            batches.size,
            np.asarray(batches.positions)[own],
            batches.n_without_negatives,
            counts=_counts(owner, batch, len(batches), size),
            **shard,
        )
    n_targets = (batches.targets >= 0).sum(axis=1)  # (W,)
    owner_of_target = np.repeat(owner, n_targets)
    return WindowShard(
        batches.history[own],
        batches.targets[own],
        batches.users[own],
        batches.codes,
        batches.size,
        batches.weights[own],
        batches.n_without_negatives,
        target_positions=np.flatnonzero(owner_of_target == rank),
        first_global_target=batches.first_target,
        counts=_counts(owner_of_target, np.repeat(batch, n_targets), len(batches), size),
        **shard,
    )


def _counts(owner: Rows, batch: Rows, n_batches: int, size: int) -> Rows:
    """(batches, workers) how many interactions, given the batch and the worker of each."""
    return np.bincount(batch * size + owner, minlength=n_batches * size).reshape(n_batches, size)


def own_arrays(job: TrainingJob, *, with_replicated: bool) -> dict[str, Array]:
    """A worker's rows of the user tables, and replicated parameters if wanted, with their optimizer state.

    As arrays, which Ray hands to another process without copying them in this one, as it would tensors.
    """
    of_users, arrays = user_parameters(job.model), {}
    for name, parameter in job.model.named_parameters():
        if name in of_users or with_replicated:
            arrays[name] = parameter.detach().numpy()
            for key, value in job.optimizer.state.get(parameter, {}).items():
                arrays[f"{name}/{key}"] = value.numpy()
    return arrays


def join_arrays(job: TrainingJob, parts: Sequence[Mapping[str, Array]]) -> None:
    """Write the `own_arrays` of all workers into the whole job; replicated ones are the first worker's."""
    of_users = user_parameters(job.model)
    for name, parameter in job.model.named_parameters():
        state = job.optimizer.state[parameter]
        for rank, part in enumerate(parts if name in of_users else parts[:1]):
            rows = own_users(job, rank, len(parts)) if name in of_users else ...
            for key in [key for key in part if name in (key, key.rpartition("/")[0])]:
                moment = key.rpartition("/")[2]
                if key != name and moment not in state:
                    shape = (*parameter.shape[:1], *part[key].shape[1:]) if part[key].ndim else ()
                    state[moment] = torch.from_numpy(np.zeros(shape, part[key].dtype))
                whole = (parameter.detach() if key == name else state[moment]).numpy()
                whole[rows if whole.ndim else ...] = part[key]
