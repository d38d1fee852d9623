"""A small data set on disk, and runs of it, for the tests of what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import fairstream
from fairstream import Run, RunConfig
from fairstream.experiments import make_run
from fairstream.experiments.jobs import Source, finish, jobs_for, plan_runs
from fairstream.experiments.record import Record
from fairstream.experiments.store import Store
from support import small_settings

FAST: dict[str, Any] = {
    "pretrain_epochs": 2,
    "update_epochs": 1,
    "model_settings": {"embedding_dim": 8},
    "batch_size": 32,
    "n_periods": 3,
    "k": 5,
    "min_group_size": 1,
    "n_resamples": 0,
    "device": "cpu",
}

LONG = {"n_users": 120, "n_items": 150, "n_events": 8000}
"""A stream with enough events for ten periods of a batch each."""

DIVERGING = {"learning_rate": 1e18, "l2": 0.0, "pretrain_epochs": 1, "update_epochs": 60}
"""Adam's steps are of the size of the learning rate: pre-training stays within what 32 bits can hold."""


def small(method: str = "FADE", **options: Any) -> RunConfig:
    """A run of a fraction of a second."""
    given = {"model": "mf", "method": method, **FAST, **options}
    if "model_settings" not in options:
        given["model_settings"] = small_settings(given["model"])
    return RunConfig(**given)


def write_stream(folder: Path, **knobs: Any) -> Path:
    """A synthetic stream whose clock runs in days."""
    stream = fairstream.synthetic_stream(**{"n_users": 60, "n_items": 40, "n_events": 1000, **knobs})
    times = pc.multiply(stream.events["time"], pa.scalar(86_400.0))
    folder.mkdir(parents=True)
    pq.write_table(stream.events.set_column(2, "time", times), folder / "interactions.parquet")
    pq.write_table(stream.users, folder / "users.parquet")
    return folder


def source_of(folder: Path, **options: Any) -> Source:
    return Source.of(str(folder), **{"group": "community", "advantaged": "majority", **options})


def alone(source: Source, config: RunConfig) -> bytes:
    """The file of a run that shares nothing with any other."""
    run = make_run(source.read(), config)
    list(run)
    return stored(run).content()


def stored(run: Run) -> Record:
    """A finished run as a store keeps it: without its seconds."""
    return Record.from_document({name: part for name, part in run.document().items() if name != "timing"})


def complete(store: Store, source: Source, configs: list[RunConfig]) -> None:
    """Do what is left, in one process."""
    for job in jobs_for(store, plan_runs(source, configs)):
        job.execute(store, "cpu", lambda epoch: None)
    finish(store, plan_runs(source, configs))


def contents(store: Store) -> dict[str, bytes]:
    """Everything in a store but the times that were measured."""
    files = [path for path in store.folder.rglob("*") if path.is_file()]
    return {
        str(name): path.read_bytes()
        for path in sorted(files)
        if (name := path.relative_to(store.folder)).parts[0] not in ("times", "running_times.json", ".lock")
    }
