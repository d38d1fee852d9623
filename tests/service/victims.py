"""Processes that work on a workspace, and end in the middle of their work as if killed.

They stand in a module of their own, which a new process can import by its name.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psycopg  # noqa: F401 (victims need it and the next one at once)
import pyarrow as pa
import pytest
from sqlalchemy.exc import DBAPIError
from streams import batch_of

import fairstream.service.updater  # noqa: F401
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
from live_services import PATIENCE_SECONDS

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["victims"])  # forked with all imports: kills hit work, not imports

N_FORGETTABLE = 100
"""Of the thousand users that events come of, those who may be forgotten."""
N_STOCKED = 300
"""Items whose stock every feed sets, all to one number."""
START_SHARE = 0.2
"""Of the kills, those that hit a process while it starts."""
_PAUSE_SECONDS = 0.3
"""For which a process that has changed models leaves the lock to the others."""
Step = Callable[[int], None]
"""The n-th step of a victim's work; it raises if another process keeps it from working now."""


def ingest(workspace: Workspace, notes: FileIO, seed: int) -> Step:
    """Append batches; note the ids and users of each once it is acknowledged."""
    rng, event_store, first_before = random.Random(seed), EventStore(workspace), ""

    def step(n: int) -> None:
        nonlocal first_before
        ids = [f"{seed}-{n}-{i}" for i in range(rng.randrange(1, 300))]
        users = [f"u{rng.randrange(1000)}" for _ in ids]
        first = users[0]
        if n and rng.random() < 0.3:  # one that is there already, of the same user
            ids, users = [*ids, f"{seed}-{n - 1}-0"], [*users, first_before]
        table = pa.table(
            {
                "event_id": ids,
                "user_id": users,
                "item_id": [f"i{rng.randrange(2000)}" for _ in ids],
                "time": [1_700_000_000 + rng.randrange(10**6) for _ in ids],
            }
        )
        event_store.append(batch_of(workspace, table))
        first_before = first
        notes.write((json.dumps(list(zip(ids, users, strict=True))) + "\n").encode())

    return step


def learn(workspace: Workspace, notes: FileIO, _: int) -> Step:
    """Update; note each outcome."""

    def step(_: int) -> None:
        notes.write(f"{updates.run(workspace).state}\n".encode())

    return step


def decide(workspace: Workspace, notes: FileIO, seed: int) -> Step:
    """Promote and roll back; note each decision."""
    rng = random.Random(seed)

    def step(_: int) -> None:
        if rng.random() < 0.5:
            rollback(workspace, by="test")
            notes.write(b"rollback\n")
        else:
            promote(workspace, rng.choice(models(workspace.engine)[:4]).id, by="test")
            notes.write(b"promote\n")

    return step


def forget_people(workspace: Workspace, notes: FileIO, seed: int) -> Step:
    """Forget one person after the other; note who is to be, before, and who is, after."""
    rng = random.Random(seed)

    def step(_: int) -> None:
        user_id = f"u{rng.randrange(N_FORGETTABLE)}"
        notes.write(f"? {user_id}\n".encode())
        forget(workspace, [user_id], by="test")
        notes.write(f"! {user_id}\n".encode())

    return step


def feed_stock(workspace: Workspace, notes: FileIO, _: int) -> Step:
    """Set the stock of all items to the next number; note the number once it is acknowledged."""
    notes.seek(0)
    last = max([0, *map(int, notes.read().split(b"\n")[:-1])])

    def step(n: int) -> None:
        stock = last + 2 * (n + 1)  # the number after the last noted one may have been stored by the process before
        feed = [{"item_id": f"i{i}", "stock": stock, "available": stock % 4 == 0} for i in range(N_STOCKED)]
        items.store(workspace.engine, feed)
        notes.write(f"{stock}\n".encode())

    return step


def experiment(workspace: Workspace, notes: FileIO, seed: int) -> Step:
    """Start, look at and end experiments; note each start and end and each list once it is acknowledged."""
    rng, tally, serial = random.Random(seed), Tally(workspace), itertools.count()

    def step(_: int) -> None:
        with suppress(WorkspaceError):  # that of the process before
            stop(workspace, by="test")
        b = rng.choice(models(workspace.engine)[:4]).id
        found = start(workspace, Options(b=b, steps=[0.2, 0.5], step_hours=0), by="test")
        notes.write(f"start {found.id}\n".encode())
        arms = found.arms(workspace.secret)
        for _ in range(3):
            user, list_id = f"u{rng.randrange(500, 1000)}", f"{seed}-{next(serial)}"
            shown = Shown(user, ["i1", "i2"], now(), list_id)
            store(workspace, [[shown._replace(**arms.stamp(user, shown.items, list_id))]])
            notes.write(f"shown {list_id}\n".encode())
            tally.count()
            look(workspace)
        if rng.random() < 0.3:
            promote_b(workspace, by="test")
        else:
            stop(workspace, by="test")
        notes.write(f"end {found.id}\n".encode())

    return step


