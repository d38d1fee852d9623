"""A recommender trained on Ray is the one trained here, also where a worker is killed."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
import torch

import fairstream as fs
from cluster_processes import all_are_gone, working
from fairstream import ConfigurationError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]
STREAM = fs.synthetic_stream(n_users=120, n_items=80, n_events=4000, seed=0)
FIRST, LATER = STREAM.events.slice(0, 3000), STREAM.events.slice(3000)


def recommender(**options: Any) -> fs.FairRecommender:
    given = {"model": "mf", "pretrain_epochs": 6, "update_epochs": 2, "engine": "reference", "device": "cpu"}
    return fs.FairRecommender(**{**given, **options})


def fitted(cluster: str | None, **options: Any) -> fs.FairRecommender:
    return recommender(**options).fit(fs.read_events(FIRST, users=STREAM.users), cluster=cluster)


def assert_same(one: fs.FairRecommender, other: fs.FairRecommender, tolerance: float) -> None:
    weights, others = one.state.model.state_dict(), other.state.model.state_dict()
    for name, value in weights.items():
        torch.testing.assert_close(others[name], value, rtol=0, atol=tolerance)


def test_fit_and_update_are_those_of_one_process(ray_here: Any) -> None:
    here, there = fitted(None), fitted("local")
    assert there.last_update is not None
    assert there.last_update.report is not None
    assert there.last_update.report.engine == "distributed"
    assert_same(here, there, 1e-5)
    here.update(LATER, users=STREAM.users)
    there.update(LATER, users=STREAM.users, cluster="local")
    assert_same(here, there, 1e-5)
    users = LATER["user_id"][:20]
    assert here.recommend(users, k=5).column("item_id") == there.recommend(users, k=5).column("item_id")
    assert all_are_gone()


def test_a_worker_that_is_killed_changes_nothing(ray_here: Any) -> None:
    undisturbed, killed, is_over = fitted("local", pretrain_epochs=8), list[int](), threading.Event()

    def kill_one() -> None:
        while not killed and not is_over.wait(0.02):
            if victims := working(b"ray::_Actor.call"):
                killed.append(victims[0])
                os.kill(victims[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        disturbed = fitted("local", pretrain_epochs=8)
    finally:
        is_over.set()
        killer.join()
    assert killed
    assert_same(undisturbed, disturbed, 0.0)


def test_what_cannot_be_divided_changes_nothing_and_leaves_nobody(ray_here: Any) -> None:
    rec = recommender(method="Adver")
    with pytest.raises(ConfigurationError, match="training of its own"):
        rec.fit(fs.read_events(FIRST, users=STREAM.users), cluster="local")
    with pytest.raises(ConfigurationError, match="anew at every step"):
        fitted("local", fairness_weight="auto")
    assert all_are_gone()
