"""How long an update takes on the CPU, and what it grows with.

An update is the whole of `Trainer.update` and of putting its result in force: 10 epochs over the 33,280
interactions of MovieLens D_1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import movielens
from benchmarks.timing import in_turns, table
from fairstream.data import EventLog

ROUNDS = 11


def report(folder: Path) -> str:
    """FADE beside Finetune, the new interactions, and the knobs."""
    log = movielens.read(folder)
    return "\n\n".join([_fade_and_finetune(log), _new_interactions(log), _knobs(log)])


def update(log: EventLog, at: slice = movielens.D_1, epochs: int = 10, **options: object) -> Callable[[], object]:
    """One update of a model, which goes on from where the last one left it, always with the events of `at`."""
    method = movielens.learning(update_epochs=epochs, **options)  # type: ignore[arg-type]
    before, new = movielens.untrained(method, log, slice(0, at.start)), movielens.events(log, at)
    state = before

    def work() -> None:
        nonlocal state
        start = replace(before, model=state.model, optimizer=state.optimizer)
        state, _ = method.update(start, new).commit(in_place=True)

    return work


def _fade_and_finetune(log: EventLog) -> str:
    times = in_turns({name: update(log, lambda_=lambda_) for name, lambda_ in FADE_AND_FINETUNE.items()}, rounds=ROUNDS)
    fade, finetune = times.values()
    row = [fade.show(), finetune.show(), fade.over(finetune).show(".2f")]
    return table(["FADE-MF update, s", "Finetune-MF update, s", "FADE over Finetune"], [row])


FADE_AND_FINETUNE = {"FADE": 0.5, "Finetune": 0.0}


def _new_interactions(log: EventLog) -> str:
    """Seconds for more and more new interactions, and the exponent of the line through their logarithms."""
    sizes = [2_080 * 2**power for power in range(8)]
    start = movielens.D_1.start
    times = in_turns({str(size): update(log, slice(start, start + size)) for size in sizes}, rounds=ROUNDS)
    exponent, _ = np.polyfit(np.log(sizes), np.log([taken.median for taken in times.values()]), 1)
    rows = [[f"{int(size):,}", taken.show(".4f")] for size, taken in times.items()]
    return table(["new interactions", "FADE-MF update, s"], rows) + f"\n\nExponent of the fitted line: {exponent:.3f}."


def _knobs(log: EventLog) -> str:
    knobs: dict[str, dict[str, object]] = {
        "as it is (batch 256, d 64, n 4, μ 4)": {},
        **{f"batch {size}": {"batch_size": size} for size in (64, 1024, 4096)},
        **{f"d {d}": {"model_settings": {"embedding_dim": d}} for d in (16, 32, 128, 256)},
        **{f"n {n}": {"n": n} for n in (1, 16)},
        **{f"μ {mu}": {"mu": mu} for mu in (1, 16, 64)},
        "dense Adam": {"optimizer": "dense"},
    }
    times = in_turns({name: update(log, **knob) for name, knob in knobs.items()}, rounds=5)
    first = next(iter(times.values()))
    return table(
        ["one knob turned", "FADE-MF update, s", "over the first"],
        [[name, taken.show(), taken.over(first).show(".2f")] for name, taken in times.items()],
    )
