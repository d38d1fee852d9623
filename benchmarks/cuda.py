"""How long an update and an epoch of pre-training take on a CUDA device: the fused engine against the reference.

    python benchmarks/cuda.py FOLDER        (a folder with MovieLens-1M)

Times are wall times of `Trainer.train`, everything included but the compilation of the kernels,
which happens once per machine. The engines take turns; medians, and the fastest and the slowest.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from fairstream.events import EventLog, SeenItems, read_events
from fairstream.models import built_in_model
from fairstream.objectives import Objective
from fairstream.randomness import Randomness
from fairstream.sampling import NegativeSampler
from fairstream.training import Hyperparameters, Trainer

PRETRAINING, UPDATE = slice(0, 1960 * 256), slice(1960 * 256, 2090 * 256)
OBJECTIVE = Objective(lambda_=0.5, tau=3.0, n=4, mu=4)


@dataclass(frozen=True)
class Timing:
    """One line of the table; seconds."""

    model: str
    optimizer: str
    engine: str
    what: str
    epochs: int
    n_batches: int
    median: float
    fastest: float
    slowest: float
    repetitions: int

    def __str__(self) -> str:
        step = self.median / self.epochs / self.n_batches * 1e6
        return (
            f"{self.model:4} {self.optimizer:6} {self.engine:10} {self.what:12} {self.epochs:4} epochs × "
            f"{self.n_batches:4} batches: {self.median * 1e3:9.1f} ms [{self.fastest * 1e3:.1f}, "
            f"{self.slowest * 1e3:.1f}], {self.repetitions} times; {step:.1f} µs a step"
        )


def measure(data_folder: Path | str, *, repetitions: int = 9) -> Iterator[Timing]:
    """A line for each model, optimizer, task and engine; the slow reference is run for fewer epochs and times."""
    log = read_events(data_folder, group="gender", advantaged="M")
    for model in ("mf", "ncf"):
        for optimizer in ("row", "dense"):
            yield from _alternating(log, model, optimizer, "update", {"fused": 10, "reference": 2}, repetitions)
            yield from _alternating(log, model, optimizer, "pre-training", {"fused": 5, "reference": 1}, 1)


def time_training(
    log: EventLog, model: str, optimizer: Literal["row", "dense"], what: str, engine: str, epochs: int
) -> float:
    """Seconds of one training of a fresh model."""
    device = torch.device("cuda")
    at = UPDATE if what == "update" else PRETRAINING
    users, items = log.users[at], log.items[at]
    seen = SeenItems.from_pairs(log.users[: at.stop], log.items[: at.stop])
    hyper = Hyperparameters(optimizer=optimizer)
    trainer = Trainer(
        built_in_model(model, hyper.embedding_dim), hyper, OBJECTIVE, randomness=Randomness(0), device=device,
        n_users=log.n_users, n_items=log.n_items, t=0, engine=engine,  # type: ignore[arg-type]
    )  # fmt: skip
    sampler = NegativeSampler(seen, users, n_items=log.n_items, device=device)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    trainer.train(users, items, log.need_groups(), sampler, n_groups=2, t=1, epochs=epochs, shuffled=what != "update")
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def _alternating(
    log: EventLog, model: str, optimizer: Literal["row", "dense"], what: str, epochs: dict[str, int], repetitions: int
) -> Iterator[Timing]:
    seconds: dict[str, list[float]] = {engine: [] for engine in epochs}
    for engine in epochs:
        time_training(log, model, optimizer, "update", engine, 1)  # compiles the kernels
    for repetition in range(repetitions):
        for engine, n_epochs in epochs.items():
            if engine == "fused" or repetition < 2:
                seconds[engine].append(time_training(log, model, optimizer, what, engine, n_epochs))
    at = UPDATE if what == "update" else PRETRAINING
    for engine, taken_all in seconds.items():
        yield Timing(
            model, optimizer, engine, what, epochs[engine], (at.stop - at.start) // 256,
            statistics.median(taken_all), min(taken_all), max(taken_all), len(taken_all),
        )  # fmt: skip


def main() -> None:
    """Print the table."""
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    for timing in measure(Path(sys.argv[1])):
        print(timing, flush=True)


if __name__ == "__main__":
    main()
