"""Updates and forgetting give way to requests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairstream.service.api import jobs
from fairstream.service.api.jobs import Commands, give_way


def test_a_process_in_the_background_has_a_lower_priority() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        give_way(process.pid)
        priority = os.getpriority(os.PRIO_PROCESS, process.pid)
        process.communicate(b"\n")
    assert priority == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
    give_way(process.pid)  # has ended: nothing happens


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
