"""Background work of the service: child processes, and loops that survive exceptions."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from sqlalchemy import ColumnElement, exists, select

from fairstream.service import schema, updates
from fairstream.service.api.errors import cause_of
from fairstream.service.records import Update
from fairstream.service.settings import Every
from fairstream.service.workspace import Workspace

_MAX_LOGGED = 2000
_NICE = 10  # how much lower the priority of child processes is than that of the service
_log = logging.getLogger("fairstream.api")


async def repeat(step: Callable[[], Awaitable[object]], seconds: float, name: str) -> None:
    """Repeat a step until cancelled; an exception is logged, once for each kind in a row."""
    last = None
    while True:
        try:
            await step()
            last = None
        except Exception as error:
            if (why := cause_of(error)) != last:
                _log.error("background task failed", extra={"task": name, "why": why}, exc_info=error)
            last = why
        await asyncio.sleep(seconds)


async def run_command(folder: Path, command: str, *arguments: str) -> tuple[int, str]:
    """Run `fairstream COMMAND DIR …` in a child process of lower priority; return its exit code and errors.

    The process ends if the caller is cancelled; nothing unfinished of its work counts.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fairstream", command, str(folder), *arguments),
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
    )
    lower_priority(process.pid)  # before it has threads, which inherit it
    try:
        _, errors = await process.communicate()
    finally:
        with suppress(ProcessLookupError):  # it has ended
            process.terminate()
        await process.wait()
    return process.returncode or 0, errors.decode(errors="replace").strip()[-_MAX_LOGGED:]


def lower_priority(pid: int) -> None:
    """Let a process run at a lower priority than this one."""
    with suppress(OSError):  # it has ended already
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICE)


class UpdateRunner:
    """Runs the updates that are requested here, each in a child process that records its outcome."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._running: set[asyncio.Task[None]] = set()

    async def request(self, by: str) -> Update:
        """Queue an update and run it; raises `UpdateRunning` if one has not ended."""
        update = await asyncio.to_thread(updates.request, self._workspace, by)
        self._start(update)
        return update

    async def request_if_due(self, every: Every) -> None:
        """Queue and run an update if the schedule wants one and no other process has it."""
        update = await asyncio.to_thread(updates.request_if_due, self._workspace, every, "schedule")
        if update is not None:
            self._start(update)

    async def stop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self, update: Update) -> None:
        task = asyncio.create_task(self._run(update))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, update: Update) -> None:
        begin = time.monotonic()
        _log.info("update started", extra={"id": update.id, "by": update.requested_by})
        try:
            code, errors = await run_command(self._workspace.folder, "update", "--id", update.id)
            outcome = await asyncio.to_thread(updates.get, self._workspace.engine, update.id)
        except Exception as error:
            _log.error("update failed", extra={"id": update.id, "why": cause_of(error)}, exc_info=error)
            return
        extra = {"id": update.id, "code": code, "reason": outcome.reason, "model": outcome.model, "errors": errors}
        level = logging.INFO if outcome.state == "promoted" else logging.WARNING
        _log.log(level, f"update {outcome.state}", extra={**extra, "seconds": round(time.monotonic() - begin, 3)})


class Forgetter:
    """Completes requests to be forgotten, many in one pass, by `fairstream forget DIR --pending`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._wanted = asyncio.Event()
        self._wanted.set()  # an earlier process may have left requests

    def wake(self) -> None:
        self._wanted.set()

    async def step(self) -> None:
        """Wait for a request, then complete all there are."""
        await self._wanted.wait()
        self._wanted.clear()
        try:
            if not await asyncio.to_thread(self._exists, schema.forgotten.c.completed.is_(None)):
                return
            await asyncio.to_thread(updates.fail_dead, self._workspace)  # the row of a dead process holds no lock
            if await asyncio.to_thread(self._exists, schema.updates.c.state == "running"):
                self._wanted.set()  # the update holds the lock; the next step tries again
                return
            code, errors = await run_command(self._workspace.folder, "forget", "--pending")
            if code:
                raise RuntimeError(errors or f"exit code {code}")
            _log.info("forgetting completed")
        except Exception:
            self._wanted.set()
            raise

    def _exists(self, condition: ColumnElement[bool]) -> bool:
        with self._workspace.engine.connect() as connection:
            return bool(connection.scalar(select(exists().where(condition))))
