"""A step that a graph could record is the reference's step: for any model, on any device."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from engine_support import job_of, tensors
from fairstream.models import Scorer
from fairstream.objectives import sampled_softmax_loss, softmax_loss
from fairstream.training import Batch, Engine, RowAdam, TrainingJob, choose_engine
from fairstream.training.engines.cuda_graph import CapturedEngine, CapturedWindowEngine, capturable
from fairstream.training.reference import ReferenceEngine, WindowEngine

HAS_CUDA = torch.cuda.is_available()
on_cuda = pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_cuda)])
OPTIMIZERS = pytest.mark.parametrize("optimizer", ["row", "dense"])


def far_from_start(model: Scorer, batch: Batch) -> Tensor:
    """A loss of one's own on top: the scores of a batch should stay small."""
    return 0.01 * batch.scores.square().mean()


CASES: list[tuple[str, dict[str, Any]]] = [
    ("mf", {}),
    ("mf", {"one_group": True, "unknown": True, "n_groups": 3}),
    ("mf", {"lambda_": 0.0, "loss": sampled_softmax_loss}),
    ("mf", {"loss": softmax_loss}),
    ("mf", {"extra_loss": far_from_start}),
    ("mf", {"surrogate": "neural-ndcg", "lambda_": 2.0}),
    ("ncf", {"fairness": "absolute", "mu": 7}),
    ("gru", {}),
    ("windows", {}),
    ("windows", {"unknown": True, "n": 2, "mu": 5}),
    ("windows", {"loss": softmax_loss, "lambda_": 0.0}),
    ("timed", {"loss": softmax_loss, "lambda_": 0.0}),
]


def engines_of(captured: TrainingJob, reference: TrainingJob) -> tuple[Engine, Engine]:
    if ReferenceEngine.unsupported(reference) is None:
        return CapturedEngine(captured), ReferenceEngine(reference)
    return CapturedWindowEngine(captured), WindowEngine(reference)


