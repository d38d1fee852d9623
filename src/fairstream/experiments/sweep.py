"""Any grid over any option."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from fairstream.errors import ConfigurationError
from fairstream.experiments.config import RunConfig
from fairstream.experiments.identity import run_id
from fairstream.experiments.jobs import Source, finish, jobs_for
from fairstream.experiments.pool import Device, OnStage, execute_all
from fairstream.experiments.record import Record
from fairstream.experiments.run import resolved
from fairstream.experiments.store import Store


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
    store: Store, source: Source, configs: Sequence[RunConfig], *, device: Device, n_workers: int, on_stage: OnStage
) -> tuple[list[Record], list[str]]:
    """Carry all of them out, those that the store has already excepted: the finished runs, and who failed."""
    jobs = jobs_for(store, source, configs)
    tell = on_stage("sweep", jobs)
    failed = execute_all(jobs, store, device=device, n_workers=n_workers, on_progress=tell)
    finish(store, source, configs)
    store.clear()
    log = source.read()
    names = dict.fromkeys(run_id(log, resolved(log, config)[0]) for config in configs)
    return [store.read(name).record() for name in names if name in store], failed
