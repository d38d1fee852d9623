"""Fairness losses in training: whose state it is, which engine runs them, and what the report says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import pytest
import torch

from engine_support import job_of, tensors
from fairstream.errors import ConfigurationError
from fairstream.objectives import GroupDROLoss, LargestGapLoss, softmax_loss
from fairstream.randomness import Randomness
from fairstream.training import Engine, TrainingJob, TrainingReport, choose_engine, train
from fairstream.training.engines.cuda_graph import CapturedEngine, CapturedWindowEngine
from fairstream.training.reference import ReferenceEngine, WindowEngine

STATEFUL = [
    LargestGapLoss(),
    GroupDROLoss(0.5),
]
NAMES = ("largest", "group-dro")
MODELS = ["mf", "ncf", "windows"]
GROUPS: dict[str, Any] = {"n_groups": 4, "unknown": True, "one_group": True, "embedding_dim": 8}


def with_loss(model: str, fairness: Any, optimizer: Literal["row", "dense"] = "row", **options: Any) -> TrainingJob:
    return job_of(model, optimizer, **{**GROUPS, "lambda_": 2.0, **options, "fairness_loss": fairness})


def trained(job: TrainingJob, n_epochs: int = 2, engine: type[Engine] | None = None) -> TrainingReport:
    made = (engine or choose_engine("auto", job))(job)
    return train(
        job, made, n_interactions=1, t=0, epochs=n_epochs, randomness=Randomness(0), learning_rate=1e-3, on_epoch=None
    )


def same(one: TrainingJob, other: TrainingJob) -> bool:
    ours, theirs = tensors(one), tensors(other)
    return all(torch.equal(value, theirs[name]) for name, value in ours.items())


# ── the state belongs to one training ────────────────────────────────────────────────────


@pytest.mark.few(1)
@pytest.mark.parametrize("fairness", STATEFUL, ids=NAMES)
@pytest.mark.parametrize("model", MODELS)
def test_a_loss_that_was_used_before_is_as_good_as_new(model: str, fairness: Any) -> None:
    first, second = (with_loss(model, fairness) for _ in range(2))
    trained(first)
    trained(second)
    assert same(first, second)
    other = with_loss(model, fairness, lambda_=0.0)
    trained(other)
    assert not same(first, other)


def test_trainings_in_two_threads_do_not_hear_of_each_other() -> None:
    fairness = GroupDROLoss(0.5)
    alone, *together = (with_loss("mf", fairness) for _ in range(3))
    trained(alone)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(trained, together))
    assert same(alone, together[0])
    assert same(alone, together[1])


def test_a_loss_of_ones_own_may_have_a_state_too() -> None:
    class Counting:
        """The loss of the n-th batch is n times the mean score of the positives."""

        def __init__(self) -> None:
            self.n = torch.zeros(())

        def start(self, n_groups: int, device: torch.device) -> Counting:
            started.append((n_groups, device.type))
            return Counting()

        def __call__(self, scores: torch.Tensor, groups: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
            self.n.add_(1)
            return self.n * scores[:, 0].mean()

    started: list[tuple[int, str]] = []
    loss = Counting()
    trained(with_loss("mf", loss))
    assert started == [(4, "cpu")]
    assert loss.n == 0


# ── engines ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fairness", STATEFUL, ids=NAMES)
def test_the_fused_engine_leaves_them_to_the_reference(fairness: Any) -> None:
    job = with_loss("mf", fairness)
    assert choose_engine("auto", job) is ReferenceEngine
    with pytest.raises(ConfigurationError, match="its fairness loss is not the paper's"):
        choose_engine("fused", job)
    assert trained(job, 1).engine == "reference"
    plain = job_of("mf", n_groups=4)
    assert choose_engine("auto", plain)(plain).name == "fused"


@pytest.mark.few(1)
@pytest.mark.parametrize("optimizer", ["row", "dense"])
@pytest.mark.parametrize("fairness", STATEFUL, ids=NAMES)
@pytest.mark.parametrize("model", MODELS)
def test_a_step_that_could_be_recorded_is_the_references(
    model: str, fairness: Any, optimizer: Literal["row", "dense"]
) -> None:
    """Batches of one group, of nobody known and filled-up windows included; in double precision."""
    captured, reference = (with_loss(model, fairness, optimizer, dtype=torch.float64) for _ in range(2))
    kinds: list[type[Engine]] = [CapturedEngine, ReferenceEngine]
    if model == "windows":
        kinds = [CapturedWindowEngine, WindowEngine]
    engines = [kind(job) for kind, job in zip(kinds, (captured, reference), strict=True)]
    for epoch in range(2):
        order = np.random.default_rng(epoch).permutation(len(captured.batches))
        losses = [engine.epoch(order, 7 + epoch) for engine in engines]
        assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    theirs = tensors(reference)
    for name, value in tensors(captured).items():
        if not name.startswith("user_bias"):  # its gradient is 0 but for rounding
            torch.testing.assert_close(value, theirs[name], rtol=1e-7, atol=1e-9)


def test_on_windows_with_softmax_the_likelihood_is_among_all_items() -> None:
    job = with_loss("windows", GroupDROLoss(0.5), loss=softmax_loss)
    assert job.objective.n_drawn == 0
    before = tensors(job)
    report = trained(job, 3)
    assert report.engine == "reference"
    assert not torch.equal(before["item.weight"], tensors(job)["item.weight"])


def test_without_a_batch_of_two_groups_no_weight_was_used() -> None:
    job = job_of("mf", n_groups=1, lambda_=0.7)
    assert trained(job, 1).fairness_weight == 0
