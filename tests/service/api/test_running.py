"""Updates, promotions and stops of a service that goes on answering."""

from __future__ import annotations

import io
import json
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairstream import load
from fairstream.service.api import auth
from fairstream.service.event_store import EventStore
from fairstream.service.keys import revoke_key
from fairstream.service.registry import promote
from fairstream.service.settings import Gate, Learning, LiveConfig
from fairstream.service.workspace import Workspace
from live_services import (
    N_USERS,
    PATIENCE_SECONDS,
    Process,
    Running,
    add_model,
    events_of,
    make_keys,
    wait_until,
)

pytestmark = pytest.mark.slow

Maker = Callable[..., tuple[Workspace, Running]]
SMALL = {
    "learning": Learning(pretrain_epochs=1, update_epochs=1),
    "gate": Gate(min_tested_users=5, min_group_size=2),
    "advantaged": "a",
}
GROUPS = [{"user_id": f"u{row}", "group": "ab"[row % 2]} for row in range(N_USERS)]


def test_promotions_under_load_fail_no_request_and_mix_no_two_models(new_service: Maker) -> None:
    workspace, client = new_service()
    names = [
        client.get("/v1/models", headers=client.keys.read).json()[0]["id"],
        add_model(workspace, seed=1, promote=False),
    ]
    users = [f"u{row}" for row in range(12)]
    expected: dict[tuple[str, str], list[str]] = {}
    for name in names:
        recommender = load(workspace.models.path(name), device="cpu")
        for user in users:
            # What is recent is left out: all that the events of both periods hold.
            had = set(EventStore(workspace).items_of(user)) if name == names[0] else set()
            told = recommender.recommend([user], k=recommender.state.history.n_items)["item_id"].to_pylist()
            expected[name, user] = [item for item in told if item not in had][:5]
    wait_until(lambda: answered(client, "u1", 5)[1] == expected[names[0], "u1"])
    stop, wrong, counts = threading.Event(), [], dict.fromkeys(names, 0)

    def ask(seed: int) -> None:
        choice = random.Random(seed)
        with httpx.Client(base_url=client.base_url, timeout=PATIENCE_SECONDS) as own:
            while not stop.is_set():
                user = choice.choice(users)
                answer = own.get(f"/v1/users/{user}/recommendations?k=5", headers=client.keys.read)
                found = answer.json()
                items = [item["item_id"] for item in found.get("items", [])]
                if answer.status_code != 200 or items != expected[found["model"], user]:
                    wrong.append((user, answer.text))
                else:
                    counts[found["model"]] += 1

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(4):
        name = names[(turn + 1) % 2]
        promote(workspace, name, by="test")
        wait_until(lambda name=name: answered(client, "u1", 5)[0] == name)  # type: ignore[misc]
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
    assert min(counts.values()) > 0


def answered(client: Running, user: str, k: int) -> tuple[str, list[str]]:
    found = client.get(f"/v1/users/{user}/recommendations?k={k}", headers=client.keys.read).json()
    return found["model"], [item["item_id"] for item in found["items"]]


@pytest.mark.slow
def test_an_update_is_started_once_and_its_model_answers(new_service: Maker) -> None:
    workspace, client = new_service(with_model=False, **SMALL)
    stream = client.app.state.service.logs._stream = io.StringIO()
    assert client.put("/v1/users", json=GROUPS, headers=client.keys.ingest).status_code == 200
    events = events_of(0).to_pylist()
    assert client.post("/v1/events", json=events, headers=client.keys.ingest).json()["accepted"] > 500
    started = client.post("/v1/periods", headers=client.keys.admin)
    assert (started.status_code, started.json()) == (202, {"started": True})
    again = client.post("/v1/periods", headers=client.keys.admin)
    assert again.status_code == 409
    client.wait_until_ready()
    assert answered(client, "u1", 5)[1]
    assert len(client.get("/v1/models", headers=client.keys.read).json()) == 1
    assert client.get("/v1/periods", headers=client.keys.read).json()[0]["t"] == 0
    wait_until(lambda: "update ended" in stream.getvalue())
    with workspace.updating():
        assert client.post("/v1/periods", headers=client.keys.admin).status_code == 409  # another process does
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {"update started", "update ended", "model swapped", "request"} <= {line["event"] for line in lines}
    assert not any(event["user_id"] + '"' in stream.getvalue() for event in events)


@pytest.mark.slow
def test_a_schedule_by_events_updates_by_itself(new_service: Maker) -> None:
    _, client = new_service(with_model=False, every="300 events", **SMALL)
    client.put("/v1/users", json=GROUPS, headers=client.keys.ingest)
    client.post("/v1/events", json=events_of(0).to_pylist(), headers=client.keys.ingest)
    client.wait_until_ready()


def test_a_revoked_key_opens_nothing_after_a_while(new_service: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "_BELIEVED_SECONDS", 0.1)
    workspace, client = new_service(with_model=False)
    assert client.get("/v1/models", headers=client.keys.read).status_code == 200
    revoke_key(workspace.engine, "reader")
    wait_until(lambda: client.get("/v1/models", headers=client.keys.read).status_code == 401)


def test_the_dashboard_is_there(new_service: Maker) -> None:
    _, client = new_service()
    page = client.get("/", follow_redirects=True)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_command_serves_and_stops_and_loses_nothing(tmp_path: Path, how: signal.Signals) -> None:
    log = tmp_path / "log"
    with Workspace.create(tmp_path / "w", LiveConfig()) as workspace:
        keys = make_keys(workspace)
        add_model(workspace)
        before = EventStore(workspace).last_seq()
        for n in range(1, 3):  # and again, after it was stopped
            with Process(workspace.folder, log) as process:
                process.wait_until_ready()
                event: dict[str, Any] = {"user_id": "u1", "item_id": "i1", "time": n}
                answer = httpx.post(
                    f"{process.address}/v1/events", json=event, headers=keys.ingest, timeout=PATIENCE_SECONDS
                )
                assert answer.json()["accepted"] == 1
                assert process.end(how) in (0, -how)
            assert f"{process.address}/" in log.read_text()
            assert "Traceback" not in log.read_text()
            assert EventStore(workspace).last_seq() == before + n
