"""Positive–negative pairs a second on MovieLens D_0, beside implicit's and cornac's BPR and the reference engine.

Everybody has 64 dimensions and the same number of threads. What is timed are as many epochs as
make 8 pairs of every interaction, sampling and setting up included. The peers do plain SGD on one negative an
interaction, without Adam and without a fairness loss; FADE-MF and Finetune-MF have row Adam and
four negatives.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse
import torch

from benchmarks import movielens
from benchmarks.timing import in_turns, table
from fairstream.data import EventLog
from fairstream.training import EngineName

ROUNDS = 9
PAIRS = 8 * movielens.D_0.stop
"""Eight epochs of one negative an interaction, or two of four."""


def report(folder: Path) -> str:
    """The tables for one and for two threads."""
    log = movielens.read(folder)
    return "\n\n".join(_compare(log, n_threads) for n_threads in (1, 2))


def _compare(log: EventLog, n_threads: int) -> str:
    contenders: dict[str, tuple[Callable[[], object], float]] = {
        "FADE-MF, fused": (_ours(log, 0.5, "fused", n_threads), 1),
        "Finetune-MF, fused": (_ours(log, 0.0, "fused", n_threads), 1),
        "implicit BPR": (_implicit(log, n_threads), 1),
        "cornac BPR": (_cornac(log, n_threads), 1),
        "FADE-MF, reference": (_ours(log, 0.5, "reference", n_threads, share=40), 1 / 40),
    }
    times = in_turns({name: work for name, (work, _) in contenders.items()}, rounds=ROUNDS)
    rates = {name: times[name].rate(share * PAIRS) for name, (_, share) in contenders.items()}
    fade = rates["FADE-MF, fused"]
    rows = [[name, rate.show(".2f", 1e-6), fade.over(rate).show(".2f")] for name, rate in rates.items()]
    return table([f"{n_threads} thread(s)", "million pairs a second", "FADE-MF, fused, over it"], rows)


def _ours(log: EventLog, lambda_: float, name: EngineName, n_threads: int, share: int = 1) -> Callable[[], object]:
    """Two epochs of four negatives (over a share of D_0), all that has to be set up for them included."""
    at = slice(0, movielens.D_0.stop // share)
    method = movielens.learning(lambda_=lambda_, engine=name)
    state = movielens.untrained(method, log, at)

    def work() -> None:
        torch.set_num_threads(n_threads)
        engine = movielens.engine_on(log, at, method, state)
        order = np.random.default_rng(0).permutation(len(engine.job.batches))
        for key in range(2):
            engine.epoch(order, key)

    return work


def _implicit(log: EventLog, n_threads: int) -> Callable[[], object]:
    from implicit.bpr import BayesianPersonalizedRanking  # noqa: PLC0415 (a peer, and not always there)

    at = movielens.D_0
    matrix = scipy.sparse.csr_matrix((np.ones(at.stop, np.float32), (log.users[at], log.items[at])))
    model = BayesianPersonalizedRanking(factors=64, iterations=8, num_threads=n_threads, random_state=0)

    def work() -> None:
        with warnings.catch_warnings(action="ignore"):
            model.fit(matrix, show_progress=False)

    return work


def _cornac(log: EventLog, n_threads: int) -> Callable[[], object]:
    import cornac  # noqa: PLC0415

    at = movielens.D_0
    triplets = zip(log.users[at].tolist(), log.items[at].tolist(), [1.0] * at.stop, strict=True)
    data = cornac.data.Dataset.from_uir(list(triplets))
    model = cornac.models.BPR(k=64, max_iter=8, num_threads=n_threads, seed=0, verbose=False)
    return partial(model.fit, data)