def run_both(captured: TrainingJob, reference: TrainingJob, n_epochs: int = 3) -> Engine:
    engines = engines_of(captured, reference)
    for epoch in range(n_epochs):
        order = np.random.default_rng(epoch).permutation(len(captured.batches))
        losses = [engine.epoch(order, 1000 + epoch // 2) for engine in engines]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    return engines[0]


def assert_close(one: TrainingJob, other: TrainingJob, tolerance: float = 1e-4) -> None:
    """Norms of differences: Adam turns the sign of a gradient that is all rounding into a whole step."""
    ours, theirs = tensors(one), tensors(other)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if name.endswith(("n_updates", "step")):
            assert torch.equal(ours[name], value), name
        elif not name.startswith("user_bias"):  # its gradient is 0 but for rounding
            a, b = ours[name].double(), value.double()
            assert float((a - b).norm() / b.norm().clamp(min=1e-12)) < tolerance, name


@pytest.mark.slow
@DEVICES
@OPTIMIZERS
@pytest.mark.parametrize(("model", "case"), CASES, ids=lambda part: part if isinstance(part, str) else "-".join(part))
def test_its_steps_are_those_of_the_reference(
    model: str, case: dict[str, Any], optimizer: Literal["row", "dense"], device: str
) -> None:
    captured, reference = (job_of(model, optimizer, device=device, embedding_dim=16, **case) for _ in range(2))
    engine = run_both(captured, reference)
    assert engine.name == "captured"
    assert_close(captured, reference)


@pytest.mark.slow
@OPTIMIZERS
def test_in_double_precision_they_agree_to_the_last_digits(optimizer: Literal["row", "dense"]) -> None:
    for model in ("ncf", "gru", "windows"):
        captured, reference = (
            job_of(model, optimizer, dtype=torch.float64, embedding_dim=16, unknown=True) for _ in range(2)
        )
        run_both(captured, reference)
        assert_close(captured, reference, tolerance=1e-10)


def sparse(rows: list[int], values: Tensor, like: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, like.shape, check_invariants=True)


@DEVICES
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_row_adam_in_its_capturable_form_is_row_adam(weight_decay: float, device: str) -> None:
    """Rows that occur twice, rows that occur never, dense gradients and scalars."""
    source = torch.Generator().manual_seed(0)
    start = torch.randn(6, 3, dtype=torch.float64, generator=source).to(device)
    layer, scalar = start[:2].clone(), start[0, 0].clone()
    ours, theirs = ([nn.Parameter(value.clone()) for value in (start, layer, scalar)] for _ in range(2))
    settings = {"lr": 0.05, "weight_decay": weight_decay}
    row_adam, in_graphs = RowAdam(theirs, **settings), RowAdam(ours, capturable=True, **settings)
    for step in range(40):
        rows = torch.randint(0, 5, (4,), generator=source).tolist()  # row 5 never occurs
        scale = 10.0 ** (step % 5 - 2)
        values = torch.randn(4, 3, dtype=torch.float64, generator=source).to(device) * scale
        for parameters, optimizer in ((ours, in_graphs), (theirs, row_adam)):
            parameters[0].grad = sparse(rows, values.cpu(), start.cpu()).to(device)
            parameters[1].grad, parameters[2].grad = values[:2].clone(), values[0, 0].clone()
            optimizer.step()
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
            for name, value in row_adam.state[other].items():
                torch.testing.assert_close(in_graphs.state[one][name], value, rtol=1e-12, atol=1e-12)
    assert torch.equal(ours[0][5], start[5])


def test_the_setting_of_the_optimizer_is_put_back() -> None:
    for optimizer in ("row", "dense"):
        job = job_of("mf", optimizer)
        groups = job.optimizer.param_groups
        with capturable(job.optimizer, is_recorded=True):
            assert all(group["capturable"] for group in groups)
        with pytest.raises(RuntimeError, match="within"), capturable(job.optimizer, is_recorded=True):
            raise RuntimeError("within")
        assert not any(group["capturable"] for group in groups)


def test_what_it_says_it_cannot_run() -> None:
    assert CapturedEngine.unsupported(job_of()) == "the model is not on a CUDA device"
    assert "windows" in str(CapturedEngine.unsupported(job_of("windows")))
    assert "single" in str(CapturedWindowEngine.unsupported(job_of()))
    assert "custom loss" in str(CapturedWindowEngine.unsupported(job_of("windows", extra_loss=far_from_start)))
    assert choose_engine("auto", job_of("ncf")) is ReferenceEngine


@on_cuda
def test_it_is_chosen_for_any_model_on_cuda() -> None:
    for model in ("gru", "dropout"):
        assert choose_engine("auto", job_of(model, device="cuda")) is CapturedEngine
    assert choose_engine("auto", job_of("windows", device="cuda")) is CapturedWindowEngine
    assert choose_engine("auto", job_of("mf", device="cuda", surrogate="neural-ndcg")) is CapturedEngine
    assert choose_engine("auto", job_of("ncf", device="cuda")) is CapturedEngine
    assert choose_engine("auto", job_of("mf", device="cuda")).name == "fused"
    job = job_of("gru", device="cuda")
    job.model.capturable = False  # type: ignore[assignment]
    assert choose_engine("auto", job) is ReferenceEngine


@on_cuda
@pytest.mark.parametrize(
    ("model", "reason"), [("asking", "not permitted when stream is capturing"), ("rebinding", "n_calls is replaced")]
)
def test_what_cannot_be_recorded_runs_as_the_reference_does(model: str, reason: str) -> None:
    captured, reference = (job_of(model, device="cuda") for _ in range(2))
    engine = run_both(captured, reference)
    assert engine.name.startswith("reference (not capturable: ")
    assert reason in engine.name
    assert_close(captured, reference)


@on_cuda
def test_after_a_failed_capture_all_goes_on() -> None:
    """Random numbers, memory and other captures work as before."""
    CapturedEngine(job_of("asking", device="cuda")).epoch(np.arange(20), 1)
    assert torch.rand(1000, device="cuda").std() > 0
    engine = CapturedEngine(job_of("dropout", device="cuda"))
    assert np.isfinite(engine.epoch(np.arange(20), 1))
    assert engine.name == "captured"
    before = torch.cuda.memory_reserved()
    for _ in range(50):
        torch.empty(1 << 24, device="cuda")
    assert torch.cuda.memory_reserved() <= before + (1 << 27)


@on_cuda
def test_dropout_follows_the_seed() -> None:
    """The same seed gives the same bits, another seed others."""
    results = []
    for seed in (0, 0, 1):
        job = job_of("dropout", device="cuda")
        engine = CapturedEngine(job)
        for epoch in range(2):
            torch.manual_seed(seed + 10 * epoch)
            engine.epoch(np.arange(len(job.batches)), 5)
        results.append(tensors(job)["user.weight"])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
