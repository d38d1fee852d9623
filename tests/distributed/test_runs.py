"""Runs on Ray give what runs in one process give, also where workers die."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fairstream
from cluster_processes import working
from fairstream import ConfigurationError
from fairstream.experiments.jobs import Source, plan_runs
from fairstream.experiments.pool import execute_runs
from fairstream.experiments.store import Store
from fairstream.models import MFScorer
from stores import DIVERGING, complete, contents, small
from support import make_recommender

CONFIGS = [
    small(method, seed=seed, pretrain_epochs=10)
    for seed in range(2)
    for method in ("Finetune", "Rerank", "Retrain", "FADE")
]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def undisturbed(source: Source, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process leaves that nobody disturbs."""
    store = Store(tmp_path_factory.mktemp("undisturbed"))
    with store.writing():
        complete(store, source, CONFIGS)
    return contents(store)


def test_the_store_is_that_of_one_process_though_workers_are_killed(
    ray_here: Any, source: Source, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    store, killed, is_over = Store(tmp_path), set[int](), threading.Event()

    def kill_some() -> None:
        """Kill whoever works, three times."""
        while len(killed) < 3 and not is_over.wait(0.02):
            for pid in working(b"ray::_run_task"):
                if pid not in killed and len(killed) < 3:
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_some)
    with store.writing():
        killer.start()
        try:
            with fairstream.cluster("local"):
                failed = execute_runs(store, plan_runs(source, CONFIGS), device="cpu", n_workers=None)
        finally:
            is_over.set()
            killer.join()
    assert failed == []
    assert len(killed) == 3
    assert contents(store) == undisturbed


def test_runs_that_fail_are_told_and_stop_no_other(ray_here: Any, source: Source, tmp_path: Path) -> None:
    store, told, records = Store(tmp_path), [], []
    with store.writing(), fairstream.cluster("local", n_workers=2):
        errors = execute_runs(
            store,
            plan_runs(source, [small("FADE"), small("Retrain"), small("Finetune", **DIVERGING)]),
            device="cpu",
            on_start=lambda jobs: lambda *done: told.append(done),
            on_record=records.append,
        )
    assert [str(error).partition(":")[0] for error in errors] == ["Finetune (mf, seed 0)"]
    assert {record.config["method"] for record in records} == {"FADE", "Retrain"}
    assert told[-1][1] == 5
    assert told[-1][0] > 0


def test_seeds_with_parts_of_ones_own(ray_here: Any, source: Source) -> None:
    options: dict[str, Any] = {
        "model": MFScorer,
        "loss": "sampled-softmax",
        "pretrain_epochs": 2,
        "n_periods": 3,
        "n_resamples": 20,
        "min_group_size": 1,
        "device": "cpu",
    }
    here = fairstream.run_seeds(source.read(), [3, 4], n_workers=1, **options)
    with fairstream.cluster("local"):
        there = fairstream.run_seeds(source.read(), [3, 4], **options)
    assert [record.content() for record in here if record.about.pop("timing")] == [
        record.content() for record in there if record.about.pop("timing")
    ]


def test_a_gpu_that_no_node_has(ray_here: Any, source: Source, tmp_path: Path) -> None:
    with fairstream.cluster("local"), pytest.raises(ConfigurationError, match="no node of the cluster has a GPU"):
        execute_runs(Store(tmp_path), plan_runs(source, [small()]), device="cuda")


def test_more_memory_than_any_node_has(ray_here: Any, source: Source, tmp_path: Path) -> None:
    store = Store(tmp_path)
    with (
        store.writing(),
        fairstream.cluster("local"),
        pytest.raises(ConfigurationError, match=r"needs about .* GiB of memory, and the largest node"),
    ):
        execute_runs(store, plan_runs(source, [small(model_settings={"embedding_dim": 200_000_000})]), device="cpu")


def test_a_folder_that_workers_cannot_see(ray_here: Any, source: Source, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)  # /proc/self/fd is each process's own
    try:
        store = Store(f"/proc/self/fd/{folder}")
        with (
            store.writing(),
            fairstream.cluster("local"),
            pytest.raises(ConfigurationError, match="storage that all nodes share"),
        ):
            execute_runs(store, plan_runs(source, [small()]), device="cpu")
        assert not list(tmp_path.glob(".cluster-*"))
    finally:
        os.close(folder)


def test_another_address_than_the_one_connected_to(ray_here: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"is connected to the cluster"), fairstream.cluster("127.0.0.1:1"):
        pass


def test_the_frontier_is_that_of_one_machine(ray_here: Any, source: Source) -> None:
    rec = make_recommender("item-item", device="cpu")
    options: dict[str, Any] = {"levels": [1, 2, 4], "n_periods": 2, "min_group_size": 1, "n_resamples": 20}
    here = rec.frontier(source.read(), **options)
    with fairstream.cluster("local"):
        there = rec.frontier(source.read(), **options)
    assert [replace(level, seconds=0.0) for level in here.levels] == [
        replace(level, seconds=0.0) for level in there.levels
    ]
