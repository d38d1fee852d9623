"""Updates, promotions and stops of a service that goes on answering."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow.compute as pc
import pytest

from fairstream import load
from fairstream.service.event_store import EventStore
from fairstream.service.keys import revoke_key
from fairstream.service.learning import Learning
from fairstream.service.registry import promote
from fairstream.service.settings import Gate, LiveConfig
from fairstream.service.workspace import Workspace
from live_services import (
    N_USERS,
    PATIENCE_SECONDS,
    Process,
    Running,
    add_model,
    events_of,
    make_keys,
    running,
    wait_until,
)

pytestmark = pytest.mark.slow

Maker = Callable[..., tuple[Workspace, Running]]
SMALL = {
    "learning": Learning(model="mf", pretrain_epochs=1, update_epochs=1),
    "gate": Gate(min_tested_users=5, min_group_size=2),
    "advantaged": "a",
}
GROUPS = [{"user_id": f"u{row}", "group": "ab"[row % 2]} for row in range(N_USERS)]


def test_promotions_under_load_fail_no_request_and_mix_no_two_models(new_service: Maker) -> None:
    workspace, client = new_service()
    names = [
        client.get("/v1/models", headers=client.keys.read).json()["data"][0]["id"],
        add_model(workspace, seed=1, promote=False),
    ]
    users = [f"u{row}" for row in range(12)]
    expected: dict[tuple[str, str], list[str]] = {}
    for name in names:
        recommender = load(workspace.models.path(name), device="cpu")
        for user in users:
            # What is recent is left out: all that the events of both periods hold.
            events = EventStore(workspace).read(0)
            had = set(events.filter(pc.equal(events["user_id"], user))["item_id"].to_pylist())
            had = had if name == names[0] else set()
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


def test_an_update_is_a_resource_that_tells_how_it_ended_and_runs_once(
    new_service: Maker, capfd: pytest.CaptureFixture[str]
) -> None:
    _, client = new_service(with_model=False, **SMALL)
    assert client.put("/v1/users", json=GROUPS, headers=client.keys.attributes).status_code == 200
    events = events_of(0).to_pylist()
    assert client.post("/v1/events", json=events, headers=client.keys.ingest).json()["accepted"] > 500
    requested = client.post("/v1/updates", headers=client.keys.admin)
    assert (requested.status_code, requested.json()["state"]) == (202, "queued")
    path = requested.headers["location"]
    again = client.post("/v1/updates", headers=client.keys.admin)
    assert again.status_code == 409
    assert requested.json()["id"] in again.json()["detail"]
    assert (again.json()["code"], again.json()["update_id"]) == ("update_running", requested.json()["id"])
    wait_until(lambda: ended(client, path))
    update = client.get(path, headers=client.keys.read).json()
    assert (update["state"], update["t"], update["requested_by"]) == ("promoted", 0, "adminer")
    wait_until(lambda: answered(client, "u1", 5)[0] == update["model"])
    skipped = client.post("/v1/updates", headers=client.keys.admin).headers["location"]  # no events since
    wait_until(lambda: ended(client, skipped))
    assert client.get(skipped, headers=client.keys.read).json()["state"] == "skipped"
    assert client.get(skipped, headers=client.keys.read).json()["reason"]
    states = [row["state"] for row in client.get("/v1/updates", headers=client.keys.read).json()["data"]]
    assert states == ["skipped", "promoted"]
    text = client.get("/metrics", headers=client.keys.read).text
    for line in (
        'updates_total{state="promoted"} 1.0',
        'updates_total{state="skipped"} 1.0',
        "unpromoted_in_a_row 1.0",
    ):
        assert f"fairstream_{line}" in text
    wait_until(lambda: not client.app.state.service.updates._running)
    logged = ""

    def has_logged_all() -> bool:  # by a thread that does not keep requests waiting
        nonlocal logged
        logged += capfd.readouterr().err
        lines = [json.loads(line) for line in logged.splitlines() if line.startswith("{") and line.endswith("}")]
        return {"update started", "update promoted", "update skipped"} <= {line["event"] for line in lines}

    wait_until(has_logged_all)
    assert not any(event["user_id"] + '"' in logged for event in events)


def ended(client: Running, path: str) -> bool:
    return client.get(path, headers=client.keys.read).json()["finished"] is not None


def test_two_services_with_one_schedule_make_one_update_and_both_take_it_up(
    new_service: Maker, capfd: pytest.CaptureFixture[str]
) -> None:
    workspace, first = new_service(with_model=False, every="300 events", **SMALL)
    with running(workspace, first.keys, every="300 events") as second:
        second.wait_until_ready()
        first.put("/v1/users", json=GROUPS, headers=first.keys.attributes)
        first.post("/v1/events", json=events_of(0).to_pylist(), headers=first.keys.ingest)
        for client in (first, second):
            wait_until(lambda client=client: client.get("/readyz").json()["model"] is not None)  # type: ignore[misc]
        (update,) = second.get("/v1/updates", headers=first.keys.read).json()["data"]
        assert (update["state"], update["requested_by"]) == ("promoted", "schedule")


def test_a_revoked_key_opens_nothing_after_a_while(new_service: Maker) -> None:
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
