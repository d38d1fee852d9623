"""Measure and check the engines on a CUDA device: `python benchmarks/engines_on_cuda.py [--data FOLDER] [--old SRC]`.

Prints tables, PASS or FAIL for each check, and what the rules for keeping an engine say:

- MF's Triton kernels stay if an update by them is 3 times as fast as by the recorded step of the reference;
- a compiled part of the step is used if it gains 1.3 times or more and compiles in less than 20 s.

An update is 10 epochs over the 33,280 interactions of MovieLens D_1 in batches of 256, with everything that has to
be set up for them; a pre-training epoch goes over the 501,760 of D_0. Without `--data` random events of the same sizes
stand in. `--old` names the source folder of an earlier version (7dd2d04), whose kernels for MF and NCF run in a
process of their own.
`--only` takes some of: old, engines, compiled, models, adver, checks, tests.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
DEVICE = "cuda"
N_USERS, N_ITEMS, BATCH = 6040, 3706, 256
D_0, D_1 = slice(0, 1960 * BATCH), slice(1960 * BATCH, 2090 * BATCH)
SECTIONS = ("old", "engines", "compiled", "models", "adver", "checks", "tests")
BEGAN = time.perf_counter()
VERDICTS: list[str] = []
UPDATES: dict[tuple[str, str, str], float] = {}
"""Milliseconds of an update by (model, optimizer, engine)."""


def say(line: str = "") -> None:
    """Print a line at once."""
    print(line, flush=True)


def verdict(name: str, passed: bool, note: str = "") -> None:
    """Print and remember the result of a check."""
    VERDICTS.append(f"{'PASS' if passed else 'FAIL'} {name}{': ' * bool(note)}{note}")
    say(VERDICTS[-1])


def attempt(name: str, work: Callable[[], object]) -> None:
    """Run a part; whatever goes wrong in it is printed, and the others run all the same."""
    try:
        work()
    except Exception:
        traceback.print_exc(file=sys.stdout)
        verdict(name, False, "raised")


# ── data ──────────────────────────────────────────────────────────────────────────────────


def events(folder: str | None) -> dict[str, np.ndarray]:
    """Users, items and each user's group, in chronological order."""
    if folder is not None:
        from fairstream.data import read_events  # noqa: PLC0415

        log = read_events(Path(folder), group="gender", advantaged="M")
        return {"users": log.users[: D_1.stop], "items": log.items[: D_1.stop], "codes": log.require_groups().codes}
    rng = np.random.default_rng(0)
    pairs = rng.permutation(N_USERS * N_ITEMS)[: D_1.stop].astype(np.int64)
    pairs = pairs[np.argsort(pairs // N_ITEMS + rng.normal(0, 30, len(pairs)))]  # users come in sessions
    codes = (rng.random(N_USERS) < 0.28).astype(np.int16)
    return {"users": pairs // N_ITEMS, "items": pairs % N_ITEMS, "codes": codes}


def in_turns(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each contender, all of them in turns, after one round that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for counts in [False] + [True] * rounds:
        for name, work in contenders.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            work()
            torch.cuda.synchronize()
            if counts:
                taken[name].append(1e3 * (time.perf_counter() - begin))
    return taken


def table(title: str, rows: list[list[str]], header: list[str]) -> None:
    """Print a Markdown table under a heading."""
    say(f"\n## {title}\n")
    for row in [header, ["---"] * len(header), *rows]:
        say("| " + " | ".join(row) + " |")


# ── the earlier version, in a process of its own ──────────────────────────────────────────


def run_old(data: str) -> None:
    """Print the times of the earlier version's fused engines as JSON."""
    from fairstream.events import SeenItems  # noqa: PLC0415
    from fairstream.training.engines import make_engine  # noqa: PLC0415

    from fairstream.models import built_in_model  # noqa: PLC0415
    from fairstream.objectives import Objective  # noqa: PLC0415
    from fairstream.sampling import NegativeSampler  # noqa: PLC0415
    from fairstream.training.batches import cut_batches  # noqa: PLC0415
    from fairstream.training.engine import Training  # noqa: PLC0415
    from fairstream.training.optimizers import make_optimizer  # noqa: PLC0415

    stored = np.load(data)
    users, items, codes = (stored[name] for name in ("users", "items", "codes"))
    n_users, n_items = len(codes), int(items.max()) + 1
    times: dict[str, Any] = {}
    for name in ("mf", "ncf"):
        for kind in ("row", "dense"):
            model = built_in_model(name, 64)(n_users, n_items).to(DEVICE)
            optimizer = make_optimizer(kind, model, learning_rate=1e-3, l2=1e-4)

            def training(at: slice, model: Any = model, optimizer: Any = optimizer) -> Training:
                seen = SeenItems.from_pairs(users[: at.stop], items[: at.stop])
                sampler = NegativeSampler(seen, users[at], n_items=n_items, device=DEVICE)
                batches = cut_batches(users[at], items[at], codes, sampler, n_drawn=4, size=BATCH)
                aim = Objective(lambda_=0.5, tau=3.0, n=4, mu=4)
                return Training(model, optimizer, aim, batches, sampler, (1.0, -1.0))

            def update(job: Training) -> None:
                engine = make_engine("fused", job)
                for _ in range(10):
                    engine.epoch(np.arange(len(job.batches)), 1)

            first = training(D_1)
            taken = in_turns({"update": lambda job=first: update(job)}, rounds=5)["update"]
            again = training(D_0)
            engine, keys, order = make_engine("fused", again), iter(range(100)), np.arange(len(again.batches))
            epoch = in_turns({"": lambda e=engine, o=order, k=keys: e.epoch(o, next(k))}, rounds=2)[""]
            times[f"{name} {kind}"] = [statistics.median(taken), statistics.median(epoch)]
    print("OLD " + json.dumps(times), flush=True)


def old(data: dict[str, np.ndarray], source: str) -> None:
    """The earlier version's fused engines."""
    with tempfile.TemporaryDirectory() as folder:
        stored = str(Path(folder, "events.npz"))
        np.savez(stored, **data)
        kept = [
            part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and Path(part) != ROOT / "src"
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, *kept])}
        command = [sys.executable, __file__, "--run-old", stored]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)  # noqa: S603
    line = next((line for line in done.stdout.splitlines() if line.startswith("OLD ")), None)
    if line is None:
        say(done.stdout[-2000:] + done.stderr[-4000:])
        verdict("the earlier version runs", False)
        return
    times = json.loads(line.removeprefix("OLD "))
    rows = [[name, f"{update:.1f}", f"{epoch:.0f}"] for name, (update, epoch) in times.items()]
    table("Earlier version: Triton kernels", rows, ["model, Adam", "update (10 epochs), ms", "pre-training epoch, ms"])
    for name, (update, _) in times.items():
        model, kind = name.split()
        UPDATES[model, kind, "old"] = update


# ── this version ──────────────────────────────────────────────────────────────────────────


class Jobs:
    """Training jobs on the events."""

    def __init__(self, data: dict[str, np.ndarray]) -> None:
        from fairstream.data import History  # noqa: PLC0415

        self._users, self._items, self._codes = data["users"], data["items"], data["codes"]
        self.n_users, self.n_items = len(self._codes), int(self._items.max()) + 1
        self._histories = {
            at.stop: History.of(
                self._users[: at.stop], self._items[: at.stop], n_users=self.n_users, n_items=self.n_items
            )
            for at in (D_0, D_1)
        }

    def make(self, factory: Any, kind: Any, at: slice | None = None, **objective: Any) -> Any:
        """A job of a fresh model."""
        from fairstream.models import ContextBuilder, WindowScorer  # noqa: PLC0415
        from fairstream.objectives import Objective  # noqa: PLC0415
        from fairstream.sampling import NegativeSampler  # noqa: PLC0415
        from fairstream.training import TrainingJob, cut_batches, cut_windows, make_optimizer  # noqa: PLC0415

        at = D_1 if at is None else at
        torch.manual_seed(0)
        model = factory(self.n_users, self.n_items).to(DEVICE).train()
        history, positions = self._histories[at.stop], np.arange(at.start, at.stop)
        aim = Objective(**{"lambda_": 0.5, "n": 4, "mu": 4, **objective})
        sampler = NegativeSampler(history.seen, self._users[at], n_items=self.n_items, device=DEVICE)
        batches = (
            cut_windows(
                history,
                positions,
                self._codes,
                sampler,
                n_drawn=aim.n_drawn,
                length=model.reads.history,
                size=BATCH,
            )
            if isinstance(model, WindowScorer)
            else cut_batches(history, positions, self._codes, sampler, n_drawn=aim.n_drawn, size=BATCH)
        )
        return TrainingJob(
            model,
            make_optimizer(kind, model, learning_rate=1e-3, l2=1e-4),
            aim,
            batches,
            sampler,
            (1.0, -1.0),
            ContextBuilder(model.reads, history, None, DEVICE),
        )


def update(make_engine: Callable[[Any], Any], job: Any, epochs: int = 10) -> Callable[[], None]:
    """An update, its engine made anew each time."""

    def work() -> None:
        engine = make_engine(job)
        for _ in range(epochs):
            engine.epoch(np.arange(len(job.batches)), 1)
        work.name = engine.name  # type: ignore[attr-defined]

    return work


def epoch_ms(make_engine: Callable[[Any], Any], job: Any) -> float:
    """An epoch with new negatives, when all is set up."""
    engine, keys = make_engine(job), iter(range(100))
    taken = in_turns({"": lambda: engine.epoch(np.arange(len(job.batches)), next(keys))}, rounds=2)
    return statistics.median(taken[""])


def built_in(name: str) -> Any:
    """Makes MF or NCF with 64 columns."""
    from fairstream.models import model_factory  # noqa: PLC0415

    return model_factory(name, 64)


def engines(jobs: Jobs) -> None:
    """MF by kernels, recorded and by the reference; NCF recorded and by the reference."""
    from fairstream.training.cuda import CapturedEngine, engines  # noqa: PLC0415
    from fairstream.training.reference import ReferenceEngine  # noqa: PLC0415

    rows = []
    for name in ("mf", "ncf"):
        for kind in ("row", "dense"):
            job = {engine: jobs.make(built_in(name), kind) for engine in ("kernels", "captured", "reference")}
            makers: dict[str, Any] = {"captured": CapturedEngine}
            if name == "mf":
                makers["kernels"] = engines(job["kernels"])[0]
            works = {engine: update(maker, job[engine]) for engine, maker in makers.items()}
            taken = in_turns({**works, "reference": update(ReferenceEngine, job["reference"], epochs=1)}, rounds=5)
            for engine, maker in makers.items():
                ms = UPDATES[name, kind, engine] = statistics.median(taken[engine])
                slower = statistics.median(10 * a / b for a, b in zip(taken["reference"], taken[engine], strict=True))
                before = UPDATES.get((name, kind, "old"))
                over_old = f"{ms / before:.2f}" if before else ""
                pretraining = epoch_ms(maker, jobs.make(built_in(name), kind, D_0))
                label = f"{engine} ({works[engine].name})"  # type: ignore[attr-defined]
                step = f"{1e3 * ms / 10 / len(job[engine].batches):.0f}"
                rows.append(
                    [f"{name} {kind}", label, f"{ms:.1f}", step, f"{pretraining:.0f}", f"{slower:.1f}", over_old]
                )
            if name == "mf":
                ratio = statistics.median(a / b for a, b in zip(taken["captured"], taken["kernels"], strict=True))
                say(f"RULE mf {kind}: kernels are {ratio:.1f} times as fast as the recorded step (stay at 3 or more)")
    header = ["model, Adam", "engine", "update, ms", "µs a step, all in", "pre-training epoch, ms"]
    table("Engines", rows, [*header, "reference over it", "over the earlier version"])


def compiled(jobs: Jobs) -> None:
    """What compiling parts of the recorded step gains: the objective, model and objective, row Adam."""
    from fairstream.objectives import Objective  # noqa: PLC0415
    from fairstream.training import row_adam  # noqa: PLC0415
    from fairstream.training.cuda import CapturedEngine  # noqa: PLC0415

    class CompiledObjective(Objective):
        pass

    CompiledObjective.__call__ = torch.compile(Objective.__call__, dynamic=False)  # type: ignore[method-assign]
    plain_adam, compiled_adam = row_adam.touched_adam, torch.compile(row_adam.touched_adam, dynamic=True)

    def with_objective(job: Any) -> Any:
        aim = job.objective
        return CapturedEngine(
            replace(job, objective=CompiledObjective(aim.lambda_, aim.n, aim.mu, aim.loss, aim.fairness))
        )

    whole: dict[int, Any] = {}

    def with_loss(job: Any) -> Any:
        engine = CapturedEngine(job)
        # One compiled function for all engines of a job, as a compiled model would be.
        engine._loss = whole.setdefault(id(job), torch.compile(engine._loss, dynamic=False))  # type: ignore[method-assign]
        return engine

    def adam(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def patched(job: Any) -> Any:
            row_adam.touched_adam = compiled_adam
            return make(job)

        return patched

    rows = []
    for name, kind in (("ncf", "row"), ("mf", "row"), ("ncf", "dense")):
        variants: dict[str, Any] = {"nothing": CapturedEngine, "objective": with_objective}
        if kind == "row":
            variants |= {"row Adam": adam(CapturedEngine), "objective and row Adam": adam(with_objective)}
        else:  # the compiler cannot make sparse gradients
            variants["model and objective"] = with_loss
        works, seconds = {}, {}
        for variant, maker in variants.items():
            try:
                row_adam.touched_adam = plain_adam
                job, begin = jobs.make(built_in(name), kind), time.perf_counter()
                first = update(maker, job, epochs=1)
                first()
                seconds[variant] = time.perf_counter() - begin
                if first.name != "captured":  # type: ignore[attr-defined]
                    say(f"{name} {kind} {variant}: {first.name}")  # type: ignore[attr-defined]

                def work(maker: Any = maker, job: Any = job) -> None:
                    row_adam.touched_adam = plain_adam
                    update(maker, job)()

                works[variant] = work
            except Exception:
                traceback.print_exc(file=sys.stdout)
        taken = in_turns(works, rounds=4)
        row_adam.touched_adam = plain_adam
        for variant in works:
            gain = statistics.median(a / b for a, b in zip(taken["nothing"], taken[variant], strict=True))
            cost = seconds[variant] - seconds["nothing"]
            rows.append(
                [f"{name} {kind}", variant, f"{statistics.median(taken[variant]):.1f}", f"{gain:.2f}", f"{cost:.1f}"]
            )
            if variant != "nothing":
                say(f"RULE {name} {kind}, {variant} compiled: gains {gain:.2f} (≥ 1.3?), takes {cost:.1f} s (< 20?)")
    table("Compiled before recorded", rows, ["model, Adam", "compiled", "update, ms", "gain", "first epoch, s more"])


def own_models() -> dict[str, Any]:
    """Models of one's own, of MovieLens' size."""
    sys.path.insert(0, str(ROOT / "tests"))
    import engine_support  # noqa: PLC0415
    from fairstream.models import Reads  # noqa: PLC0415

    class Gru(engine_support.Recurrent):
        reads = Reads(history=20)

    class Windows(engine_support.Windowed):
        reads = Reads(history=20)

    made = {"GRU, history 20": Gru, "GRU on windows of 20": Windows, "MF with dropout": engine_support.Dropping}
    made["LightGCN, Graph.propagate"] = engine_support.Convolved
    made["LightGCN, torch.sparse.mm"] = engine_support.ConvolvedBySparse
    return {name: (lambda n, m, cls=cls: cls(n, m, embedding_dim=64)) for name, cls in made.items()}


def models(jobs: Jobs) -> None:
    """Models of one's own, recorded and by the reference."""
    from fairstream.training.cuda import CapturedEngine, CapturedWindowEngine  # noqa: PLC0415
    from fairstream.training.reference import ReferenceEngine, WindowEngine  # noqa: PLC0415

    rows = []
    for name, factory in own_models().items():
        try:
            pair = [jobs.make(factory, "row") for _ in range(2)]
            is_window = ReferenceEngine.unsupported(pair[0]) is not None
            captured = update(CapturedWindowEngine if is_window else CapturedEngine, pair[0], epochs=2)
            reference = update(WindowEngine if is_window else ReferenceEngine, pair[1], epochs=1)
            taken = in_turns({"captured": captured, "reference": reference}, rounds=2)
            ratio = statistics.median(2 * a / b for a, b in zip(taken["reference"], taken["captured"], strict=True))
            ms = statistics.median(taken["captured"]) / 2 / len(pair[0].batches)
            rows.append([name, captured.name, f"{1e3 * ms:.0f}", f"{ratio:.1f}"])  # type: ignore[attr-defined]
            if "sparse.mm" not in name:  # whether that can be recorded is PyTorch's affair
                verdict(f"{name} is recorded", captured.name == "captured", captured.name)  # type: ignore[attr-defined]
        except Exception:
            traceback.print_exc(file=sys.stdout)
            verdict(f"{name} runs", False)
    table("Models of one's own, row Adam", rows, ["model", "engine", "µs a step, all in", "reference over it"])


def adver(jobs: Jobs) -> None:
    """Adver's eleven steps a batch."""
    from fairstream.baselines import AdversarialEngine, CapturedAdversarialEngine, filtered  # noqa: PLC0415

    rows = []
    for name in ("mf", "ncf"):
        for kind in ("row", "dense"):
            pair = [jobs.make(filtered(built_in(name)), kind, lambda_=0.0) for _ in range(2)]
            captured = update(lambda job: CapturedAdversarialEngine(job, gamma=1.0), pair[0], epochs=2)
            eager = update(lambda job: AdversarialEngine(job, gamma=1.0), pair[1], epochs=1)
            taken = in_turns({"captured": captured, "eager": eager}, rounds=1)
            ratio = 2 * taken["eager"][0] / taken["captured"][0]
            us = 1e3 * taken["captured"][0] / 2 / len(pair[0].batches)
            rows.append([f"{name} {kind}", captured.name, f"{us:.0f}", f"{ratio:.1f}"])  # type: ignore[attr-defined]
    table("Adver", rows, ["model, Adam", "engine", "µs a batch, all in", "eager over it"])


# ── checks without a test runner ──────────────────────────────────────────────────────────


def gap(one: Any, other: Any) -> tuple[float, str]:
    """The largest relative difference of a tensor between two jobs, and its name."""
    import engine_support  # noqa: PLC0415

    ours, theirs = engine_support.tensors(one), engine_support.tensors(other)
    gaps = {
        name: float((ours[name].double() - value.double()).norm() / value.double().norm().clamp(min=1e-12))
        for name, value in theirs.items()
        if not name.startswith("user_bias")
    }
    worst = max(gaps, key=gaps.__getitem__)
    return gaps[worst], worst


def checks() -> None:
    """Recorded steps against the reference's: small jobs, three epochs."""
    sys.path.insert(0, str(ROOT / "tests"))
    import engine_support  # noqa: PLC0415
    from fairstream.objectives import softmax_loss  # noqa: PLC0415
    from fairstream.training.cuda import CapturedEngine, CapturedWindowEngine  # noqa: PLC0415
    from fairstream.training.reference import ReferenceEngine, WindowEngine  # noqa: PLC0415

    def compare(model: str, kind: Any, expected: str, **case: Any) -> None:
        pair = [engine_support.job_of(model, kind, device=DEVICE, embedding_dim=16, **case) for _ in range(2)]
        is_window = model == "windows"
        captured = (CapturedWindowEngine if is_window else CapturedEngine)(pair[0])
        reference = (WindowEngine if is_window else ReferenceEngine)(pair[1])
        losses = []
        for epoch in range(3):
            order = np.random.default_rng(epoch).permutation(len(pair[0].batches))
            losses.append([engine.epoch(order, 1000 + epoch // 2) for engine in (captured, reference)])
        worst, name = gap(*pair)
        agree = all(abs(a - b) <= 1e-5 * abs(b) for a, b in losses)
        verdict(
            f"{model} {kind} {case or ''}",
            agree and worst < 1e-4 and captured.name.startswith(expected),
            f"{captured.name}, largest gap {worst:.1e} in {name}",
        )

    cases: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in ("mf", "ncf", "gru", "lightgcn", "windows")]
    cases += [
        ("mf", {"one_group": True, "unknown": True, "n_groups": 3}),
        ("mf", {"loss": softmax_loss}),
        ("mf", {"surrogate": "neural-ndcg", "lambda_": 2.0}),
        ("mf", {"mu": 40}),
    ]
    for model, case in cases:
        for kind in ("row", "dense"):
            attempt(f"{model} {kind}", lambda m=model, k=kind, c=case: compare(m, k, "captured", **c))
    attempt("lightgcn-mm", lambda: compare("lightgcn-mm", "row", ""))
    for model in ("asking", "rebinding"):
        attempt(model, lambda m=model: compare(m, "row", "reference (not capturable"))

    def goes_on() -> None:
        CapturedEngine(engine_support.job_of("asking", device=DEVICE)).epoch(np.arange(20), 1)
        results = []
        for seed in (0, 0, 1):
            job = engine_support.job_of("dropout", device=DEVICE)
            engine = CapturedEngine(job)
            for epoch in range(2):
                torch.manual_seed(seed + 10 * epoch)
                engine.epoch(np.arange(20), 5)
            results.append(engine_support.tensors(job)["user.weight"])
        verdict("a failed capture leaves random numbers and captures working", engine.name == "captured", engine.name)
        same, other = torch.equal(results[0], results[1]), torch.equal(results[0], results[2])
        verdict("dropout follows the seed", same and not other, f"same seed equal: {same}, other seed equal: {other}")

    attempt("after a failed capture", goes_on)

    def same_bits(model: str, kind: Any) -> None:
        pair = [engine_support.job_of(model, kind, device=DEVICE) for _ in range(2)]
        for job in pair:
            (CapturedWindowEngine if model == "windows" else CapturedEngine)(job).epoch(np.arange(len(job.batches)), 3)
        one, other = (engine_support.tensors(job) for job in pair)
        differ = [name for name in one if not torch.equal(one[name], other[name])]
        verdict(f"{model} {kind}: every run gives the same bits", not differ, ", ".join(differ))

    for model in ("mf", "ncf", "gru", "windows"):
        for kind in ("row", "dense"):
            attempt(f"{model} {kind} same bits", lambda m=model, k=kind: same_bits(m, k))


def tests(limit: float) -> None:
    """The tests for CUDA, without the fixtures of all others."""
    files = ["tests/training/test_captured_engine.py", "tests/training/test_cuda_engine.py"]
    files.append("tests/baselines/test_adversarial_cuda.py")
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-c", os.devnull, "--rootdir", str(ROOT)]
    command += ["-p", "no:cacheprovider", "--tb=short", *files]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, timeout=limit, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        say(done.stdout[-8000:])
        verdict("pytest", done.returncode == 0, f"exit status {done.returncode}")
    except subprocess.TimeoutExpired as error:
        say((error.stdout or b"").decode()[-4000:])
        verdict("pytest", False, f"not done after {limit:.0f} s: run it by itself")


def main() -> None:
    """Run the parts, each whatever becomes of the others."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="folder of MovieLens-1M")
    parser.add_argument("--old", help="source folder of the earlier version")
    parser.add_argument("--only", nargs="+", default=SECTIONS, choices=SECTIONS)
    parser.add_argument("--limit", type=float, default=340.0, help="seconds after which no further part is begun")
    parser.add_argument("--run-old", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run_old:
        run_old(options.run_old)
        return
    sys.path.insert(0, str(ROOT / "src"))
    say(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, Python {sys.version.split()[0]}")
    data = events(options.data)
    jobs = Jobs(data)
    parts: dict[str, Callable[[], object]] = {
        "checks": checks,
        "old": lambda: old(data, options.old) if options.old else None,
        "engines": lambda: engines(jobs),
        "models": lambda: models(jobs),
        "adver": lambda: adver(jobs),
        "compiled": lambda: compiled(jobs),
        "tests": lambda: tests(max(30.0, options.limit - (time.perf_counter() - BEGAN))),
    }
    for name, part in parts.items():
        if name in options.only:
            if time.perf_counter() - BEGAN > options.limit:
                verdict(name, False, "not begun: out of time")
                continue
            attempt(name, part)
            say(f"({name} done after {time.perf_counter() - BEGAN:.0f} s)")
    failed = [line for line in VERDICTS if line.startswith("FAIL")]
    say(f"\n{len(VERDICTS) - len(failed)} passed, {len(failed)} failed")
    for line in failed:
        say(line)


if __name__ == "__main__":
    main()
