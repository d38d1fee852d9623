"""A large log from its file to lists for many users, each part on a Ray cluster of this machine.

    python -m benchmarks.cluster_data --events 5000000

The events of `benchmarks.big_data` (fifty million of five million users and half a million items, or fewer in the same
proportion) are ingested, fitted by matrix factorisation (one epoch), updated with new ones, evaluated and turned into
lists in Parquet files. A peak is the largest resident set of one process, looked up five times a second: that of this
process up to then, and that of the largest worker in this part, memory that it shares with others included.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import fairstream as fs
from benchmarks.big_data import N_EVENTS, N_ITEMS, N_NEW, N_USERS, make_data
from benchmarks.timing import table
from fairstream.cluster import connect

_SECONDS = 0.2
_PAGES_A_GIB = (1 << 30) / 4096


class Peaks:
    """The largest resident sets, in GiB, of this process and of Ray's workers."""

    def __init__(self) -> None:
        self.here = self.worker = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_over.wait(_SECONDS):
            self.here = max(self.here, _resident(Path("/proc/self")))
            self.worker = max([self.worker, *map(_resident, _workers())])

    def stop(self) -> None:
        """Look no more."""
        self._is_over.set()
        self._thread.join()


def _resident(folder: Path) -> float:
    try:
        return int((folder / "statm").read_text().split()[1]) / _PAGES_A_GIB
    except (OSError, IndexError):
        return 0.0  # it has ended


def _workers() -> list[Path]:
    """The processes of Ray's workers that this process has started, by way of Ray's own."""
    parents, found = dict[int, int](), list[int]()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if (folder / "cmdline").read_bytes().startswith(b"ray::"):
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended

    def is_ours(pid: int) -> bool:
        while pid and pid != os.getpid():
            pid = parents.get(pid, 0)
        return pid != 0

    return [Path(f"/proc/{pid}") for pid in found if is_ours(pid)]


def main() -> None:
    """Print a row for each part as it ends, and all of them as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=N_EVENTS)
    parser.add_argument("--batch", type=int, default=8_192, help="interactions a step")
    parser.add_argument("--lists", type=int, default=100_000, help="users who get one")
    given = parser.parse_args()
    share, rows = given.events / N_EVENTS, list[list[str]]()

    @contextmanager
    def part(name: str) -> Iterator[None]:
        peaks, begin = Peaks(), time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        peaks.stop()
        rows.append([name, f"{seconds:.0f}", f"{peaks.here:.2f}", f"{peaks.worker:.2f}"])
        print(*rows[-1], flush=True)

    with tempfile.TemporaryDirectory() as name, connect("local") as cluster:
        folder = Path(name)
        make_data(folder, given.events, round(N_USERS * share), round(N_ITEMS * share))
        new, people = folder / "new.parquet", folder / "new people.parquet"
        with part(f"ingest {given.events:,} events"):
            fs.ingest(
                folder / "events.parquet",
                folder / "log",
                users=folder / "people.parquet",
                group="side",
                cluster="local",
            )
        log = fs.read_events(folder / "log")
        rec = fs.FairRecommender("mf", pretrain_epochs=1, batch_size=given.batch, device="cpu")
        with part(f"fit, one epoch by {cluster.n_cpus} workers"):
            rec.fit(log, cluster="local")
        with part(f"evaluate on {N_NEW:,} events"):
            rec.evaluate(new, users=people, tasks="next", n_resamples=100, cluster="local")
        with part(f"update with {N_NEW:,} events, ten epochs"):
            rec.update(new, users=people, cluster="local")
        asked = log.user_ids.ids.take(np.linspace(0, log.n_users - 1, min(given.lists, log.n_users)).astype(np.int64))
        with part(f"lists for {len(asked):,} users"):
            rec.recommend_to(folder / "lists", asked, cluster="local")
        assert pq.read_table(folder / "lists").num_rows == 20 * len(asked)
    print("\n" + table(["part", "s", "peak here, GiB", "peak of a worker, GiB"], rows))


if __name__ == "__main__":
    main()
