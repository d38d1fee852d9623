"""What runs beside the requests: child processes, and loops that no exception ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import select

from fairstream.service import schema, updates
from fairstream.service.api.errors import ApiError, cause_of
from fairstream.service.records import Update
from fairstream.service.settings import Every
from fairstream.service.workspace import Workspace

_MAX_LOGGED = 2000
_TERMINATE_SECONDS = 10.0
_CHILD_SECONDS = 120.0
_MAX_WAITING = 16
_NICE = 10
"""How much lower the priority of updates is than that of the service."""
_REFUSED, UNKNOWN = 2, 4
"""Exit codes of the commands."""
_log = logging.getLogger("fairstream.api")


async def repeat(step: Callable[[], Awaitable[object]], seconds: float, name: str) -> None:
    """Run a step again and again until cancelled; an exception is logged, once for each kind in a row."""
    last = None
    while True:
        try:
            await step()
            last = None
        except Exception as error:
            if (why := cause_of(error)) != last:
                _log.error("background task failed", extra={"task": name, "why": why})
            last = why
        await asyncio.sleep(seconds)


class Ended(NamedTuple):
    """A child process that has ended."""

    code: int
    output: bytes
    errors: str


class Commands:
    """Runs `fairstream COMMAND DIR …` in processes of their own: what needs groups, models or much time.

    The service itself never opens the people's attributes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: set[Process] = set()
        self._turn = asyncio.Semaphore(1)
        self._n_waiting = 0

    async def run(self, command: str, *arguments: str, stdin: bytes | None = None) -> Ended:
        """Run a short command when those before it have ended; refused where too many wait."""
        if self._n_waiting >= _MAX_WAITING:
            raise ApiError(503, "Too many requests of this kind at once; try again in 10 s.", retry_after=10)
        self._n_waiting += 1
        try:
            async with self._turn, asyncio.timeout(_CHILD_SECONDS):
                return await self.start(command, *arguments, stdin=stdin)
        except TimeoutError:
            raise ApiError(503, f"{command} took more than {_CHILD_SECONDS:g} s.", retry_after=10) from None
        finally:
            self._n_waiting -= 1

    async def start(
        self, command: str, *arguments: str, stdin: bytes | None = None, in_background: bool = False
    ) -> Ended:
        """Run a command at once and give what it printed; it ends with the service.

        In the background it gets the time that requests leave.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fairstream", command, str(self._folder), *arguments),
            stdin=PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
        self._processes.add(process)
        if in_background:  # before it has threads, which inherit it
            give_way(process.pid)
        try:
            output, errors = await process.communicate(stdin)
        finally:
            self._processes.discard(process)
            await _end(process)
        return Ended(process.returncode or 0, output, errors.decode(errors="replace").strip())

    async def stop(self) -> None:
        """End the processes that run; what they have not finished counts for nothing."""
        await asyncio.gather(*map(_end, list(self._processes)))


def give_way(pid: int) -> None:
    """Let a process run at a lower priority than this one."""
    with suppress(OSError):  # it has ended already
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICE)


async def _end(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _TERMINATE_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


class UpdateRunner:
    """Runs the updates that are requested here, each in a child process that writes how it ended."""

    def __init__(self, workspace: Workspace, commands: Commands) -> None:
        self._workspace, self._commands = workspace, commands
        self._running: set[asyncio.Task[None]] = set()

    async def request(self, by: str) -> Update:
        """Queue an update and run it; raises `UpdateRunning` where one has not ended."""
        update = await asyncio.to_thread(updates.request, self._workspace, by)
        self._run(update)
        return update

    async def request_if_due(self, every: Every) -> None:
        """Queue and run an update if the schedule wants one and no other process has it."""
        update = await asyncio.to_thread(updates.request_if_due, self._workspace, every, "schedule")
        if update is not None:
            self._run(update)

    async def stop(self) -> None:
        """Wait until all that was started is logged; the processes themselves are `Commands`'s to stop."""
        await asyncio.gather(*self._running, return_exceptions=True)

    def _run(self, update: Update) -> None:
        task = asyncio.create_task(self._follow(update))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _follow(self, update: Update) -> None:
        begin = time.monotonic()
        _log.info("update started", extra={"id": update.id, "by": update.requested_by})
        try:
            ended = await self._commands.start("update", "--id", update.id, in_background=True)
            outcome = await asyncio.to_thread(updates.get, self._workspace.engine, update.id)
        except Exception as error:
            _log.error("update failed", extra={"id": update.id, "why": cause_of(error)})
            return
        about = {"id": update.id, "code": ended.code, "reason": outcome.reason, "model": outcome.model}
        if ended.errors:
            about["errors"] = ended.errors[-_MAX_LOGGED:]
        level = logging.INFO if outcome.state == "promoted" else logging.WARNING
        _log.log(level, f"update {outcome.state}", extra={**about, "seconds": round(time.monotonic() - begin, 3)})


class Forgetter:
    """Completes requests to be forgotten, many in one pass, by `fairstream forget DIR --pending`."""

    def __init__(self, workspace: Workspace, commands: Commands) -> None:
        self._workspace, self._commands = workspace, commands
        self._wanted = asyncio.Event()
        self._has_looked = False

    def wake(self) -> None:
        """There is something to complete."""
        self._wanted.set()

    async def step(self) -> None:
        """Wait for a request, then complete all there are; the first time those that a process before this one left."""
        if not self._has_looked:
            if await asyncio.to_thread(self._is_pending):
                self._wanted.set()
            self._has_looked = True
        await self._wanted.wait()
        if await asyncio.to_thread(self._update_runs):
            return  # it holds the lock; tried again after a while
        self._wanted.clear()
        ended = await self._commands.start("forget", "--pending", in_background=True)
        if ended.code:
            self._wanted.set()  # another process holds the lock, or something is wrong: tried again after a while
            raise RuntimeError(ended.errors[-_MAX_LOGGED:] or f"exit code {ended.code}")
        _log.info("forgetting completed")

    def _is_pending(self) -> bool:
        pending = select(schema.forgotten.c.digest).where(schema.forgotten.c.completed.is_(None)).limit(1)
        with self._workspace.engine.connect() as connection:
            return connection.scalar(pending) is not None

    def _update_runs(self) -> bool:
        updates.fail_dead(self._workspace)  # the row of a process that died holds no lock
        running = select(schema.updates.c.id).where(schema.updates.c.state == "running").limit(1)
        with self._workspace.engine.connect() as connection:
            return connection.scalar(running) is not None


def parsed_output(ended: Ended) -> Any:
    """The JSON that a command printed; its sentence as the answer where it refused what it was given."""
    sentence = ended.errors.rpartition("fairstream: ")[2]
    if ended.code == _REFUSED and not sentence.startswith("the database"):
        raise ApiError(422, sentence)
    if ended.code:
        _log.error("command failed", extra={"code": ended.code, "errors": ended.errors[-_MAX_LOGGED:]})
        raise ApiError(503, "This cannot be done now; the log of the service says why.", retry_after=10)
    return json.loads(ended.output)
