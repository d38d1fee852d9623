"""Time of a training, an evaluation and lists for all users, in this process and on a local Ray.

python -m benchmarks.cluster --users 20000 --workers 1 2
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import fairstream as fs
from benchmarks.timing import table


def seconds(work: Callable[[], Any]) -> float:
    """How long some work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=8_192)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    options = parser.parse_args()
    n_events = 25 * options.users
    stream = fs.synthetic_stream(n_users=options.users, n_items=5_000, n_events=n_events, seed=0)
    log = fs.read_events(stream.events.slice(0, n_events - n_events // 20), users=stream.users)
    later = stream.events.slice(n_events - n_events // 20)
    rows = [measure(None, log, later, stream.users, options)]
    rows += [measure(n_workers, log, later, stream.users, options) for n_workers in options.workers]
    print(table(["workers", "fit, s", "an epoch, s", "evaluate, s", "lists, s"], rows))


def measure(n_workers: int | None, log: fs.EventLog, later: Any, users: Any, options: argparse.Namespace) -> list[str]:
    """One row of the table."""
    times: list[float] = []
    training = fs.Training(batch_size=options.batch, pretrain_epochs=options.epochs)
    rec = fs.FairRecommender("sasrec", training=training, engine="reference", device="cpu")
    with (
        nullcontext() if n_workers is None else fs.cluster("local", n_workers=n_workers),
        tempfile.TemporaryDirectory() as folder,
    ):
        parts = [
            seconds(lambda: rec.fit(log, on_epoch=lambda *_: times.append(time.perf_counter()))),
            (times[-1] - times[0]) / (len(times) - 1),
            seconds(lambda: rec.evaluate(later, users=users, n_resamples=0)),
            seconds(lambda: rec.recommend_to(f"{folder}/lists", users_per_file=2_000)),
        ]
    return ["this process" if n_workers is None else str(n_workers), *(f"{part:.2f}" for part in parts)]


if __name__ == "__main__":
    main()
