"""What is captured on CUDA takes the steps of the eager engine: the same numbers but for rounding."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from adversarial_support import BATCH, N_BATCHES, job_of, tensors
from fairstream.paper.adver import AdversarialEngine, CapturedAdversarialEngine, choose_adversarial_engine
from fairstream.training import TrainingJob

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

BOTH = pytest.mark.parametrize("model", ["mf", "ncf"])
KEY = 7


def on_device(model: str = "mf", **options: Any) -> TrainingJob:
    return job_of(model, device="cuda", **{"learning_rate": 1e-3, "embedding_dim": 64, **options})


def run_both(model: str, n_epochs: int = 3, **options: Any) -> tuple[CapturedAdversarialEngine, AdversarialEngine]:
    engines = (
        CapturedAdversarialEngine(on_device(model, **options), gamma=2.0),
        AdversarialEngine(on_device(model, **options), gamma=2.0),
    )
    for epoch in range(n_epochs):
        order = np.random.default_rng(epoch).permutation(N_BATCHES)
        losses = []
        for engine in engines:
            torch.manual_seed(epoch)
            losses.append(engine.epoch(order, KEY + epoch // 2))
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    return engines


def assert_same(one: TrainingJob, other: TrainingJob, tolerance: float = 1e-3) -> None:
    """Within what rounding grows to over a few dozen steps; Adam turns tiny gradients' signs into whole steps."""
    ours, theirs = tensors(one), tensors(other)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if name.endswith(("step", "n_updates", "num_batches_tracked")):
            assert torch.equal(ours[name], value), name
        elif not name.startswith("user_bias"):  # its gradient is 0 but for rounding
            a, b = ours[name].double(), value.double()
            assert float((a - b).norm() / b.norm().clamp(min=1e-12)) < tolerance, name


@BOTH
def test_replayed_and_eager_steps_agree(model: str) -> None:
    captured, eager = run_both(model, dropout=0.0, optimizer="dense")
    assert captured.name == "captured"
    assert captured._graphs
    assert_same(captured.job, eager.job)


@BOTH
def test_replayed_and_eager_steps_of_row_adam_agree_in_double_precision(model: str) -> None:
    """Its two forms round differently, and in single precision a rounding error grows to percents of the loss."""
    jobs = [on_device(model, optimizer="row", dropout=0.0) for _ in range(2)]
    for job in jobs:
        job.model.double()
    captured, eager = CapturedAdversarialEngine(jobs[0], gamma=2.0), AdversarialEngine(jobs[1], gamma=2.0)
    for epoch in range(2):
        losses = [engine.epoch(np.arange(N_BATCHES), KEY + epoch) for engine in (captured, eager)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-7)
    assert captured._graphs


@BOTH
def test_unknown_users_and_three_groups(model: str) -> None:
    codes = np.arange(40) % 4 - 1
    captured, eager = run_both(model, dropout=0.0, n_groups=3, codes=codes)
    assert_same(captured.job, eager.job)


def test_batches_in_which_nobody_is_known_are_taken_in_their_turn() -> None:
    codes = np.arange(40) % 2
    quiet = np.unique(on_device().batches.users[BATCH : 2 * BATCH])
    codes[quiet] = -1
    captured, eager = run_both("mf", dropout=0.0, codes=codes)
    assert not captured._have_known.all()
    assert captured.name == "captured"
    assert_same(captured.job, eager.job)


@BOTH
def test_the_capture_leaves_no_trace(model: str) -> None:
    training = on_device(model)
    engine = CapturedAdversarialEngine(training, gamma=2.0)
    engine.epoch(np.arange(3), KEY)  # these steps are taken one by one
    before, random = tensors(training), torch.cuda.get_rng_state()
    engine._capture(engine._kinds[0])
    torch.cuda.synchronize()
    assert engine._graphs
    after = tensors(training)
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert torch.equal(torch.cuda.get_rng_state(), random)
    assert all(p.grad is None for p in training.model.parameters())
    assert not any(group["capturable"] for group in training.optimizer.param_groups)


@BOTH
def test_dropout_follows_the_seed(model: str) -> None:
    """The same seed gives the same bits, another seed others, and no two steps drop the same."""
    found = []
    for seed in (0, 0, 1):
        training = on_device(model)
        engine = CapturedAdversarialEngine(training, gamma=2.0)
        for epoch in range(2):
            torch.manual_seed(seed + 10 * epoch)
            engine.epoch(np.arange(N_BATCHES), KEY)
        found.append(tensors(training)["group_discriminator.head.weight"])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_later_training_goes_on_where_the_first_ended() -> None:
    captured, eager = (on_device(dropout=0.0) for _ in range(2))
    for _ in range(2):
        CapturedAdversarialEngine(captured, gamma=2.0).epoch(np.arange(N_BATCHES), KEY)
        AdversarialEngine(eager, gamma=2.0).epoch(np.arange(N_BATCHES), KEY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Adam warns of a setting that the capture would have left behind
        for training in (captured, eager):
            AdversarialEngine(training, gamma=2.0).epoch(np.arange(N_BATCHES), KEY + 1)
    assert_same(captured, eager)


def test_garbage_does_not_break_a_capture() -> None:
    thresholds = gc.get_threshold()
    gc.set_threshold(5)
    try:
        for _ in range(5):
            engine = CapturedAdversarialEngine(on_device(), gamma=2.0)
            engine.epoch(np.arange(2), KEY)
            ring: list[Any] = [engine]
            ring.append(ring)
    finally:
        gc.set_threshold(*thresholds)


def test_who_takes_the_steps() -> None:
    job = on_device(optimizer="dense")
    for name, expected in (
        ("auto", CapturedAdversarialEngine),
        ("fused", CapturedAdversarialEngine),
        ("reference", AdversarialEngine),
    ):
        assert type(choose_adversarial_engine(name, job, gamma=1.0)(job)) is expected
    by_rows = on_device(optimizer="row")
    assert type(choose_adversarial_engine("auto", by_rows, gamma=1.0)(by_rows)) is CapturedAdversarialEngine


def test_a_run_on_the_device_is_the_same_from_the_same_seed() -> None:
    import fairstream

    stream = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=2000)
    log = fairstream.read_events(stream.events, users=stream.users)
    options: dict[str, Any] = {
        "pretrain_epochs": 2,
        "update_epochs": 2,
        "n_periods": 3,
        "n_resamples": 0,
        "batch_size": 16,
    }
    runs = [fairstream.run(log, "Adver", protocol="paper", device="cuda", **options) for _ in range(2)]
    for run in runs:
        list(run)
    one, other = (run.document() for run in runs)
    assert one["periods"] == other["periods"]
    assert one["group_recovery"] == other["group_recovery"]
