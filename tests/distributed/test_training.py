"""Ray Train's workers give the model that one process trains, also where they or the caller die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fairstream as fs
from cluster_processes import no_training_is_left, working
from support import make_recommender

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")]
STREAM = fs.synthetic_stream(n_users=120, n_items=80, n_events=4000, seed=0)
FIRST, LATER = STREAM.events.slice(0, 3000), STREAM.events.slice(3000)


class Plain(fs.WindowScorer):
    """A GRU without dropout."""

    history_length = 6

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.item = fs.ItemTable(n_items, 16, padding=True)
        self.gru = torch.nn.GRU(16, 16, batch_first=True)

    def states(self, history: torch.Tensor) -> torch.Tensor:
        return self.gru(self.item(history))[0]


def fitted(on_epoch: Callable[[int, int], None] | None = None, **options: Any) -> fs.FairRecommender:
    given = {"model": Plain, "pretrain_epochs": 3, "update_epochs": 1, "engine": "reference", "device": "cpu"}
    rec = make_recommender(**{**given, **options})
    return rec.fit(fs.read_events(FIRST, users=STREAM.users), on_epoch=on_epoch)


def assert_same(one: fs.FairRecommender, other: fs.FairRecommender) -> None:
    weights, others = one.state.model.state_dict(), other.state.model.state_dict()
    for name, value in weights.items():
        torch.testing.assert_close(others[name], value, rtol=0, atol=1e-5)


def engine_of(rec: fs.FairRecommender) -> str:
    assert rec.last_update is not None
    assert rec.last_update.report is not None
    return rec.last_update.report.engine


def test_fit_and_update_are_those_of_one_process(ray_here: Any) -> None:
    here, epochs = fitted(), list[tuple[int, int]]()
    with fs.cluster("local"):
        there = fitted(lambda *done: epochs.append(done))
        assert engine_of(there) == "data-parallel"
        assert epochs == [(1, 3), (2, 3), (3, 3)]
        assert_same(here, there)
        there.update(LATER, users=STREAM.users)
    assert_same(here.update(LATER, users=STREAM.users), there)
    users = LATER["user_id"][:20]
    assert here.recommend(users, k=5).column("item_id") == there.recommend(users, k=5).column("item_id")
    assert no_training_is_left()


def test_the_process_trains_matrix_factorisation_itself_and_says_why(ray_here: Any) -> None:
    with fs.cluster("local"):
        rec = fitted(model="mf")
    assert engine_of(rec) == "reference"
    assert any("slower" in note for note in rec.notes)


def test_a_training_uses_the_cpus_that_are_free(ray_here: Any) -> None:
    """On a cluster with a CPU in use the second edition waited for ever."""

    @ray_here.remote(num_cpus=1)
    class Busy:
        def ping(self) -> None: ...

    busy = Busy.remote()
    ray_here.get(busy.ping.remote())
    try:
        with fs.cluster("local"):
            there = fitted(pretrain_epochs=1)
    finally:
        ray_here.kill(busy)
    assert_same(fitted(pretrain_epochs=1), there)


def test_a_worker_that_dies_changes_nothing(ray_here: Any, tmp_path: Path) -> None:
    killed = list[int]()

    def kill_one(n_done: int, _: int) -> None:
        if n_done == 1 and not killed:
            killed.extend(working(b"ray::RayTrainWorker")[:1])
            os.kill(killed[0], signal.SIGKILL)

    with fs.cluster("local", storage=tmp_path):
        disturbed = fitted(kill_one, pretrain_epochs=12)
    assert killed
    assert_same(fitted(pretrain_epochs=12), disturbed)
    assert not list(tmp_path.iterdir())


def test_the_same_call_resumes_where_the_caller_died(ray_here: Any, tmp_path: Path) -> None:
    code = "import sys, test_training; test_training.die_while_fitting(*sys.argv[1:])"
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    command = [sys.executable, "-W", "ignore", "-c", code, ray_here.get_runtime_context().gcs_address, str(tmp_path)]
    died = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.DEVNULL, check=False)
    assert died.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    assert no_training_is_left()
    times = list[float]()
    with fs.cluster("local", storage=tmp_path):
        resumed = fitted(lambda *_: times.append(time.monotonic()), pretrain_epochs=8)
    assert_same(fitted(pretrain_epochs=8), resumed)
    assert not list(tmp_path.iterdir())


def die_while_fitting(address: str, storage: str) -> None:
    """Fit, and die after two epochs."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import this file
    with fs.cluster(address, storage=storage):
        fitted(lambda n_done, _: os.kill(os.getpid(), signal.SIGKILL) if n_done == 2 else None, pretrain_epochs=8)


def test_an_interrupted_training_leaves_no_worker(ray_here: Any) -> None:
    def interrupt(n_done: int, _: int) -> None:
        raise KeyboardInterrupt

    with fs.cluster("local"), pytest.raises(KeyboardInterrupt):
        fitted(interrupt, pretrain_epochs=80)
    assert no_training_is_left()
