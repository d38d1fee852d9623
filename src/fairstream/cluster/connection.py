"""Connecting to Ray, in bounded time, and what is checked before any work is sent there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from fairstream._version import __version__
from fairstream.cluster.tasks import OnMessage, Task, run_tasks
from fairstream.errors import ConfigurationError

LOCAL = "local"
PROCESS_BYTES = 600 << 20
"""Memory of a worker process before it reads anything."""
_TCP_SECONDS = 5
_RAY_SECONDS = 60
_NODE_SECONDS = 120
_GIB = 1 << 30


class Cluster:
    """A connection to a Ray cluster, made by `connect`."""

    def __init__(self, ray: Any, n_workers: int | None = None) -> None:
        self.ray, self._n_workers = ray, n_workers
        resources: Mapping[str, float] = ray.cluster_resources()
        self.n_cpus, self.n_gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))

    def check_folder(self, folder: Path) -> None:
        """Raise a `ConfigurationError` unless every node reads and writes the same files in this folder."""
        token = folder.absolute() / f".cluster-{uuid4().hex}"
        token.write_text(token.name)
        try:
            for address, problem in self._on_every_node(_folder_problem(str(token))):
                if problem is not None:
                    raise ConfigurationError(
                        f"the folder {folder} cannot be used by the cluster's node {address}, where {problem}; choose "
                        f"a folder on storage that all nodes share"
                    )
        finally:
            token.unlink(missing_ok=True)

    def check_files(self, files: Sequence[Path]) -> None:
        """Raise a `ConfigurationError` unless every node can read these files, and finds them as large as here."""
        sizes = {str(file.absolute()): file.stat().st_size for file in files}
        for address, problem in self._on_every_node(_file_problem(sizes)):
            if problem is not None:
                raise ConfigurationError(
                    f"the cluster's node {address} cannot read {problem}; put the files on storage that all nodes share"
                )

    def check_memory(self, n_bytes: int, what: str) -> None:
        """Raise a `ConfigurationError` unless some node has so much memory."""
        largest = max((node["Resources"].get("memory", 0) for node in self._nodes()), default=0)
        if n_bytes > largest:
            raise ConfigurationError(
                f"{what} needs about {n_bytes / _GIB:.1f} GiB of memory, and the largest node of the cluster offers "
                f"{largest / _GIB:.1f} GiB; use a larger one, or less data"
            )

    def check_versions(self) -> None:
        """Raise a `ConfigurationError` unless all nodes run the same fairstream, PyTorch and Ray as this process."""
        ours = _local_versions()
        for address, theirs in self._on_every_node(_versions()):
            if isinstance(theirs, str):
                raise ConfigurationError(
                    f"fairstream cannot be imported on the cluster's node {address} ({theirs}); install fairstream "
                    f"{__version__} there"
                )
            for name, version in ours.items():
                if theirs[name] != version:
                    raise ConfigurationError(
                        f"the cluster's node {address} has {name} {theirs[name]} and this machine {version}; results "
                        f"would depend on the node: install the same versions everywhere"
                    )

    def run(
        self,
        task: Task,
        arguments: Sequence[Any],
        *,
        shared: Any = None,
        n_gpus: int = 0,
        memory: int = 0,
        at_once: int | None = None,
        on_message: OnMessage | None = None,
        on_result: Callable[[int, Any], None] | None = None,
    ) -> list[Any]:
        """Results of `task(argument, shared, send)` for each argument, in their order.

        Parameters
        ----------
        task
            A function that can be pickled. What a killed worker was doing is done again by another one.
        arguments
            One for each task; they are started in this order.
        shared
            What all tasks read: kept once on each node.
        n_gpus, memory
            GPUs and bytes that a task reserves; it always reserves one CPU.
        at_once
            The most tasks at a time; None: as many as `connect` was told, else as the cluster has room for.
        on_message, on_result
            Called with (number of the task, what it has sent or returned) as that arrives.

        Raises
        ------
        FairstreamError
            If a task's worker was killed again and again.

        """
        options = {"num_cpus": 1, "num_gpus": n_gpus, "memory": memory}
        return run_tasks(self.ray, task, arguments, shared, options, at_once or self._n_workers, on_message, on_result)

    def _nodes(self) -> list[Mapping[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def _on_every_node(self, function: Callable[[], Any]) -> list[tuple[str, Any]]:
        """Run a function on every node; returns the address of each node and the result."""
        scheduling = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        nodes, remote = self._nodes(), self.ray.remote(function)
        running = [
            remote.options(num_cpus=0, scheduling_strategy=scheduling(node["NodeID"], soft=False)).remote()
            for node in nodes
        ]
        results = []
        for node, ref in zip(nodes, running, strict=True):
            try:
                results.append((node["NodeManagerAddress"], self.ray.get(ref, timeout=_NODE_SECONDS)))
            except self.ray.exceptions.RayError as error:
                raise ConfigurationError(
                    f"the cluster's node {node['NodeManagerAddress']} does not do its work ({type(error).__name__}); "
                    f"remove it or repair it"
                ) from None
        return results


@contextmanager
def connect(address: str | None = LOCAL, *, n_workers: int | None = None) -> Iterator[Cluster]:
    """Connect to a Ray cluster for the block, or use the connection that this process has.

    Parameters
    ----------
    address
        "local": Ray is started on this machine, and stopped after the block. HOST:PORT: a running
        cluster that this machine is a node of.
    n_workers
        The most tasks at a time, and the CPUs that a local Ray offers; by default all.

    Raises
    ------
    ConfigurationError
        If Ray is not installed, nobody answers within a minute, or a node has other versions.

    Examples
    --------
    >>> with connect("local") as cluster:  # doctest: +SKIP
    ...     cluster.n_cpus
    2

    """
    ray = _import_ray()
    address = address or LOCAL
    if ray.is_initialized():
        _check_same_cluster(ray, address)
        yield Cluster(ray, n_workers)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
    quiet = {"logging_level": "ERROR", "log_to_driver": False, "configure_logging": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        if address == LOCAL:
            ray.init(address=LOCAL, num_cpus=n_workers, include_dashboard=False, **quiet)
        else:
            _check_reachable(address)
            ray.init(address=address, **quiet)
    try:
        cluster = Cluster(ray, n_workers)
        if address != LOCAL:
            cluster.check_versions()
        yield cluster
    finally:
        ray.shutdown()


def _import_ray() -> Any:
    try:
        return import_module("ray")
    except ImportError:
        raise ConfigurationError(
            "a cluster needs Ray, which is not installed: pip install 'fairstream[cluster]'"
        ) from None


def _check_same_cluster(ray: Any, address: str) -> None:
    """Raise a `ConfigurationError` where this process is connected to another cluster."""
    connected = ray.get_runtime_context().gcs_address
    if address not in (LOCAL, "auto", connected):
        raise ConfigurationError(
            f"this process is connected to the cluster {connected} already, not to {address}; call ray.shutdown() first"
        )


def _check_reachable(address: str) -> None:
    """Raise a `ConfigurationError` unless a Ray cluster of this version answers; Ray itself would wait for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or "/" in address:
        raise ConfigurationError(
            f"a cluster is 'local' or the address HOST:PORT that `ray start --head` printed, got {address!r}; from "
            f"outside the cluster, run the command on one of its machines"
        )
    try:
        socket.create_connection((host, int(port)), timeout=_TCP_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"nobody answers at the cluster's address {address} ({error}); is `ray start --head` running there?"
        ) from None
    # In a subprocess: the server may not be Ray, and a connection that hangs cannot be cancelled.
    probe = f"import ray; ray.init(address={address!r}, logging_level='ERROR', log_to_driver=False)"
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-W", "ignore", "-c", probe],
            check=False,
            capture_output=True,
            text=True,
            timeout=_RAY_SECONDS,
        )
        if done.returncode == 0:
            return
        reason = (done.stderr.strip().splitlines() or ["it ended without a reason"])[-1]
        raise ConfigurationError(f"the cluster at {address} cannot be used: {reason}") from None
    raise ConfigurationError(
        f"what answers at {address} is no Ray cluster that this machine is a node of (waited {_RAY_SECONDS} s); give "
        f"the address that `ray start --head` printed, and run `ray start --address={address}` on this machine"
    )


