"""Where the process that called or the head of the cluster dies, the same call goes on, and nothing changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import fairstream as fs
from fairstream.experiments.jobs import plan_runs
from fairstream.experiments.pool import execute_runs
from fairstream.experiments.store import Store
from stores import complete, contents, small, source_of, write_stream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"),
]
CONFIGS = [small(seed=seed) for seed in range(4)]
TOKEN = "FAIRSTREAM_TEST_OF_FAULTS"


def victim(*arguments: object) -> subprocess.Popen[bytes]:
    """Another process that calls `be_disturbed`."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    code = "import sys, test_faults; test_faults.be_disturbed(*sys.argv[1:])"
    environment = {**os.environ, "PYTHONPATH": path, "RAY_gcs_rpc_server_reconnect_timeout_s": "1"}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)], env=environment, stderr=subprocess.DEVNULL
    )


def be_disturbed(address: str, folder: str, *processes: str) -> None:
    """Compute the runs of a store, and kill these processes (0: this one) before it is done."""

    def kill() -> None:
        workers = workers_of_head() if "0" not in processes else []
        for process in [*map(int, processes), *workers]:  # a machine that fails takes its workers along
            with suppress(ProcessLookupError):
                os.kill(process or os.getpid(), signal.SIGKILL)

    store, source = Store(Path(folder) / "store"), source_of(Path(folder) / "data")
    with store.writing(), fs.cluster(address, n_workers=1):  # one by one
        execute_runs(store, plan_runs(source, CONFIGS), device="cpu", n_workers=1, on_record=lambda _: kill())


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


def test_the_process_that_sweeps_is_killed_and_then_the_head(head: Any, tmp_path: Path) -> None:
    source = source_of(write_stream(tmp_path / "data"))
    undisturbed, store = Store(tmp_path / "undisturbed"), Store(tmp_path / "store")
    with undisturbed.writing():
        complete(undisturbed, source, CONFIGS)
    with victim(head.address, tmp_path, 0) as process:
        assert process.wait() == -signal.SIGKILL
    with victim(head.address, tmp_path, *processes_of(head)) as process:
        assert process.wait() != 0
    assert nobody_works()
    assert 0 < len(store.ids()) < len(CONFIGS)
    with store.writing():
        complete(store, source, CONFIGS)
    assert contents(store) == contents(undisturbed)
