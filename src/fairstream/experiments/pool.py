"""The executor: processes compute jobs on all available devices."""

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
from contextlib import suppress
from dataclasses import dataclass, replace
from logging.handlers import QueueHandler
from pathlib import Path
from queue import Empty
from typing import Any

import torch

from fairstream.distributed import Cluster, current_cluster
from fairstream.errors import ConfigurationError, FairstreamError, ModelError
from fairstream.experiments.jobs import (
    Device,
    Epoch,
    Job,
    OnEpoch,
    PlannedRun,
    Pretrained,
    Source,
    finish,
    jobs_for,
)
from fairstream.experiments.record import Record
from fairstream.experiments.run import Run, make_run
from fairstream.experiments.store import Store
from fairstream.methods import Parts
from fairstream.reporting import COMPILING, silence
from fairstream.threads import available_cores

OnJobs = Callable[[float, int], None]  # called with (work done, jobs done) as the work proceeds

_epochs: Any = None


def execute_runs(
    store: Store,
    runs: Sequence[PlannedRun],
    *,
    device: Device = "auto",
    n_workers: int | None = 1,
    parts: Parts | None = None,
    pretrained: Pretrained | None = None,
    make_run: Callable[..., Run] = make_run,
    on_start: Callable[[Sequence[Job]], OnJobs] | None = None,
    on_epoch: OnEpoch | None = None,
    on_record: Callable[[Record], None] | None = None,
) -> list[FairstreamError]:
    """Compute all runs that the store does not have yet, the longest jobs first; returns the errors of failed runs.

    Failed runs do not stop the others, and runs that diverged are not repeated. The caller holds the store's lock
    (`Store.writing`). `n_workers` processes compute, 1 is this one; inside `fairstream.cluster` the tasks of the
    cluster do. All runs start from `pretrained`, where it is given. `on_start` is called with the jobs before the
    first of them starts, `on_record` with every run that this call finishes.
    """
    finish(store, runs)
    jobs = jobs_for(store, runs, parts=parts, pretrained=pretrained, make_run=make_run)
    reported = set(store.ids())

    def on_job(job: Job) -> None:
        finish(store, job.runs)
        for run in job.runs:
            if on_record is not None and run.id in store and run.id not in reported:
                reported.add(run.id)
                on_record(store.read(run.id))

    progress = _Progress(None if on_start is None else on_start(jobs), on_epoch, on_job)
    jobs.sort(key=lambda job: -job.work)
    if jobs and (cluster := current_cluster()) is not None:
        return _on_cluster(cluster, jobs, store, device, progress)
    if n_workers in (None, 1) or len(jobs) <= 1:
        errors = []
        for job in jobs:
            errors += job.execute(store, device, progress.epoch)
            progress.job(job)
        return errors
    context = multiprocessing.get_context("spawn")
    epochs, n_started = context.Queue(), context.Value("i", 0)
    n_workers = min(n_workers, len(jobs))
    arguments = (epochs, n_started, n_workers, os.getpid())
    with ProcessPoolExecutor(n_workers, context, initializer=_start_worker, initargs=arguments) as pool:
        try:
            return _follow({pool.submit(_work, job, store.folder, device): job for job in jobs}, epochs, progress)
        except BrokenProcessPool:
            raise FairstreamError(
                "a worker process was killed, perhaps for lack of memory; finished runs are kept: run the same "
                "command again, with fewer workers"
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():  # do not wait for their current job
                worker.terminate()
            raise


def load_runs(store: Store, runs: Sequence[PlannedRun], **options: Any) -> list[Record]:
    """Compute runs as `execute_runs` does; returns them with their users' rows, or raises why the first one failed."""
    for error in execute_runs(store, runs, **options):
        raise error
    records = []
    for run in runs:
        if (reason := store.failure(run.id)) is not None:
            raise ModelError(f"this run failed before: {reason}; remove failed/{run.id}.json to try it again")
        records.append(store.read(run.id))
        _ = records[-1].tests  # read now: the store may be temporary
    return records


def _on_cluster(
    cluster: Cluster, jobs: Sequence[Job], store: Store, device: Device, progress: _Progress
) -> list[FairstreamError]:
    """Compute all jobs on Ray, each on a GPU where the cluster has some; repeat a job whose worker dies."""
    if device == "cuda" and not cluster.n_gpus:
        raise ConfigurationError("device='cuda' is not available: no node of the cluster has a GPU; use auto or cpu")
    needed = max(job.memory for job in jobs)
    cluster.check_memory(needed, "a run")
    cluster.check_folder(store.folder)
    sources = list(dict.fromkeys(job.source for job in jobs))
    errors = cluster.run(
        _work_on_cluster,
        [(sources.index(job.source), _with_source(job, Source(""))) for job in jobs],
        shared=([source.read() for source in sources], store.folder.absolute(), device),
        n_gpus=int(device != "cpu" and cluster.n_gpus > 0),
        memory=needed,
        on_message=lambda _, epoch: progress.epoch(epoch),
        on_result=lambda number, _: progress.job(jobs[number]),
    )
    return [error for failed in errors for error in failed]


def _work_on_cluster(task: tuple[int, Job], shared: tuple[Any, ...], send: OnEpoch) -> list[FairstreamError]:
    (at, job), (logs, folder, device) = task, shared
    return _with_source(job, Source(logs[at])).execute(Store(folder), device, send)


def _with_source(job: Job, source: Source) -> Job:
    """Return the job with another source: a cluster receives each log once, not with every job."""
    return replace(job, runs=tuple(replace(run, source=source) for run in job.runs))


@dataclass
class _Progress:
    """Adds up the work, and reports it."""

    on_jobs: OnJobs | None
    on_epoch: OnEpoch | None
    on_job: Callable[[Job], None]
    work: float = 0.0
    n_jobs: int = 0

    def epoch(self, epoch: Epoch) -> None:
        self.work += epoch.work
        if self.on_epoch is not None:
            self.on_epoch(epoch)
        self.tick()

    def job(self, job: Job) -> None:
        self.n_jobs += 1
        self.on_job(job)
        self.tick()

    def tick(self) -> None:
        if self.on_jobs is not None:
            self.on_jobs(self.work, self.n_jobs)


def _follow(
    running: Mapping[Future[list[FairstreamError]], Job], epochs: Any, progress: _Progress
) -> list[FairstreamError]:
    """Report progress until all jobs are done."""
    errors: list[FairstreamError] = []
    waiting = set(running)
    while waiting:
        finished, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
        with suppress(Empty):
            while True:
                message = epochs.get_nowait()
                if isinstance(message, logging.LogRecord):
                    COMPILING.handle(message)
                else:
                    progress.epoch(message)
        for future in finished:
            errors += future.result()
            progress.job(running[future])
        progress.tick()
    return errors


def _start_worker(epochs: Any, n_started: Any, n_workers: int, parent: int) -> None:
    global _epochs  # noqa: PLW0603 (what a worker process is given when it starts)
    _epochs = epochs
    epochs.cancel_join_thread()  # unread messages must not keep the process from exiting
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

    def exit_with_parent() -> None:  # which holds the store's lock
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def _work(job: Job, folder: Path, device: Device) -> list[FairstreamError]:
    return job.execute(Store(folder), device, _epochs.put)
