"""Workspaces with models that answer, and a service in front of them."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import uvicorn
from fastapi import FastAPI
from sqlalchemy import insert

from fairstream import FairRecommender, read_events
from fairstream.service.api import create_app
from fairstream.service.api.heads import BoundedHeads
from fairstream.service.database import now, writing
from fairstream.service.event_store import EventStore
from fairstream.service.incoming import batch_from_arrow
from fairstream.service.keys import make_key
from fairstream.service.registry import put_into_service
from fairstream.service.schema import models, periods
from fairstream.service.workspace import Workspace

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


def add_model(workspace: Workspace, *, seed: int = 0, promote: bool = True, model: str = "mf") -> str:
    """Close a period of made-up events, and put a model of them into the workspace."""
    store, events = EventStore(workspace), events_of(seed)
    before = store.last_seq()
    store.append(batch_from_arrow(events, workspace.config.limits))
    people = pa.table({"user_id": [f"u{row}" for row in range(N_USERS)], "g": ["a", "b"] * (N_USERS // 2)})
    recommender = FairRecommender(model, device="cpu", pretrain_epochs=1, seed=seed)
    recommender.fit(read_events(events, users=people, group="g", advantaged="a"))
    name = f"model{secrets.token_hex(4)}"
    recommender.save(workspace.model_folder(name))
    about = {"n_events": 600, "n_users": N_USERS, "n_late": 0, "n_learnable": 600}
    row = {"parent": None, "state": "held", "created": now(), "seconds": 5, "decision": {"promote": True}, "about": {}}
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
    read: dict[str, str]
    admin: dict[str, str]


def make_keys(workspace: Workspace) -> Keys:
    made = {
        scope: {"Authorization": f"Bearer {make_key(workspace.engine, f'{scope}er', scope)}"}
        for scope in ("ingest", "read", "admin")
    }
    return Keys(**made)


class Running(httpx.Client):
    """A service on a free port of its own, over which requests go."""

    app: FastAPI
    keys: Keys

    def wait_until(self, condition: Callable[[], Any], seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not come to that"
            time.sleep(0.05)

    def wait_until_ready(self) -> None:
        self.wait_until(lambda: self.get("/readyz").status_code == 200)


@contextmanager
def running(workspace: Workspace, keys: Keys, **options: Any) -> Iterator[Running]:
    app = create_app(workspace.folder, **options)
    server = uvicorn.Server(uvicorn.Config(app, port=0, http=BoundedHeads, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with Running(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        client.app, client.keys = app, keys
        try:
            yield client
        finally:
            server.should_exit = True
            thread.join()
