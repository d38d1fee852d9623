"""The time of an evaluation and of many recommendations, on the CPU and on CUDA where there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks import movielens
from benchmarks.timing import in_turns, table
from fairstream.data import EventLog, History
from fairstream.evaluation import Evaluator, best_items
from fairstream.models import ContextBuilder, MFScorer
from fairstream.randomness import Randomness

N_USERS, N_ITEMS = 10_000, 500_000


def report(folder: Path) -> str:
    """Strict evaluation of MF on the last 40 % of MovieLens, without and with resamples; and many recommendations."""
    log, rows = movielens.read(folder), []
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for n_threads in (1, 2) if device == "cpu" else (torch.get_num_threads(),):
            torch.set_num_threads(n_threads)
            work = {f"evaluate, {n:,} resamples": _evaluating(log, device, n) for n in (0, 1000)}
            times = in_turns(work, rounds=15)
            recommending = {f"best 20 of {N_ITEMS:,} items for {N_USERS:,} users": _recommending(device)}
            times |= in_turns(recommending, rounds=3)
            rows += [[name, device, str(n_threads), taken.show(".1f", 1e3)] for name, taken in times.items()]
    return table(["what", "device", "threads", "ms"], rows)


def _evaluating(log: EventLog, device: str, n_resamples: int) -> Callable[[], object]:
    """All users with events after the first 60 %, all metrics at 20, all slices."""
    cut = int(0.6 * len(log))
    past = History.of(log.users[:cut], log.items[:cut])
    torch.manual_seed(0)
    model = MFScorer(past.n_users, past.n_items, embedding_dim=64).to(device)
    trained = np.ones(past.n_users, np.bool_)
    evaluator = Evaluator(20, log.require_groups(), Randomness(0), 20, n_resamples)

    def evaluate() -> object:
        history = replace(past)  # a copy, because a history caches the popularity
        contexts = ContextBuilder(model.history_length, history, trained, device)
        return evaluator.evaluate(model, log.users[cut:], log.items[cut:], history=history, contexts=contexts, t=0)

    return evaluate


def _recommending(device: str) -> Callable[[], object]:
    """50 seen items a user. Results are on the host when it returns: nothing is left running."""
    torch.manual_seed(0)
    model = MFScorer(N_USERS, N_ITEMS, embedding_dim=64).to(device)
    rng = np.random.default_rng(0)
    users, items = rng.integers(N_USERS, size=50 * N_USERS), rng.integers(N_ITEMS, size=50 * N_USERS)
    history = History.of(users, items, n_items=N_ITEMS)
    contexts = ContextBuilder(model.history_length, history, None, device)
    return lambda: best_items(model, np.arange(N_USERS), history, contexts=contexts, k=20)
