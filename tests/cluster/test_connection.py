"""What cannot work is said in one sentence, soon, and before any work is lost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fairstream
from fairstream import ConfigurationError
from fairstream.cluster import connect, connection


@pytest.mark.slow
def test_importing_fairstream_and_its_commands_does_not_import_ray() -> None:
    code = "import sys, fairstream, fairstream.cluster, fairstream.cli.sweep; assert 'ray' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_ray_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'fairstream\[cluster\]'"), connect("local"):
        pass


@pytest.mark.parametrize("address", ["nowhere", "ray://127.0.0.1:10001", "host:port", ":6379", "http://a:1"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"), connect(address):
        pass


def test_an_address_that_nobody_answers() -> None:
    with socket.socket() as closed:  # bound and not listening
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=f"nobody answers at the cluster's address {address}"):
            fairstream.run_seeds(small_log(), [0, 1], cluster=address, model="mf", n_periods=2, device="cpu")


def test_nothing_is_begun_or_left_where_nobody_answers(tmp_path: Path) -> None:
    log = small_log()
    rec = fairstream.FairRecommender("popularity", device="cpu").fit(log)
    (tmp_path / "events.csv").write_text("user,item,time\n1,1,1\n")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        calls: list[Callable[[], Any]] = [
            fairstream.run(log, model="mf", n_periods=2, device="cpu", cluster=address).begin,
            lambda: rec.evaluate(log, cluster=address),
            lambda: rec.recommend([1, 2], cluster=address),
            lambda: rec.recommend_to(tmp_path / "lists", cluster=address),
            lambda: fairstream.ingest(tmp_path / "events.csv", tmp_path / "log", cluster=address),
        ]
        for call in calls:
            with pytest.raises(ConfigurationError, match=f"nobody answers at the cluster's address {address}"):
                call()
    assert [file.name for file in tmp_path.iterdir()] == ["events.csv"]


def test_a_checkpoint_of_a_training_without_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="checkpoint goes with a training on a cluster"):
        fairstream.FairRecommender("mf").fit(small_log(), checkpoint=tmp_path)


def small_log() -> Any:
    stream = fairstream.synthetic_stream(n_users=60, n_items=40, n_events=1000)
    return fairstream.read_events(stream.events, users=stream.users)


@pytest.mark.slow
def test_an_address_where_something_else_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_RAY_SECONDS", 5)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with (
            pytest.raises(ConfigurationError, match="is no Ray cluster that this machine is a node of"),
            connect(f"127.0.0.1:{other.getsockname()[1]}"),
        ):
            pass


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_node_with_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster at an address, of two nodes on this machine; the second imports an older fairstream."""
    from ray.cluster_utils import Cluster

    older = tmp_path / "fairstream"
    older.mkdir()
    (older / "__init__.py").write_text("__version__ = '0.0.1'\n")
    path = os.pathsep.join(filter(None, sys.path))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    size = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=size)
    try:
        with connect(cluster.address) as connected:
            assert connected.n_cpus == 1
            assert connected.run(doubled, [1, 2, 3], shared=10) == [12, 14, 16]
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{path}")
        cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
        expected = f"has fairstream 0.0.1 and this machine {fairstream.__version__}"
        with pytest.raises(ConfigurationError, match=expected), connect(cluster.address):
            pass
    finally:
        cluster.shutdown()


def doubled(number: int, shared: int, _: object) -> int:
    return 2 * number + shared
