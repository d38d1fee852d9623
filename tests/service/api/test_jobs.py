"""Updates and forgetting in child processes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError

from fairstream.service import schema, updates
from fairstream.service.api import jobs
from fairstream.service.api.jobs import Forgetter, UpdateRunner
from fairstream.service.database import now, writing
from fairstream.service.forgetting import request_forget
from fairstream.service.registry import n_unpromoted
from fairstream.service.workspace import Workspace
from live_services import PATIENCE_SECONDS, outage


def test_updates_run_in_processes_of_lower_priority(
    new_workspace: Callable[..., Workspace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, program = new_workspace(), tmp_path / "program"
    program.write_text(f"#!/bin/sh\nnice > {tmp_path}/priority\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))  # a process, whatever it does
    runner = UpdateRunner(workspace)

    async def run() -> None:
        await runner.request("test")
        await asyncio.gather(*runner._running)

    asyncio.run(run())
    assert int((tmp_path / "priority").read_text()) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
    (update,) = updates.listed(workspace.engine)
    assert (update.state, update.reason) == ("failed", "its process ended with code 0 before the update did")


def test_an_update_whose_process_cannot_be_started_fails_at_once(
    new_workspace: Callable[..., Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = new_workspace()
    monkeypatch.setattr(sys, "executable", str(workspace.folder / "nothing"))
    runner = UpdateRunner(workspace)

    async def run() -> None:
        await runner.request("test")
        await asyncio.gather(*runner._running)

    asyncio.run(run())
    (failed,) = updates.listed(workspace.engine)
    assert failed.state == "failed"
    assert "its process ended with code 127" in str(failed.reason)
    assert updates.request(workspace, "nobody has to wait").state == "queued"


def test_an_update_ends_with_the_service(new_workspace: Callable[..., Workspace], tmp_path: Path) -> None:
    workspace, endless, file = new_workspace(), tmp_path / "endless", tmp_path / "pid"
    endless.write_text(f"#!/bin/sh\necho $$ > {file}.new; mv {file}.new {file}; exec sleep 1000\n")
    endless.chmod(0o755)

    async def run() -> None:
        runner = UpdateRunner(workspace)
        await runner.request("test")
        while not file.exists():
            await asyncio.sleep(0.01)
        await runner.stop()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "executable", str(endless))
        asyncio.run(run())
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)
    (stopped,) = updates.listed(workspace.engine)
    assert (stopped.state, n_unpromoted(workspace.engine)) == ("interrupted", 0)


Started = list[tuple[str, ...]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Commands that are noted instead of run."""
    commands: Started = []

    async def note(_: Path, *command: str) -> tuple[int, str]:
        commands.append(command)
        return 0, ""

    monkeypatch.setattr(jobs, "run_worker", note)
    return commands


COMPLETE = ("forget",)


@pytest.mark.sqlite_only
def test_requests_to_forget_that_an_earlier_process_left_are_completed_and_nothing_without_one(
    new_workspace: Callable[..., Workspace], started: Started
) -> None:
    workspace = new_workspace()

    async def run() -> None:
        idle = Forgetter(workspace)
        await idle.step()
        waiting = asyncio.create_task(idle.step())
        await asyncio.sleep(0)
        assert not started
        request_forget(workspace, ["u1"], by="test")
        idle.wake()
        await waiting
        assert started == [COMPLETE]
        await Forgetter(workspace).step()
        assert started == [COMPLETE] * 2

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))


@pytest.mark.sqlite_only
def test_a_request_to_forget_outlives_a_failure(
    new_workspace: Callable[..., Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, codes = new_workspace(), [1, 0]
    request_forget(workspace, ["u1"], by="test")

    async def fail_once(*_: object) -> tuple[int, str]:
        return codes.pop(0), "the lock is taken"

    monkeypatch.setattr(jobs, "run_worker", fail_once)

    async def run() -> None:
        forgetter = Forgetter(workspace)
        with outage(workspace.engine), pytest.raises(SQLAlchemyError):
            await forgetter.step()
        with pytest.raises(RuntimeError, match="lock is taken"):
            await forgetter.step()
        await forgetter.step()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))
    assert not codes


@pytest.mark.sqlite_only
def test_forgetting_starts_no_process_while_an_update_runs(
    new_workspace: Callable[..., Workspace], started: Started
) -> None:
    workspace = new_workspace()
    request_forget(workspace, ["u1"], by="test")
    running = updates.request(workspace, "test")
    with writing(workspace.engine) as connection:
        connection.execute(update(schema.updates).values(state="running", started=now()))

    async def run() -> None:
        forgetter = Forgetter(workspace)
        with workspace.updating():
            for _ in range(2):
                await forgetter.step()
            assert not started
        await forgetter.step()  # its process is gone
        assert started == [COMPLETE]

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))
    assert updates.get(workspace.engine, running.id).state == "failed"
