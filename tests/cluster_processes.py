"""Ray's workers among the processes of this machine."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def working(name: bytes = b"ray::_") -> list[int]:
    """The descendants of this process that run a task or an actor of such a name now."""
    parents, found = dict[int, int](), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            title = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended meanwhile
        if title.startswith(name):  # those of Ray itself have no underscore
            found.append(int(folder.name))

    def is_ours(pid: int) -> bool:
        while pid and pid != os.getpid():
            pid = parents.get(pid, 0)
        return pid != 0

    return [pid for pid in found if is_ours(pid)]


def though_one_is_killed(work: Callable[[], Any], name: bytes) -> list[Any]:
    """What some work returns while one worker with such a name is killed; work may be over sooner, and is repeated."""
    killed, is_over, results = list[int](), threading.Event(), list[Any]()

    def kill_one() -> None:
        while not killed and not is_over.wait(0.002):
            if victims := working(name):
                killed.append(victims[0])
                os.kill(victims[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        while not killed and len(results) < 20:
            results.append(work())
    finally:
        is_over.set()
        killer.join()
    assert killed
    return results


def no_training_is_left() -> bool:
    """Whether all processes of a training end soon: Ray ends them a moment after the call returns."""

    def processes() -> list[int]:
        return [*working(b"ray::RayTrainWorker"), *working(b"ray::TrainController")]

    deadline = time.monotonic() + 60
    while processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not processes()
