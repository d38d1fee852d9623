"""How long an update and a pre-training take on a CUDA device: the fused engine beside the reference.

Wall times of a whole training, everything included but the compilation of the kernels, which
happens once per machine. The reference, which is hundreds of times as slow, does one epoch of an
update; its time is taken ten times.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from benchmarks import movielens
from benchmarks.timing import Times, in_turns, table
from fairstream.data import EventLog
from fairstream.training import EngineName

ROUNDS = 7


def report(folder: Path) -> str:
    """MF and NCF, row and dense Adam."""
    log, rows = movielens.read(folder), []
    kinds: list[tuple[str, Literal["row", "dense"]]] = [(m, o) for m in ("mf", "ncf") for o in ("row", "dense")]
    for model, optimizer in kinds:
        name = f"FADE-{model.upper()}, {optimizer} Adam"
        fused = _training(log, movielens.D_1, model, optimizer, "fused", epochs=10)
        reference = _training(log, movielens.D_1, model, optimizer, "reference", epochs=1)
        times = in_turns({"fused": fused, "reference": reference}, rounds=ROUNDS)
        faster = Times([10 * ratio for ratio in times["reference"].over(times["fused"]).seconds])
        rows.append([f"{name}, update (10 epochs)", times["fused"].show(".1f", 1e3), faster.show(".0f")])
        pretraining = _training(log, movielens.D_0, model, optimizer, "fused", epochs=100)
        (taken,) = in_turns({name: pretraining}, rounds=2).values()
        rows.append([f"{name}, 100 epochs of pre-training", taken.show(".0f", 1e3), ""])
    return table(["what", "fused, ms", "reference over fused"], rows)


def _training(
    log: EventLog, at: slice, model: str, optimizer: Literal["row", "dense"], engine: EngineName, epochs: int
) -> Callable[[], object]:
    """A whole training: from scratch on D_0, or an update of a model that has learned nothing."""
    method = movielens.learning(
        device="cuda", engine=engine, model=model, optimizer=optimizer, pretrain_epochs=epochs, update_epochs=epochs
    )
    before, new = movielens.untrained(method, log, slice(0, at.start)), movielens.events(log, at)

    def work() -> None:
        candidate = method.fit(new) if at == movielens.D_0 else method.update(before, new)
        candidate.commit(in_place=False)
        torch.cuda.synchronize()

    return work
