"""Many runs at once: one configuration from several seeds, or a grid over any options."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from fairstream.data import EventLog
from fairstream.errors import ConfigurationError, FairstreamError, ModelError
from fairstream.evaluation import Metric
from fairstream.experiments.config import RunConfig
from fairstream.experiments.identity import run_id
from fairstream.experiments.jobs import Device, Epoch, LogSource, Source
from fairstream.experiments.pool import OnStart, execute_runs
from fairstream.experiments.record import Record
from fairstream.experiments.run import Run
from fairstream.experiments.store import Store
from fairstream.methods import Parts
from fairstream.models import ModelFactory
from fairstream.objectives import FairnessLoss, Loss
from fairstream.strategies import Strategy
from fairstream.threads import available_cores

OnSeedProgress = Callable[[int, int, int, int], None]
"""Called with (seed, period t, epochs done, epochs in all)."""


def run_seeds(
    log: EventLog,
    seeds: Sequence[int],
    *,
    model: str | ModelFactory | None = None,
    loss: str | Loss | None = None,
    fairness: str | FairnessLoss | None = None,
    strategy: str | Strategy | None = None,
    metrics: Sequence[str] | Mapping[str, Metric] = (),
    store: Path | str | None = None,
    n_workers: int | None = None,
    cluster: str | None = None,
    on_progress: OnSeedProgress | None = None,
    on_record: Callable[[Record], None] | None = None,
    **options: Any,
) -> list[Record]:
    """Evaluate one method on a log from each of several seeds, in parallel.

    In a script, call this below `if __name__ == "__main__":`, as anything that starts processes.

    Parameters
    ----------
    log
        The events.
    seeds
        The seeds, each a run of its own.
    model, loss, fairness, strategy, metrics
        As for `run`: registered names, or objects of your own that can be pickled.
    store
        Results folder; an existing one is resumed: runs that it has are not repeated. By default
        nothing is kept on disk.
    n_workers
        Number of processes; by default one per core, at most one per seed. 1 runs in this process.
        On a cluster, the most runs at a time; by default all.
    cluster
        "local" or HOST:PORT: run on a Ray cluster (`pip install 'fairstream[cluster]'`), with the same results;
        None: on this machine. On several machines it needs a `store` that all of them see.
    on_progress
        Called after each epoch with (seed, period t, epochs done, epochs in all).
    on_record
        Called with each run that this call finishes.
    **options
        Fields of `RunConfig` other than the seed.

    Returns
    -------
    list of Record
        The finished runs, in the order of the seeds.

    Raises
    ------
    ConfigurationError
        If an option cannot be honoured; nothing is started then.
    ModelError
        If the training of a run diverged.

    Examples
    --------
    >>> from fairstream import read_events, run_seeds, synthetic_stream
    >>> stream = synthetic_stream(n_users=60, n_items=40, n_events=1000, seed=0)
    >>> log = read_events(stream.events, users=stream.users)
    >>> records = run_seeds(
    ...     log, [0, 1], model="mf", method="finetune", pretrain_epochs=1, n_periods=3, device="cpu", n_workers=1
    ... )
    >>> [record.seed for record in records]
    [0, 1]

    """
    if not seeds:
        raise ConfigurationError("run_seeds needs at least one seed, got none")
    given, parts = Parts.split(model=model, loss=loss, fairness=fairness, strategy=strategy, metrics=metrics, **options)
    if parts != Parts() and store is not None:
        raise ConfigurationError(
            "a store names runs by their configuration, which objects of your own are not part of; register them and "
            "give their names, or leave out store"
        )
    configs = [RunConfig(**given, seed=seed) for seed in seeds]
    Run(log, configs[0], parts=parts)  # raises what cannot be honoured before any process is started
    with ExitStack() as stack:
        if store is None:
            folder = Store(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairstream-")))
            folder.create()
        else:
            folder = Store(store)
            stack.enter_context(folder.writing())

        def on_epoch(epoch: Epoch) -> None:
            if on_progress is not None:
                on_progress(*epoch[:4])

        errors = execute_runs(
            folder,
            [(LogSource(log), configs)],
            device=configs[0].device,
            n_workers=n_workers or (None if cluster else min(len(configs), available_cores())),
            cluster=cluster,
            parts=parts,
            on_epoch=on_epoch,
            on_record=on_record,
        )
        folder.clear()
        if errors:
            raise errors[0]
        return [_loaded(folder, run_id(log, config)) for config in configs]


def _loaded(store: Store, run_id: str) -> Record:
    """A run with its users' rows in memory, should the store be temporary; or why it failed before."""
    reason = store.failure(run_id)
    if reason is not None:
        raise ModelError(f"this run failed before: {reason}; remove failed/{run_id}.json to try it again")
    record = store.read(run_id)
    _ = record.tests
    return record


def parsed(assignment: str) -> tuple[str, list[Any]]:
    """NAME=VALUE,VALUE… as an option and its values.

    >>> parsed("fairness-weight=0.5,1")
    ('fairness_weight', [0.5, 1])
    >>> parsed("method=FADE,Finetune")
    ('method', ['FADE', 'Finetune'])
    """
    name, equals, values = assignment.partition("=")
    if not equals or not name or not all(values.split(",")):
        raise ConfigurationError(f"a grid is written NAME=VALUE,VALUE (fairness-weight=0.5,1,2), got {assignment!r}")
    return name.replace("-", "_"), [_value(value) for value in values.split(",")]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def combinations(grids: Mapping[str, Sequence[Any]], seeds: Iterable[int], **fixed: Any) -> list[RunConfig]:
    """Every combination of the grids' values, from every seed."""
    return [
        RunConfig(**{**fixed, **dict(zip(grids, values, strict=True)), "seed": seed})
        for values in product(*grids.values())
        for seed in seeds
    ]


def sweep(
    store: Store,
    source: Source | LogSource,
    configs: Sequence[RunConfig],
    *,
    device: Device,
    n_workers: int | None,
    cluster: str | None = None,
    on_start: OnStart | None = None,
) -> tuple[list[Record], list[FairstreamError]]:
    """Compute the runs that the store does not have yet; returns all finished ones, and the errors of the others."""
    errors = execute_runs(
        store, [(source, configs)], device=device, n_workers=n_workers, cluster=cluster, on_start=on_start
    )
    store.clear()
    log = source.read()
    names = dict.fromkeys(run_id(log, config) for config in configs)
    return [store.read(name) for name in names if name in store], errors
