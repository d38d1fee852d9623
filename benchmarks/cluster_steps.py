"""What a step of one training costs when 1, 2, 4 … processes share it, without Ray.

    python -m benchmarks.cluster_steps --output steps.jsonl
    python -m benchmarks.cluster_steps --output steps.jsonl --events 200000 --users 20000 --items 5000 --processes 1 2

Fifty million synthetic events (those of `benchmarks.big_data`: activity of users log-normal, of items like 1 / rank,
two groups), then for each number of processes, of one thread each, the workers of a data-parallel training: matrix
factorisation on all events, SASRec on the windows of a tenth of the users, with Adam by rows and dense. The workers
are those that Ray's actors run, connected by Gloo over this machine's loopback.

Each line of the output is one measurement: seconds a step, of which in exchange (waiting for slower workers included),
and of processor time, which other work on the machine disturbs less;
bytes that a worker sends and receives a step, by count and as the kernel counted them on the loopback; rows of item
tables that a worker touches; and of the largest process the resident memory and its peak.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import pickle
import statistics
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from fairstream.data import History, Rows
from fairstream.models import ContextBuilder, ItemTable, WindowScorer, model_factory
from fairstream.objectives import DisparityLoss, Objective, bpr_loss, softmax_loss
from fairstream.recommender.learning import MOST_ITEMS, N_SHARED
from fairstream.sampling import NegativeSampler, SharedNegatives
from fairstream.training import Batches, RowAdam, TrainingJob, Windows, cut_batches, cut_windows, make_optimizer
from fairstream.training.distributed import Exchange, ShardWorker, cut_job

_CHUNK = 1 << 20
_KEY = 7
_ROWS, _SHORT, _LONG, _TIMES = 40_000, 64, 8 << 20, 20
_SECONDS = 300.0


@dataclass(frozen=True)
class Case:
    """A model with its optimizer, and how many interactions make a batch."""

    model: str
    optimizer: Literal["row", "dense"]
    batch: int
    """Interactions."""


CASES = (
    Case("mf", "row", 16_384),
    Case("mf", "row", 1_024),
    Case("sasrec", "row", 8_192),
    Case("sasrec", "row", 1_024),
    Case("sasrec", "dense", 8_192),
)


class MeasuredExchange(Exchange):
    """An exchange that counts what it does."""

    seconds = 0.0
    n_sent = 0.0
    """Bytes by the rings of Gloo: each worker passes on what it gets, until all have it."""
    n_rows = 0

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the workers."""
        begin = time.perf_counter()
        super().add_up(tensor)
        self.seconds += time.perf_counter() - begin
        self.n_sent += 2 * (self.size - 1) / self.size * tensor.nbytes

    def concatenated(self, part: Tensor, counts: Sequence[int]) -> Tensor:
        """The parts of all workers behind each other."""
        begin = time.perf_counter()
        whole = super().concatenated(part, counts)
        self.seconds += time.perf_counter() - begin
        self.n_sent += (self.size - 1) * max(counts) * part.shape[1:].numel() * part.element_size()
        if part.dim() == 1:
            self.n_rows += len(part)
        return whole


class ProcessGroup:
    """Workers that are processes of this machine, each with one thread."""

    def __init__(self, n_workers: int, folder: Path) -> None:
        self.n_workers, self._folder = n_workers, folder
        self._store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=_SECONDS))
        context, self._pipes, self._processes = get_context("spawn"), [], []
        for rank in range(n_workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, rank, n_workers, self._store.port), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self.call("about")

    def start(self, jobs: Iterable[TrainingJob], n_steps: int) -> None:
        """Make a worker of each job, by way of a file: a job may be larger than a pipe is good for."""
        for rank, job in enumerate(jobs):
            with (self._folder / f"{rank}.pickle").open("wb") as file:
                pickle.dump(job, file, protocol=5)
            self._pipes[rank].send(("start", (str(self._folder / f"{rank}.pickle"), n_steps)))
        self._received()

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all workers at the same time."""
        for pipe in self._pipes:
            pipe.send((method, arguments))
        return self._received()

    def _received(self) -> list[Any]:
        try:
            answers = [pipe.recv() for pipe in self._pipes]
        except EOFError:
            time.sleep(1)  # until the system knows how it ended
            codes = [process.exitcode for process in self._processes if not process.is_alive()]
            raise RuntimeError(f"workers have died with the exit codes {codes}") from None
        for is_right, answer in answers:
            if not is_right:
                raise RuntimeError(answer)
        return [answer for _, answer in answers]

    def stop(self) -> None:
        """Let the workers go, also one that waits for a dead one."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.terminate()
            process.join()


