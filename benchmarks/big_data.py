"""Fifty million events of five million users and half a million items, on the CPU: time and memory of all that is done.

Synthetic events (activity of users log-normal, of items like 1 / rank, two groups) in a Parquet
file are ingested, and in a process of its own a recommender is fitted on the log (one epoch),
updated with 33,280 new events and asked for recommendations. A peak is the largest resident set
that the kernel saw up to then, pages of mapped files included.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

import fairstream
from benchmarks.timing import table

N_EVENTS, N_USERS, N_ITEMS = 50_000_000, 5_000_000, 500_000
N_NEW, N_ASKED = 33_280, 10_000
_CHUNK = 1 << 20

Rows = list[list[str]]


def report(folder: Path) -> str:
    """A row for each thing done."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        _apart(make_data, place)
        rows = _apart(_ingest, place) + _apart(_use, place)
    return table(["what", "s", "peak so far, GiB"], rows)


def make_data(
    folder: Path, n_events: int = N_EVENTS, n_users: int = N_USERS, n_items: int = N_ITEMS, n_new: int = N_NEW
) -> None:
    """`events.parquet` and `people.parquet`, and the same of the new events; user ids are strings."""
    rng = np.random.default_rng(0)
    activity = np.cumsum(rng.lognormal(sigma=1.0, size=n_users))
    names = pa.array(np.arange(n_users)).cast(pa.string())
    side = pa.array(np.where(rng.random(n_users) < 0.6, "majority", "minority"))
    pq.write_table(pa.table({"user_id": names, "side": side}), folder / "people.parquet")

    def events(start: int, n: int) -> pa.Table:
        users = np.searchsorted(activity, rng.random(n) * activity[-1])
        items = np.minimum((n_items + 1) ** rng.random(n), n_items).astype(np.int64) - 1
        times = np.arange(start, start + n)
        return pa.table({"user_id": names.take(pa.array(users)), "item_id": items, "timestamp": times})

    with pq.ParquetWriter(folder / "events.parquet", events(0, 1).schema) as writer:
        for start in range(0, n_events, _CHUNK):
            writer.write_table(events(start, min(_CHUNK, n_events - start)))
    new = events(n_events, n_new)
    who = pa.compute.unique(new["user_id"].combine_chunks())
    pq.write_table(new, folder / "new.parquet")
    pq.write_table(pa.table({"user_id": who, "side": side.take(who.cast(pa.int64()))}), folder / "new people.parquet")


def _ingest(folder: Path) -> Rows:
    rows: Rows = []
    with _stage("imports alone", rows):
        pass
    size = (folder / "events.parquet").stat().st_size / 1024**3
    with _stage(f"ingest {N_EVENTS:,} events ({size:.2f} GiB of Parquet)", rows):
        fairstream.ingest(folder / "events.parquet", folder / "log", users=folder / "people.parquet", group="side")
    return rows


def _use(folder: Path) -> Rows:
    rows: Rows = []
    with _stage("open the log", rows):
        log = fairstream.read_events(folder / "log")
    recommender = fairstream.FairRecommender("mf", training=fairstream.Training(pretrain_epochs=1), device="cpu")
    n = f"{len(log):,} events, {log.n_users:,} users, {log.n_items:,} items"
    with _stage(f"fit, one epoch ({n})", rows):
        recommender.fit(log)
    with _stage(f"update with {N_NEW:,} events, ten epochs", rows):
        recommender.update(folder / "new.parquet", users=folder / "new people.parquet")
    with _stage(f"20 recommendations for each of {N_ASKED:,} users", rows):
        recommender.recommend(log.user_ids.ids.take(np.arange(N_ASKED) * 97))
    return rows


@contextmanager
def _stage(name: str, rows: Rows) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    rows.append([name, f"{seconds:.2f}", f"{peak:.2f}"])
    print(*rows[-1], flush=True)


def _apart(stage: Callable[[Path], Any], folder: Path) -> Any:
    """Run a stage in a process of its own, so that its peak is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(stage, (folder,))
