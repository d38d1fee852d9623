"""A command that fills a store with two workers, for the tests that kill it."""

from __future__ import annotations

import sys
from pathlib import Path

from fairstream.experiments.jobs import Source, finish, jobs_for
from fairstream.experiments.pool import execute_all
from fairstream.experiments.store import Store
from stores import small, source_of

CONFIGS = [
    small(method, seed=seed, pretrain_epochs=40)
    for seed in range(2)
    for method in ("Finetune", "Rerank", "Pretrain", "Retrain", "FADE", "Retrain-Fair")
]


def fill(store: Store, source: Source, n_workers: int) -> None:
    with store.writing():
        failed = execute_all(jobs_for(store, source, CONFIGS), store, device="cpu", n_workers=n_workers)
        assert failed == []
        finish(store, source, CONFIGS)


if __name__ == "__main__":
    fill(Store(Path(sys.argv[1])), source_of(Path(sys.argv[2])), 2)
