"""The CUDA engine takes the reference's steps: same batches, same negatives, the same numbers but for rounding."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from engine_support import BATCH, job_of, tensors
from fairstream.models import MFScorer
from fairstream.training import Engine, TrainingJob
from fairstream.training.engines.cuda_graph import CapturedEngine
from fairstream.training.reference import ReferenceEngine
from fairstream.training.train import _fast_engines

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
KINDS = pytest.mark.parametrize(("engine", "model"), [("kernels", "mf"), ("captured", "mf"), ("captured", "ncf")])

N_STEPS = 200
TOLERANCE = 1e-5
on_device = partial(job_of, device="cuda")


def make_engine(kind: str, job: TrainingJob) -> Engine:
    """The kernels, or the recorded step of the reference."""
    chosen = next(
        engine
        for engine in _fast_engines(job)
        if engine.unsupported(job) is None and (kind == "kernels" or engine is CapturedEngine)
    )
    assert (chosen is CapturedEngine) == (kind == "captured")
    return chosen(job)


def largest_gap_group(found: Tensor, expected: Tensor) -> float:
    """The largest ‖a − b‖ / ‖b‖ over the rows; rows of one number are taken together."""
    shape = (len(expected), -1) if expected.dim() > 1 and expected.shape[1] > 1 else (1, -1)
    a, b = found.double().reshape(shape), expected.double().reshape(shape)
    return float(((a - b).norm(dim=1) / b.norm(dim=1).clamp(min=1e-30)).max())


def run_both(
    kind: str, fast: TrainingJob, reference: TrainingJob, n_steps: int = N_STEPS
) -> tuple[list[float], list[float]]:
    """Epochs by both engines, two with each key, in orders of their own; the losses of each."""
    both = make_engine(kind, fast), ReferenceEngine(reference)
    losses: tuple[list[float], list[float]] = ([], [])
    n_batches = len(fast.batches)
    for epoch in range(n_steps // n_batches):
        order = np.random.default_rng(epoch).permutation(n_batches)
        for engine, seen in zip(both, losses, strict=True):
            seen.append(engine.epoch(order, 1000 + epoch // 2))
    assert kind == "kernels" or both[0].name == "captured"
    return losses


def run_reference(training: TrainingJob, n_steps: int = N_STEPS) -> None:
    engine = ReferenceEngine(training)
    for epoch in range(n_steps // len(training.batches)):
        engine.epoch(np.random.default_rng(epoch).permutation(len(training.batches)), 1000 + epoch // 2)


def shaken(training: TrainingJob, seed: int) -> TrainingJob:
    """The same training, begun with the last digit of every parameter at random."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in training.model.parameters():
        shake = 2 * torch.rand(parameter.shape, generator=generator) - 1
        parameter.data.mul_(1 + torch.finfo(torch.float32).eps * shake.to(parameter.device))
    return training


def sensitivity(make: Callable[..., TrainingJob], n_steps: int = N_STEPS) -> dict[str, float]:
    """How far the reference ends from float64, at the most, if its beginning is rounded in other ways.

    A ReLU that switches moves it by more than all other rounding, and half of the beginnings may
    switch one where the others do not.
    """
    exact = make(dtype=torch.float64)
    run_reference(exact, n_steps)
    truth, furthest_of = tensors(exact), dict[str, float]()
    for seed in range(24):
        training = shaken(make(), seed)
        run_reference(training, n_steps)
        for name, tensor in tensors(training).items():
            furthest_of[name] = max(furthest_of.get(name, 0.0), largest_gap_group(tensor, truth[name]))
    return furthest_of


def assert_same(fused: TrainingJob, reference: TrainingJob, sensitive: Mapping[str, float] | None = None) -> None:
    """Every tensor within 1e-5 of the reference's, or else within three times what rounding does to it."""
    found, expected = tensors(fused), tensors(reference)
    assert sorted(found) == sorted(expected)
    errors, allowed = {}, {}
    for name, tensor in expected.items():
        assert found[name].shape == tensor.shape, name
        assert found[name].dtype == tensor.dtype, name
        # Both losses look at differences of scores only: a user bias has a gradient of 0, and what
        # moves it in either engine is rounding.
        if not name.startswith("user_bias") or name.endswith(("n_updates", "step")):
            errors[name] = largest_gap_group(found[name], tensor)
            allowed[name] = max(TOLERANCE, 3 * (sensitive or {}).get(name, 0.0))
    worst = max(errors, key=errors.__getitem__)
    print(f"largest error {errors[worst]:.1e} in {worst}, where {allowed[worst]:.1e} is allowed")
    beyond = {name: (errors[name], allowed[name]) for name in errors if not errors[name] <= allowed[name]}
    assert not beyond


CASES: list[dict[str, Any]] = [
    {},
    {"lambda_": 0.0},
    {"fairness": "absolute", "unknown": True},
    {"n_groups": 4, "unknown": True, "n": 2, "mu": 7},
    {"one_group": True, "n": 5, "mu": 3, "tau": 0.5},
    {"n_groups": 4, "fairness": "absolute", "lambda_": 3.0, "n": 1, "mu": 1},
    {"surrogate": "neural-ndcg", "lambda_": 2.0},
    {"surrogate": "neural-ndcg", "n_groups": 4, "unknown": True, "n": 2, "mu": 7},
    {"surrogate": "neural-ndcg", "fairness": "absolute", "n": 6, "mu": 1},
    {"mu": 40},
    {"n": 40, "mu": 2},
]


KERNELS = [case for case in CASES if case.get("surrogate") != "neural-ndcg"]
RECORDED = [CASES[at] for at in (0, 4, 7)]  # it runs the code of the reference: shapes and groups are what can differ


