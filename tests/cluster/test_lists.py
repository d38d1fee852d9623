"""Lists made on Ray are those of one process bit for bit: evaluations, recommendations, files of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import fairstream as fs
from cluster_processes import though_one_is_killed
from fairstream import ConfigurationError
from fairstream.evaluation import top_k
from stores import stored

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]
STREAM = fs.synthetic_stream(n_users=700, n_items=300, n_events=9000, seed=0)
FIRST, LATER = STREAM.events.slice(0, 7000), STREAM.events.slice(7000)
MODELS = ("mf", "sasrec", "blend", "item-item", "popularity")


@cache
def fitted(model: str) -> fs.FairRecommender:
    log = fs.read_events(FIRST, users=STREAM.users)
    return fs.FairRecommender(model, pretrain_epochs=1, device="cpu").fit(log)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of few users."""
    backend = top_k.BACKENDS["cpu"]
    monkeypatch.setitem(top_k.BACKENDS, "cpu", backend._replace(items_at_once=128, scores_at_once=128 * 50))


@pytest.mark.parametrize("model", MODELS)
def test_an_evaluation_is_that_of_one_machine_intervals_included(ray_here: Any, small_blocks: None, model: str) -> None:
    here, there = (
        fitted(model).evaluate(LATER, users=STREAM.users, tasks=["event", "next"], n_resamples=50, cluster=cluster)
        for cluster in (None, "local")
    )
    assert there["event"].n_cold_users > 0
    assert {task: tested.to_dict() for task, tested in here.items()} == {
        task: tested.to_dict() for task, tested in there.items()
    }


@pytest.mark.parametrize("model", MODELS)
def test_lists_are_those_of_one_machine(ray_here: Any, small_blocks: None, model: str) -> None:
    rec = fitted(model)
    users = [*rec.state.user_ids.ids.to_pylist(), -1, -2]
    here, there = (rec.recommend(users, k=7, exclude=[3, 4], cluster=cluster) for cluster in (None, "local"))
    assert here.equals(there)
    assert here.num_rows == 7 * len(users)


@pytest.mark.parametrize("model", ["mf", "item-item"])
def test_files_of_lists_are_those_of_one_machine(ray_here: Any, model: str, tmp_path: Path) -> None:
    rec = fitted(model)
    users = [*rec.state.user_ids.ids.to_pylist(), -1, -2]
    for name, cluster in (("here", None), ("there", "local")):
        rec.recommend_to(tmp_path / name, users, k=7, users_per_file=200, cluster=cluster)
    files = {file.name: file.read_bytes() for file in (tmp_path / "here").iterdir()}
    assert len(files) == -(-len(users) // 200) > 1
    assert {file.name: file.read_bytes() for file in (tmp_path / "there").iterdir()} == files


def test_lists_though_a_worker_is_killed(ray_here: Any, small_blocks: None) -> None:
    rec = fitted("sasrec")

    def evaluated(cluster: str | None = "local") -> Any:
        return rec.evaluate(LATER, users=STREAM.users, tasks="event", n_resamples=50, cluster=cluster).to_dict()

    undisturbed = evaluated(None)
    assert all(found == undisturbed for found in though_one_is_killed(evaluated, b"ray::_run_task"))


RUNS: dict[str, dict[str, Any]] = {
    "all tasks": {"model": "item-item", "tasks": ["remain", "next", "event"], "n_resamples": 20},
    "sampled candidates": {"model": "popularity", "protocol": "paper", "method": "Finetune"},
    "a target": {"model": "item-item", "max_disparity": 0.01, "tasks": ["event"]},
}


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_a_run_without_gradients_is_that_of_one_machine(
    ray_here: Any, small_blocks: None, options: dict[str, Any]
) -> None:
    log = fs.read_events(STREAM.events, users=STREAM.users)
    here, there = (
        fs.run(log, n_periods=3, k=5, device="cpu", cluster=cluster, **{"n_resamples": 0, **options})
        for cluster in (None, "local")
    )
    assert [result.t for result in there] == [result.t for result in here] == [1, 2]
    assert stored(there).content() == stored(here).content()
    assert ray_here.is_initialized()  # it was before


def test_a_run_by_gradients_is_divided(ray_here: Any) -> None:
    log = fs.read_events(STREAM.events, users=STREAM.users)
    options: dict[str, Any] = {"model": "mf", "pretrain_epochs": 2, "n_periods": 2, "tasks": ["next"], "device": "cpu"}
    here, there = (
        fs.run(log, "Pretrain", cluster=cluster, engine="reference", n_resamples=0, **options)
        for cluster in (None, "local")
    )
    one, other = here.begin(), there.begin()
    assert other.update.report is not None
    assert other.update.report.engine == "distributed"
    assert one.tasks["next"]["ndcg@20"].mean == pytest.approx(other.tasks["next"]["ndcg@20"].mean, abs=1e-3)
    with pytest.raises(ConfigurationError, match="no cluster can divide"):
        fs.run(log, "Adver", cluster="local", **options).begin()


def test_an_update_measures_the_gap_as_on_one_machine(ray_here: Any, small_blocks: None) -> None:
    updated = []
    for cluster in (None, "local"):
        rec = fs.FairRecommender("item-item", max_disparity=0.01, device="cpu").fit(FIRST, users=STREAM.users)
        updated.append(rec.update(LATER, users=STREAM.users, cluster=cluster))
    here, there = updated
    assert here.last_update is not None
    assert there.last_update is not None
    assert here.last_update.control is not None
    assert there.last_update.control == here.last_update.control
    assert there.recommend([1, 2, 3]).equals(here.recommend([1, 2, 3]))


def test_more_memory_than_any_node_has(
    ray_here: Any, small_blocks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rec = fitted("popularity")
    pq.write_table(FIRST, tmp_path / "events.parquet")
    for module in ("evaluation.blocks", "recommender.lists", "data.divided_ingest"):
        monkeypatch.setattr(import_module(f"fairstream.{module}"), "PROCESS_BYTES", 1 << 60)
    calls: list[Callable[[], Any]] = [
        lambda: rec.evaluate(LATER, users=STREAM.users, cluster="local"),
        lambda: rec.recommend_to(tmp_path / "lists", cluster="local"),
        lambda: fs.ingest(tmp_path / "events.parquet", tmp_path / "log", cluster="local"),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match=r"needs about .* GiB of memory, and the largest node"):
            call()
    assert [file.name for file in tmp_path.iterdir()] == ["events.parquet"]


def test_a_folder_of_lists_that_workers_cannot_see(ray_here: Any, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)  # /proc/self/fd is each process's own
    try:
        with pytest.raises(ConfigurationError, match="storage that all nodes share"):
            fitted("popularity").recommend_to(f"/proc/self/fd/{folder}/lists", cluster="local")
        assert not list(tmp_path.iterdir())
    finally:
        os.close(folder)
