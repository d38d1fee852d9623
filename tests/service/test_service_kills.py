"""The real service, killed at any moment: what it acknowledged is there once, and a whole model answers."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from streams import know, periods_of, take_in

from fairstream.service import schema, updates
from fairstream.service.audit import verify
from fairstream.service.keys import make_key
from fairstream.service.learning import Learning
from fairstream.service.registry import models
from fairstream.service.settings import Gate
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace
from live_services import PATIENCE_SECONDS, Process, wait_until

pytestmark = pytest.mark.slow
N_KILLS = int(os.environ.get("FAIRSTREAM_KILLS", "8"))
LIVES = (30, 120, 400)
"""The most answers that it gives from when it is ready to its end, unless the end hits an update."""
OPTIONS = {
    "learning": Learning(
        model="mf",
        method="FADE",
        model_settings={"embedding_dim": 8},
        pretrain_epochs=3,
        update_epochs=2,
        batch_size=256,
    ),
    "gate": Gate(min_tested_users=30, min_group_size=10, max_user_share=1, max_fall=0.99, max_rise=1, max_drift=1),
    "keep_models": 4,
}
Maker = Callable[..., Workspace]


class Client:
    """Sends events, asks for lists and for updates until the service dies; keeps what was acknowledged."""

    def __init__(self, key: str) -> None:
        self._headers = {"Authorization": f"Bearer {key}"}
        self.acknowledged: set[str] = set()
        self.statuses: Counter[str] = Counter()
        self.models: set[str] = set()
        self.wrong: list[str] = []

    @contextmanager
    def at_work(self, life: Process, seed: int) -> Iterator[None]:
        stop = threading.Event()
        tasks = [
            threading.Thread(target=task, args=(life, seed, stop)) for task in (self._send, self._ask, self._update)
        ]
        for task in tasks:
            task.start()
        try:
            yield
        finally:
            stop.set()
            for task in tasks:
                task.join()

    def _repeat(
        self, life: Process, stop: threading.Event, pause: float, step: Callable[[httpx.Client, int], None]
    ) -> None:
        with (
            httpx.Client(base_url=life.address, headers=self._headers, timeout=PATIENCE_SECONDS) as client,
            suppress(httpx.TransportError),
        ):
            n = 0
            while not stop.is_set():
                step(client, n)
                n += 1
                time.sleep(pause)

    def _send(self, life: Process, seed: int, stop: threading.Event) -> None:
        rng = random.Random(seed)
        before: list[dict[str, Any]] = []

        def step(client: httpx.Client, n: int) -> None:
            nonlocal before
            events = [
                {
                    "event_id": f"{seed}-{n}-{i}",
                    "user_id": f"u{rng.randrange(300)}",
                    "item_id": f"i{rng.randrange(400)}",
                    "time": 1_700_000_000 + rng.randrange(10**6),
                }
                for i in range(rng.randrange(1, 200))
            ]
            again = before if rng.random() < 0.3 else []
            answer = client.post("/v1/events", json=events + again)
            self.statuses[f"events {answer.status_code}"] += 1
            if answer.status_code == 200:
                self.acknowledged.update(event["event_id"] for event in events)
                if answer.json()["stored"] != len(events) or answer.json()["repeated"] != len(again):
                    self.wrong.append(answer.text)
                before = events[:5]
            elif answer.status_code != 503:
                self.wrong.append(answer.text)

        self._repeat(life, stop, 0.02, step)

    def _ask(self, life: Process, seed: int, stop: threading.Event) -> None:
        rng = random.Random(seed)

        def step(client: httpx.Client, _: int) -> None:
            answer = client.get(f"/v1/users/u{rng.randrange(300)}/recommendations", params={"k": 5})
            self.statuses[f"lists {answer.status_code}"] += 1
            if answer.status_code != 200 or len(answer.json()["items"]) != 5:
                self.wrong.append(answer.text)
            else:
                self.models.add(answer.json()["model"])

        self._repeat(life, stop, 0.02, step)

    def _update(self, life: Process, _: int, stop: threading.Event) -> None:
        def step(client: httpx.Client, _: int) -> None:
            answer = client.post("/v1/updates")
            self.statuses[f"updates {answer.status_code}"] += 1
            if answer.status_code not in (202, 409):
                self.wrong.append(answer.text)

        self._repeat(life, stop, 0.3, step)


def is_updating(workspace: Workspace) -> bool:
    return any(row.state == "running" for row in updates.listed(workspace.engine, limit=1))


def fail_queued(workspace: Workspace) -> None:
    """Fail the update that a killed service has queued, as if the minute had passed that it has to start."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(updates, "_START_WITHIN", 0)
        updates.fail_dead(workspace)


def test_a_service_that_is_killed_again_and_again(new_workspace: Maker, tmp_path: Path) -> None:
    workspace = new_workspace(**OPTIONS)
    periods, people = periods_of(n_users=200, n_items=400, n_events=4000, n_periods=1)
    know(workspace, people)
    take_in(workspace, periods[0])
    begin = time.monotonic()
    assert update(workspace).kind == "promoted"
    log, rng, client = tmp_path / "log", random.Random(0), Client(make_key(workspace.engine, "test", "admin"))
    update_seconds, start_seconds, kills = time.monotonic() - begin, 0.0, Counter[str]()

    begin = time.monotonic()
    for n in range(N_KILLS):
        with Process(workspace.folder, log) as life:
            kind = rng.choices(("starting", "answering", "updating"), (1, 2, 2))[0] if n else "answering"
            kills[kind] += 1
            if kind == "starting":
                time.sleep(rng.random() * start_seconds)
                life.end(with_update=True)
                continue
            started = time.monotonic()
            life.wait_until_ready()
            start_seconds = time.monotonic() - started
            with client.at_work(life, n):
                if kind == "updating":
                    fail_queued(workspace)
                    wait_until(lambda: is_updating(workspace))
                    time.sleep(rng.random() * 1.5 * update_seconds)
                else:
                    enough = client.statuses.total() + rng.random() * rng.choice(LIVES)
                    wait_until(lambda enough=enough: client.statuses.total() > enough)  # type: ignore[misc]
                life.end(with_update=rng.random() < 0.5)
    seconds = time.monotonic() - begin
    with Process(workspace.folder, log) as life:  # and a last one, until an update has come to its end
        life.wait_until_ready()
        with client.at_work(life, N_KILLS):
            wait_until(lambda: len(models(workspace.engine)) > 1 and len(client.acknowledged) > 100)
    with workspace.engine.connect() as connection:
        there = connection.execute(select(schema.events.c.event_id)).scalars().all()
        n_periods = len(connection.execute(select(schema.periods.c.t)).all())
        outcomes = Counter(f"{row.state}: {row.reason}"[:60] for row in connection.execute(select(schema.updates)))
    lost = client.acknowledged - set(there)
    print(f"\n{N_KILLS} kills in {seconds:.0f} s: {dict(kills)}; answers: {dict(sorted(client.statuses.items()))}")
    print(f"{len(client.acknowledged)} events acknowledged, {len(lost)} lost, {len(there) - len(set(there))} twice")
    print(f"{n_periods} periods; updates: {dict(outcomes.most_common())}")
    assert not client.wrong, client.wrong[:5]
    assert len(there) == len(set(there))
    assert not lost
    names = [row.id for row in models(workspace.engine)]
    assert client.models <= set(names)
    assert n_periods == len(names) > 1
    assert b"Traceback" not in log.read_bytes()
    verify(workspace.engine)
