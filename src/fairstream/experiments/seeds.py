"""The same run from several seeds, in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from queue import Empty
from typing import Any

import torch

from fairstream.data import EventLog
from fairstream.errors import ConfigurationError
from fairstream.experiments.config import RunConfig
from fairstream.experiments.record import Record
from fairstream.experiments.run import Run
from fairstream.methods import Parts
from fairstream.models import ModelFactory

OnSeedProgress = Callable[[int, int, int, int], None]
"""Called with (seed, period t, epochs done, epochs in all)."""

_updates: Any = None


def run_seeds(
    log: EventLog,
    seeds: Sequence[int],
    *,
    model: str | ModelFactory = "mf",
    on_progress: OnSeedProgress | None = None,
    on_record: Callable[[Record], None] | None = None,
    **options: Any,
) -> list[Record]:
    """Carry one method through a log from each of the seeds, as many at a time as there are cores.

    Options are those of `run` but for the seed; `on_record` is given each run as it is finished.
    In a script, call this below `if __name__ == "__main__":`, as anything that starts processes.
    """
    if not seeds:
        raise ConfigurationError("run_seeds needs at least one seed, got none")
    factory = None if isinstance(model, str) else model
    name = model if isinstance(model, str) else "custom"
    configs = [RunConfig(model=name, seed=seed, **options) for seed in seeds]
    Run(log, configs[0], parts=Parts(factory))  # what cannot be honoured is said before any process is started
    n_workers = min(len(configs), os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    updates = context.Queue()
    with ProcessPoolExecutor(n_workers, context, initializer=_begin, initargs=(updates, n_workers)) as pool:
        try:
            running = [pool.submit(_finished, log, config, factory) for config in configs]
            waiting = set(running)
            while waiting:
                done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                _pass_on(updates, on_progress)
                for future in done:
                    record = Record(future.result())
                    if on_record is not None:
                        on_record(record)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [Record(future.result()) for future in running]


def _begin(updates: Any, n_workers: int) -> None:
    global _updates  # noqa: PLW0603 (what a worker process is given when it starts)
    _updates = updates
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // n_workers))


def _finished(log: EventLog, config: RunConfig, factory: ModelFactory | None) -> dict[str, Any]:
    run = Run(
        log,
        config,
        parts=Parts(factory),
        on_progress=lambda t, done, total: _updates.put((config.seed, t, done, total)),
    )
    for _ in run:
        pass
    return run.document()


def _pass_on(updates: Any, on_progress: OnSeedProgress | None) -> None:
    while True:
        try:
            update = updates.get_nowait()
        except Empty:
            return
        if on_progress is not None:
            on_progress(*update)
