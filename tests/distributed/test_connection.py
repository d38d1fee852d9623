"""A connection that cannot work raises one sentence within seconds, before any work is lost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fairstream
from fairstream import ConfigurationError
from fairstream.distributed import Cluster, cluster, current_cluster


@pytest.mark.slow
def test_importing_fairstream_and_its_commands_does_not_import_ray() -> None:
    code = "import sys, fairstream; fairstream.cluster; import fairstream.cli.sweep; assert 'ray' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_ray_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'fairstream\[cluster\]'"), fairstream.cluster("local"):
        pass


@pytest.mark.parametrize("address", ["nowhere", "ray://127.0.0.1:10001", "host:port", ":6379", "http://a:1", 3, None])
def test_an_address_has_a_host_and_a_port(address: Any) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"), fairstream.cluster(address):
        pass


@contextmanager
def server(answer: bytes | None) -> Iterator[str]:
    """The address of a server that is not Ray: it gives this answer, or none."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                if answer is not None:
                    connection.sendall(answer)
                is_over.wait()

        is_over, thread = threading.Event(), threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            is_over.set()
            thread.join()


@pytest.mark.parametrize("n_workers", [0, -1, "x"])
def test_a_number_of_workers_is_checked_before_ray_starts(n_workers: Any) -> None:
    with (
        pytest.raises(ConfigurationError, match=f"n_workers must be a whole number >= 1, got {n_workers!r}"),
        fairstream.cluster("local", n_workers=n_workers),
    ):
        pass


def test_an_address_where_nothing_listens() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=f"at {address} does not answer"), fairstream.cluster(address):
            pass
    assert current_cluster() is None


@pytest.mark.parametrize("address", ["a..b:6379", "127.0.0.1:²"])
def test_an_address_that_cannot_be_looked_up(address: str) -> None:
    with pytest.raises(ConfigurationError, match="does not answer"), fairstream.cluster(address):
        pass


@pytest.mark.parametrize(
    ("answer", "sentence"), [(None, "does not answer"), (b"HTTP/1.1 400 Bad Request\r\n", "is not a Ray cluster")]
)
def test_a_server_that_is_not_ray(answer: bytes | None, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairstream.distributed.connection._ANSWER_SECONDS", 0.1)
    with server(answer) as address, pytest.raises(ConfigurationError, match=sentence), fairstream.cluster(address):
        pass


@pytest.mark.slow
def test_connecting_prints_nothing() -> None:
    code = "import fairstream\nwith fairstream.cluster('local', n_workers=1): pass"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, check=True, env=environment
    )
    assert (done.stdout, done.stderr) == (b"", b"")


class BusyRay:
    """A cluster whose CPUs somebody else uses."""

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def put(self, payload: Any) -> Any:
        return payload

    def available_resources(self) -> dict[str, float]:
        return {"memory": 1e9}


def test_a_cluster_without_a_free_cpu_is_an_error_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairstream.distributed.connection._FREE_SECONDS", 0.1)
    with pytest.raises(fairstream.FairstreamError, match=r"all 2 CPUs of the cluster have been in use"):
        Cluster(BusyRay()).train(print, None, name="training", max_workers=2, on_epoch=None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_node_with_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster at an address, of two nodes on this machine; the second imports an older fairstream."""
    from ray.cluster_utils import Cluster as Nodes

    older = tmp_path / "fairstream"
    older.mkdir()
    (older / "__init__.py").write_text("__version__ = '0.0.1'\n")
    path = os.pathsep.join(filter(None, sys.path))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    size = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    nodes = Nodes(initialize_head=True, head_node_args=size)
    try:
        with cluster(nodes.address) as connected:
            assert connected is current_cluster()
            assert connected.n_cpus == 1
            assert connected.run(doubled, [1, 2, 3], shared=10) == [12, 14, 16]
        assert current_cluster() is None
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{path}")
        nodes.add_node(num_cpus=1, object_store_memory=80 << 20)
        expected = f"has fairstream 0.0.1 and this machine {fairstream.__version__}"
        with pytest.raises(ConfigurationError, match=expected), cluster(nodes.address):
            pass
        assert current_cluster() is None
    finally:
        nodes.shutdown()


def doubled(number: int, shared: int, _: Any) -> int:
    return 2 * number + shared
