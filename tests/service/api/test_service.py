"""The service, over a real socket: events in, answers out, and one sentence for what cannot be done."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fairstream import load
from fairstream.service.event_store import EventStore
from fairstream.service.people import values_of
from fairstream.service.settings import Limits
from fairstream.service.workspace import Workspace
from live_services import N_ITEMS, Running, add_model, wait_until

Maker = Callable[..., tuple[Workspace, Running]]
PEOPLE = [{"user_id": "u1", "group": "a"}, {"user_id": 2, "group": "b"}]
EVENT = {"user_id": "u1", "item_id": "i1", "time": 5}


def ipc(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


@pytest.mark.both_databases
def test_events_of_every_kind_are_stored_once(new_service: Maker) -> None:
    workspace, client = new_service(with_model=False)
    store = EventStore(workspace)
    lines = b"\n".join(json.dumps({**EVENT, "item_id": f"l{n}"}).encode() for n in range(3))
    table = pa.table({"user_id": [7, 8], "item_id": ["a", "b"], "time": [1.5, 2.5]})
    sent = [
        ("application/json", json.dumps(EVENT).encode(), 1),
        ("application/json", json.dumps([{**EVENT, "event_id": "e1"}, {**EVENT, "event_id": "e2"}]).encode(), 2),
        ("application/json; charset=utf-8", json.dumps({"events": [{**EVENT, "event_id": "e3"}]}).encode(), 1),
        ("application/x-ndjson", lines, 3),
        ("application/vnd.apache.arrow.stream", ipc(table), 2),
        ("application/json", b"[]", 0),
    ]
    n = 0
    for kind, body, expected in sent:
        headers = {**client.keys.ingest, "Content-Type": kind}
        first = client.post("/v1/events", content=body, headers=headers)
        assert (first.status_code, first.json()) == (200, {"accepted": expected, "repeated": 0, "forgotten": 0})
        n += expected
        assert store.last_seq() == n
        again = client.post("/v1/events", content=body, headers=headers)
        assert again.json() == {"accepted": 0, "repeated": expected, "forgotten": 0}


BAD_BODIES = [
    ("application/json", b""),
    ("application/json", b"{"),
    ("application/json", b"\xff"),
    ("application/json", b"3"),
    ("application/json", b"[" * 100_000),
    ("application/json", b'{"events": 3}'),
    ("application/json", b'[{"user_id": "\\ud800", "item_id": "i", "time": 1}]'),
    ("application/json", b'[{"user_id": "u", "item_id": "i", "time": NaN}]'),
    ("application/json", json.dumps([EVENT, {**EVENT, "time": 1e15}]).encode()),
    ("application/json", json.dumps([EVENT, {**EVENT, "more": 1}]).encode()),
    ("application/x-ndjson", b'{"user_id": "u"}\n'),
    ("application/vnd.apache.arrow.stream", b"not arrow"),
    ("application/vnd.apache.arrow.stream", ipc(pa.table({"user_id": ["u"]}))),
]


def test_what_cannot_be_stored_is_refused_whole_with_a_sentence(new_service: Maker) -> None:
    workspace, client = new_service(with_model=False)
    for kind, body in BAD_BODIES:
        answer = client.post("/v1/events", content=body, headers={**client.keys.ingest, "Content-Type": kind})
        assert answer.status_code == 422, (kind, body[:100])
        assert_one_sentence(answer)
    assert EventStore(workspace).last_seq() == 0


def assert_one_sentence(answer: Any) -> None:
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["detail"]
    assert "\n" not in answer.json()["detail"]
    assert "Traceback" not in answer.text


def test_answers_are_the_models(new_service: Maker) -> None:
    workspace, client = new_service()
    name = client.get("/v1/models", headers=client.keys.read).json()[0]["id"]
    recommender = load(workspace.models.path(name), device="cpu")
    for user, k in (("u1", 5), ("u2", 20), ("nobody/at all?", 3)):
        path = f"/v1/users/{user.replace('/', '%2F').replace('?', '%3F')}/recommendations?k={k}"
        answer = client.get(path, headers=client.keys.read).json()
        for item in answer["items"]:
            item["score"] = float(np.float32(item["score"]))  # nine digits name a float32
        told = recommender.recommend([user], k=k)
        assert answer == {
            "user_id": user,
            "model": name,
            "source": told["source"][0].as_py(),
            "items": [{"item_id": row["item_id"], "score": row["score"]} for row in told.to_pylist()],
        }
    many = client.post("/v1/recommendations", json={"users": ["u1", 17, "u1"], "k": 4}, headers=client.keys.read).json()
    assert many["model"] == name
    assert [answer["user_id"] for answer in many["answers"]] == ["u1", "17", "u1"]
    alone = client.get("/v1/users/u1/recommendations?k=4", headers=client.keys.read).json()
    assert many["answers"][0] == many["answers"][2] == alone


def test_what_a_user_has_just_had_is_not_recommended_again(new_service: Maker) -> None:
    workspace, client = new_service()
    for user in ("u1", "stranger"):
        before = items_for(client, user, 10)
        gone = before[:3]
        events = [{"user_id": user, "item_id": item, "time": 10**6 + n} for n, item in enumerate(gone)]
        assert client.post("/v1/events", json=events, headers=client.keys.ingest).json()["accepted"] == 3
        after = items_for(client, user, 10)
        assert after[:7] == before[3:]
        assert len(after) == 10
        assert not set(after) & set(gone)
    assert items_for(client, "another", 10) == items_for(client, "yet another", 10)
    # What another process stores is known after the next look.
    from fairstream.service.incoming import batch_from_json

    first = items_for(client, "u2", 1)[0]
    event = {"user_id": "u2", "item_id": first, "time": 1}
    EventStore(workspace).append(batch_from_json([event], workspace.config.limits))
    wait_until(lambda: items_for(client, "u2", 1)[0] != first)


def items_for(client: Running, user: str, k: int) -> list[str]:
    answer = client.get(f"/v1/users/{user}/recommendations?k={k}", headers=client.keys.read)
    assert answer.status_code == 200, answer.text
    return [item["item_id"] for item in answer.json()["items"]]


def test_a_promotion_is_taken_up_and_a_rollback_too(new_service: Maker) -> None:
    workspace, client = new_service()
    first = client.get("/v1/models", headers=client.keys.read).json()[0]["id"]
    second = add_model(workspace, seed=1, promote=False)
    assert model_of(client) == first
    promoted = client.post(f"/v1/models/{second}/promote", headers=client.keys.admin)
    assert (promoted.status_code, promoted.json()) == (200, {"model": second})
    wait_until(lambda: model_of(client) == second)
    shown = client.get(f"/v1/models/{second}", headers=client.keys.read).json()
    assert (shown["in_service"], shown["state"]) == (True, "promoted")
    assert client.post(f"/v1/models/{second}/promote", headers=client.keys.admin).status_code == 409
    refused = client.post("/v1/rollback", headers=client.keys.admin)  # it was made from no other
    assert refused.status_code == 409
    assert_one_sentence(refused)
    assert client.post(f"/v1/models/{first}/promote", headers=client.keys.admin).status_code == 200
    wait_until(lambda: model_of(client) == first)
    kinds = [entry["kind"] for entry in client.get("/v1/audit", headers=client.keys.admin).json()]
    assert kinds.count("promote") == 2
    assert client.get("/v1/audit?after=1", headers=client.keys.admin).json()[0]["seq"] == 2
    assert [period["t"] for period in client.get("/v1/periods", headers=client.keys.read).json()] == [0, 1]


def model_of(client: Running) -> str:
    model: str = client.get("/v1/users/u1/recommendations", headers=client.keys.read).json()["model"]
    return model


def test_before_there_is_a_model_what_is_popular_answers(new_service: Maker) -> None:
    workspace, client = new_service(with_model=False)
    assert client.get("/healthz").json() == {"status": "alive"}
    client.wait_until_ready()
    assert items_for(client, "u1", 5) == []
    events = [{"user_id": f"u{n}", "item_id": item, "time": n} for n, item in enumerate(["tea", "tea", "jam"])]
    assert client.post("/v1/events", json=events, headers=client.keys.ingest).json()["accepted"] == 3
    wait_until(lambda: items_for(client, "nobody", 5) == ["jam", "tea"])
    answer = client.get("/v1/users/u0/recommendations", headers=client.keys.read).json()
    assert (answer["model"], answer["source"], answer["items"][0]["item_id"]) == (None, "popularity", "jam")
    name = add_model(workspace)
    wait_until(lambda: model_of(client) == name)


ROUTES = [
    ("POST", "/v1/events", "ingest"),
    ("PUT", "/v1/users", "ingest"),
    ("GET", "/v1/users/u1/recommendations", "read"),
    ("POST", "/v1/recommendations", "read"),
    ("GET", "/v1/periods", "read"),
    ("GET", "/v1/models", "read"),
    ("GET", "/v1/models/m", "read"),
    ("GET", "/metrics", "read"),
    ("POST", "/v1/periods", "admin"),
    ("POST", "/v1/models/m/promote", "admin"),
    ("POST", "/v1/rollback", "admin"),
    ("GET", "/v1/audit", "admin"),
]


def test_every_route_asks_for_its_scope_and_no_other_will_do(new_service: Maker) -> None:
    _, client = new_service(with_model=False)
    for method, path, scope in ROUTES:
        bad = ({}, {"Authorization": "Bearer fs_" + "x" * 43}, {"Authorization": "Basic abc"}, {"Authorization": "é"})
        for headers in bad:
            encoded = {name: value.encode() for name, value in headers.items()}
            answer = client.request(method, path, headers=encoded)
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert_one_sentence(answer)
        for other in {"ingest", "read"} - {scope}:
            answer = client.request(method, path, headers=getattr(client.keys, other))
            assert answer.status_code == 403, (method, path, other)
            assert_one_sentence(answer)
        if path != "/v1/periods" or method == "GET":
            assert client.request(method, path, headers=client.keys.admin).status_code not in (401, 403)
        assert client.request(method, path, headers=getattr(client.keys, scope)).status_code not in (401, 403)


def test_too_large_and_too_long(new_service: Maker) -> None:
    limits = Limits(max_body_bytes=2000, max_k=30, max_users=3)
    _, client = new_service(limits=limits)
    kind = {"Content-Type": "application/json"}
    for content in (b"x" * 2001, (b"x" * 500 for _ in range(5))):
        answer = client.post("/v1/events", content=content, headers={**client.keys.ingest, **kind})
        assert answer.status_code == 413
        assert_one_sentence(answer)
    for k in ("31", "0", "-1", "x", "", "1.0", "9" * 5000, "１"):
        answer = client.get("/v1/users/u1/recommendations", params={"k": k}, headers=client.keys.read)
        assert answer.status_code == 422, k
        assert_one_sentence(answer)
    assert len(items_for(client, "u1", 30)) <= min(30, N_ITEMS)
    for body in (
        {"users": ["a"] * 4},
        {"users": "abc"},
        {"users": [None]},
        {},
        [],
        {"users": [], "k": "3"},
        {"users": [""]},
    ):
        answer = client.post("/v1/recommendations", json=body, headers=client.keys.admin)
        assert answer.status_code == 422, body
        assert_one_sentence(answer)


def test_a_key_that_asks_too_often_is_told_when_to_ask_again(new_service: Maker) -> None:
    _, client = new_service(with_model=False, limits=Limits(requests_per_second=1e-6))  # the second one in 11 days
    assert client.get("/v1/models", headers=client.keys.read).status_code == 200
    refused = client.get("/v1/models", headers=client.keys.read)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 1000
    assert_one_sentence(refused)
    assert client.get("/v1/models", headers=client.keys.admin).status_code == 200  # each key has its own


def test_events_that_nobody_learns_from_are_refused_in_the_end(new_service: Maker) -> None:
    workspace, client = new_service(with_model=False, limits=Limits(max_open_events=1000))
    events = [{**EVENT, "time": n} for n in range(600)]
    assert client.post("/v1/events", json=events, headers=client.keys.ingest).status_code == 200
    more = [{**EVENT, "time": 1000 + n} for n in range(600)]
    refused = client.post("/v1/events", json=more, headers=client.keys.ingest)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert_one_sentence(refused)
    assert EventStore(workspace).last_seq() == 600


def test_unknown_addresses_and_methods(new_service: Maker) -> None:
    _, client = new_service(with_model=False)
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("DELETE", "/v1/events", 405),
        ("GET", "/v1/models/none", 404),
        ("POST", "/v1/models/none/promote", 404),
        ("GET", "/v1/users//recommendations", 422 if client else 0),
    ):
        answer = client.request(method, path, headers=client.keys.admin)
        assert answer.status_code in (status, 503), path
        assert_one_sentence(answer)


def test_groups_go_in_and_never_out(new_service: Maker) -> None:
    workspace, client = new_service(with_model=False)
    table = pa.table({"user_id": ["u1", "u9"], "group": ["secret", "b"]})
    bodies = {
        "application/json": json.dumps(PEOPLE).encode(),
        "application/x-ndjson": b"\n".join(json.dumps(person).encode() for person in PEOPLE),
        "application/vnd.apache.arrow.stream": ipc(table),
    }
    for kind, body in bodies.items():
        answer = client.put("/v1/users", content=body, headers={**client.keys.ingest, "Content-Type": kind})
        assert (answer.status_code, answer.json()) == (200, {"stored": 2})
    stored = dict(zip(*values_of(workspace.engine, None).to_pydict().values(), strict=True))
    assert stored == {"u1": "secret", "2": "b", "u9": "b"}
    for body in (
        [{"user_id": "u"}],
        [{"user_id": "u", "value": "x"}],
        {"user_id": "u"},
        [{"user_id": "u", "group": None}],
    ):
        answer = client.put("/v1/users", json=body, headers=client.keys.ingest)
        assert answer.status_code == 422, body
        assert_one_sentence(answer)
    for path in ("/v1/periods", "/v1/models", "/v1/audit", "/metrics", "/v1/users/u1/recommendations"):
        assert "secret" not in client.get(path, headers=client.keys.admin).text
