"""Workers that are Ray actors, spread over the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from datetime import timedelta
from importlib import import_module
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from fairstream.cluster import Cluster, connect
from fairstream.training.distributed.engine import ShardWorker, WorkerDiedError
from fairstream.training.distributed.exchange import Exchange
from fairstream.training.engine import TrainingJob

_SECONDS = 300.0


class ActorGroup:
    """A worker on each CPU of a cluster, for one training at a time.

    Parameters
    ----------
    address
        "local" or HOST:PORT, as for `connect`.
    n_workers
        The most workers; None: one for each CPU.

    """

    def __init__(self, address: str, n_workers: int | None = None) -> None:
        self._address, self._max_workers = address, n_workers
        self._connection = ExitStack()
        self._cluster: Cluster | None = None
        self._actors: list[Any] = []

    def __reduce__(self) -> tuple[type[ActorGroup], tuple[str, int | None]]:
        return ActorGroup, (self._address, self._max_workers)  # a connection cannot be pickled

    @property
    def n_workers(self) -> int:
        """How many workers a start would make now: fewer where nodes have been lost."""
        n_cpus = max(1, Cluster(self._connected().ray).n_cpus)
        return n_cpus if self._max_workers is None else min(self._max_workers, n_cpus)

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = self._connection.enter_context(connect(self._address, n_workers=self._max_workers))
        return self._cluster

    def start(self, jobs: Iterable[TrainingJob], n_steps: int) -> None:
        """Start a worker for each job, in place of those that are running."""
        ray = self._connected().ray
        self._kill()
        remote = ray.remote(_Actor).options(num_cpus=1, scheduling_strategy="SPREAD")
        sent = [ray.put(job) for job in jobs]  # one copy at a time here
        self._actors = [remote.remote(rank, len(sent)) for rank in range(len(sent))]
        address = self._get([self._actors[0].open_store.remote()])[0]
        self._get([actor.start.remote(job, address, n_steps) for actor, job in zip(self._actors, sent, strict=True)])

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all workers at the same time; raises `WorkerDiedError` where one has died."""
        return self._get([actor.call.remote(method, *arguments) for actor in self._actors])

    def stop(self) -> None:
        """Kill the workers, and disconnect if the connection was made here."""
        self._kill()
        self._connection.close()
        self._cluster = None

    def _get(self, refs: list[Any]) -> list[Any]:
        ray = self._connected().ray
        try:
            results: list[Any] = ray.get(refs)
        except ray.exceptions.RayTaskError as error:  # of the worker itself, or because it lost another one
            self._check_alive()
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise WorkerDiedError(str(error)) from None
        return results

    def _check_alive(self) -> None:
        ray = self._connected().ray
        for actor in self._actors:
            try:
                ray.get(actor.ping.remote(), timeout=_SECONDS)
            except ray.exceptions.RayError as error:
                raise WorkerDiedError(str(error)) from None

    def _kill(self) -> None:
        for actor in self._actors:
            self._connected().ray.kill(actor)
        self._actors = []


class _Actor:
    """One worker in a process of its own."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._store: Any = None
        self._worker: ShardWorker | None = None

    def open_store(self) -> tuple[str, int]:
        """Open the rendezvous of all workers, at the first of them; returns its host and port."""
        host = import_module("ray").util.get_node_ip_address()
        self._store = TCPStore(host, 0, is_master=True, timeout=timedelta(seconds=_SECONDS), wait_for_workers=False)
        return host, self._store.port

    def start(self, job: TrainingJob, address: tuple[str, int], n_steps: int) -> None:
        """Join the others."""
        if self._store is None:
            self._store = TCPStore(*address, timeout=timedelta(seconds=_SECONDS), wait_for_workers=False)
        self._worker = ShardWorker(job, Exchange(self._rank, self._size, self._store), n_steps)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker."""
        return getattr(self._worker, method)(*arguments)

    def ping(self) -> None:
        """Do nothing: that it returns says that the actor is alive."""
