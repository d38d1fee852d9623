"""Work on Ray, which restarts dead workers: independent tasks, and trainings by workers that torch connects."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from fairstream.errors import FairstreamError
from fairstream.reporting import silence

PROCESS_BYTES = 600 << 20  # memory of a worker process before it reads anything
MAX_RETRIES = 5  # how often Ray restarts a task whose worker died
_POLL_SECONDS = 0.2  # time between two polls for messages, and between two messages that a task sends
_START_SECONDS = 180  # how long Ray Train waits for its workers, which import PyTorch
_WORKER_POLL_SECONDS = 0.5  # how often Ray Train looks at its workers; each checkpoint waits for it
_MAX_FAILURES = 3
_COLLECTIVE_SECONDS = 300  # after this time without an answer a worker counts as dead

Task = Callable[[Any, Any, "Sender"], Any]
"""(argument, what all tasks share, a function that sends a message to the caller of `Cluster.run`) → result."""
OnMessage = Callable[[int, Any], None]


def run_tasks(
    ray: Any,
    task: Task,
    arguments: Sequence[Any],
    shared: Any,
    options: Mapping[str, Any],
    at_once: int | None,
    on_message: OnMessage | None,
    on_result: Callable[[int, Any], None] | None,
) -> list[Any]:
    """Run the tasks of `Cluster.run`, and return their results."""
    remote = ray.remote(max_retries=MAX_RETRIES, **options)(_run_task)
    common, mailbox = ray.put((task, shared)), None
    if on_message is not None:
        mailbox = ray.remote(_Mailbox).options(num_cpus=0, max_restarts=-1).remote()
    waiting, running, results = list(enumerate(arguments))[::-1], dict[Any, int](), [None] * len(arguments)
    try:
        while waiting or running:
            while waiting and len(running) < (at_once or len(arguments)):
                number, argument = waiting.pop()
                running[remote.remote(common, argument, Sender(number, mailbox))] = number
            finished, _ = ray.wait(list(running), timeout=_POLL_SECONDS)
            if mailbox is not None and on_message is not None:
                with suppress(ray.exceptions.RayError):  # Ray restarts a dead mailbox, empty
                    for message in ray.get(mailbox.take_all.remote()):
                        on_message(*message)
            for ref in finished:
                number = running.pop(ref)
                results[number] = _result(ray, ref)
                if on_result is not None:
                    on_result(number, results[number])
    finally:
        for ref in running:
            ray.cancel(ref, force=True)
        if mailbox is not None:
            ray.kill(mailbox)
    return results


def _result(ray: Any, ref: Any) -> Any:
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise FairstreamError(
            f"the worker of a task died {MAX_RETRIES + 1} times ({type(error).__name__}), perhaps for lack of memory; "
            f"finished results are kept: run the same command again, on larger nodes or with fewer workers"
        ) from None


def _run_task(common: tuple[Task, Any], argument: Any, send: Sender) -> Any:
    silence()
    task, shared = common
    try:
        return task(argument, shared, send)
    finally:
        send.flush()


class Sender:
    """Sends the messages of one task, several at a time. It can be pickled."""

    def __init__(self, number: int, mailbox: Any) -> None:
        self._number, self._mailbox = number, mailbox
        self._messages: list[tuple[int, Any]] = []
        self._sent_at = 0.0

    def __call__(self, message: Any) -> None:
        self._messages.append((self._number, message))
        if time.monotonic() - self._sent_at > _POLL_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self._mailbox is not None and self._messages:
            self._mailbox.put.remote(self._messages)
        self._messages, self._sent_at = [], time.monotonic()


class _Mailbox:
    """An actor that keeps the messages of tasks until the caller fetches them."""

    def __init__(self) -> None:
        self._messages: list[tuple[int, Any]] = []

    def put(self, messages: list[tuple[int, Any]]) -> None:
        self._messages += messages

    def take_all(self) -> list[tuple[int, Any]]:
        messages, self._messages = self._messages, []
        return messages


# ── trainings ────────────────────────────────────────────────────────────────────────────────


class WorkersNotStartedError(FairstreamError):
    """The CPUs of a training are taken, or their node is gone."""


class TrainWorker:
    """One worker of a training, as its training loop sees it."""

    def __init__(self, send: Sender, *, saves: bool) -> None:
        self._train = import_module("ray.train")
        self.rank: int = self._train.get_context().get_world_rank()
        self.saves = saves  # whether to save checkpoints
        self._send = send

    def report_epoch(self, *message: Any) -> None:
        """Report a finished epoch to the calling process, from the first worker only."""
        if self.rank == 0:
            self._send(message)
            self._send.flush()

    def save(self, write: Callable[[Path], None]) -> None:
        """Save a checkpoint, which the first worker writes into a folder; all workers must call this."""
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if self.rank == 0:
                write(Path(folder))
                checkpoint = self._train.Checkpoint.from_directory(folder)
            self._train.report({}, checkpoint=checkpoint)

    def restore(self, read: Callable[[Path], None]) -> None:
        if (checkpoint := self._train.get_checkpoint()) is not None:
            with checkpoint.as_directory() as folder:
                read(Path(folder))


TrainLoop = Callable[[Any, TrainWorker], Any]  # (payload, worker) → result; the result of the first worker counts


class Training(NamedTuple):
    """The arguments of `fit`."""

    loop: TrainLoop
    payload: Any  # an object reference, so that each node keeps one copy
    n_workers: int
    name: str  # the same training has the same name, and resumes from its last checkpoint in `storage`
    storage: Path | None  # a folder for checkpoints that all nodes share; None: save none


def fit(training: Training, _: object, send: Sender) -> Any:
    """Train on several workers. It runs in a task, so cancelling the task ends all workers."""
    train, torch_backend = import_module("ray.train"), import_module("ray.train.torch")
    with tempfile.TemporaryDirectory() as empty:  # Ray Train insists on a folder
        storage = training.storage or Path(empty)
        trainer = torch_backend.TorchTrainer(
            _run_loop,
            train_loop_config={"training": training, "send": send},
            torch_config=torch_backend.TorchConfig(backend="gloo", timeout_s=_COLLECTIVE_SECONDS),
            # Not elastic: the CPUs of a caller that died would count as taken for three minutes.
            scaling_config=train.ScalingConfig(num_workers=training.n_workers),
            run_config=train.RunConfig(
                name=training.name,
                storage_path=str(storage),
                failure_config=train.FailureConfig(max_failures=_MAX_FAILURES, controller_failure_limit=0),
                checkpoint_config=train.CheckpointConfig(num_to_keep=1),
            ),
        )
        # Ray Train hands these variables on to its controller.
        os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(_START_SECONDS)
        os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = str(_WORKER_POLL_SECONDS)
        try:
            result = trainer.fit().return_value
        except train.ControllerError:
            raise WorkersNotStartedError(
                f"the cluster did not start {training.n_workers} workers for this training within {_START_SECONDS} s; "
                f"wait until CPUs are free, or ask for fewer workers"
            ) from None
        except train.TrainingFailedError as error:
            raise FairstreamError(
                f"the workers of this training failed {_MAX_FAILURES + 1} times, perhaps for lack of memory: {error}"
            ) from None
        with suppress(OSError):
            shutil.rmtree(storage / training.name)
    if isinstance(result, FairstreamError):
        raise result
    return result


def _run_loop(config: dict[str, Any]) -> Any:
    training: Training = config["training"]
    worker = TrainWorker(config["send"], saves=training.storage is not None)
    try:
        result = training.loop(import_module("ray").get(training.payload), worker)
        return result if worker.rank == 0 else None
    except FairstreamError as error:  # a raised error would make Ray Train try again, with the same outcome
        return error
