"""Updates and forgetting give way to requests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from fairstream.service import schema, updates
from fairstream.service.api import jobs
from fairstream.service.api.jobs import Commands, Ended, Forgetter, UpdateRunner, give_way
from fairstream.service.database import now, writing
from fairstream.service.forgetting import request_forget
from fairstream.service.workspace import Workspace
from live_services import PATIENCE_SECONDS


def test_a_process_in_the_background_has_a_lower_priority() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        give_way(process.pid)
        priority = os.getpriority(os.PRIO_PROCESS, process.pid)
        process.communicate(b"\n")
    assert priority == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
    give_way(process.pid)  # has ended: nothing happens


def test_updates_run_in_the_background(
    new_workspace: Callable[..., Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, pids = new_workspace(), list[int]()
    monkeypatch.setattr(sys, "executable", "/bin/true")  # a process, whatever it does
    monkeypatch.setattr(jobs, "give_way", pids.append)
    commands = Commands(workspace.folder)
    runner = UpdateRunner(workspace, commands)

    async def run() -> None:
        assert (await commands.run("export")).code == 0
        assert not pids
        await runner.request("test")
        await runner.stop()

    asyncio.run(run())
    assert len(pids) == 1


class Recorded(Commands):
    """Commands that are noted instead of run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.started: list[tuple[str, ...]] = []

    async def start(self, command: str, *arguments: str, **_: Any) -> Ended:
        self.started.append((command, *arguments))
        return Ended(0, b"", "")


COMPLETE = ("forget", "--pending")


@pytest.mark.sqlite_only
def test_requests_to_forget_that_an_earlier_process_left_are_completed_and_nothing_without_one(
    new_workspace: Callable[..., Workspace],
) -> None:
    workspace = new_workspace()
    commands = Recorded(workspace.folder)

    async def first_step(forgetter: Forgetter) -> asyncio.Task[None]:
        """A step that has looked for what an earlier process left."""
        step = asyncio.create_task(forgetter.step())
        while not forgetter._has_looked:
            await asyncio.sleep(0.01)
        return step

    async def run() -> None:
        idle = Forgetter(workspace, commands)
        step = await first_step(idle)
        assert not idle._wanted.is_set()
        idle.wake()
        await step
        assert commands.started == [COMPLETE]
        request_forget(workspace, ["u1"], by="test", known=["u1"])
        busy = Forgetter(workspace, commands)
        step = await first_step(busy)
        assert busy._wanted.is_set() or step.done()
        await step
        assert commands.started == [COMPLETE] * 2

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))


@pytest.mark.sqlite_only
def test_forgetting_starts_no_process_while_an_update_runs(new_workspace: Callable[..., Workspace]) -> None:
    workspace = new_workspace()
    commands = Recorded(workspace.folder)
    request_forget(workspace, ["u1"], by="test", known=["u1"])
    running = updates.request(workspace, "test")
    with writing(workspace.engine) as connection:
        connection.execute(update(schema.updates).values(state="running", started=now()))

    async def run() -> None:
        forgetter = Forgetter(workspace, commands)
        forgetter.wake()
        with workspace.updating():
            for _ in range(2):
                await forgetter.step()
            assert not commands.started
        await forgetter.step()  # its process is gone
        assert commands.started == [COMPLETE]

    asyncio.run(run())
    assert updates.get(workspace.engine, running.id).state == "failed"


@pytest.mark.slow
def test_only_what_nobody_waits_for_runs_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []
    monkeypatch.setattr(jobs, "give_way", pids.append)
    commands = Commands(tmp_path)

    async def run() -> None:
        assert (await commands.start("status")).code
        assert not pids
        assert (await commands.start("status", in_background=True)).code

    asyncio.run(run())
    assert len(pids) == 1
