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

from fairstream.data import SeenItems
from fairstream.models import MatrixFactorization, Scorer, built_in_model
from fairstream.objectives import Objective
from fairstream.sampling import NegativeSampler
from fairstream.training.batches import cut_batches
from fairstream.training.cuda import applies, make_cuda_engine
from fairstream.training.engine import Training
from fairstream.training.optimizers import make_optimizer, state_tensors
from fairstream.training.reference import ReferenceEngine

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

N_STEPS, BATCH = 200, 64
N_INTERACTIONS = 20 * BATCH - 13  # the last batch is short
TOLERANCE = 1e-5


def training_of(
    model: str = "mf",
    optimizer: Literal["row", "dense"] = "row",
    *,
    n_groups: int = 2,
    unknown: bool = False,
    one_group: bool = False,
    embedding_dim: int = 64,
    n_users: int = 90,
    n_items: int = 300,
    device: str = "cuda",
    dtype: torch.dtype = torch.float32,
    **objective: Any,
) -> Training:
    """A training on random events in an order in which users come in sessions, as they do in a log."""
    rng = np.random.default_rng(0)
    pairs = rng.permutation(n_users * n_items)[:N_INTERACTIONS].astype(np.int64)
    pairs = pairs[np.argsort(pairs // n_items + rng.normal(0, 3, len(pairs)))]
    users, items = pairs // n_items, pairs % n_items
    codes = rng.integers(0, n_groups, n_users).astype(np.int16)
    if unknown:
        codes[rng.random(n_users) < 0.3] = -1
    if one_group:
        codes[users[: 7 * BATCH]] = 1
    sampler = NegativeSampler(SeenItems.from_pairs(users, items), users, n_items=n_items, device=device)
    options = {"lambda_": 0.5, "tau": 3.0, "n": 4, "mu": 4, **objective}
    torch.manual_seed(0)
    scorer = built_in_model(model, embedding_dim)(n_users, n_items)
    if model == "mf":  # scores as far apart as those of a trained model; NCF would become chaotic
        for parameter in scorer.parameters():
            parameter.data.mul_(10)
    scorer.to(device, dtype)
    made = make_optimizer(optimizer, scorer, learning_rate=1e-3, l2=1e-4)
    aim = Objective(**options)
    batches = cut_batches(users, items, codes, sampler, n_drawn=aim.n_drawn, size=BATCH)
    return Training(scorer, made, aim, batches, sampler, tuple(1.0 if g == 0 else -1.0 for g in range(n_groups)))


def tensors(training: Training) -> dict[str, Tensor]:
    parameters = {name: p.detach() for name, p in training.model.named_parameters()}
    return {**parameters, **state_tensors(training.optimizer, training.model)}


def largest_gap_group(found: Tensor, expected: Tensor) -> float:
    """The largest ‖a − b‖ / ‖b‖ over the rows; rows of one number are taken together."""
    shape = (len(expected), -1) if expected.dim() > 1 and expected.shape[1] > 1 else (1, -1)
    a, b = found.double().reshape(shape), expected.double().reshape(shape)
    return float(((a - b).norm(dim=1) / b.norm(dim=1).clamp(min=1e-30)).max())


def run_both(fused: Training, reference: Training, n_steps: int = N_STEPS) -> tuple[list[float], list[float]]:
    """Epochs by both engines, two with each key, in orders of their own; the losses of each."""
    engines = make_cuda_engine(fused), ReferenceEngine(reference)
    losses: tuple[list[float], list[float]] = ([], [])
    n_batches = len(fused.batches)
    for epoch in range(n_steps // n_batches):
        order = np.random.default_rng(epoch).permutation(n_batches)
        for engine, found in zip(engines, losses, strict=True):
            assert engine is not None
            found.append(engine.epoch(order, 1000 + epoch // 2))
    return losses


def run_reference(training: Training, n_steps: int = N_STEPS) -> None:
    engine = ReferenceEngine(training)
    for epoch in range(n_steps // len(training.batches)):
        engine.epoch(np.random.default_rng(epoch).permutation(len(training.batches)), 1000 + epoch // 2)


def shaken(training: Training, seed: int) -> Training:
    """The same training, begun with the last digit of every parameter at random."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in training.model.parameters():
        shake = 2 * torch.rand(parameter.shape, generator=generator) - 1
        parameter.data.mul_(1 + torch.finfo(torch.float32).eps * shake.to(parameter.device))
    return training


def sensitivity(make: Callable[..., Training], n_steps: int = N_STEPS) -> dict[str, float]:
    """How far the reference ends from float64, at the most, if its beginning is rounded in other ways.

    A ReLU that switches moves it by more than all other rounding, and half of the beginnings may
    switch one where the others do not.
    """
    exact = make(dtype=torch.float64)
    run_reference(exact, n_steps)
    truth, furthest_of = tensors(exact), dict[str, float]()
    for seed in range(8):
        training = shaken(make(), seed)
        run_reference(training, n_steps)
        for name, tensor in tensors(training).items():
            furthest_of[name] = max(furthest_of.get(name, 0.0), largest_gap_group(tensor, truth[name]))
    return furthest_of


def assert_same(fused: Training, reference: Training, sensitive: Mapping[str, float] | None = None) -> None:
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
    {"surrogate": "approx-ndcg", "lambda_": 2.0},
    {"surrogate": "approx-ndcg", "n_groups": 4, "unknown": True, "n": 5, "mu": 2, "tau": 0.5},
    {"surrogate": "neural-ndcg", "lambda_": 2.0},
    {"surrogate": "neural-ndcg", "n_groups": 4, "unknown": True, "n": 2, "mu": 7},
    {"surrogate": "neural-ndcg", "fairness": "absolute", "n": 6, "mu": 1},
    {"mu": 40},
    {"surrogate": "approx-ndcg", "mu": 40},
    {"n": 40, "mu": 2},
]


@on_cuda
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(f"{k}={v}" for k, v in case.items()) or "plain")
@pytest.mark.parametrize("optimizer", ["row", "dense"])
@pytest.mark.parametrize("model", ["mf", "ncf"])
def test_200_steps_end_where_the_references_end(
    model: str, optimizer: Literal["row", "dense"], case: dict[str, Any]
) -> None:
    fused, reference = training_of(model, optimizer, **case), training_of(model, optimizer, **case)
    losses, expected = run_both(fused, reference)
    assert losses == pytest.approx(expected, rel=1e-5)
    # P̂'s logits are sums of μ differences, and Sinkhorn scaling is a hundred divisions.
    is_sensitive = model == "ncf" or case.get("mu") == 40 or case.get("surrogate") == "neural-ndcg"
    allowed = sensitivity(partial(training_of, model, optimizer, **case)) if is_sensitive else None
    assert_same(fused, reference, allowed)


@on_cuda
@pytest.mark.parametrize(("model", "embedding_dim"), [("mf", 8), ("mf", 128), ("ncf", 16), ("ncf", 128)])
def test_other_widths(model: str, embedding_dim: int) -> None:
    make = partial(training_of, model, embedding_dim=embedding_dim)
    fused, reference = make(), make()
    run_both(fused, reference, n_steps=40)
    assert_same(fused, reference, sensitivity(make, n_steps=40) if model == "ncf" else None)


@on_cuda
@pytest.mark.parametrize("optimizer", ["row", "dense"])
@pytest.mark.parametrize("model", ["mf", "ncf"])
def test_a_second_training_goes_on_where_the_first_ended(model: str, optimizer: Literal["row", "dense"]) -> None:
    """The state is the optimizer's own: a new engine, and the reference after it, find it there."""
    fused, reference = (training_of(model, optimizer) for _ in range(2))
    run_both(fused, reference, n_steps=40)
    run_both(fused, reference, n_steps=40)
    order = np.arange(len(fused.batches))
    assert ReferenceEngine(fused).epoch(order, 5) == pytest.approx(ReferenceEngine(reference).epoch(order, 5), rel=1e-5)
    assert_same(fused, reference)


@on_cuda
@pytest.mark.parametrize("model", ["mf", "ncf"])
def test_every_run_gives_the_same_bits(model: str) -> None:
    one, other = training_of(model), training_of(model)
    for training in (one, other):
        engine = make_cuda_engine(training)
        assert engine is not None
        engine.epoch(np.arange(len(training.batches)), 3)
    assert all(torch.equal(a, b) for a, b in zip(tensors(one).values(), tensors(other).values(), strict=True))


@on_cuda
@pytest.mark.parametrize("model", ["mf", "ncf"])
def test_garbage_does_not_break_a_capture(model: str) -> None:
    """Older graphs that only the garbage collector can free are not freed in the middle of a capture."""
    thresholds = gc.get_threshold()
    gc.set_threshold(5)
    try:
        for _ in range(20):
            engine = make_cuda_engine(training_of(model))
            assert engine is not None
            engine.epoch(np.arange(2), 3)
            ring: list[Any] = [engine]
            ring.append(ring)
    finally:
        gc.set_threshold(*thresholds)


@on_cuda
def test_rows_that_no_batch_touches_stay_as_they_are() -> None:
    training = training_of(n_users=500, n_items=3000)
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    engine = make_cuda_engine(training)
    assert engine is not None
    order = np.arange(3)
    engine.epoch(order, 3)
    users = np.unique(training.batches.users[: 3 * BATCH])
    touched = (training.model.state_dict()["user.weight"] != before["user.weight"]).any(dim=1)
    assert touched.nonzero().flatten().tolist() == users.tolist()


@on_cuda
@pytest.mark.parametrize("n", [1, 4, 7, 20, 40, 50])
def test_negatives_are_those_of_the_sampler(n: int) -> None:
    from fairstream.training.cuda.batch_data import BatchData

    training = training_of(n=n, mu=1, n_items=60)
    data = BatchData(training, torch.device("cuda"))
    on_cpu = training_of(n=n, mu=1, n_items=60, device="cpu").sampler
    for key in (0, 2**63 - 1, 123456789):
        data.use(key)
        drawn = on_cpu.draw(training.batches.users, n, key)
        assert torch.equal(data.candidates[:, 1:].cpu(), drawn)
        assert torch.equal(data.candidates[:, 0].cpu(), torch.from_numpy(training.batches.items))


@on_cuda
def test_it_does_not_apply_to_what_it_has_no_kernels_for() -> None:
    class Own(MatrixFactorization):
        pass

    training = training_of()
    assert applies(training)
    own: Scorer = Own(90, 300).cuda()
    assert not applies(replace(training, model=own))
    assert not applies(training_of(embedding_dim=48))
    assert not applies(training_of(n_groups=40))
    assert applies(training_of(n=63))
    assert not applies(training_of(n=64))
    assert applies(training_of(mu=7, surrogate="neural-ndcg"))
    assert not applies(training_of(mu=8, surrogate="neural-ndcg"))
    assert applies(training_of(mu=8, surrogate="neural-ndcg", lambda_=0.0))
    assert not applies(replace(training, optimizer=torch.optim.SGD(training.model.parameters(), lr=0.1)))
    assert make_cuda_engine(training_of(n_groups=40)) is None


def test_it_does_not_apply_on_the_cpu() -> None:
    assert not applies(training_of(device="cpu"))
