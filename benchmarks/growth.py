"""What an update of 33,280 events costs when the catalogue and the past are 1, 10 and 100 times MovieLens-1M.

It is the whole of `FairRecommender.update`: reading the table, finding the ids, placing the events,
ten epochs, everything. The recommender stands where one that was loaded would: untrained tables, and a past of random
events, so that no hours of training are needed to get there.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks.timing import Times, table
from fairstream import FairRecommender, Groups
from fairstream.events import Knowledge, Rows, Vocabulary

SCALES, ROUNDS = (1, 10, 100), 9
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


def report(folder: Path) -> str:
    """Medians and spreads of an update, the sizes taken in turns."""
    made = {scale: recommender(scale, np.random.default_rng(scale)) for scale in SCALES}
    rng, rows = np.random.default_rng(0), []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        whole: dict[int, list[float]] = {scale: [] for scale in SCALES}
        training: dict[int, list[float]] = {scale: [] for scale in SCALES}
        for counts in [False] + [True] * ROUNDS:
            for scale in SCALES:
                events, users = new_events(scale, rng)
                begin = time.perf_counter()
                update = made[scale].update(events, users=users)
                if counts:
                    whole[scale].append(time.perf_counter() - begin)
                    training[scale].append(update.seconds)
        for scale in SCALES:
            times, inside = Times(whole[scale]), Times(training[scale])
            first = Times(whole[1])
            rows.append([str(n_threads), f"× {scale}", times.show(), times.over(first).show(".2f"), inside.show()])
    return table(["threads", "catalogue", "update, s", "over × 1", "of which learning, s"], rows)
