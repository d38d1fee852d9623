"""Lists made on Ray are those of one process bit for bit: evaluations, recommendations, files of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import fairstream as fs
from cluster_processes import though_one_is_killed
from fairstream import ConfigurationError
from fairstream.evaluation import top_k
from fairstream.models import TASKS
from stores import stored
from support import make_recommender

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]
STREAM = fs.synthetic_stream(n_users=700, n_items=300, n_events=9000, seed=0)
FIRST, LATER = STREAM.events.slice(0, 7000), STREAM.events.slice(7000)
MODELS = ("mf", "sasrec", "blend", "item-item", "popularity")


@cache
def fitted(model: str) -> fs.FairRecommender:
    log = fs.read_events(FIRST, users=STREAM.users)
    return make_recommender(model, pretrain_epochs=1, device="cpu").fit(log)


def here_and_there(work: Callable[[], Any]) -> list[Any]:
    """What some work returns in this process and on Ray."""
    here = work()
    with fs.cluster("local"):
        return [here, work()]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of few users."""
    backend = top_k.BACKENDS["cpu"]
    monkeypatch.setitem(top_k.BACKENDS, "cpu", backend._replace(items_at_once=128, scores_at_once=128 * 50))


@pytest.mark.parametrize("model", MODELS)
def test_an_evaluation_is_that_of_one_machine_intervals_included(ray_here: Any, small_blocks: None, model: str) -> None:
    for task in TASKS:
        here, there = here_and_there(
            lambda task=task: fitted(model).evaluate(LATER, users=STREAM.users, task=task, n_resamples=50)
        )
        assert there.n_cold_users > 0
        assert here.to_dict() == there.to_dict()


@pytest.mark.parametrize("model", MODELS)
def test_lists_are_those_of_one_machine(ray_here: Any, small_blocks: None, model: str) -> None:
    rec = fitted(model)
    users = [*rec.state.user_ids.ids.to_pylist(), -1, -2]
    here, there = here_and_there(lambda: rec.recommend(users, k=7, exclude=[3, 4]))
    assert here.equals(there)
    assert here.num_rows == 7 * len(users)


@pytest.mark.parametrize("model", ["mf", "item-item"])
def test_files_of_lists_are_those_of_one_machine(ray_here: Any, model: str, tmp_path: Path) -> None:
    rec = fitted(model)
    users = [*rec.state.user_ids.ids.to_pylist(), -1, -2]
    names = iter(("here", "there"))
    here_and_there(lambda: rec.recommend_to(tmp_path / next(names), users, k=7, users_per_file=200))
    files = {file.name: file.read_bytes() for file in (tmp_path / "here").iterdir()}
    assert len(files) == -(-len(users) // 200) > 1
    assert {file.name: file.read_bytes() for file in (tmp_path / "there").iterdir()} == files


def test_lists_though_a_worker_is_killed(ray_here: Any, small_blocks: None) -> None:
    rec = fitted("sasrec")

    def evaluated() -> Any:
        return rec.evaluate(LATER, users=STREAM.users, task="event", n_resamples=50).to_dict()

    undisturbed = evaluated()
    with fs.cluster("local"):
        assert all(found == undisturbed for found in though_one_is_killed(evaluated, b"ray::_run_task"))


RUNS: dict[str, dict[str, Any]] = {
    "all tasks": {"model": "item-item", "tasks": ["remain", "next", "event"], "n_resamples": 20},
    "sampled candidates": {"model": "popularity", "protocol": "paper", "method": "Finetune"},
    "a target": {"model": "item-item", "max_gap": 0.01, "tasks": ["event"]},
}


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_a_run_without_gradients_is_that_of_one_machine(
    ray_here: Any, small_blocks: None, options: dict[str, Any]
) -> None:
    log = fs.read_events(STREAM.events, users=STREAM.users)
    here, there = (fs.run(log, n_periods=3, k=5, device="cpu", **{"n_resamples": 0, **options}) for _ in range(2))
    with fs.cluster("local"):
        assert [result.t for result in there] == [1, 2]
    assert [result.t for result in here] == [1, 2]
    assert stored(there).content() == stored(here).content()
    assert ray_here.is_initialized()  # it was before


def test_an_update_replays_the_levels_as_on_one_machine(ray_here: Any, small_blocks: None) -> None:
    def updated() -> fs.FairRecommender:
        rec = make_recommender("item-item", target="least-regret", device="cpu").fit(FIRST, users=STREAM.users)
        return rec.update(LATER, users=STREAM.users)

    here, there = here_and_there(updated)
    assert here.last_update is not None
    assert there.last_update is not None
    assert here.last_update.decision is not None
    assert there.last_update.decision == here.last_update.decision
    assert there.recommend([1, 2, 3]).equals(here.recommend([1, 2, 3]))


def test_more_memory_than_any_node_has(
    ray_here: Any, small_blocks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rec = fitted("popularity")
    for module in ("evaluation.requests", "recommender.lists"):
        monkeypatch.setattr(import_module(f"fairstream.{module}"), "PROCESS_BYTES", 1 << 60)
    calls: list[Callable[[], Any]] = [
        lambda: rec.evaluate(LATER, users=STREAM.users),
        lambda: rec.recommend_to(tmp_path / "lists"),
    ]
    for call in calls:
        with fs.cluster("local"), pytest.raises(ConfigurationError, match=r"needs about .* GiB of memory, and the"):
            call()
    assert not list(tmp_path.iterdir())


def test_a_folder_of_lists_that_workers_cannot_see(ray_here: Any, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)  # /proc/self/fd is each process's own
    try:
        with fs.cluster("local"), pytest.raises(ConfigurationError, match="storage that all nodes share"):
            fitted("popularity").recommend_to(f"/proc/self/fd/{folder}/lists")
        assert not list(tmp_path.iterdir())
    finally:
        os.close(folder)
