"""The executor: jobs done by several processes, on all available devices."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from logging.handlers import QueueHandler
from pathlib import Path
from queue import Empty
from typing import Any

import torch

from fairstream.cluster import Cluster, connect
from fairstream.errors import ConfigurationError, FairstreamError
from fairstream.experiments.config import RunConfig
from fairstream.experiments.identity import run_id
from fairstream.experiments.jobs import Device, Epoch, Job, LogSource, OnEpoch, Source, finish, jobs_for
from fairstream.experiments.record import Record
from fairstream.experiments.store import Store
from fairstream.methods import Parts
from fairstream.reporting import COMPILING, silence
from fairstream.threads import available_cores

OnJobs = Callable[[float, int], None]
"""Called with (work done, jobs done) as the work proceeds."""
OnStart = Callable[[Sequence[Job]], OnJobs]
"""Called with the jobs before the first of them starts; returns what to call as the work proceeds."""

_epochs: Any = None


def execute_runs(
    store: Store,
    runs: Sequence[tuple[Source | LogSource, Sequence[RunConfig]]],
    *,
    device: Device = "auto",
    n_workers: int | None = 1,
    cluster: str | None = None,
    parts: Parts | None = None,
    on_start: OnStart | None = None,
    on_epoch: OnEpoch | None = None,
    on_record: Callable[[Record], None] | None = None,
) -> list[FairstreamError]:
    """Compute all runs that the store does not have yet.

    Parameters
    ----------
    store
        Where the runs go; the caller holds its lock (`Store.writing`).
    runs
        Pairs of a source of events and the configurations to run on it.
    device
        Where to compute.
    n_workers
        Number of processes; 1 computes in this one. On a cluster, the most runs at a time; None: all it has room for.
    cluster
        "local" or HOST:PORT: let Ray's workers compute the runs; None: processes of this machine.
    parts
        Further arguments of `Run`, such as a model class of one's own.
    on_start, on_epoch, on_record
        Progress: the jobs, every epoch, and every run that is finished by this call.

    Returns
    -------
    list of FairstreamError
        One for each job in which runs failed. They do not stop the others, and runs that diverged
        are not tried again.

    """
    for source, configs in runs:
        finish(store, source, configs)
    jobs = [job for source, configs in runs for job in jobs_for(store, source, configs, parts=parts)]
    reported = set(store.ids())

    def on_job(job: Job) -> None:
        finish(store, job.source, job.configs)
        for config in job.configs:
            name = run_id(job.source.read(), config)
            if on_record is not None and name in store and name not in reported:
                reported.add(name)
                on_record(store.read(name))

    return execute_all(
        jobs,
        store,
        device=device,
        n_workers=n_workers,
        cluster=cluster,
        on_jobs=None if on_start is None else on_start(jobs),
        on_epoch=on_epoch,
        on_job=on_job,
    )


def execute_all(
    jobs: Sequence[Job],
    store: Store,
    *,
    device: Device,
    n_workers: int | None,
    cluster: str | None = None,
    on_jobs: OnJobs | None = None,
    on_epoch: OnEpoch | None = None,
    on_job: Callable[[Job], None] | None = None,
) -> list[FairstreamError]:
    """Do all jobs, the longest first; returns the errors of those that failed."""
    ordered = sorted(jobs, key=lambda job: -job.work)
    progress = _Progress(on_jobs, on_epoch, on_job)
    if cluster is not None and jobs:
        with connect(cluster, n_workers=n_workers) as connected:
            return _on_cluster(connected, ordered, store, device, n_workers, progress)
    if n_workers in (None, 1) or len(jobs) <= 1:
        errors = []
        for job in ordered:
            error = _executed(job, store, device, progress.epoch)
            progress.job(job)
            errors += [] if error is None else [error]
        return errors
    context = multiprocessing.get_context("spawn")
    epochs, n_started = context.Queue(), context.Value("i", 0)
    n_workers = min(n_workers, len(jobs))
    arguments = (epochs, n_started, n_workers, os.getpid())
    with ProcessPoolExecutor(n_workers, context, initializer=_start_worker, initargs=arguments) as pool:
        try:
            return _follow({pool.submit(_work, job, store.folder, device): job for job in ordered}, epochs, progress)
        except BrokenProcessPool:
            raise FairstreamError(
                "a worker process was killed, perhaps for want of memory; finished runs are kept: run the same "
                "command again, with fewer workers"
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():  # do not wait for what they are doing
                worker.terminate()
            raise


def _on_cluster(
    cluster: Cluster, jobs: Sequence[Job], store: Store, device: Device, n_workers: int | None, progress: _Progress
) -> list[FairstreamError]:
    """Do all jobs on Ray, each on a GPU where the cluster has some; a job whose worker dies is done again."""
    if device == "cuda" and not cluster.n_gpus:
        raise ConfigurationError("device='cuda' was asked for, but no node of the cluster has a GPU; use auto or cpu")
    needed = max(job.memory for job in jobs)
    cluster.check_memory(needed, "a run")
    cluster.check_folder(store.folder)
    sources = list(dict.fromkeys(job.source for job in jobs))
    left = [job.work * (1 + 1e-9) for job in jobs]

    def on_epoch(number: int, epoch: Epoch) -> None:
        left[number] -= epoch.work
        if left[number] >= 0:  # a job that is done again does not count twice
            progress.epoch(epoch)

    errors = cluster.run(
        _work_on_cluster,
        [(sources.index(job.source), job.configs, job.t, job.work, job.parts) for job in jobs],
        shared=([source.read() for source in sources], store.folder.absolute(), device),
        n_gpus=int(device != "cpu" and cluster.n_gpus > 0),
        memory=needed,
        at_once=n_workers,
        on_message=on_epoch,
        on_result=lambda number, _: progress.job(jobs[number]),
    )
    return [error for error in errors if error is not None]


def _work_on_cluster(job: tuple[Any, ...], shared: tuple[Any, ...], send: OnEpoch) -> FairstreamError | None:
    (at, *rest), (logs, folder, device) = job, shared
    return _executed(Job(LogSource(logs[at]), *rest), Store(folder), device, send)


class _Progress:
    """Adds up the work, and passes everything on."""

    def __init__(self, on_jobs: OnJobs | None, on_epoch: OnEpoch | None, on_job: Callable[[Job], None] | None) -> None:
        self._on_jobs, self._on_epoch, self._on_job = on_jobs, on_epoch, on_job
        self._work, self._n_jobs = 0.0, 0

    def epoch(self, epoch: Epoch) -> None:
        self._work += epoch.work
        if self._on_epoch is not None:
            self._on_epoch(epoch)
        self.tick()

    def job(self, job: Job) -> None:
        self._n_jobs += 1
        if self._on_job is not None:
            self._on_job(job)
        self.tick()

    def tick(self) -> None:
        if self._on_jobs is not None:
            self._on_jobs(self._work, self._n_jobs)


def _follow(
    running: Mapping[Future[FairstreamError | None], Job], epochs: Any, progress: _Progress
) -> list[FairstreamError]:
    """Report progress until all jobs are done."""
    errors, waiting = [], set(running)
    while waiting:
        finished, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
        _drain(epochs, progress)
        for future in finished:
            errors += [] if (error := future.result()) is None else [error]
            progress.job(running[future])
        progress.tick()
    return errors


def _drain(epochs: Any, progress: _Progress) -> None:
    while True:
        try:
            message = epochs.get_nowait()
        except Empty:
            return
        if isinstance(message, logging.LogRecord):
            COMPILING.handle(message)
        else:
            progress.epoch(message)


def _start_worker(epochs: Any, n_started: Any, n_workers: int, parent: int) -> None:
    """Initialise a worker process."""
    global _epochs  # noqa: PLW0603 (what a worker process is given when it starts)
    _epochs = epochs
    epochs.cancel_join_thread()  # what nobody reads any more must not keep the process from exiting
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and stops its workers
    with n_started.get_lock():
        place = n_started.value
        n_started.value += 1
    if torch.cuda.is_available():
        torch.cuda.set_device(place % torch.cuda.device_count())
    torch.set_num_threads(max(1, available_cores() // n_workers))
    silence()
    COMPILING.setLevel(logging.INFO)
    COMPILING.addHandler(QueueHandler(epochs))
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()


def _exit_with(parent: int) -> None:
    """Exit once the parent is gone: nobody is left to hold the store's lock."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _work(job: Job, folder: Path, device: Device) -> FairstreamError | None:
    return _executed(job, Store(folder), device, _epochs.put)


def _executed(job: Job, store: Store, device: Device, on_epoch: OnEpoch) -> FairstreamError | None:
    """The error of a job that failed."""
    try:
        job.execute(store, device, on_epoch)
    except FairstreamError as error:
        return error
    return None
