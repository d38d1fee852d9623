"""Jobs carried out by several processes, over whatever devices there are."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Literal

import torch

from fairstream.errors import FairstreamError
from fairstream.experiments.jobs import Job
from fairstream.experiments.store import Store

Device = Literal["auto", "cpu", "cuda"]
OnPoolProgress = Callable[[float, int], None]
"""Called every now and then with (work done, jobs done)."""
OnStage = Callable[[str, Sequence[Job]], OnPoolProgress]
"""Called with what begins and the jobs that it has; gives what to call as it goes on."""

_done: Any = None


def execute_all(
    jobs: Sequence[Job], store: Store, *, device: Device, n_workers: int, on_progress: OnPoolProgress | None = None
) -> list[str]:
    """Carry out all jobs, the longest first; gives a sentence for each that failed.

    A job that fails (a training that diverges, say) does not stop the others.
    """
    ordered = sorted(jobs, key=lambda job: -job.work)
    tell = on_progress or (lambda work, n: None)
    if n_workers == 1 or len(jobs) <= 1:
        return _one_by_one(ordered, store, device, tell)
    context = multiprocessing.get_context("spawn")
    done, n_started = context.Value("d", 0.0), context.Value("i", 0)
    failed = []
    begin = (done, n_started, n_workers, os.getpid())
    with ProcessPoolExecutor(n_workers, context, initializer=_begin, initargs=begin) as pool:
        try:
            waiting: set[Future[str | None]] = {pool.submit(_carried_out, job, store.folder, device) for job in ordered}
            while waiting:
                finished, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                failed += [message for future in finished if (message := future.result()) is not None]
                tell(done.value, len(jobs) - len(waiting))
        except BrokenProcessPool:
            raise FairstreamError(
                "a worker process was killed, perhaps for want of memory; what is done is kept: run the same again, "
                "with fewer workers"
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():  # what they are doing is not waited for
                worker.terminate()
            raise
    return failed


def _one_by_one(jobs: Sequence[Job], store: Store, device: Device, tell: OnPoolProgress) -> list[str]:
    failed, done = [], 0.0
    for n, job in enumerate(jobs):

        def on_work(work: float, n: int = n) -> None:
            nonlocal done
            done += work
            tell(done, n)

        try:
            job.execute(store, device, on_work)
        except FairstreamError as error:
            failed.append(str(error))
        tell(done, n + 1)
    return failed


def _begin(done: Any, n_started: Any, n_workers: int, parent: int) -> None:
    """Settle down in a worker process."""
    global _done  # noqa: PLW0603 (what a worker process is given when it starts)
    _done = done
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is asked to stop, and stops its workers
    with n_started.get_lock():
        place = n_started.value
        n_started.value += 1
    if torch.cuda.is_available():
        torch.cuda.set_device(place % torch.cuda.device_count())
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // n_workers))
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    """A worker whose parent was killed has nobody left to work for, and must not go on writing."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _carried_out(job: Job, folder: Path, device: Device) -> str | None:
    def on_work(work: float) -> None:
        with _done.get_lock():
            _done.value += work

    try:
        job.execute(Store(folder), device, on_work)
    except FairstreamError as error:
        return str(error)
    return None