class _Worker:
    def __init__(self, rank: int, size: int, port: int) -> None:
        self._rank, self._size, self._n_starts = rank, size, 0
        self._store = TCPStore("127.0.0.1", port, timeout=timedelta(seconds=_SECONDS))
        self._exchange = MeasuredExchange(0, 1)
        self._worker: ShardWorker | None = None

    def start(self, file: str, n_steps: int) -> None:
        """Join the others in a job."""
        self._worker = None
        _reset_peak()
        with Path(file).open("rb") as opened:
            job = pickle.load(opened)  # noqa: S301
        Path(file).unlink()
        self._n_starts += 1
        store = torch.distributed.PrefixStore(str(self._n_starts), self._store)  # type: ignore[attr-defined]
        self._exchange = MeasuredExchange(self._rank, self._size, store)
        self._worker = ShardWorker(job, self._exchange, n_steps)

    def take_steps(self, order: Rows, key: int) -> float:
        """Those of the worker."""
        assert self._worker is not None
        return self._worker.take_steps(order, key)

    def link(self, n_bytes: int) -> float:
        """Processor time in which all workers, asked at the same time, get so many bytes of each."""
        store = torch.distributed.PrefixStore(f"link {n_bytes}", self._store)  # type: ignore[attr-defined]
        exchange, part = Exchange(self._rank, self._size, store), torch.ones(n_bytes // 8, dtype=torch.float64)
        begin = time.process_time()
        for _ in range(_TIMES):
            exchange.concatenated(part, [len(part)] * self._size)
        return (time.process_time() - begin) / _TIMES

    def about(self) -> dict[str, float]:
        """What has been counted up to now."""
        exchange = self._exchange
        counted = {"seconds": exchange.seconds, "payload": exchange.n_bytes, "sent": exchange.n_sent}
        return {**counted, "rows": exchange.n_rows, "cpu": time.process_time(), **_memory()}


def _work(pipe: Any, rank: int, size: int, port: int) -> None:
    """What a process does: what comes through the pipe, until that is closed."""
    torch.set_num_threads(1)
    faulthandler.enable()
    worker = _Worker(rank, size, port)
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(worker, method)(*arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


def _memory() -> dict[str, float]:
    """Resident memory and its peak, in MiB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[key].split()[0]) / 1024 for name, key in [("resident", "VmRSS"), ("peak", "VmHWM")]}


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # then it is the peak since the process began


def _loopback_bytes() -> int:
    """What the kernel has sent over the loopback."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))


def make_events(n_events: int, n_users: int, n_items: int) -> History:
    """The events, and which items each user has had."""
    rng = np.random.default_rng(0)
    activity = np.cumsum(rng.lognormal(sigma=1.0, size=n_users))
    users, items = np.empty(n_events, np.int64), np.empty(n_events, np.int64)

    def fill(start: int) -> None:
        at, own = slice(start, start + _CHUNK), np.random.default_rng([1, start])
        n = len(users[at])
        users[at] = np.searchsorted(activity, own.random(n) * activity[-1])
        items[at] = np.minimum((n_items + 1) ** own.random(n), n_items).astype(np.int64) - 1

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(0, n_events, _CHUNK)))
    return History.of(users, items, n_users=n_users, n_items=n_items)


def make_job(name: str, history: History) -> TrainingJob:
    """What `fit` would train with the defaults of a model."""
    n_users, n_items = history.n_users, history.n_items
    torch.manual_seed(0)
    model = model_factory(name, 64)(n_users, n_items).train()
    reads_windows = isinstance(model, WindowScorer)
    events = np.flatnonzero(history.users < n_users // 10) if reads_windows else range(len(history))
    sampler = NegativeSampler(history.seen, history.users_at(events), n_items=n_items)
    codes = (np.random.default_rng(2).random(n_users) < 0.4).astype(np.int16)
    loss = softmax_loss if reads_windows else bpr_loss
    aim = Objective(lambda_=0.5, n=4, mu=4, loss=loss, fairness=DisparityLoss("signed", "hit", 3.0))
    batches: Batches | Windows
    if reads_windows:
        batches = cut_windows(history, events, codes, sampler, n_drawn=aim.n_drawn, length=model.reads.history, size=1)
    else:
        batches = cut_batches(history, events, codes, sampler, n_drawn=aim.n_drawn, size=1)
    shared = None
    if reads_windows and n_items > MOST_ITEMS:
        shared = SharedNegatives(np.bincount(history.items, minlength=n_items), N_SHARED)
    return TrainingJob(
        model,
        make_optimizer("row", model, learning_rate=1e-3, l2=1e-4),
        aim,
        batches,
        sampler,
        (1.0, -1.0),
        ContextBuilder(model.reads, history, None, "cpu"),
        shared_negatives=shared,
    )


def job_of(case: Case, job: TrainingJob) -> TrainingJob:
    """The same with the batches and the optimizer of a case."""
    batches, size = job.batches, case.batch
    if isinstance(batches, Windows):
        size = max(1, round(size * len(batches.users) / int(batches.first_target[-1])))
    optimizer = make_optimizer(case.optimizer, job.model, learning_rate=1e-3, l2=1e-4)
    return replace(job, batches=replace(batches, size=size), optimizer=optimizer)


def seconds_a_row(n_items: int) -> float:
    """Processor time of Adam for each row of an item table that a worker gets: the sum of equal ones, and the step."""
    table = ItemTable(n_items, 64)
    optimizer, seconds = RowAdam([table.weight]), []
    for seed in range(5):
        rows = torch.from_numpy(np.random.default_rng(seed).integers(0, n_items, _ROWS))
        values = torch.ones(_ROWS, 64)
        table.weight.grad = torch.sparse_coo_tensor(rows[None], values, table.weight.shape, check_invariants=False)
        begin = time.process_time()
        optimizer.step()
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds) / _ROWS