@dataclass(frozen=True)
class Task:
    work: Callable[[Workspace, FileIO, int], Step]
    max_steps: int
    """The most steps that a process completes before the one in which it ends."""
    pause: float
    """Seconds between two steps."""


TASKS = {
    "ingest": Task(ingest, 100, 0.02),
    "learn": Task(learn, 2, _PAUSE_SECONDS),
    "decide": Task(decide, 5, 4 * _PAUSE_SECONDS),
    "forget": Task(forget_people, 3, 0.0),
    "stock": Task(feed_stock, 100, 0.02),
    "experiment": Task(experiment, 2, _PAUSE_SECONDS),
}


def _alarm(seconds: float) -> None:
    """End this process then; without a handler SIGALRM ends it at once wherever it is, exactly as SIGKILL does."""
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))


def live(name: str, folder: Path, notes_file: Path, seed: int, n_steps: int | None, seconds: Any) -> None:
    """Work for `n_steps` steps, and end in the middle of the next one; with None end while starting.

    `seconds` has how long the last start and the last step of this task took, so that the end hits a step on a fast
    machine and on a slow one. Before the first step was completed nothing ends.
    """
    task, rng, begin = TASKS[name], random.Random(seed), time.monotonic()
    if n_steps is None:
        _alarm(seconds[0] * rng.random())
    with Workspace.open(folder) as workspace, notes_file.open("a+b", buffering=0) as notes:
        step, n = task.work(workspace, notes, seed), 0
        seconds[0] = time.monotonic() - begin
        while True:
            begin, is_last = time.monotonic(), n_steps is not None and n >= n_steps and seconds[1] > 0
            if is_last:
                _alarm(seconds[1] * 1.5 * rng.random())
            try:
                step(n)
            except (FairstreamError, DBAPIError):  # another one is at it
                pause = 0.01
            else:
                pause, seconds[1] = task.pause, time.monotonic() - begin
                n += 1
            if is_last:  # it was faster than the one before, or refused
                signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(pause)


class Victims:
    """A process for each task; `next_kill` waits for the end of one, `restart` replaces it."""

    def __init__(self, workspace: Workspace, notes: Path) -> None:
        self._folder, self._notes, self._rng, self._seeds = workspace.folder, notes, random.Random(0), itertools.count()
        self._seconds = {name: _processes.RawArray("d", 2) for name in TASKS}
        self._running = dict[str, Any]()
        self._is_starting = dict[str, bool]()
        self.kills: Counter[str] = Counter()
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # the process that forks the victims imports them
            for name in TASKS:
                self.restart(name)

    def notes(self, name: str) -> Path:
        """The file in which a task notes what is done."""
        return self._notes / name

    def restart(self, name: str) -> None:
        n_steps = self._rng.randrange(TASKS[name].max_steps + 1)
        # The first process of a task measures how long a start and a step take.
        self._is_starting[name] = self._rng.random() < START_SHARE and self._seconds[name][1] > 0
        life = None if self._is_starting[name] else n_steps
        args = (name, self._folder, self.notes(name), next(self._seeds), life, self._seconds[name])
        self._running[name] = _processes.Process(target=live, args=args, daemon=True)
        self._running[name].start()

    def next_kill(self) -> str:
        """Wait until a process is killed, and return its task."""
        names = {victim.sentinel: name for name, victim in self._running.items()}
        ended = wait(list(names), PATIENCE_SECONDS)
        assert ended, "none has ended"
        name = names[self._rng.choice(ended)]  # type: ignore[index]
        self._running[name].join()
        assert self._running[name].exitcode == -signal.SIGALRM, f"{name} has ended by itself"
        self.kills[f"{name} {'starting' if self._is_starting[name] else 'at work'}"] += 1
        return name

    def end(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].join()

    def end_all(self) -> None:
        for name in self._running:
            self.end(name)
