"""Time and memory of a log that is larger than memory should have to hold.

    python benchmarks/big_data.py --n-events 50_000_000 --n-users 5_000_000 --n-items 500_000

Makes a Parquet file of synthetic events, a row group at a time (activity of users log-normal, of
items like 1 / rank, times increasing unless --shuffled, two groups), ingests it, and uses the log.
Each stage runs in a process of its own: its peak is the largest resident set that the kernel saw,
which holds pages of mapped files too, and the largest anonymous part of it, seen 20 times a second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import fairstream
from fairstream.events import Knowledge, SeenItems

_CHUNK = 1 << 20
_MIB = 1024**2


def make_data(folder: Path, n_events: int, n_users: int, n_items: int, *, shuffled: bool) -> None:
    """`events.parquet` and `people.parquet`."""
    rng = np.random.default_rng(0)
    activity = np.cumsum(rng.lognormal(sigma=1.0, size=n_users))
    names = pa.array(np.arange(n_users)).cast(pa.string())
    side = pa.array(np.where(rng.random(n_users) < 0.6, "majority", "minority"))
    pq.write_table(pa.table({"user_id": names, "side": side}), folder / "people.parquet")
    schema = pa.schema([("user_id", pa.string()), ("item_id", pa.int64()), ("timestamp", pa.int64())])
    with pq.ParquetWriter(folder / "events.parquet", schema) as writer:
        for start in range(0, n_events, _CHUNK):
            n = min(_CHUNK, n_events - start)
            users = np.searchsorted(activity, rng.random(n) * activity[-1])
            items = np.minimum((n_items + 1) ** rng.random(n), n_items).astype(np.int64) - 1
            times = rng.integers(0, n_events, n) if shuffled else np.arange(start, start + n)
            writer.write_table(pa.table([names.take(pa.array(users)), items, times], schema=schema))


def ingest(folder: Path) -> None:
    """From the Parquet files to a log in a folder."""
    with _stage("ingest"):
        log = fairstream.ingest(
            folder / "events.parquet", folder / "log", users=folder / "people.parquet", group="side"
        )
    print(f"{len(log):,} events, {log.n_users:,} users, {log.n_items:,} items; {'; '.join(log.notes)}", flush=True)
    print(f"{sum(file.stat().st_size for file in (folder / 'log').iterdir()) / _MIB:,.0f} MiB on disk", flush=True)


def use(folder: Path) -> None:
    """What a recommender asks of the log."""
    with _stage("open"):
        log = fairstream.read_events(folder / "log")
    with _stage("SeenItems.from_pairs"):
        SeenItems.from_pairs(log.users, log.items)
    with _stage("Knowledge.of"):
        known = Knowledge.of(log.users, log.items)
    with _stage("lists of all users"):
        bounds, items = known.seen.lists(np.arange(known.n_users))
    assert len(items) == len(log)
    del bounds, items
    with _stage("lists of 5,000 users, has and after 33,280 pairs"):
        rng = np.random.default_rng(1)
        users, items = rng.integers(0, log.n_users, 33_280), rng.integers(0, log.n_items, 33_280)
        known.seen.has(users, items)
        known.after(users, items).seen.lists(users[:5000])
    with _stage("popularity"):
        known.popularity()
    with _stage("vocabularies indexed"):
        log.user_ids.indexed(), log.item_ids.indexed()


def nothing(folder: Path) -> None:
    """What a process needs that does nothing."""
    with _stage("imports alone"):
        pass


@contextmanager
def _stage(name: str) -> Iterator[None]:
    anonymous, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            anonymous[0] = max(anonymous[0], _status("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    yield
    seconds = time.perf_counter() - begin
    done.set()
    watcher.join()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    after = f"after it {_status('RssAnon')} anonymous, {_status('RssFile')} of files"
    print(f"{name:<50} {seconds:8.2f} s   MiB: peak so far {peak}, anonymous {anonymous[0]}; {after}", flush=True)


def _status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) // 1024


def _apart(stage: Callable[..., None], *arguments: Any, **options: Any) -> None:
    process = multiprocessing.get_context("spawn").Process(target=stage, args=arguments, kwargs=options)
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(process.exitcode)


def main() -> None:
    """Make the data and run the stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-events", type=int, default=50_000_000)
    parser.add_argument("--n-users", type=int, default=5_000_000)
    parser.add_argument("--n-items", type=int, default=500_000)
    parser.add_argument("--shuffled", action="store_true", help="times in no order")
    parser.add_argument("--folder", help="where to put the temporary files")
    options = parser.parse_args()
    sizes = (options.n_events, options.n_users, options.n_items)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        _apart(make_data, folder, *sizes, shuffled=options.shuffled)
        print(f"events.parquet has {(folder / 'events.parquet').stat().st_size / _MIB:,.0f} MiB", flush=True)
        for stage in (nothing, ingest, use):
            _apart(stage, folder)


if __name__ == "__main__":
    main()
