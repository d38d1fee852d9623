"""Measure an update by each engine on a CUDA device: `python -m benchmarks.engines_on_cuda [--data FOLDER] [--tests]`.

Prints one line for each engine, model and optimizer. An update is 10 epochs over the 33,280 interactions of MovieLens
D_1 in batches of 256, setting up the engine included; an epoch goes over the 501,760 interactions of D_0. Without the
folder of MovieLens-1M, random events of the same sizes are used. `--tests` runs the CUDA tests afterwards.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from fairstream.data import History, read_events  # noqa: E402
from fairstream.models import ContextBuilder, resolve_model  # noqa: E402
from fairstream.objectives import Objective  # noqa: E402
from fairstream.sampling import NegativeSampler  # noqa: E402
from fairstream.training import Engine, TrainingJob, choose_engine, cut_batches, make_optimizer  # noqa: E402
from fairstream.training.engines.cuda_graph import CapturedEngine  # noqa: E402

DEVICE, ROUNDS = "cuda", 5
N_USERS, N_ITEMS, BATCH = 6040, 3706, 256
D_0, D_1 = slice(0, 1960 * BATCH), slice(1960 * BATCH, 2090 * BATCH)
TESTS = ("tests/training/test_captured_engine.py", "tests/training/test_cuda_engine.py")
Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


def read(folder: str | None) -> Columns:
    """Users, items and the group of each user, in chronological order."""
    if folder is not None:
        log = read_events(Path(folder), group="gender", advantaged="M")
        return log.users[: D_1.stop], log.items[: D_1.stop], log.require_groups().codes
    rng = np.random.default_rng(0)
    pairs = rng.permutation(N_USERS * N_ITEMS)[: D_1.stop].astype(np.int64)
    pairs = pairs[np.argsort(pairs // N_ITEMS + rng.normal(0, 30, len(pairs)))]  # users come in sessions
    return pairs // N_ITEMS, pairs % N_ITEMS, (rng.random(N_USERS) < 0.28).astype(np.int16)


def make_job(columns: Columns, name: str, optimizer: str, at: slice) -> TrainingJob:
    """A job of a new model on the events of `at`."""
    users, items, codes = columns
    n_users, n_items = len(codes), int(items.max()) + 1
    model = resolve_model(name, {"embedding_dim": 64}).build(n_users, n_items).to(DEVICE).train()
    history = History.of(users[: at.stop], items[: at.stop], n_users=n_users, n_items=n_items)
    objective = Objective(lambda_=0.5, n=4, mu=4)
    sampler = NegativeSampler(history.seen, users[at], n_items=n_items, device=DEVICE)
    batches = cut_batches(history, np.arange(at.start, at.stop), codes, sampler, n_drawn=objective.n_drawn, size=BATCH)
    contexts = ContextBuilder(model.history_length, history, None, DEVICE)
    adam = make_optimizer(optimizer, model, learning_rate=1e-3, l2=1e-4)  # type: ignore[arg-type]
    return TrainingJob(model, adam, objective, batches, sampler, (1.0, -1.0), contexts)


def milliseconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The median time, after one round that does not count."""
    times = []
    for _ in range(1 + rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[1:])


def measure(columns: Columns, name: str, optimizer: str, make_engine: Callable[[TrainingJob], Engine] | None) -> None:
    """Print the times of one engine; None is the engine that `auto` chooses."""
    job, pretraining = (make_job(columns, name, optimizer, at) for at in (D_1, D_0))
    make_engine = make_engine or choose_engine("auto", job)
    engine = make_engine(pretraining)
    keys = iter(range(100))

    def update() -> None:
        trained = make_engine(job)
        for _ in range(10):
            trained.epoch(np.arange(len(job.batches)), 1)

    epoch = milliseconds(lambda: engine.epoch(np.arange(len(pretraining.batches)), next(keys)), rounds=2)
    print(
        f"{name.upper()}, {optimizer} Adam, {type(engine).__name__} ({engine.name}): "
        f"update {milliseconds(update):.1f} ms, epoch of pre-training {epoch:.0f} ms",
        flush=True,
    )


def main() -> None:
    """Measure, then test if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="folder of MovieLens-1M")
    parser.add_argument("--tests", action="store_true", help="run the tests for CUDA as well")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, Python {sys.version.split()[0]}", flush=True)
    columns = read(options.data)
    for optimizer in ("row", "dense"):
        measure(columns, "ncf", optimizer, None)
        measure(columns, "mf", optimizer, None)
        measure(columns, "mf", optimizer, CapturedEngine)
    if options.tests:
        command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-c", os.devnull, "--rootdir", str(ROOT)]
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        command += ["-p", "no:cacheprovider", "--tb=short", *TESTS]
        sys.exit(subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False).returncode)  # noqa: S603


if __name__ == "__main__":
    main()
