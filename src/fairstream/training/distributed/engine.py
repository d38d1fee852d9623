"""The engine that runs a job on several workers, and recovers where one of them dies."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from fairstream.data import Rows
from fairstream.errors import ConfigurationError, FairstreamError
from fairstream.objectives import Objective
from fairstream.training.distributed.exchange import Exchange
from fairstream.training.distributed.saved import SavedTraining, StepsTaken
from fairstream.training.distributed.shards import Array, cut_job, join_arrays, own_arrays, unsupported
from fairstream.training.distributed.steps import shard_engine
from fairstream.training.engine import Engine, TrainingJob

_STEPS_AT_ONCE = 2000
_MOST_DEATHS = 5


class WorkerDiedError(FairstreamError):
    """A worker has died, and with it all that was not fetched from it."""


@dataclass(frozen=True, eq=False)
class Progress:
    """The present state of a worker's part of a job."""

    arrays: dict[str, Array]
    """Its users' rows; of the first worker also the replicated parameters."""
    objective: Objective
    """With the statistics that it accumulates across batches."""
    schedule_step: int | None


class ShardWorker:
    """One worker, which trains its part of a job."""

    def __init__(self, job: TrainingJob, exchange: Exchange, n_steps: int) -> None:
        self._engine = shard_engine(job, exchange, n_steps)

    def take_steps(self, order: Rows, key: int) -> float:
        """Train on these batches; returns this worker's part of their summed losses."""
        return self._engine.epoch(order, key) * len(order)

    def progress(self) -> Progress:
        """The present state of its part of the job."""
        job, is_first = self._engine.job, self._engine.exchange.rank == 0
        step = None if job.schedule is None else job.schedule.step
        return Progress(own_arrays(job, with_replicated=is_first), copy.deepcopy(job.objective), step)

    def n_bytes(self) -> int:
        """Bytes that it has sent to the others so far."""
        return self._engine.exchange.n_bytes


class WorkerGroup(Protocol):
    """The workers of a training: threads, processes, or Ray actors."""

    @property
    def n_workers(self) -> int:
        """How many there would be if they were started now."""

    def start(self, jobs: Iterable[TrainingJob], n_steps: int) -> None:
        """Start a `ShardWorker` for each job, in place of those that are running."""

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all workers at the same time; raises `WorkerDiedError` where one has died."""

    def stop(self) -> None:
        """Stop the workers."""


@dataclass
class Checkpoints:
    """How often the state of a training is fetched from its workers, and where it is saved."""

    seconds: float = 60.0
    """The least time between two checkpoints, which are made at the end of an epoch or of 2,000 steps."""
    folder: Path | None = None
    """Where they are saved, so that another process can resume the training; the first one after the first epoch or \
2,000 steps. None: the last one is kept in memory."""
    fetched_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.folder is not None:
            self.fetched_at = -math.inf

    def is_due(self) -> bool:
        """Whether it is time for the next one."""
        return time.monotonic() - self.fetched_at >= self.seconds


class DistributedEngine(Engine):
    """Data-parallel over users: the steps of the reference engine on the same batches, by any number of workers.

    The state of the workers is fetched into the job itself from time to time, in a form that does not depend on their
    number. Where one dies, all are started again from there, as many as the group has then. Where checkpoints are saved
    in a folder, a new engine for the same job resumes from the last, and skips the steps that were taken before it.
    """

    name = "distributed"

    def __init__(self, job: TrainingJob, group: WorkerGroup, checkpoints: Checkpoints | None = None) -> None:
        reason = unsupported(job)
        if reason is not None:
            raise ConfigurationError(f"this training cannot be divided among workers: {reason}; train on one machine")
        super().__init__(job)
        self._group, self._checkpoints = group, checkpoints or Checkpoints()
        self._n_steps = 0
        """Steps in the state that was fetched last."""
        self._chunks_since = list[tuple[Rows, int]]()
        """The chunks of steps, batches and key, that were taken since then."""
        self._n_deaths = 0
        self._losses, self._n_chunks = list[float](), 0
        """The summed loss of each chunk that was ever taken, and how many of them this engine has been asked for."""
        self._saved = None if self._checkpoints.folder is None else SavedTraining(self._checkpoints.folder, job)
        if self._saved is not None and (taken := self._saved.restore(self.job)) is not None:
            self._n_steps, self._losses = taken.n_steps, list(taken.losses)
        try:
            self._start()
        except WorkerDiedError:
            self._recover()

    @staticmethod
    def unsupported(job: TrainingJob) -> str | None:
        return unsupported(job)

    def epoch(self, order: Rows, key: int) -> float:
        total = 0.0
        for first in range(0, len(order), _STEPS_AT_ONCE):
            if self._n_chunks == len(self._losses):  # else it was taken before the training was resumed
                self._losses.append(self._take_steps(order[first : first + _STEPS_AT_ONCE], key))
                if self._checkpoints.is_due():
                    self._fetch()
                    self._save()
            total += self._losses[self._n_chunks]
            self._n_chunks += 1
        return total / len(order)

    def finish(self, *, in_place: bool) -> None:
        if self._chunks_since:
            self._fetch()
        self._group.stop()
        if self._saved is not None:
            self._saved.remove()

    def _save(self) -> None:
        if self._saved is not None:
            self._saved.write(self.job, StepsTaken(self._n_steps, self._losses))

    def _take_steps(self, order: Rows, key: int) -> float:
        while True:
            try:
                total = sum(self._group.call("take_steps", order, key))
            except WorkerDiedError:
                self._recover()
            else:
                self._chunks_since.append((order, key))
                return float(total)

    def _fetch(self) -> None:
        """Fetch the state of the workers into the job."""
        while True:
            try:
                parts: list[Progress] = self._group.call("progress")
                break
            except WorkerDiedError:
                self._recover()
        join_arrays(self.job, [part.arrays for part in parts])
        self.job = replace(self.job, objective=parts[0].objective)
        if self.job.schedule is not None and parts[0].schedule_step is not None:
            self.job.schedule.advance(parts[0].schedule_step - self.job.schedule.step)
        self._n_steps += sum(len(order) for order, _ in self._chunks_since)
        self._chunks_since.clear()
        self._checkpoints.fetched_at = time.monotonic()

    def _start(self) -> None:
        n = self._group.n_workers
        self._group.start((cut_job(self.job, rank, n) for rank in range(n)), self._n_steps)

    def _recover(self) -> None:
        """Restart the workers from the state that was fetched last, and repeat the steps since then."""
        while True:
            self._n_deaths += 1
            if self._n_deaths > _MOST_DEATHS:
                self._group.stop()
                raise FairstreamError(
                    f"workers of a training died {self._n_deaths} times, perhaps for want of memory; nothing has been "
                    f"changed: try larger nodes, or fewer workers"
                )
            try:
                self._start()
                for order, key in self._chunks_since:
                    self._group.call("take_steps", order, key)
            except WorkerDiedError:
                continue
            return
