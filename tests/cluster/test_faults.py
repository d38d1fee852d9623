"""Where the process that called or the head of the cluster dies, the same call goes on, and nothing changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch

import fairstream as fs
from fairstream.experiments.jobs import jobs_for
from fairstream.experiments.pool import execute_all
from fairstream.experiments.store import Store
from stores import complete, contents, small, source_of, write_stream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"),
]
N_EPOCHS = 4
CONFIGS = [small(seed=seed) for seed in range(4)]
TOKEN = "FAIRSTREAM_TEST_OF_FAULTS"


def fitted(cluster: str, checkpoint: Path | None = None, on_epoch: Any = None) -> fs.FairRecommender:
    stream = fs.synthetic_stream(n_users=120, n_items=80, n_events=3000, seed=0)
    rec = fs.FairRecommender("mf", pretrain_epochs=N_EPOCHS, fairness="largest", engine="reference", device="cpu")
    log = fs.read_events(stream.events, users=stream.users)
    return rec.fit(log, cluster=cluster, checkpoint=checkpoint, on_epoch=on_epoch)


@cache
def fitted_undisturbed() -> fs.FairRecommender:
    return fitted("local")


def assert_taken_up(folder: Path) -> None:
    """The same call here needs the last epochs alone, and gives what an undisturbed one gives."""
    assert len(list(folder.iterdir())) == 1
    undisturbed, taken_up = fitted_undisturbed(), fitted("local", folder)
    for name, value in undisturbed.state.model.state_dict().items():
        assert torch.equal(taken_up.state.model.state_dict()[name], value)
    reports = [rec.last_update.report for rec in (undisturbed, taken_up) if rec.last_update is not None]
    assert reports[0] == reports[1]
    assert not list(folder.iterdir())


def victim(*arguments: object) -> subprocess.Popen[bytes]:
    """Another process that calls `be_disturbed`."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    code = "import sys, test_faults; test_faults.be_disturbed(*sys.argv[1:])"
    environment = {**os.environ, "PYTHONPATH": path, "RAY_gcs_rpc_server_reconnect_timeout_s": "1"}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)], env=environment, stderr=subprocess.DEVNULL
    )


def be_disturbed(what: str, cluster: str, folder: str, *processes: str) -> None:
    """Fit, or compute the runs of a store, and kill these processes (0: this one) before it is done."""

    def kill() -> None:
        workers = workers_of_head() if "0" not in processes else []
        for process in [*map(int, processes), *workers]:  # a machine that fails takes its workers along
            with suppress(ProcessLookupError):
                os.kill(process or os.getpid(), signal.SIGKILL)

    if what == "training":
        fitted(cluster, Path(folder), lambda n_done, _: kill() if n_done == 2 else None)
    else:
        store, source = Store(Path(folder) / "store"), source_of(Path(folder) / "data")
        with store.writing():
            jobs = jobs_for(store, source, CONFIGS)
            execute_all(jobs, store, device="cpu", n_workers=1, cluster=cluster, on_job=lambda _: kill())  # one by one


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of its own that waits for somebody to connect."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv(TOKEN, uuid4().hex)
    size = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=size)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def processes_of(head: Any) -> list[int]:
    return [info.process.pid for started in head.head_node.all_processes.values() for info in started]


def workers_of_head() -> list[int]:
    """The workers of such a cluster, in whatever process one asks."""
    token = f"{TOKEN}={os.environ[TOKEN]}".encode()
    folders = [folder for folder in Path("/proc").glob("[0-9]*") if read(folder / "cmdline").startswith(b"ray::")]
    return [int(folder.name) for folder in folders if token in read(folder / "environ")]


def nobody_works() -> bool:
    """Whether none of them is left, soon: who has lost its head ends a moment later."""
    patience = time.monotonic() + 120
    while workers_of_head() and time.monotonic() < patience:
        time.sleep(0.05)
    return not workers_of_head()


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended meanwhile, or is somebody else's
        return b""


def test_the_process_that_trains_is_killed(ray_here: Any, tmp_path: Path) -> None:
    folder = tmp_path / "training"
    with victim("training", ray_here.get_runtime_context().gcs_address, folder, 0) as process:
        assert process.wait() == -signal.SIGKILL
    assert_taken_up(folder)


def test_the_head_is_killed_during_a_training(ray_here: Any, head: Any, tmp_path: Path) -> None:
    folder = tmp_path / "training"
    with victim("training", head.address, folder, *processes_of(head)) as process:
        assert process.wait() != 0
    assert_taken_up(folder)


def test_the_process_that_sweeps_is_killed_and_then_the_head(head: Any, tmp_path: Path) -> None:
    source = source_of(write_stream(tmp_path / "data"))
    undisturbed, store = Store(tmp_path / "undisturbed"), Store(tmp_path / "store")
    with undisturbed.writing():
        complete(undisturbed, source, CONFIGS)
    with victim("sweep", head.address, tmp_path, 0) as process:
        assert process.wait() == -signal.SIGKILL
    with victim("sweep", head.address, tmp_path, *processes_of(head)) as process:
        assert process.wait() != 0
    assert nobody_works()
    assert 0 < len(store.ids()) < len(CONFIGS)
    with store.writing():
        complete(store, source, CONFIGS)
    assert contents(store) == contents(undisturbed)
