"""What each model costs: pre-training, a period's update, a list for one user and for ten thousand.

python -m benchmarks.models DATA [--model sasrec ...] [--device cuda] [--epochs N]
DATA is a folder with interactions and users, for example movielens-1m.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

import fairstream as fs

MODELS = ("recent-popularity", "item-item", "mf", "gru", "sasrec", "blend")
N_PERIODS = 4


def seconds(function: Callable[[], object], n: int = 5) -> float:
    """The median of n calls."""
    found = []
    for _ in range(n):
        begin = time.perf_counter()
        function()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def measure(log: fs.EventLog, model: str, device: str, epochs: int | None) -> str:
    """A line of the table."""
    options = {} if epochs is None else {"pretrain_epochs": epochs}
    run = fs.run(log, "Finetune", model=model, tasks=("next",), n_resamples=0, device=device, **options)  # type: ignore[arg-type]
    fit = run.begin().update
    updates = [next(run).update.seconds for _ in range(N_PERIODS)]
    rec = fs.FairRecommender(model, device=device)  # type: ignore[arg-type]
    rec._state = run.state
    ids = run.state.user_ids.ids
    some = ids.take(np.arange(10_000) % run.state.history.n_users)
    one, many = seconds(lambda: rec.recommend(ids[:1])), seconds(lambda: rec.recommend(some), n=2)
    engine = fit.report.engine if fit.report else "closed form"
    cells = f"{fit.seconds:8.2f} {statistics.median(updates):8.3f} {1000 * one:8.1f} {many:8.2f}"
    return f"{model:18s} {run.config.pretrain_epochs:6d} {cells}  {engine}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--group", help="column of the users; by default the only one beside their ids")
    parser.add_argument("--model", action="append")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--epochs", type=int)
    given = parser.parse_args()
    folder = given.data
    log = fs.read_events(f"{folder}/interactions.parquet", users=f"{folder}/users.parquet", group=given.group)
    print(f"{len(log)} events, {log.n_items} items, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{'model':18s} {'epochs':>6s} {'fit s':>8s} {'update s':>8s} {'1 user ms':>9s} {'10k s':>7s}  engine")
    for model in given.model or MODELS:
        print(measure(log, model, given.device, given.epochs), flush=True)


if __name__ == "__main__":
    main()
