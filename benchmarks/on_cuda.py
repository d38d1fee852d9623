"""How long an update and a pre-training epoch take on a CUDA device, beside the reference.

Wall times, everything included but the compilation of the kernels, which happens once per machine. The reference does
one epoch of an update; its time is taken ten times. `engines_on_cuda.py` has more: the checks, and other models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from benchmarks.engines_on_cuda import D_0, Jobs, built_in, epoch_ms, events, in_turns, update
from benchmarks.timing import Times, table
from fairstream.training import choose_engine
from fairstream.training.reference import ReferenceEngine

ROUNDS = 7


def report(folder: Path) -> str:
    """MF and NCF, row and dense Adam, each by the engine that `auto` chooses."""
    jobs, rows = Jobs(events(str(folder / "movielens-1m"))), []
    kinds: list[tuple[str, Literal["row", "dense"]]] = [(m, o) for m in ("mf", "ncf") for o in ("row", "dense")]
    for model, optimizer in kinds:
        job, beside = (jobs.make(built_in(model), optimizer) for _ in range(2))
        engine = choose_engine("auto", job)
        taken = in_turns(
            {"auto": update(engine, job), "reference": update(ReferenceEngine, beside, epochs=1)}, rounds=ROUNDS
        )
        faster = Times([10 * a / b for a, b in zip(taken["reference"], taken["auto"], strict=True)])
        pretraining = epoch_ms(engine, jobs.make(built_in(model), optimizer, D_0))
        name = f"FADE-{model.upper()}, {optimizer} Adam, {engine.name}"
        rows.append([name, Times(taken["auto"]).show(".1f"), faster.show(".0f"), f"{pretraining:.0f}"])
    header = ["what", "update (10 epochs), ms", "reference over it", "pre-training epoch, ms"]
    return table(header, rows)
