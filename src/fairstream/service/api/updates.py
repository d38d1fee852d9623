"""Updates run in a process of their own: one at a time, and never where requests are answered."""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import Any

from fairstream.errors import WorkspaceError
from fairstream.service.api.logs import Logs
from fairstream.service.api.metrics import Metrics
from fairstream.service.workspace import Workspace

_MOST_CHARACTERS = 2000
_PATIENCE_SECONDS = 10
_OUTCOMES = {0: "promoted", 3: "rejected", 4: "skipped"}
"""By the exit code of `fairstream update`."""


class Updates:
    """Starts `fairstream update DIR`, and tells how it ended."""

    def __init__(self, workspace: Workspace, logs: Logs, metrics: Metrics) -> None:
        self._workspace, self._logs, self._metrics = workspace, logs, metrics
        self._process: Process | None = None
        self._following: asyncio.Task[None] | None = None
        self._is_starting = False

    @property
    def is_running(self) -> bool:
        """Whether one that was started here goes on."""
        return self._is_starting or self._process is not None

    async def start(self, by: str) -> bool:
        """Start one; False where one runs already, of this service or of another process."""
        if self.is_running:
            return False
        self._is_starting = True
        try:
            if await asyncio.to_thread(self._is_locked):
                return False
            command = (sys.executable, "-m", "fairstream", "update", str(self._workspace.folder))
            self._process = await asyncio.create_subprocess_exec(
                *command, stdout=PIPE, stderr=asyncio.subprocess.STDOUT
            )
        finally:
            self._is_starting = False
        self._logs.say("update started", by=by)
        self._following = asyncio.create_task(self._follow(self._process))
        return True

    async def stop(self) -> None:
        """End one that runs: what it has not finished counts for nothing, and is done again by the next."""
        if (process := self._process) is None or self._following is None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(asyncio.shield(self._following), _PATIENCE_SECONDS)
        except TimeoutError:
            process.kill()
            await self._following

    def _is_locked(self) -> bool:
        try:
            with self._workspace.updating():
                return False
        except WorkspaceError:
            return True

    async def _follow(self, process: Process) -> None:
        begin, said = time.monotonic(), ""
        assert process.stdout is not None
        try:
            while part := await process.stdout.read(1 << 16):
                said = (said + part.decode(errors="replace"))[-_MOST_CHARACTERS:]
            code = await process.wait()
        finally:
            self._process = None
        outcome = _OUTCOMES.get(code, "failed")
        self._metrics.updates[outcome] += 1
        about: dict[str, Any] = {"code": code, "seconds": round(time.monotonic() - begin, 3), "said": said.strip()}
        self._logs.say(f"update {outcome}", **about)
