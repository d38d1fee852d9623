"""Two workers take the steps of one process: the loss is that of the global batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributed, multiprocessing, nn

from engine_support import OWN, Windowed, job_of, tensors
from fairstream.data import History
from fairstream.objectives import GroupDROLoss, LargestGapLoss, bpr_loss, softmax_loss
from fairstream.randomness import Randomness
from fairstream.sampling import NegativeSampler, SharedNegatives
from fairstream.training import Engine, Schedule, TrainingJob, choose_engine, train
from fairstream.training.batches import cut_windows
from fairstream.training.data_parallel import ShareEngine, _Share, training_name, why_not_divided

N_EPOCHS = 3
SASREC: dict[str, Any] = {"model": "sasrec", "loss": softmax_loss, "embedding_dim": 16}
CASES: dict[str, dict[str, Any]] = {
    "windows, bpr, sparse gradients": {"model": "windows"},
    "gru4rec": {"model": "gru4rec", "loss": softmax_loss, "optimizer": "dense"},
    "times": {"model": "timed", "loss": softmax_loss, "optimizer": "dense"},
    "sasrec": {**SASREC, "optimizer": "dense"},
    "sasrec, absolute likelihood": {
        **SASREC,
        "optimizer": "dense",
        "fairness": "absolute",
        "surrogate": "log-likelihood",
        "unknown": True,
    },
    "sasrec, row Adam, three groups": {**SASREC, "optimizer": "row", "n_groups": 3},
    "sasrec, row Adam, shared negatives": {**SASREC, "optimizer": "row", "shared": True},
    "sasrec, batches of one group": {**SASREC, "optimizer": "dense", "one_group": True},
    "a group for each worker": {"model": "windows", "lambda_": 5.0, "by_window": True},
}


def job_for(case: str, **changes: Any) -> TrainingJob:
    """A job in double precision, without dropout, with a learning rate that changes."""
    options = {**CASES[case], **changes}
    shared, by_window = options.pop("shared", False), options.pop("by_window", False)
    job = job_of(**options, dtype=torch.float64)
    for part in job.model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    windows = job.batches
    bounds, widths = windows.bounds, windows.widths
    one = {"bounds": np.insert(bounds, -1, bounds[-1] - 1), "widths": np.append(widths, widths[-1])}
    windows = replace(windows, **one)  # one window in the last batch
    job = replace(job, batches=windows)
    if by_window:  # neighbouring windows have different groups: each worker alone would see no disparity
        codes = np.full_like(windows.codes, -1)
        codes[windows.users] = np.arange(len(windows.users)) % 2
        job = replace(job, batches=replace(windows, codes=codes))
    if shared:
        job = replace(job, shared_negatives=SharedNegatives(np.arange(300), 32))
    return replace(job, schedule=Schedule(job.optimizer, 1e-3, N_EPOCHS * len(job.batches)))


def trained(engine: Engine, job: TrainingJob) -> tuple[dict[str, Tensor], list[float]]:
    rng = np.random.default_rng(1)
    losses = [engine.epoch(rng.permutation(len(job.batches)), 100 + epoch) for epoch in range(N_EPOCHS)]
    return tensors(job), losses


def train_all_cases(rank: int, n_workers: int, folder: str) -> None:
    """What one worker does."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=n_workers)
    results = {}
    for case in CASES:
        job = job_for(case)
        results[case] = trained(ShareEngine(job), job)
    distributed.destroy_process_group()
    torch.save(results, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module", params=[pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3)])
def by_workers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The results of each worker."""
    folder, n_workers = tmp_path_factory.mktemp("workers"), request.param
    multiprocessing.start_processes(train_all_cases, (n_workers, str(folder)), n_workers, start_method="fork")
    return [torch.load(folder / f"{rank}.pt") for rank in range(n_workers)]


@pytest.mark.parametrize("case", CASES)
def test_workers_take_the_steps_of_one_process(by_workers: list[Any], case: str) -> None:
    job = job_for(case)
    expected, losses = trained(choose_engine("reference", job)(job), job)
    for results in by_workers:
        parameters, losses_of_workers = results[case]
        assert losses_of_workers == pytest.approx(losses, abs=1e-9)
        assert parameters.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(parameters[name], value, rtol=0, atol=1e-9)


class DroppingWindows(Windowed):
    """Remembers which places of the first batch its dropout sets to 0."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items)
        self.dropout, self.masks = nn.Dropout(0.5), list[Tensor]()

    def states(self, history: Tensor) -> Tensor:
        states = self.dropout(super().states(history))
        self.masks.append(states.detach() == 0)
        return states


def drop_out(rank: int, folder: str) -> None:
    """What one of two workers does."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OWN, "dropping windows", DroppingWindows)
        job = job_of("dropping windows")
    train(job, ShareEngine(job), n_interactions=1, t=0, epochs=1, randomness=Randomness(0), learning_rate=1e-3)
    distributed.destroy_process_group()
    torch.save(job.model.masks[0], f"{folder}/{rank}.pt")


@pytest.mark.slow
def test_workers_drop_out_different_places(tmp_path: Path) -> None:
    multiprocessing.start_processes(drop_out, (str(tmp_path),), 2, start_method="fork")
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    n = min(len(one), len(other))
    assert (one[:n] != other[:n]).float().mean() > 0.3


@pytest.mark.slow
def test_the_fairness_loss_matters_where_each_worker_has_one_group() -> None:
    fair, unfair = (job_for("a group for each worker", lambda_=weight) for weight in (5.0, 0.0))
    one, other = (trained(choose_engine("reference", job)(job), job)[0] for job in (fair, unfair))
    assert (one["item.weight"] - other["item.weight"]).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": "mf"}, "slower"),
        ({"model": "windows", "extra_loss": lambda model, batch: batch.scores.sum()}, "extra loss"),
        ({"model": "windows", "fairness_loss": LargestGapLoss()}, "group sums"),
        ({"model": "windows", "fairness_loss": GroupDROLoss()}, "group sums"),
        ({"model": "windows", "loss": lambda scores: bpr_loss(scores) ** 2}, "custom"),
    ],
)
def test_a_reason_is_given_for_what_workers_do_not_share(options: dict[str, Any], reason: str) -> None:
    assert reason in str(why_not_divided(job_of(**options)))
    assert why_not_divided(job_of("windows", lambda_=0.0, fairness_loss=GroupDROLoss())) is None


def test_the_name_of_a_training_depends_on_all_that_decides_it() -> None:
    names = [
        training_name(job_for("windows, bpr, sparse gradients", **changes), {"epochs": epochs})
        for changes in ({}, {"lambda_": 0.25}, {"n_items": 299}, {"fairness": "absolute"})
        for epochs in (3, 3, 4)
    ]
    assert names[::3] == names[1::3]
    assert len(set(names)) == 8


def test_every_worker_has_a_target_in_every_batch() -> None:
    """A window may have none, where its user's events are learned here and there."""
    history = History.of(np.zeros(19, np.int64), np.arange(19))
    sampler = NegativeSampler(history.seen, np.arange(1), n_items=30)
    learned = np.array([4, 5, 13, 14, 16, 17])
    windows = cut_windows(history, learned, np.zeros(1, np.int64), sampler, n_drawn=1, length=5, size=99)
    assert (windows.targets >= 0).sum(axis=1).tolist() == [2, 0, 4]
    shares = [_Share.of(windows, rank, 3) for rank in range(3)]
    assert all((np.diff(share.first_target) > 0).all() for share in shares)
    assert sum(share.shares for share in shares) == pytest.approx(1)
