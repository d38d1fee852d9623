"""Workspaces with models that answer, and a service in front of them."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
import pyarrow as pa
import uvicorn
from fastapi import FastAPI
from sqlalchemy import Connection, Engine, event, insert
from sqlalchemy.exc import OperationalError

from fairstream import FairRecommender, read_events
from fairstream.service.api import create_app
from fairstream.service.api.limits import BoundedProtocol
from fairstream.service.api.monitoring import json_logs
from fairstream.service.database import now, writing
from fairstream.service.event_store import EventStore
from fairstream.service.incoming import batch_from_arrow
from fairstream.service.keys import SCOPES, make_key
from fairstream.service.registry import put_into_service
from fairstream.service.schema import models, periods
from fairstream.service.workspace import Workspace
from support import make_recommender

N_USERS, N_ITEMS = 40, 60


def events_of(seed: int, n: int = 600) -> pa.Table:
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "user_id": [f"u{row}" for row in random.integers(0, N_USERS, n)],
            "item_id": [f"i{row}" for row in random.integers(0, N_ITEMS, n)],
            "time": np.arange(n) + seed * n,
        }
    )


@cache
def _fitted(model: str, seed: int) -> FairRecommender:
    people = pa.table({"user_id": [f"u{row}" for row in range(N_USERS)], "g": ["a", "b"] * (N_USERS // 2)})
    log = read_events(events_of(seed), users=people, group="g", advantaged="a")
    return make_recommender(model, device="cpu", pretrain_epochs=1, seed=seed).fit(log)


def add_model(workspace: Workspace, *, seed: int = 0, promote: bool = True, model: str = "mf") -> str:
    """Close a period of made-up events, and put a model of them into the workspace."""
    store, events = EventStore(workspace), events_of(seed)
    before = store.last_seq()
    store.append(batch_from_arrow(events, workspace.config.limits))
    recommender = _fitted(model, seed)
    name = f"model{secrets.token_hex(4)}"
    with workspace.models.new(name) as folder:
        recommender.save(folder)
    about = {"n_events": 600, "n_users": N_USERS, "n_late": 0, "latest_time": 0, "held_out": 0.0, "max_of_user": 600}
    row = {
        "parent": None,
        "state": "rejected",
        "folder": name,
        "created": now(),
        "training_seconds": 5e-6,
        "decision": {"promote": True},
        "about": {},
    }
    with writing(workspace.engine) as connection:
        t = seed
        connection.execute(
            insert(periods).values(t=t, first_seq=before + 1, last_seq=before + 600, closed=now(), **about)
        )
        connection.execute(insert(models).values(id=name, t=t, **row))
        if promote:
            put_into_service(connection, name)
    return name


@dataclass(frozen=True)
class Keys:
    ingest: dict[str, str]
    attributes: dict[str, str]
    read: dict[str, str]
    history: dict[str, str]
    admin: dict[str, str]


def make_keys(workspace: Workspace) -> Keys:
    made = {scope: {"Authorization": f"Bearer {make_key(workspace.engine, f'{scope}er', scope)}"} for scope in SCOPES}
    return Keys(**made)


PATIENCE_SECONDS = 600.0
"""How long a test waits before it takes a wait for a hang; a machine that is busy or slow is no failure."""


def wait_until(condition: Callable[[], Any], is_alive: Callable[[], Any] = lambda: True) -> None:
    """Wait for something to happen, as long as what should bring it about is alive."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert is_alive(), "it has ended by itself"
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


class Running(httpx.Client):
    """A client of a service that runs on a free port."""

    app: FastAPI
    keys: Keys

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.get("/readyz").status_code == 200)


class Process:
    """`fairstream serve` in a process of its own, whose group of processes ends with the block."""

    def __init__(self, folder: Path, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "fairstream", "serve", str(folder), "--port", str(port)]
        with log.open("ab") as output:
            # A group of its own, so that an update that it has started dies with it, or outlives it, as is wanted.
            self._process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        self.address = f"http://127.0.0.1:{port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait_until_ready(self) -> None:
        def is_ready() -> bool:
            try:
                return httpx.get(f"{self.address}/readyz", timeout=PATIENCE_SECONDS).status_code == 200
            except httpx.TransportError:
                return False

        wait_until(is_ready, lambda: self._process.poll() is None)

    def end(self, how: signal.Signals = signal.SIGKILL, *, with_update: bool = False) -> int:
        """Send a signal and give the exit code."""
        (os.killpg if with_update else os.kill)(self._process.pid, how)
        return self._process.wait(PATIENCE_SECONDS)


@contextmanager
def running(workspace: Workspace, keys: Keys, **options: Any) -> Iterator[Running]:
    app = create_app(workspace.folder, **options)
    with (
        json_logs("info"),
        served(app, http=BoundedProtocol) as address,
        Running(base_url=address, timeout=PATIENCE_SECONDS) as client,
    ):
        client.app, client.keys = app, keys
        yield client


@contextmanager
def served(app: Any, **options: Any) -> Iterator[str]:
    """An ASGI application on a free port of this machine, and its address."""
    # A connection that the server may close while the client is about to use it again depends on the clock.
    fixed: dict[str, Any] = {"port": 0, "access_log": False, "timeout_keep_alive": int(PATIENCE_SECONDS)}
    server = uvicorn.Server(uvicorn.Config(app, **{"log_level": "warning", **options, **fixed}))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started, thread.is_alive)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def outage(engine: Engine, why: str = "connection refused") -> Iterator[None]:
    """Meanwhile every use of the database fails as it does when the server is gone."""

    def fail(connection: Connection, *_: object) -> None:
        connection.close()  # this one is real
        raise OperationalError("SELECT secret", {"user": "u1"}, Exception(why))

    event.listen(engine, "engine_connect", fail)
    try:
        yield
    finally:
        event.remove(engine, "engine_connect", fail)
