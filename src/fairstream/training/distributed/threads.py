"""Workers that are threads of this process, for tests and measurements without a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import distributed

from fairstream.training.distributed.engine import ShardWorker
from fairstream.training.distributed.exchange import Exchange
from fairstream.training.engine import TrainingJob


class ThreadGroup:
    """A number of workers in one process."""

    def __init__(self, n_workers: int) -> None:
        self.n_workers = n_workers
        self._pool = ThreadPoolExecutor(n_workers)
        self._workers: list[ShardWorker] = []

    def start(self, jobs: Iterable[TrainingJob], n_steps: int) -> None:
        """Start a worker for each job."""
        store, size = distributed.HashStore(), self.n_workers  # type: ignore[attr-defined]

        def new_worker(rank: int, job: TrainingJob) -> ShardWorker:
            return ShardWorker(job, Exchange(rank, size, store), n_steps)

        self._workers = list(self._pool.map(new_worker, range(size), jobs))

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all workers."""
        running = [self._pool.submit(getattr(worker, method), *arguments) for worker in self._workers]
        return [result.result() for result in running]

    def stop(self) -> None:
        """Stop the workers."""
        self._workers = []
