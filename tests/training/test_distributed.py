"""Several workers take the steps that one process takes, whoever owns which users, and however many they are."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from engine_support import job_of, tensors
from fairstream.errors import CheckpointError, ConfigurationError, FairstreamError
from fairstream.models import MatrixFactorization
from fairstream.objectives import CVaRLoss, GroupDROLoss, LargestGapLoss, softmax_loss
from fairstream.training import Engine, Schedule, TrainingJob, choose_engine
from fairstream.training.distributed import Checkpoints, DistributedEngine, ThreadGroup, WorkerDiedError, cut_job

GRU_AND_SASREC: dict[str, dict[str, Any]] = {
    "gru4rec": {"model": "gru4rec", "loss": softmax_loss, "optimizer": "dense"},
    "sasrec": {"model": "sasrec", "loss": softmax_loss, "optimizer": "dense", "embedding_dim": 16},
}
CASES: dict[str, dict[str, Any]] = {
    "mf": {"model": "mf"},
    "mf, dense Adam": {"model": "mf", "optimizer": "dense"},
    "mf, unknown groups": {"model": "mf", "unknown": True, "n_groups": 3},
    "mf, batches of one group": {"model": "mf", "one_group": True},
    "mf, largest gap with statistics": {"model": "mf", "fairness_loss": LargestGapLoss(), "n_groups": 3},
    "mf, group DRO": {"model": "mf", "fairness_loss": GroupDROLoss()},
    "mf, CVaR": {"model": "mf", "fairness_loss": CVaRLoss(), "unknown": True},
    "mf, softmax": {"model": "mf", "loss": softmax_loss},
    # Its first gradients are so small that Adam makes single precision's rounding as large as the steps.
    "ncf": {"model": "ncf", "embedding_dim": 16, "dtype": torch.float64},
    "ncf, dense Adam": {"model": "ncf", "embedding_dim": 16, "dtype": torch.float64, "optimizer": "dense"},
    "reads histories": {"model": "gru"},
    "windows, sampled": {"model": "windows"},
    **GRU_AND_SASREC,
    "sasrec, likelihood": {**GRU_AND_SASREC["sasrec"], "surrogate": "log-likelihood", "unknown": True},
    "sasrec, rows": {**GRU_AND_SASREC["sasrec"], "optimizer": "row"},
}


def without_dropout(job: TrainingJob) -> TrainingJob:
    for part in job.model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return job


def trained(engine: Engine, job: TrainingJob, n_steps: int) -> tuple[dict[str, Tensor], list[float]]:
    """What is there after so many steps, and the losses of the epochs."""
    rng, n_batches = np.random.default_rng(1), len(job.batches)
    losses = [engine.epoch(rng.permutation(n_batches), 100 + epoch) for epoch in range(n_steps // n_batches)]
    if n_steps % n_batches:
        losses.append(engine.epoch(rng.permutation(n_batches)[: n_steps % n_batches], 99))
    engine.finish(in_place=True)
    return tensors(job), losses


def by_workers(job: TrainingJob, n_workers: int, n_steps: int) -> tuple[dict[str, Tensor], list[float]]:
    return trained(DistributedEngine(job, ThreadGroup(n_workers)), job, n_steps)


def by_one_process(job: TrainingJob, n_steps: int) -> tuple[dict[str, Tensor], list[float]]:
    return trained(choose_engine("reference", job)(job), job, n_steps)


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(
            other[name], value, rtol=0, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_three_workers_take_the_steps_of_one_process() -> None:
    case = "mf, unknown groups"
    one, losses = by_one_process(without_dropout(job_of(**CASES[case])), 6)
    three, losses_of_three = by_workers(without_dropout(job_of(**CASES[case])), 3, 6)
    assert_close(one, three, 1e-6)
    assert losses_of_three == pytest.approx(losses, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_parameters_after_200_steps_do_not_depend_on_the_number_of_workers(case: str) -> None:
    one, losses = by_one_process(without_dropout(job_of(**CASES[case])), 200)
    for n_workers in (1, 2, 4):
        several, losses_of_several = by_workers(without_dropout(job_of(**CASES[case])), n_workers, 200)
        assert_close(one, several, 1e-5)
        assert losses_of_several == pytest.approx(losses, abs=1e-5)


def with_groups_by_owner(job: TrainingJob) -> TrainingJob:
    """Each of two workers has users of one group alone: what either computes by itself has no disparity."""
    codes = (np.arange(len(job.batches.codes)) % 2).astype(np.int16)
    return replace(job, batches=replace(job.batches, codes=codes))


def test_a_disparity_is_that_of_the_whole_batch_where_each_worker_has_one_group() -> None:
    one, _ = by_one_process(with_groups_by_owner(job_of("mf", lambda_=5.0)), 10)
    two, _ = by_workers(with_groups_by_owner(job_of("mf", lambda_=5.0)), 2, 10)
    assert_close(one, two, 1e-6)
    unfair, _ = by_one_process(with_groups_by_owner(job_of("mf", lambda_=0.0)), 10)
    assert (unfair["item.weight"] - one["item.weight"]).abs().max() > 1e-4


@pytest.mark.slow
def test_dropout_does_not_depend_on_the_number_of_workers() -> None:
    one, three = (by_workers(job_of(**CASES["sasrec"]), n, 6)[0] for n in (1, 3))
    assert_close(one, three, 1e-5)
    plain, _ = by_workers(without_dropout(job_of(**CASES["sasrec"])), 1, 6)
    assert (plain["item.weight"] - one["item.weight"]).abs().max() > 1e-4


class FailingGroup(ThreadGroup):
    """Workers that die at some calls, after having done what they were asked."""

    def __init__(self, n_workers: Iterable[int], dies_at: set[int]) -> None:
        self._numbers = iter(n_workers)
        super().__init__(next(self._numbers))
        self._dies_at, self._n_calls = dies_at, 0

    def call(self, method: str, *arguments: Any) -> list[Any]:
        self._n_calls += 1
        results = super().call(method, *arguments)
        if self._n_calls in self._dies_at:
            super().__init__(next(self._numbers, self.n_workers))
            raise WorkerDiedError
        return results


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 1e9])  # fetched after every epoch, and not before the end
def test_what_a_dead_worker_had_done_is_done_again(seconds: float) -> None:
    undisturbed, losses = by_workers(scheduled_job(), 3, 80)
    job = scheduled_job()
    group = FailingGroup([3, 3, 3, 3], {1, 4, 6})
    disturbed, losses_of_disturbed = trained(DistributedEngine(job, group, Checkpoints(seconds)), job, 80)
    assert losses_of_disturbed == losses
    assert_close(undisturbed, disturbed, 0.0)


@pytest.mark.slow
def test_a_training_saved_by_four_workers_is_resumed_by_three_and_by_one() -> None:
    one, _ = by_one_process(job_of("mf"), 80)
    job = job_of("mf")
    group = FailingGroup([4, 3, 1], {3, 6})
    several, _ = trained(DistributedEngine(job, group, Checkpoints(0.0)), job, 80)
    assert group.n_workers == 1
    assert_close(one, several, 1e-6)


def scheduled_job(**options: Any) -> TrainingJob:
    """One with a state across batches, too: statistics of the groups, and a learning rate that changes."""
    job = job_of("mf", **{"fairness_loss": LargestGapLoss(), **options})
    return replace(job, schedule=Schedule(job.optimizer, 1e-3, 80))


def interrupted(folder: Path, n_workers: Sequence[int]) -> tuple[dict[str, Tensor], list[float]]:
    """A training of four epochs that each process but the last leaves an epoch later than the one before."""
    for n_done, n in enumerate(n_workers[:-1], start=1):
        job, rng = scheduled_job(), np.random.default_rng(1)
        engine = DistributedEngine(job, ThreadGroup(n), Checkpoints(0.0, folder))
        for epoch in range(n_done):
            engine.epoch(rng.permutation(len(job.batches)), 100 + epoch)
        assert len(list(folder.iterdir())) == 1
    job = scheduled_job()
    return trained(DistributedEngine(job, ThreadGroup(n_workers[-1]), Checkpoints(1e9, folder)), job, 80)


def test_a_training_whose_process_dies_is_taken_up_by_another(tmp_path: Path) -> None:
    undisturbed, losses = by_workers(scheduled_job(), 2, 80)
    resumed, losses_of_resumed = interrupted(tmp_path, [2, 2])
    assert_close(undisturbed, resumed, 0.0)
    assert losses_of_resumed == losses
    assert not list(tmp_path.iterdir())  # it is over


@pytest.mark.slow
def test_a_training_saved_by_four_workers_is_taken_up_by_processes_with_three_and_with_one(tmp_path: Path) -> None:
    one, _ = by_one_process(scheduled_job(), 80)
    several, _ = interrupted(tmp_path, [4, 3, 1])
    assert_close(one, several, 1e-6)


def test_what_was_saved_of_one_training_is_nothing_to_another(tmp_path: Path) -> None:
    def saved(**options: Any) -> set[str]:
        engine = DistributedEngine(scheduled_job(**options), ThreadGroup(1), Checkpoints(0.0, tmp_path))
        engine.epoch(np.arange(2), 7)
        return {path.name for path in tmp_path.iterdir()}

    first = saved()
    assert saved() == first
    assert len(first) == 1
    assert len(saved(lambda_=0.25)) == 2
    assert len(saved(n_items=299)) == 3
    assert len(saved(fairness_loss=GroupDROLoss())) == 4


def test_a_damaged_file_of_a_training_is_said(tmp_path: Path) -> None:
    engine = DistributedEngine(scheduled_job(), ThreadGroup(1), Checkpoints(0.0, tmp_path))
    engine.epoch(np.arange(2), 7)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="remove the file to begin anew"):
        DistributedEngine(scheduled_job(), ThreadGroup(1), Checkpoints(0.0, tmp_path))


@pytest.mark.slow
def test_workers_that_die_again_and_again_are_an_error_and_the_model_stays_as_it_was() -> None:
    job = job_of("mf")
    before = copy.deepcopy(job.model.state_dict())
    engine = DistributedEngine(job, FailingGroup([2], set(range(100))), Checkpoints(1e9))
    with pytest.raises(FairstreamError, match="died 6 times"):
        engine.epoch(np.arange(3), 7)
    assert all(torch.equal(value, before[name]) for name, value in job.model.state_dict().items())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": "lightgcn"}, "graph"),
        ({"extra_loss": lambda model, batch: batch.scores.sum()}, "extra loss"),
        ({"is_auto": True}, "anew at every step"),
    ],
)
def test_what_cannot_be_divided_is_said(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot be divided among workers: .*{reason}"):
        DistributedEngine(job_of(**options), ThreadGroup(2))


def job_of_a_few_users(optimizer: Literal["row", "dense"] = "row") -> TrainingJob:
    """An update: of 90 users 6 have interactions, all of them with even rows; everybody has been updated before."""
    job = job_of("mf", optimizer)
    trained(choose_engine("reference", job)(job), job, 3)
    few = np.flatnonzero(np.isin(job.batches.users, [4, 8, 20, 40, 60, 88]))[:300]
    batches = replace(
        job.batches, users=job.batches.users[few], items=job.batches.items[few], positions=np.arange(len(few)), size=50
    )
    return replace(job, batches=batches)


@pytest.mark.parametrize("n_workers", [1, 2, 4])
def test_an_update_of_few_users_is_that_of_one_process(n_workers: int) -> None:
    """Of four workers two have no interactions at all."""
    one, other = job_of_a_few_users(), job_of_a_few_users()
    before = tensors(one)
    expected, _ = by_one_process(one, 12)
    found, _ = by_workers(other, n_workers, 12)
    assert_close(expected, found, 1e-5)
    idle = [user for user in range(90) if user not in (4, 8, 20, 40, 60, 88)]
    for name in [name for name in before if name.startswith("user")]:
        assert torch.equal(found[name][idle], before[name][idle])


def test_workers_hold_the_rows_of_users_who_can_change() -> None:
    assert [len(cut_job(job_of_a_few_users(), rank, 2).model.user.weight) for rank in range(2)] == [6, 0]
    assert [len(cut_job(job_of_a_few_users("dense"), rank, 2).model.user.weight) for rank in range(2)] == [45, 45]


class ReadsAllUsers(MatrixFactorization):
    """A model of one's own that looks at the table of users as a whole."""

    def forward(self, users: Tensor, items: Tensor, context: Any = None) -> Tensor:
        return super().forward(users, items, context) + self.user.weight.mean()


def test_a_table_of_users_that_is_read_whole_is_refused() -> None:
    job = job_of("mf")
    job.model.__class__ = ReadsAllUsers
    with pytest.raises(ConfigurationError, match="whole table of users"):
        by_workers(job, 2, 2)
