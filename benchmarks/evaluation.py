"""How long a judgement and a list of recommendations take, on the CPU and on CUDA where there is one.

Run as `python benchmarks/evaluation.py <folder of movielens-1m>`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fairstream import read_events
from fairstream.evaluation import Judge, Protocol, best_items
from fairstream.events import EventLog, Knowledge, SeenItems
from fairstream.models import MatrixFactorization
from fairstream.randomness import Randomness


class Row(NamedTuple):
    """One measurement: of n runs after one that is not counted, the median and the fastest and slowest."""

    what: str
    device: str
    median_s: float
    fastest_s: float
    slowest_s: float
    n_runs: int

    def __str__(self) -> str:
        times = (f"{1e3 * seconds:10.1f}" for seconds in (self.median_s, self.fastest_s, self.slowest_s))
        return f"{self.what:<58}{self.device:>6}{''.join(times)} ms  ({self.n_runs} runs)"


def measure(data_folder: str | Path, *, n_users: int = 10_000, n_items: int = 500_000) -> list[Row]:
    """A strict judgement of MF on the last 40 % of MovieLens, bare and with resamples; and many recommendations."""
    log, rows = read_events(data_folder), []
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for n_resamples in (0, 1000):
            judging = _judging(log, device, n_resamples)
            rows.append(_timed(f"judge, strict, k = 20, {n_resamples} resamples", device, 15, judging))
        recommending = _recommending(device, n_users, n_items)
        rows.append(_timed(f"best_items, {n_users} users × {n_items} items × 64, k = 20", device, 3, recommending))
    return rows


def _judging(log: EventLog, device: str, n_resamples: int) -> Callable[[], object]:
    cut = int(0.6 * len(log))
    known = Knowledge.of(log.users[:cut], log.items[:cut])
    torch.manual_seed(0)
    model = MatrixFactorization(known.n_users, known.n_items, embedding_dim=64).to(device)
    judge = Judge(Protocol.named("strict"), 20, log.need_groups(), Randomness(0), 20, n_resamples)
    return lambda: judge.judge(model, log.users[cut:], log.items[cut:], known=known, t=0)


def _recommending(device: str, n_users: int, n_items: int) -> Callable[[], object]:
    """50 items had by each user."""
    torch.manual_seed(0)
    model = MatrixFactorization(n_users, n_items, embedding_dim=64).to(device)
    rng = np.random.default_rng(0)
    seen = SeenItems.from_pairs(rng.integers(n_users, size=50 * n_users), rng.integers(n_items, size=50 * n_users))
    return lambda: best_items(model, np.arange(n_users), seen, n_items=n_items, k=20)


def _timed(what: str, device: str, n_runs: int, work: Callable[[], object]) -> Row:
    """Results are on the host when `work` returns, so nothing is left running on the device."""
    work()
    times = []
    for _ in range(n_runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return Row(what, device, statistics.median(times), min(times), max(times), n_runs)


def main() -> None:
    """Measure, and print a line each."""
    for row in measure(sys.argv[1]):
        print(row)


if __name__ == "__main__":
    main()
