"""Several processes give what one gives, and a command that is killed at any moment can be called again."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import store_command
from fairstream import FairstreamError
from fairstream.experiments.jobs import Job, Source, jobs_for, plan_runs
from fairstream.experiments.pool import execute_runs
from fairstream.experiments.store import Store
from live_services import wait_until
from store_command import CONFIGS
from stores import DIVERGING, complete, contents, small

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def undisturbed(source: Source, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process leaves that nobody disturbs."""
    store = Store(tmp_path_factory.mktemp("undisturbed"))
    store_command.fill(store, source, n_workers=1)
    return contents(store)


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_run_that_fails_gives_a_sentence_and_stops_no_other(source: Source, tmp_path: Path, n_workers: int) -> None:
    store, other = Store(tmp_path / "store"), Store(tmp_path / "other")
    jobs: list[Job] = []
    progress: list[tuple[float, int]] = []

    def on_start(started: Sequence[Job]) -> Callable[[float, int], None]:
        jobs.extend(started)
        return lambda *done: progress.append(done)

    configs = [small("FADE"), small("Retrain"), small("Finetune", **DIVERGING)]
    with store.writing():
        runs = plan_runs(source, configs)
        failed = execute_runs(store, runs, device="cpu", n_workers=n_workers, on_start=on_start)
        assert [str(error).partition(":")[0] for error in failed] == ["Finetune (mf, seed 0)"]
        assert jobs_for(store, runs) == []  # what has failed is not tried again
    work, n_done = zip(*progress, strict=True)
    assert n_done[-1] == len(jobs) == 5
    assert list(work) == sorted(work)
    assert 0 < work[-1] <= sum(job.work for job in jobs) * (1 + 1e-9)
    with other.writing():
        complete(other, source, configs[:2])
    (failure,) = contents(store).keys() - contents(other).keys()
    assert failure.startswith("failed/")
    assert {name: content for name, content in contents(store).items() if name != failure} == contents(other)


def test_a_worker_that_is_killed_is_one_sentence_and_what_is_done_stays(
    source: Source, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    def kill_one(jobs: Sequence[Job]) -> Callable[[float, int], None]:
        return lambda work, n_done: multiprocessing.active_children()[0].kill()

    store = Store(tmp_path)
    with pytest.raises(FairstreamError, match="a worker process was killed"), store.writing():
        execute_runs(store, plan_runs(source, CONFIGS), device="cpu", n_workers=2, on_start=kill_one)
    assert multiprocessing.active_children() == []
    store_command.fill(store, source, n_workers=1)
    assert contents(store) == undisturbed


def started(store: Store, source: Source) -> subprocess.Popen[bytes]:
    """The command, with its workers in a group of processes of their own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, store_command.__file__, str(store.folder), source.source]
    return subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def killed(store: Store, source: Source, is_time: Callable[[], bool], then: float = 0.0) -> None:
    """Start the command and kill it, and it alone, when it is time or it has ended; its workers leave by themselves."""
    process = started(store, source)
    wait_until(lambda: is_time() or process.poll() is not None)
    time.sleep(then)
    process.kill()
    process.wait()
    wait_until(lambda: not is_alive(process.pid))  # its workers, too
    for name in store.ids() if store.folder.exists() else []:
        store.read(name)  # whole, or not there


def progress(store: Store) -> Callable[[], bool]:
    """Whether something new is in the store since now."""

    def files() -> set[Path]:
        return {path for path in store.folder.rglob("*.*") if path.name != ".lock"}

    before = files()
    return lambda: files() != before


def test_a_killed_command_can_be_called_again(source: Source, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    killed(store, source, progress(store))
    store_command.fill(store, source, n_workers=1)
    assert contents(store) == undisturbed


def test_it_can_be_killed_at_random_moments(source: Source, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    chance = random.Random(0)
    store = Store(tmp_path / "store")
    for n in range(4):
        if n % 2:
            killed(store, source, lambda: True, chance.uniform(0, 6))
        else:
            killed(store, source, progress(store), chance.uniform(0, 0.4))
    assert started(store, source).wait() == 0
    assert contents(store) == undisturbed
