"""A command that fills a store with two workers, for the tests that kill it."""

from __future__ import annotations

import sys
from pathlib import Path

from fairstream.experiments.jobs import Source, plan_runs
from fairstream.experiments.pool import execute_runs
from fairstream.experiments.store import Store
from stores import small, source_of

CONFIGS = [
    small(method, seed=seed, pretrain_epochs=40)
    for seed in range(2)
    for method in ("Finetune", "Rerank", "Pretrain", "Retrain", "FADE", "Retrain-Fair")
]


def fill(store: Store, source: Source, n_workers: int) -> None:
    with store.writing():
        assert execute_runs(store, plan_runs(source, CONFIGS), device="cpu", n_workers=n_workers) == []


if __name__ == "__main__":
    fill(Store(Path(sys.argv[1])), source_of(Path(sys.argv[2])), 2)