def measure(group: ProcessGroup, job: TrainingJob, seconds: float) -> dict[str, float]:
    """Start the workers on a job, let them warm up, and take steps for about so long."""
    n, begin = group.n_workers, time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        group.start(pool.map(lambda rank: cut_job(job, rank, n), range(n)), 0)
    handed_out = time.perf_counter() - begin
    order, at = np.random.default_rng(3).permutation(len(job.batches)), 0

    def timed(n_steps: int) -> float:
        nonlocal at
        begin = time.perf_counter()
        group.call("take_steps", np.take(order, range(at, at + n_steps), mode="wrap"), _KEY)
        at += n_steps
        return time.perf_counter() - begin

    timed(2)
    n_steps = max(1, min(1000, int(seconds / 3 / max(1e-6, timed(2) / 2))))
    before, wire = group.call("about"), _loopback_bytes()
    taken = [timed(n_steps) / n_steps for _ in range(3)]
    after, wire = group.call("about"), _loopback_bytes() - wire

    def mean(name: str) -> float:
        return sum(b[name] - a[name] for a, b in zip(before, after, strict=True)) / n / (3 * n_steps)

    return {
        "steps": 3 * n_steps,
        "seconds": statistics.median(taken),
        "seconds_fastest": min(taken),
        "seconds_slowest": max(taken),
        "seconds_in_exchange": mean("seconds"),
        "cpu_seconds": mean("cpu"),
        "payload_bytes": mean("payload"),
        "sent_bytes": mean("sent"),
        "received_bytes": mean("sent"),
        "wire_bytes": wire / n / (3 * n_steps),
        "item_rows": mean("rows"),
        "resident_mib": max(worker["resident"] for worker in after),
        "peak_mib": max(worker["peak"] for worker in after),
        "seconds_to_start": handed_out,
    }


def main() -> None:
    """Measure all cases with all numbers of processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="a file that a line of JSON is added to at a time")
    parser.add_argument("--events", type=int, default=50_000_000)
    parser.add_argument("--users", type=int, default=5_000_000)
    parser.add_argument("--items", type=int, default=500_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[16, 1, 2, 4, 8], help="in this order")
    parser.add_argument("--models", nargs="+", default=["mf", "sasrec"])
    parser.add_argument("--seconds", type=float, default=2.0, help="of steps for each measurement")
    parser.add_argument("--limit", type=float, default=330.0, help="begin no measurement after so many seconds")
    parser.add_argument("--folder", type=Path, help="where jobs lie on their way to the processes")
    given = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"  # of the processes to be started
    began = time.perf_counter()

    def write(line: dict[str, Any]) -> None:
        line = {"at": round(time.perf_counter() - began, 1), **line}
        with given.output.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)

    write({"what": "machine", "cpus": os.cpu_count(), "torch": torch.__version__})
    torch.set_num_threads(1)
    write({"what": "optimizer", "seconds_a_row": seconds_a_row(given.items)})
    history = make_events(given.events, given.users, given.items)
    write({"what": "events", "events": len(history), "users": given.users, "items": given.items, **_memory()})
    made: dict[str, TrainingJob] = {}
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for n in given.processes:
            group = ProcessGroup(n, Path(folder))
            short, long = (max(group.call("link", n_bytes)) for n_bytes in (_SHORT, _LONG))
            write({"what": "processes", "processes": n, "latency": short, "bytes_per_second": (n - 1) * _LONG / long})
            for case in [case for case in CASES if case.model in given.models]:
                about = {"processes": n, **vars(case)}
                if time.perf_counter() - began > given.limit:
                    write({"what": "left out", **about})
                    continue
                if case.model not in made:
                    made[case.model] = make_job(case.model, history)
                    write({"what": "job", "model": case.model, **_memory()})
                try:
                    write({"what": "step", **about, **measure(group, job_of(case, made[case.model]), given.seconds)})
                except RuntimeError as error:
                    write({"what": "failed", **about, "why": str(error)})
                    group.stop()
                    group = ProcessGroup(n, Path(folder))
            group.stop()
    write({"what": "end"})


if __name__ == "__main__":
    main()
