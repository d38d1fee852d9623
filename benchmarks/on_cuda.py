"""How long an update and a pre-training take on a CUDA device: the fused engine beside the reference.

Wall times of `Trainer.train`, everything included but the compilation of the kernels, which
happens once per machine. The reference, which is hundreds of times as slow, does fewer epochs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from benchmarks import movielens
from benchmarks.timing import Times, in_turns, table
from fairstream.events import EventLog
from fairstream.training import EngineName

EPOCHS: dict[tuple[str, str], int] = {
    ("update", "fused"): 10,
    ("update", "reference"): 1,
    ("pre-training", "fused"): 100,
    ("pre-training", "reference"): 1,
}


def report(folder: Path) -> str:
    """MF and NCF, row and dense Adam."""
    log, rows = movielens.read(folder), []
    kinds: list[tuple[str, Literal["row", "dense"]]] = [(m, o) for m in ("mf", "ncf") for o in ("row", "dense")]
    for model, optimizer in kinds:
        for what, at in (("update", movielens.D_1), ("pre-training", movielens.D_0)):
            works = {engine: _training(log, at, model, optimizer, engine, EPOCHS[what, engine]) for engine in ENGINES}
            times = in_turns(works, rounds=9 if what == "update" else 1)
            steps = {engine: _per_step(times[engine], EPOCHS[what, engine], at) for engine in ENGINES}
            rows.append(
                [
                    f"FADE-{model.upper()}, {optimizer} Adam, {what} of {EPOCHS[what, 'fused']} epochs",
                    times["fused"].show(".1f", 1e3),
                    steps["fused"].show(".1f", 1e6),
                    steps["reference"].show(".0f", 1e6),
                    steps["reference"].over(steps["fused"]).show(".0f"),
                ]
            )
    header = ["what", "fused, ms", "fused, µs a step", "reference, µs a step", "reference over fused"]
    return table(header, rows)


ENGINES: tuple[EngineName, ...] = ("fused", "reference")


def _per_step(times: Times, epochs: int, at: slice) -> Times:
    n_steps = epochs * (at.stop - at.start) // 256
    return Times([seconds / n_steps for seconds in times.seconds])


def _training(
    log: EventLog, at: slice, model: str, optimizer: Literal["row", "dense"], engine: EngineName, epochs: int
) -> Callable[[], object]:
    """A training of a model that is there already, to its end."""
    trained = movielens.trainer(log, device="cuda", engine=engine, model=model, optimizer=optimizer)
    sampler, groups = movielens.sampler(log, at, "cuda"), log.need_groups()
    users, items, shuffled = log.users[at], log.items[at], at == movielens.D_0

    def work() -> None:
        trained.train(users, items, groups, sampler, n_groups=2, t=1, epochs=epochs, shuffled=shuffled)
        torch.cuda.synchronize()

    return work