def _local_versions() -> dict[str, str]:
    return {"fairstream": __version__, **{name: import_module(name).__version__ for name in ("torch", "ray")}}


# The inner functions below are pickled by value: a node may have another fairstream, or none.


def _versions() -> Callable[[], Any]:
    def versions() -> Any:
        from importlib import import_module  # noqa: PLC0415

        try:
            return {name: import_module(name).__version__ for name in ("fairstream", "torch", "ray")}
        except ImportError as error:
            return str(error)

    return versions


def _folder_problem(token: str) -> Callable[[], str | None]:
    def problem() -> str | None:
        from pathlib import Path  # noqa: PLC0415

        try:
            if Path(token).read_text() != Path(token).name:
                return "it holds other files"
            (own := Path(f"{token}-written")).write_text("")
            own.unlink()
        except FileNotFoundError:
            return "it is not to be seen"
        except OSError as error:
            return f"it cannot be written to ({error.strerror})"
        return None

    return problem


def _file_problem(sizes: dict[str, int]) -> Callable[[], str | None]:
    def problem() -> str | None:
        from pathlib import Path  # noqa: PLC0415

        for name, size in sizes.items():
            try:
                with Path(name).open("rb") as file:
                    if file.seek(0, 2) != size:
                        return f"{name}, where it is another file"
            except OSError as error:
                return f"{name} ({error.strerror})"
        return None

    return problem
