"""Independent tasks on Ray: started in order, retried where a worker dies, their results in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fairstream.errors import FairstreamError
from fairstream.reporting import silence

Send = Callable[[Any], None]
Task = Callable[[Any, Any, Send], Any]
"""(argument, what all tasks share, a function that sends a message to the caller of `Cluster.run`) → result."""
OnMessage = Callable[[int, Any], None]
_MOST_DEATHS = 5
"""How often the worker of one task may die."""
_SECONDS = 0.2
"""Between two looks for messages, and between two batches of a task's messages."""


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
    """What `Cluster.run` returns."""
    remote = ray.remote(_run_task).options(max_retries=_MOST_DEATHS, **options)
    common, mailbox = ray.put((task, shared)), None
    if on_message is not None:
        mailbox = ray.remote(_Mailbox).options(num_cpus=0, max_restarts=-1).remote()
    waiting, running, results = list(enumerate(arguments))[::-1], dict[Any, int](), [None] * len(arguments)
    try:
        while waiting or running:
            while waiting and len(running) < (at_once or len(arguments)):
                number, argument = waiting.pop()
                running[remote.remote(common, number, argument, mailbox)] = number
            finished, _ = ray.wait(list(running), timeout=_SECONDS)
            if mailbox is not None and on_message is not None:
                with suppress(ray.exceptions.RayError):  # Ray restarts it, empty, where it has died
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
        raise error.cause from None  # a bug, or an error of fairstream's own
    except ray.exceptions.RayError as error:
        raise FairstreamError(
            f"the worker of a task was killed {_MOST_DEATHS + 1} times ({type(error).__name__}), perhaps for want of "
            f"memory; what is finished is kept: run the same command again, on larger nodes or with fewer workers"
        ) from None


def _run_task(common: tuple[Task, Any], number: int, argument: Any, mailbox: Any) -> Any:
    """Run one task in a worker."""
    silence()
    task, shared = common
    messages: list[tuple[int, Any]] = []
    sent_at = time.monotonic()

    def flush() -> None:
        nonlocal sent_at
        if mailbox is not None and messages:
            mailbox.put.remote(list(messages))
        messages.clear()
        sent_at = time.monotonic()

    def send(message: Any) -> None:
        messages.append((number, message))
        if time.monotonic() - sent_at > _SECONDS:
            flush()

    try:
        return task(argument, shared, send)
    finally:
        flush()


class _Mailbox:
    """An actor that keeps the messages of tasks until they are fetched."""

    def __init__(self) -> None:
        self._messages: list[tuple[int, Any]] = []

    def put(self, messages: list[tuple[int, Any]]) -> None:
        self._messages += messages

    def take_all(self) -> list[tuple[int, Any]]:
        messages, self._messages = self._messages, []
        return messages
