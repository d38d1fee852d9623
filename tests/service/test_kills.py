"""Killed at any moment: what was acknowledged is there once, and a whole model answers."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import func, select
from streams import batch_of, know, periods_of, take_in

import fairstream
from fairstream.errors import FairstreamError
from fairstream.service import schema
from fairstream.service.audit import verify
from fairstream.service.event_store import EventStore
from fairstream.service.registry import in_service, models, promote, rollback
from fairstream.service.settings import Gate, Learning
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace
from live_services import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.both_databases]
N_KILLS = 200
LIVES = {"ingest": 2.0, "decide": 2.0, "learn": 10.0}
"""The most seconds that each process lives; nothing is asserted of what it does in them."""
Maker = Callable[..., Workspace]
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["fairstream.service.updater", "pytest", "psycopg"])  # a new process is there at once
OPTIONS = {
    "learning": Learning(embedding_dim=8, pretrain_epochs=3, update_epochs=2, batch_size=256),
    "gate": Gate(min_tested_users=30, min_group_size=10, max_user_share=1, max_fall=0.99, max_rise=1, max_drift=1),
    "keep_models": 4,
}


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
                update(workspace)
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


@pytest.fixture
def workspace(new_workspace: Maker) -> Iterator[Workspace]:
    made = new_workspace(**OPTIONS)
    periods, people = periods_of(n_users=200, n_items=100, n_events=4000, n_periods=1)
    know(made, people)
    take_in(made, periods[0])
    assert update(made).kind == "promoted"
    return made


def assert_whole(workspace: Workspace) -> None:
    """A restart finds a model that answers; a folder being replaced at this moment is looked at again."""
    current = in_service(workspace.engine)
    assert current is not None
    answer = fairstream.load(workspace.model_folder(current.model), device="cpu").recommend(["a stranger"], k=5)
    assert answer.num_rows == 5


def test_nothing_is_lost_and_nothing_is_half(workspace: Workspace, tmp_path: Path) -> None:
    rng, notes = random.Random(0), tmp_path / "acknowledged"
    victims = Victims(workspace, notes)
    try:
        due = {name: time.monotonic() + rng.random() * life for name, life in LIVES.items()}
        for _ in range(N_KILLS):
            name = min(due, key=due.__getitem__)
            time.sleep(max(0.0, due[name] - time.monotonic()))
            victims.kill(name)
            due[name] = time.monotonic() + rng.random() * LIVES[name]
            assert_whole(workspace)
        wait_until(lambda: len(models(workspace.engine)) > 1)  # an update has come to its end
    finally:
        victims.kill_all()
    lines = notes.read_bytes().split(b"\n")[:-1]
    acknowledged = {event for line in lines for event in json.loads(line)}
    with workspace.engine.connect() as connection:
        there = connection.execute(select(schema.events.c.event_id)).scalars().all()
        n_periods = connection.execute(select(func.count()).select_from(schema.periods)).scalar_one()
        n_models = connection.execute(select(func.count()).select_from(schema.models)).scalar_one()
    assert len(there) == len(set(there))
    assert acknowledged <= set(there)
    assert n_models == n_periods > 1
    verify(workspace.engine)
    update(workspace)  # sweeps up
    named = {row.id for row in models(workspace.engine)}
    assert {folder.name for folder in (workspace.folder / "models").iterdir()} <= named
    print(f"{len(acknowledged)} events acknowledged, {len(there)} there, {n_periods} periods", os.getpid())
