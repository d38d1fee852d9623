"""Processes that work on a workspace until they are killed.

They stand in a module of their own, which a new process can import by its name.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from streams import batch_of

from fairstream.errors import FairstreamError
from fairstream.service import updates
from fairstream.service.event_store import EventStore
from fairstream.service.registry import models, promote, rollback
from fairstream.service.workspace import Workspace

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["fairstream.service.updater", "psycopg"])  # a new process is there at once


def ingest(folder: Path, acknowledged: Path, seed: int) -> None:
    """Append batches for ever; note the ids of each once it is acknowledged."""
    rng = random.Random(seed)
    with Workspace.open(folder) as workspace, acknowledged.open("ab", buffering=0) as notes:
        store = EventStore(workspace)
        for n in range(10**9):
            ids = [f"{seed}-{n}-{i}" for i in range(rng.randrange(1, 300))]
            if n and rng.random() < 0.3:
                ids += [f"{seed}-{n - 1}-0"]  # one that may be there already
            table = pa.table(
                {
                    "event_id": ids,
                    "user_id": [f"u{rng.randrange(1000)}" for _ in ids],
                    "item_id": [f"i{rng.randrange(2000)}" for _ in ids],
                    "time": [1_700_000_000 + rng.randrange(10**6) for _ in ids],
                }
            )
            store.append(batch_of(workspace, table))
            notes.write((json.dumps(ids) + "\n").encode())
            time.sleep(0.02)


def learn(folder: Path) -> None:
    """Update for ever."""
    with Workspace.open(folder) as workspace:
        while True:
            try:
                updates.run(workspace)
            except FairstreamError:
                time.sleep(0.01)  # another one is at it


def decide(folder: Path, seed: int) -> None:
    """Promote and roll back for ever."""
    rng = random.Random(seed)
    with Workspace.open(folder) as workspace:
        while True:
            try:
                if rng.random() < 0.5:
                    rollback(workspace, by="test")
                else:
                    promote(workspace, rng.choice(models(workspace.engine)[:4]).id, by="test")
            except FairstreamError:
                time.sleep(0.01)


class Victims:
    """The processes of a workspace, each of which can be killed and started again."""

    def __init__(self, workspace: Workspace, notes: Path) -> None:
        self._workspace, self._notes, self._n = workspace, notes, 0
        self._running: dict[str, Any] = {}
        for name in ("ingest", "learn", "decide"):
            self._start(name)

    def _start(self, name: str) -> None:
        self._n += 1
        folder = self._workspace.folder
        task: dict[str, tuple[Any, tuple[Any, ...]]] = {
            "ingest": (ingest, (folder, self._notes, self._n)),
            "learn": (learn, (folder,)),
            "decide": (decide, (folder, self._n)),
        }
        target, args = task[name]
        self._running[name] = _processes.Process(target=target, args=args, daemon=True)
        self._running[name].start()

    def kill(self, name: str) -> None:
        victim = self._running[name]
        assert victim.is_alive(), f"{name} has ended by itself"
        victim.kill()
        victim.join()
        self._start(name)

    def kill_all(self) -> None:
        for victim in self._running.values():
            victim.kill()
            victim.join()
