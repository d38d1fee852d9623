"""The connection to Ray: a setting of the process, with checks before any work."""

from __future__ import annotations

import logging
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from fairstream._version import __version__
from fairstream.display import import_optional
from fairstream.distributed.tasks import OnMessage, Task, Training, TrainLoop, WorkersNotStartedError, fit, run_tasks
from fairstream.errors import ConfigurationError, FairstreamError

LOCAL = "local"
_ANSWER_SECONDS = 5
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""The preface of HTTP/2 and an empty frame of settings, which a gRPC server answers with its own settings."""
_NODE_SECONDS = 120
_FREE_SECONDS = 60  # how long a training waits for a free CPU
_GIB = 1 << 30


class Cluster:
    """A connection to a Ray cluster, which `cluster` opens."""

    def __init__(self, ray: Any, n_workers: int | None = None, storage: Path | None = None) -> None:
        self._ray, self._n_workers, self._storage = ray, n_workers, storage
        resources: Mapping[str, float] = ray.cluster_resources()
        self.n_cpus, self.n_gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))

    def run(
        self,
        task: Task,
        arguments: Sequence[Any],
        *,
        shared: Any = None,
        n_gpus: int = 0,
        memory: int = 0,
        on_message: OnMessage | None = None,
        on_result: Callable[[int, Any], None] | None = None,
    ) -> list[Any]:
        """Return the results of `task(argument, shared, send)` for each argument, in order.

        Each node keeps one copy of `shared`. A task reserves one CPU and `n_gpus` and `memory` (bytes).
        `on_message` and `on_result` get (number of the task, its message or result).
        """
        options = {"num_cpus": 1, "num_gpus": n_gpus, "memory": memory}
        return run_tasks(self._ray, task, arguments, shared, options, self._n_workers, on_message, on_result)

    def train(
        self, loop: TrainLoop, payload: Any, *, name: str, max_workers: int, on_epoch: Callable[..., None] | None
    ) -> Any:
        """Return the result of `loop(payload, worker)` on the first of several workers, connected by torch.distributed.

        There is a worker for each free CPU, at most `max_workers`. If one dies, all restart from the last
        checkpoint in the storage of the cluster, or from the beginning.
        """
        if self._storage is not None:
            self.check_folder(self._storage)
        shared = self._ray.put(payload)
        options = {"num_cpus": 0, "max_calls": 1}  # the controller of Ray Train lives as long as its task's process

        def on_message(_: int, message: Any) -> None:
            if on_epoch is not None:
                on_epoch(*message)

        while True:
            n_workers = min(self._free_cpus(), max_workers, self._n_workers or max_workers)
            training = Training(loop, shared, n_workers, name, self._storage)
            try:
                (result,) = run_tasks(self._ray, fit, [training], None, options, None, on_message, None)
            except WorkersNotStartedError:
                if self._free_cpus() >= n_workers:
                    raise
            else:  # otherwise a node was lost: continue on those that are left
                return result

    def _free_cpus(self) -> int:
        """Return the number of free CPUs; wait until there is one."""
        deadline = time.monotonic() + _FREE_SECONDS
        while (n_free := int(self._ray.available_resources().get("CPU", 0))) < 1:
            if time.monotonic() > deadline:
                raise FairstreamError(
                    f"all {self.n_cpus} CPUs of the cluster have been in use for {_FREE_SECONDS} s; try again later, "
                    f"or train without the cluster"
                )
            time.sleep(0.5)
        return n_free

    def check_folder(self, folder: Path) -> None:
        """Raise a `ConfigurationError` unless every node reads and writes the same files in this folder."""
        token = folder.absolute() / f".cluster-{uuid4().hex}"
        token.write_text(token.name)
        try:
            for address, problem in self._on_every_node(_folder_problem(str(token))):
                if problem is not None:
                    raise ConfigurationError(
                        f"the cluster's node {address} cannot use the folder {folder}: {problem}; use storage that all "
                        f"nodes share"
                    )
        finally:
            token.unlink(missing_ok=True)

    def check_memory(self, n_bytes: int, what: str) -> None:
        """Raise a `ConfigurationError` unless some node has this much memory."""
        largest = max((node["Resources"].get("memory", 0) for node in self._nodes()), default=0)
        if n_bytes > largest:
            raise ConfigurationError(
                f"{what} needs about {n_bytes / _GIB:.1f} GiB of memory, and the largest node of the cluster has "
                f"{largest / _GIB:.1f} GiB; use a larger node, or less data"
            )

    def check_versions(self) -> None:
        """Raise a `ConfigurationError` unless all nodes run this process's fairstream, PyTorch and Ray."""
        ours = _versions()()
        for address, theirs in self._on_every_node(_versions()):
            if isinstance(theirs, str):
                raise ConfigurationError(
                    f"the cluster's node {address} cannot import fairstream ({theirs}); install version {__version__}"
                )
            for name, version in ours.items():
                if theirs[name] != version:
                    raise ConfigurationError(
                        f"the cluster's node {address} has {name} {theirs[name]} and this machine {version}; install "
                        f"the same versions everywhere, since results would depend on the node"
                    )

    def _nodes(self) -> list[Mapping[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _on_every_node(self, function: Callable[[], Any]) -> list[tuple[str, Any]]:
        """Run a function on every node; return the address of each node and the result."""
        scheduling = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        nodes, remote = self._nodes(), self._ray.remote(function)
        running = [
            remote.options(num_cpus=0, scheduling_strategy=scheduling(node["NodeID"], soft=False)).remote()
            for node in nodes
        ]
        results = []
        for node, ref in zip(nodes, running, strict=True):
            try:
                results.append((node["NodeManagerAddress"], self._ray.get(ref, timeout=_NODE_SECONDS)))
            except self._ray.exceptions.RayError as error:
                raise ConfigurationError(
                    f"the cluster's node {node['NodeManagerAddress']} does not run tasks ({type(error).__name__}); "
                    f"remove or repair it"
                ) from None
        return results


_current: Cluster | None = None


def current_cluster() -> Cluster | None:
    """Return the cluster of the current `with` block of this process, or None."""
    return _current


@contextmanager
def cluster(
    address: str = LOCAL, *, n_workers: int | None = None, storage: str | Path | None = None
) -> Iterator[Cluster]:
    """Compute on a Ray cluster inside the `with` block: trainings, evaluations, lists, runs and ingest.

    The setting applies to all threads of the process. Results are those of one process.

    Parameters
    ----------
    address
        "local": start Ray on this machine, and stop it after the block. HOST:PORT: a running cluster that this
        machine is a node of. A process that is connected to Ray keeps its connection.
    n_workers
        The maximum number of tasks or workers at a time, and the CPUs of a local Ray; by default all.
    storage
        A folder that all nodes share. Trainings save a checkpoint there after each epoch and resume from it where
        a worker or this process died: repeat the same call. Without it they start from the beginning.

    Yields
    ------
    Cluster
        The connection.

    Raises
    ------
    ConfigurationError
        If Ray is not installed, the cluster does not answer, or a node has other versions.

    Examples
    --------
    >>> import fairstream as fs
    >>> with fs.cluster("local"):  # doctest: +SKIP
    ...     rec = fs.FairRecommender().fit(log)
    ...     rec.evaluate(later)

    """
    global _current  # noqa: PLW0603 (a setting of the process)
    if n_workers is not None and not (isinstance(n_workers, int) and n_workers >= 1):
        raise ConfigurationError(f"n_workers must be a whole number >= 1, got {n_workers!r}")
    with _connected(address, n_workers) as ray:
        folder = None if storage is None else Path(storage).absolute()
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigurationError(f"the folder for checkpoints {folder} cannot be created: {error}") from None
        outer, _current = _current, Cluster(ray, n_workers, folder)
        try:
            if address != LOCAL:
                _current.check_versions()
            yield _current
        finally:
            _current = outer


@contextmanager
def _connected(address: str, n_workers: int | None) -> Iterator[Any]:
    """Connect this process to Ray for the block, unless it is connected."""
    ray = import_optional("ray", "a cluster", "fairstream[cluster]")
    if ray.is_initialized():
        connected = ray.get_runtime_context().gcs_address
        if address not in (LOCAL, "auto", connected):
            raise ConfigurationError(
                f"this process is connected to the cluster {connected}, not to {address}; call ray.shutdown() first"
            )
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage statistics
    logging.getLogger("ray").setLevel(logging.ERROR)  # else it announces how it authenticates, also with --quiet
    quiet = {"logging_level": "ERROR", "log_to_driver": False, "configure_logging": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        if address == LOCAL:
            ray.init(address=LOCAL, num_cpus=n_workers, include_dashboard=False, **quiet)
        else:
            _check_answers(address)
            try:
                ray.init(address=address, **quiet)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ConfigurationError(
                    f"the cluster at {address} cannot be used: {str(error).splitlines()[0]}; give the address that "
                    f"`ray start --head` printed, and run `ray start --address={address}` on this machine"
                ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise a `ConfigurationError` unless a gRPC server, as Ray's is, answers; Ray would wait for minutes."""
    host, colon, port = str(address).rpartition(":")
    if not colon or not host or not port.isdigit() or "/" in address:
        raise ConfigurationError(
            f"a cluster is 'local' or the address HOST:PORT that `ray start --head` printed, got {address!r}; from "
            f"outside the cluster, run the command on one of its machines"
        )
    try:
        with socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.sendall(_HTTP2_GREETING)
            answer = connection.recv(9)
    except (OSError, OverflowError, ValueError) as error:  # ValueError: "a..b" is no host, "²" no port
        raise ConfigurationError(
            f"the cluster at {address} does not answer ({error}); is `ray start --head` running there?"
        ) from None
    if answer[3:4] != b"\x04" and os.environ.get("RAY_USE_TLS", "0") == "0":  # the type of a frame of settings
        raise ConfigurationError(
            f"the server at {address} is not a Ray cluster; give the address that `ray start --head` printed"
        )


# Ray pickles the inner functions below by value: a node may have another fairstream, or none.


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
                return "it holds other files there"
            (own := Path(f"{token}-written")).write_text("")
            own.unlink()
        except FileNotFoundError:
            return "it does not exist there"
        except OSError as error:
            return f"it is not writable there ({error.strerror})"
        return None

    return problem
