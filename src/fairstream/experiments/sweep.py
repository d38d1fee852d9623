"""Many runs at once: one configuration from several seeds, or a grid over any options."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from fairstream.data import EventLog
from fairstream.errors import ConfigurationError
from fairstream.evaluation import Metric
from fairstream.experiments.config import RunConfig, with_model_settings
from fairstream.experiments.jobs import Source, plan_runs
from fairstream.experiments.pool import load_runs
from fairstream.experiments.record import Record
from fairstream.experiments.run import make_run
from fairstream.experiments.store import Store
from fairstream.methods import Parts
from fairstream.models import ModelFactory
from fairstream.objectives import FairnessLoss, Loss
from fairstream.strategies import Strategy
from fairstream.threads import available_cores


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
    on_progress: Callable[[int, int, int, int], None] | None = None,
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
        One run for each seed.
    model, loss, fairness, strategy, metrics
        As for `run`: registered names, or custom objects that can be pickled.
    store
        Results folder; an existing one is resumed: runs that it has are not repeated. By default
        nothing is kept on disk.
    n_workers
        Number of processes; by default one per core, at most one per seed. 1 runs in this process.
        Inside `fairstream.cluster` the cluster decides; on several machines it needs a `store` that all of them see.
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
            "a store names runs by their configuration, which custom objects are not part of; register them and "
            "give their names, or leave out store"
        )
    configs = [RunConfig(**given, seed=seed) for seed in seeds]
    make_run(log, configs[0], parts=parts)  # raises what cannot be honoured before any process is started
    with Store.temporary() if store is None else Store(store).writing() as folder:
        return load_runs(
            folder,
            plan_runs(Source(log), configs),
            device=configs[0].device,
            n_workers=n_workers or min(len(configs), available_cores()),
            parts=parts,
            on_epoch=None if on_progress is None else lambda epoch: on_progress(*epoch[:4]),
            on_record=on_record,
        )


def parsed(assignment: str) -> tuple[str, list[Any]]:
    """NAME=VALUE,VALUE… as an option and its values.

    >>> parsed("fairness-weight=0.5,1")
    ('fairness_weight', [0.5, 1])
    >>> parsed("method=FADE,Finetune")
    ('method', ['FADE', 'Finetune'])
    """
    name, equals, values = assignment.partition("=")
    if not equals or not name or not all(values.split(",")):
        raise ConfigurationError(
            f"give NAME=VALUE (fairness-weight=0.5), to --grid also several values (fairness-weight=0.5,1), "
            f"got {assignment!r}"
        )
    return name.replace("-", "_"), [parse_value(value) for value in values.split(",")]


def parse_settings(assignments: Iterable[str]) -> dict[str, Any]:
    """NAME=VALUE, several times, as options.

    >>> parse_settings(["fairness-weight=0.5", "model=mf"])
    {'fairness_weight': 0.5, 'model': 'mf'}
    """
    options = dict(map(parsed, assignments))
    for name, values in options.items():
        if len(values) != 1:
            raise ConfigurationError(f"--set takes one value, {name} has {len(values)}; use --grid for several")
    return {name: value for name, (value,) in options.items()}


def parse_value(text: str) -> Any:
    """Return a number, a truth value or a JSON document; any other text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def combinations(grids: Mapping[str, Sequence[Any]], seeds: Iterable[int], **fixed: Any) -> list[RunConfig]:
    """Return every combination of the grids' values, for every seed; other names are settings of the model."""
    return [
        RunConfig(**with_model_settings({"seed": seed, **fixed, **dict(zip(grids, values, strict=True))}))
        for values in product(*grids.values())
        for seed in seeds
    ]
