"""Background work of the service: child processes, and loops that survive exceptions."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from signal import SIGTERM

from sqlalchemy import ColumnElement, exists, select

from fairstream.service import schema, updates
from fairstream.service.api.errors import cause_of
from fairstream.service.event_store import EventStore, is_full
from fairstream.service.records import Update, UpdateState
from fairstream.service.registry import n_unpromoted
from fairstream.service.settings import Every
from fairstream.service.worker import FORGET
from fairstream.service.workspace import Workspace

_MAX_LOGGED = 2000
_log = logging.getLogger("fairstream.api")


async def repeat(step: Callable[[], Awaitable[object]], seconds: float, name: str) -> None:
    """Repeat a step until cancelled; log an exception once for each kind in a row."""
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


async def run_worker(folder: Path, task: str) -> tuple[int, str]:
    """Run `fairstream.service.worker` in a child process of lower priority; return its exit code and errors.

    Cancelling the caller ends the process; none of its unfinished work counts.
    """
    process = await asyncio.create_subprocess_exec(
        *("nice", "-n", "10", sys.executable, "-m", "fairstream.service.worker", str(folder), task),
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
    )
    try:
        _, errors = await process.communicate()
    finally:
        with suppress(ProcessLookupError):  # it has ended
            process.terminate()
        await process.wait()
    return process.returncode or 0, errors.decode(errors="replace").strip()[-_MAX_LOGGED:]


class UpdateRunner:
    """Runs the updates that are requested here, each in a child process that records its outcome."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._running: set[asyncio.Task[None]] = set()
        self.problems: list[str] = []

    async def request(self, by: str) -> Update:
        """Queue an update and run it; raises `UpdateRunning` if one has not ended."""
        update = await asyncio.to_thread(updates.request, self._workspace, by)
        self._start(update)
        return update

    async def request_if_due(self, every: Every) -> None:
        """Queue and run an update if it is due and no other process has queued it."""
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

    async def look(self) -> None:
        """Read what keeps updates from learning."""
        self.problems = await asyncio.to_thread(self._read_problems)

    def _read_problems(self) -> list[str]:
        n, limits = n_unpromoted(self._workspace.engine), self._workspace.config.limits
        n_open, after = EventStore(self._workspace).n_open(), self._workspace.config.alerts.after
        return [
            *([f"{n} updates in a row promoted no model; GET /v1/updates says why."] if n >= max(2, after) else []),
            *([f"The open period is full: {n_open} events wait for an update."] if is_full(n_open, limits) else []),
        ]

    async def _run(self, update: Update) -> None:
        """Run an update in a process; its row holds the outcome."""
        begin = time.monotonic()
        _log.info("update started", extra={"id": update.id, "by": update.requested_by})
        end: tuple[UpdateState, str] = "interrupted", "the service ended while it ran; the next update begins again"
        errors = ""
        try:
            code, errors = await run_worker(self._workspace.folder, update.id)
            if code != -SIGTERM:  # otherwise the service and all of its processes are being stopped
                end = "failed", f"its process ended with code {code} before the update did"
        except Exception as error:
            end = "failed", f"its process cannot be run: {cause_of(error)}"
        finally:  # also if the service stops and cancels this task
            await asyncio.to_thread(updates.close_left, self._workspace, update.id, *end)
        try:
            outcome = await asyncio.to_thread(updates.get, self._workspace.engine, update.id)
        except Exception as error:
            _log.error("update failed", extra={"id": update.id, "why": cause_of(error)})
            return
        extra = {"id": update.id, "reason": outcome.reason, "model": outcome.model, "errors": errors}
        level = logging.INFO if outcome.state == "promoted" else logging.WARNING
        _log.log(level, f"update {outcome.state}", extra={**extra, "seconds": round(time.monotonic() - begin, 3)})


class Forgetter:
    """Completes requests to forget people, many in one pass, in a child process."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._wanted = asyncio.Event()
        self._wanted.set()  # an earlier process may have left requests

    def wake(self) -> None:
        self._wanted.set()

    async def step(self) -> None:
        """Wait for a request, then complete all pending ones."""
        await self._wanted.wait()
        self._wanted.clear()
        try:
            if not await asyncio.to_thread(self._exists, schema.forgotten.c.completed.is_(None)):
                return
            await asyncio.to_thread(updates.fail_dead, self._workspace)  # the row of a dead process holds no lock
            if await asyncio.to_thread(self._exists, schema.updates.c.state == "running"):
                self._wanted.set()  # the update holds the lock; the next step tries again
                return
            code, errors = await run_worker(self._workspace.folder, FORGET)
            if code:
                raise RuntimeError(errors or f"exit code {code}")
            _log.info("forgetting completed")
        except Exception:
            self._wanted.set()
            raise

    def _exists(self, condition: ColumnElement[bool]) -> bool:
        with self._workspace.engine.connect() as connection:
            return bool(connection.scalar(select(exists().where(condition))))
