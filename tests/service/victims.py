"""Processes that work on a workspace until they are killed.

They stand in a module of their own, which a new process can import by its name.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlalchemy.exc import DBAPIError
from streams import batch_of

from fairstream.errors import FairstreamError, WorkspaceError
from fairstream.service import items, updates
from fairstream.service.database import now
from fairstream.service.event_store import EventStore
from fairstream.service.experiments import Options, start, stop
from fairstream.service.experiments import promote as promote_b
from fairstream.service.forgetting import forget
from fairstream.service.impressions import Shown, store
from fairstream.service.looks import look
from fairstream.service.registry import models, promote, rollback
from fairstream.service.tally import Tally
from fairstream.service.workspace import Workspace

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    ["fairstream.service.updater", "fairstream.service.forgetting", "psycopg"]
)  # a new process is there at once


N_FORGETTABLE = 100
"""Of the thousand users that events come of, those who may be forgotten."""
N_STOCKED = 300
"""Items whose stock every feed sets, all to one number."""
_PAUSE_SECONDS = 0.3
"""For which a process that has changed models leaves the lock to the others."""


def ingest(folder: Path, acknowledged: Path, seed: int) -> None:
    """Append batches for ever; note the ids of each once it is acknowledged."""
    rng = random.Random(seed)
    with Workspace.open(folder) as workspace, acknowledged.open("ab", buffering=0) as notes:
        store, first_before = EventStore(workspace), ""
        for n in range(10**9):
            ids = [f"{seed}-{n}-{i}" for i in range(rng.randrange(1, 300))]
            users = [f"u{rng.randrange(1000)}" for _ in ids]
            first = users[0]
            if n and rng.random() < 0.3:  # one that may be there already, of the same user
                ids, users = [*ids, f"{seed}-{n - 1}-0"], [*users, first_before]
            first_before = first
            table = pa.table(
                {
                    "event_id": ids,
                    "user_id": users,
                    "item_id": [f"i{rng.randrange(2000)}" for _ in ids],
                    "time": [1_700_000_000 + rng.randrange(10**6) for _ in ids],
                }
            )
            try:
                store.append(batch_of(workspace, table))
            except FairstreamError:  # another one writes for long: nothing is acknowledged
                continue
            notes.write((json.dumps(list(zip(ids, table["user_id"].to_pylist(), strict=True))) + "\n").encode())
            time.sleep(0.02)


def learn(folder: Path) -> None:
    """Update for ever."""
    with Workspace.open(folder) as workspace:
        while True:
            try:
                updates.run(workspace)
            except (FairstreamError, DBAPIError):
                time.sleep(0.01)  # another one is at it
            else:
                time.sleep(_PAUSE_SECONDS)


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
            except (FairstreamError, DBAPIError):
                time.sleep(0.01)
            else:
                time.sleep(_PAUSE_SECONDS)


def forget_people(folder: Path, notes: Path, seed: int) -> None:
    """Forget one person after the other for ever; note who is to be, before, and who is, after."""
    rng = random.Random(seed)
    with Workspace.open(folder) as workspace, notes.open("ab", buffering=0) as lines:
        while True:
            user_id = f"u{rng.randrange(N_FORGETTABLE)}"
            lines.write(f"? {user_id}\n".encode())
            try:
                forget(workspace, [user_id], by="test")
            except (FairstreamError, DBAPIError):
                time.sleep(0.001)  # the others leave the lock for longer than this
                continue
            lines.write(f"! {user_id}\n".encode())


def feed_stock(folder: Path, notes: Path) -> None:
    """Set the stock of all items to the next number, forever; note the number once it is acknowledged."""
    with Workspace.open(folder) as workspace, notes.open("a+b", buffering=0) as lines:
        n = max([0, *map(int, notes.read_bytes().split(b"\n")[:-1])])
        while True:
            n += 2  # the number after the last noted one may have been stored by the process before
            feed = [{"item_id": f"i{each}", "stock": n, "available": n % 4 == 0} for each in range(N_STOCKED)]
            try:
                items.store(workspace.engine, feed)
            except FairstreamError:  # another one writes for long: nothing is acknowledged
                continue
            lines.write(f"{n}\n".encode())
            time.sleep(0.02)


def experiment(folder: Path, notes: Path, seed: int) -> None:
    """Start, look at and end experiments forever; note each start and end and each list once it is acknowledged."""
    rng = random.Random(seed)
    with Workspace.open(folder) as workspace, notes.open("ab", buffering=0) as lines:
        tally = Tally(workspace)
        for n in range(10**9):
            try:
                with suppress(WorkspaceError):  # that of the process before
                    stop(workspace, by="test")
                b = rng.choice(models(workspace.engine)[:4]).id
                found = start(workspace, Options(b=b, steps=[0.2, 0.5], step_hours=0), by="test")
                lines.write(f"start {found.id}\n".encode())
                arms = found.arms(workspace.secret)
                for at in range(3):
                    user, list_id = f"u{rng.randrange(500, 1000)}", f"{seed}-{n}-{at}"
                    shown = Shown(user, ["i1", "i2"], now(), list_id)
                    store(workspace, [[shown._replace(**arms.stamp(user, shown.items, list_id))]])
                    lines.write(f"shown {list_id}\n".encode())
                    tally.count()
                    look(workspace)
                if rng.random() < 0.3:
                    promote_b(workspace, by="test")
                else:
                    stop(workspace, by="test")
                lines.write(f"end {found.id}\n".encode())
            except (FairstreamError, DBAPIError):
                time.sleep(0.01)
            else:
                time.sleep(2 * _PAUSE_SECONDS)


class Victims:
    """The processes of a workspace, each of which can be killed and started again."""

    def __init__(self, workspace: Workspace, acknowledged: Path, forgotten: Path, stocked: Path, tried: Path) -> None:
        self._workspace, self._acknowledged, self._forgotten, self._n = workspace, acknowledged, forgotten, 0
        self._stocked, self._tried, self._running = stocked, tried, dict[str, Any]()
        for name in ("ingest", "learn", "decide", "forget", "stock", "experiment"):
            self._start(name)

    def _start(self, name: str) -> None:
        self._n += 1
        folder = self._workspace.folder
        task: dict[str, tuple[Any, tuple[Any, ...]]] = {
            "ingest": (ingest, (folder, self._acknowledged, self._n)),
            "learn": (learn, (folder,)),
            "decide": (decide, (folder, self._n)),
            "forget": (forget_people, (folder, self._forgotten, self._n)),
            "stock": (feed_stock, (folder, self._stocked)),
            "experiment": (experiment, (folder, self._tried, self._n)),
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