@on_cuda
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(f"{k}={v}" for k, v in case.items()) or "plain")
@pytest.mark.parametrize("optimizer", ["row", "dense"])
@KINDS
def test_200_steps_end_where_the_references_end(
    engine: str, model: str, optimizer: Literal["row", "dense"], case: dict[str, Any]
) -> None:
    if case not in (RECORDED if engine == "captured" else KERNELS):
        pytest.skip("a case for the other engine")
    fast, reference = on_device(model, optimizer, **case), on_device(model, optimizer, **case)
    losses, expected = run_both(engine, fast, reference)
    assert losses == pytest.approx(expected, rel=1e-5)
    # P̂'s logits are sums of μ differences, and Sinkhorn scaling is a hundred divisions.
    is_sensitive = model == "ncf" or case.get("mu") == 40 or case.get("surrogate") == "neural-ndcg"
    allowed = sensitivity(partial(on_device, model, optimizer, **case)) if is_sensitive else None
    assert_same(fast, reference, allowed)


@on_cuda
@pytest.mark.parametrize(
    ("engine", "model", "embedding_dim"),
    [
        ("kernels", "mf", 8),
        ("kernels", "mf", 128),
        ("captured", "mf", 24),
        ("captured", "ncf", 24),
    ],
)
def test_other_widths(engine: str, model: str, embedding_dim: int) -> None:
    make = partial(on_device, model, embedding_dim=embedding_dim)
    fast, reference = make(), make()
    run_both(engine, fast, reference, n_steps=40)
    assert_same(fast, reference, sensitivity(make, n_steps=40) if model == "ncf" else None)


@on_cuda
@pytest.mark.parametrize("optimizer", ["row", "dense"])
@KINDS
def test_a_second_training_goes_on_where_the_first_ended(
    engine: str, model: str, optimizer: Literal["row", "dense"]
) -> None:
    """The state is the optimizer's own: a new engine, and the reference after it, find it there."""
    fast, reference = (on_device(model, optimizer) for _ in range(2))
    run_both(engine, fast, reference, n_steps=40)
    run_both(engine, fast, reference, n_steps=40)
    order = np.arange(len(fast.batches))
    assert ReferenceEngine(fast).epoch(order, 5) == pytest.approx(ReferenceEngine(reference).epoch(order, 5), rel=1e-5)
    assert_same(fast, reference)


@on_cuda
@pytest.mark.parametrize("optimizer", ["row", "dense"])
@KINDS
def test_every_run_gives_the_same_bits(engine: str, model: str, optimizer: Literal["row", "dense"]) -> None:
    one, other = on_device(model, optimizer), on_device(model, optimizer)
    for job in (one, other):
        make_engine(engine, job).epoch(np.arange(len(job.batches)), 3)
    assert all(torch.equal(a, b) for a, b in zip(tensors(one).values(), tensors(other).values(), strict=True))


@on_cuda
@KINDS
def test_garbage_does_not_break_a_capture(engine: str, model: str) -> None:
    """Older graphs that only the garbage collector can free are not freed in the middle of a capture."""
    thresholds = gc.get_threshold()
    gc.set_threshold(5)
    try:
        for _ in range(20):
            made = make_engine(engine, on_device(model))
            made.epoch(np.arange(5), 3)
            ring: list[Any] = [made]
            ring.append(ring)
    finally:
        gc.set_threshold(*thresholds)


@on_cuda
@KINDS
def test_rows_that_no_batch_touches_stay_as_they_are(engine: str, model: str) -> None:
    job = on_device(model, n_users=500, n_items=3000)
    before = tensors(job)
    make_engine(engine, job).epoch(np.arange(6), 3)
    users = np.unique(job.batches.users[: 6 * BATCH])
    name = "user.weight" if model == "mf" else "user_mlp.weight"
    touched = (tensors(job)[name] != before[name]).any(dim=1)
    assert touched.nonzero().flatten().tolist() == users.tolist()


@on_cuda
@pytest.mark.parametrize("n", [1, 4, 7, 20, 40, 50])
def test_negatives_are_those_of_the_sampler(n: int) -> None:
    from fairstream.training.engines.cuda_mf import _BatchData

    job = on_device(n=n, mu=1, n_items=60)
    data = _BatchData(job, torch.device("cuda"))
    on_cpu = job_of(n=n, mu=1, n_items=60).sampler
    for key in (0, 2**63 - 1, 123456789):
        data.draw(key)
        drawn = on_cpu.draw(job.batches.users, n, key)
        assert torch.equal(data.candidates[:, 1:].cpu(), drawn)
        assert torch.equal(data.candidates[:, 0].cpu(), torch.from_numpy(job.batches.items))


@on_cuda
def test_what_the_kernels_cannot_run() -> None:
    class Own(MFScorer):
        pass

    job = on_device()
    kernels = _fast_engines(job)[0]
    assert kernels.unsupported(job) is None
    for other in (
        replace(job, model=Own(90, 300).cuda()),
        replace(job, extra_loss=lambda model, batch: batch.scores.mean()),
        replace(job, optimizer=torch.optim.SGD(job.model.parameters(), lr=0.1)),
        on_device(embedding_dim=48),
        on_device(n_groups=40),
        on_device(n=64),
        on_device(surrogate="neural-ndcg"),
    ):
        assert kernels.unsupported(other) is not None
    assert kernels.unsupported(on_device(n=63)) is None
    assert kernels.unsupported(on_device(surrogate="neural-ndcg", lambda_=0.0)) is None
