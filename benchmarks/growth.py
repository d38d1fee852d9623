"""What an update of 33,280 events costs when the catalogue and the past are 1, 10 and 100 times MovieLens-1M.

    python benchmarks/growth.py

The recommender stands where one that was loaded would: untrained tables, and a past of random
events, so that no hours of training are needed to get there.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pyarrow as pa

from fairstream import FairRecommender, Groups
from fairstream.events import Knowledge, Rows, Vocabulary

N_USERS, N_ITEMS, N_EVENTS, N_NEW = 6_040, 3_700, 500_000, 33_280


def recommender(scale: int, rng: np.random.Generator, **options: Any) -> FairRecommender:
    """As after a fit on `scale` times MovieLens-1M."""
    n_users, n_items = N_USERS * scale, N_ITEMS * scale
    users, items = rng.integers(0, n_users, N_EVENTS * scale), rng.integers(0, n_items, N_EVENTS * scale)
    users[:n_users], items[:n_items] = np.arange(n_users), np.arange(n_items)
    made = FairRecommender(device="cpu", **options)
    made._learner = made._new_learner()
    known = Knowledge.of(users, items)
    made._learner.restore(0, known, n_learned_users=n_users, started_at=0)
    made._users, made._items = (Vocabulary(_names(np.arange(n))).indexed() for n in (n_users, n_items))
    made._groups = Groups.from_values("side", np.where(np.arange(n_users) % 2, "odd", "even").tolist())
    return made


def new_events(scale: int, rng: np.random.Generator) -> tuple[pa.Table, pa.Table]:
    """Events of 3,000 users, 100 of them new, with items of which some are new."""
    n_users, n_items = N_USERS * scale, N_ITEMS * scale
    people = np.append(rng.choice(n_users, 2900, replace=False), rng.integers(n_users, 10**9, 100))
    users = rng.choice(people, N_NEW)
    items = np.where(rng.random(N_NEW) < 0.003, rng.integers(n_items, 10**9, N_NEW), rng.integers(0, n_items, N_NEW))
    sides = np.where(people % 2, "odd", "even")
    events = pa.table({"user_id": _names(users), "item_id": _names(items), "time": np.arange(N_NEW)})
    return events, pa.table({"user_id": _names(people), "side": sides})


def _names(numbers: Rows) -> pa.Array:
    return pa.array(numbers).cast(pa.large_string())


def update(made: FairRecommender, scale: int, rng: np.random.Generator) -> tuple[float, float]:
    """Seconds of an update, and of all that comes before its training (done once more, of other events)."""
    events, users = new_events(scale, rng)
    begin = time.perf_counter()
    made.update(events, users=users)
    whole = time.perf_counter() - begin
    events, users = new_events(scale, rng)
    begin = time.perf_counter()
    placed = made._placed(events, users)
    known = made._fitted()[0].known.after(placed.users, placed.items)
    known.seen.lists(np.unique(placed.users))
    return whole, time.perf_counter() - begin


def main() -> None:
    """Measure each scale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scales", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--n-times", type=int, default=5)
    parser.add_argument("--update-epochs", type=int, default=10)
    options = parser.parse_args()
    for scale in options.scales:
        rng = np.random.default_rng(0)
        made = recommender(scale, rng, update_epochs=options.update_epochs)
        update(made, scale, rng)  # compiles
        times = np.array([update(made, scale, rng) for _ in range(options.n_times)])
        whole, data = 1e3 * np.median(times, axis=0)
        print(
            f"{scale:4} x: update {whole:8.1f} ms, of which reading and placing the events {data:6.1f} ms", flush=True
        )


if __name__ == "__main__":
    main()
