"""POST /v1/impressions and its report over HTTP."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from fairstream.service.forgetting import forget
from fairstream.service.workspace import Workspace
from live_services import Running, wait_until


def post(client: Running, *impressions: dict[str, Any]) -> Any:
    return client.post("/v1/impressions", json={"impressions": impressions}, headers=client.keys.ingest)


@pytest.mark.slow
def test_click_through_is_reported_seconds_after_the_clicks(new_service: Any) -> None:
    _, client = new_service()
    answer = post(client, *({"user_id": f"u{n}", "items": ["i1", "i2"], "placement": "home"} for n in range(10)))
    assert (answer.status_code, answer.json()) == (200, {"accepted": 10})
    clicks = [{"user_id": f"u{n}", "item_id": "i1", "time": time.time(), "kind": "click"} for n in range(4)]
    assert client.post("/v1/events", json=clicks, headers=client.keys.ingest).status_code == 200

    def report() -> Any:
        return client.get("/v1/impressions/report?hours=2", headers=client.keys.read).json()

    wait_until(lambda: report()["everyone"]["clicked"] == 4)
    assert report()["everyone"] == {
        "lists": 10,
        "shown": 20,
        "clicked": 4,
        "converted": 0,
        "click_through": 0.2,
        "conversion": 0.0,
    }
    [model] = report()["by_model"]
    assert model == client.app.state.service.serving.status().model


def test_before_anything_is_shown_the_report_has_no_rates(shared: tuple[Workspace, Running]) -> None:
    _, client = shared
    everyone = client.get("/v1/impressions/report", headers=client.keys.read).json()["everyone"]
    assert (everyone["shown"], everyone["click_through"]) == (0, None)


@pytest.mark.parametrize(
    ("impression", "sentence"),
    [
        ({"items": ["a"]}, "impressions.1.user_id: Field required"),
        ({"user_id": "u", "items": []}, "impressions.1.items: List should have at least 1 item"),
        ({"user_id": "u", "items": ["a", "a"]}, "impression 2: items must be different"),
        ({"user_id": "u", "items": ["a"], "time": "soon"}, "impression 2: time must be seconds since 1970 or ISO 8601"),
        ({"user_id": "u", "items": ["a"], "time": 4e9}, "impression 2: time must be at most 300 seconds ahead"),
        ({"user_id": "u", "items": ["a"], "time": True}, "impressions.1.time.float: Input should be a valid number"),
        ({"user_id": "u", "items": ["a"], "list_id": "a\0"}, "impressions.1.list_id: String should match pattern"),
        ({"user_id": "u", "items": ["a"], "clicked": True}, "impressions.1: it has a field that is not known"),
    ],
)
def test_bad_impressions_are_refused_whole(
    shared: tuple[Workspace, Running], impression: dict[str, Any], sentence: str
) -> None:
    _, client = shared
    answer = post(client, {"user_id": "good", "items": ["a"]}, impression)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(sentence)
    assert client.get("/v1/impressions/report", headers=client.keys.read).json()["everyone"]["lists"] == 0


def test_an_ingest_key_does_not_learn_who_was_forgotten(new_service: Any) -> None:
    workspace, client = new_service()
    forget(workspace, ["gone"], by="test")
    lists = [{"user_id": user, "items": ["i1"], "time": 1.0, "list_id": user} for user in ("gone", "u1")]
    assert post(client, *lists).json() == post(client, *lists).json() == {"accepted": 2}
    answer = client.post("/v1/impressions", json={"impressions": lists}, headers=client.keys.admin)
    assert answer.json() == {"accepted": 2, "stored": 0, "repeated": 1, "forgotten": 1}


def test_reading_keys_store_no_impressions(shared: tuple[Workspace, Running]) -> None:
    _, client = shared
    body = {"impressions": [{"user_id": "u", "items": ["a"]}]}
    assert client.post("/v1/impressions", json=body, headers=client.keys.read).status_code == 403


def test_a_large_body_is_parsed_beside_the_event_loop(
    shared: tuple[Workspace, Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = shared
    service, threads = client.app.state.service, set[str]()
    stamp = service.stamp

    def noted(*arguments: Any) -> Any:
        threads.add(threading.current_thread().name)
        return stamp(*arguments)

    monkeypatch.setattr(service, "stamp", noted)
    lists = [{"user_id": "u", "items": [f"item {n}"]} for n in range(1000)]
    assert post(client, *lists).json()["accepted"] == 1000
    large = threads.copy()
    threads.clear()
    assert post(client, lists[0]).status_code == 200
    assert not threads & large
