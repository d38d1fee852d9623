"""The service, over a real socket: events in, answers out, and one sentence for what cannot be done."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event, update

from fairstream import load
from fairstream.errors import ModelError
from fairstream.service import registry, schema, updates
from fairstream.service.api import auth
from fairstream.service.api import service as service_module
from fairstream.service.api.errors import CODES
from fairstream.service.api.follower import Follower
from fairstream.service.audit import entries
from fairstream.service.database import writing
from fairstream.service.event_store import EventStore
from fairstream.service.incoming import batch_from_json
from fairstream.service.keys import make_key
from fairstream.service.lists import Ask
from fairstream.service.serving import Serving
from fairstream.service.settings import Limits
from fairstream.service.workspace import Workspace
from live_services import N_ITEMS, Running, add_model, make_keys, outage, running, wait_until

Shared = tuple[Workspace, Running]
Maker = Callable[..., Shared]
PEOPLE = [{"user_id": "u1", "group": "a"}, {"user_id": 2, "group": "b"}]
EVENT = {"user_id": "u1", "item_id": "i1", "time": 5}


def test_events_of_every_kind_are_stored_once(new_service: Maker) -> None:
    workspace, client = new_service(with_model=False)
    store = EventStore(workspace)
    lines = b"\n".join(json.dumps({**EVENT, "item_id": f"l{n}"}).encode() for n in range(3))
    sent = [
        ("application/json", json.dumps(EVENT).encode(), 1),
        ("application/json", json.dumps([{**EVENT, "event_id": "e1"}, {**EVENT, "event_id": "e2"}]).encode(), 2),
        ("application/json; charset=utf-8", json.dumps({"events": [{**EVENT, "event_id": "e3"}]}).encode(), 1),
        ("application/x-ndjson", lines, 3),
        ("application/json", b"[]", 0),
    ]
    n = 0
    for kind, body, expected in sent:
        headers = {**client.keys.admin, "Content-Type": kind}
        first = client.post("/v1/events", content=body, headers=headers)
        details = {"accepted": expected, "stored": expected, "repeated": 0, "forgotten": 0}
        assert (first.status_code, first.json()) == (200, details)
        n += expected
        assert store.last_seq() == n
        again = client.post("/v1/events", content=body, headers=headers)
        assert again.json() == {"accepted": expected, "stored": 0, "repeated": expected, "forgotten": 0}
        # An ingest key does not learn which events there are.
        again = client.post("/v1/events", content=body, headers={**headers, **client.keys.ingest})
        assert again.json() == {"accepted": expected}


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
]


def test_what_cannot_be_stored_is_refused_whole_with_a_sentence(shared: Shared) -> None:
    workspace, client = shared
    before = EventStore(workspace).last_seq()
    for kind, body in BAD_BODIES:
        answer = client.post("/v1/events", content=body, headers={**client.keys.ingest, "Content-Type": kind})
        assert answer.status_code == 422, (kind, body[:100])
        assert_one_sentence(answer)
    assert EventStore(workspace).last_seq() == before


def assert_one_sentence(answer: Any) -> None:
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json())[:2] == ["detail", "code"]
    assert CODES[answer.json()["code"]].status == answer.status_code
    assert "\n" not in answer.json()["detail"]
    assert "Traceback" not in answer.text


def test_answers_are_the_models(shared: Shared) -> None:
    workspace, client = shared
    row = registry.models(workspace.engine)[0]
    recommender = load(workspace.models.path(row.folder), device="cpu")
    for user, k in (("u1", 5), ("u2", 20), ("nobody/at all?", 3)):
        path = f"/v1/users/{user.replace('/', '%2F').replace('?', '%3F')}/recommendations?k={k}"
        answers = [client.get(path, headers=client.keys.read).json() for _ in range(2)]  # made, then cached
        assert len({each.pop("list_id") for each in answers}) == 2
        assert answers[0] == answers[1]
        items, table = answers[0].pop("items"), recommender.recommend([user], k=k)
        assert answers[0] == {"user_id": user, "model": row.id, "source": table["source"][0].as_py()}
        assert [item["item_id"] for item in items] == table["item_id"].to_pylist()
        # The last bit depends on which users the scores were computed with.
        scores = [item["score"] for item in items]
        if answers[0]["source"] == "popularity":  # they would show how much a level moves an item
            assert set(scores) == {None}
        else:
            assert scores == pytest.approx(table["score"].to_pylist(), rel=1e-5)
    many = client.post("/v1/recommendations", json={"users": ["u1", 17, "u1"], "k": 4}, headers=client.keys.read).json()
    assert many["model"] == row.id
    assert [answer["user_id"] for answer in many["answers"]] == ["u1", "17", "u1"]
    alone = client.get("/v1/users/u1/recommendations?k=4", headers=client.keys.read).json()
    assert len({each.pop("list_id") for each in many["answers"]}) == 3
    assert many["answers"][0] == many["answers"][2]
    assert items_of(many["answers"][0]) == items_of(alone)


def test_a_plain_request_gets_the_same_list_as_one_with_parameters(shared: Shared) -> None:
    _, client = shared
    counted = 'fairstream_requests_total{method="GET",route="/v1/users/{user_id}/recommendations",status="200"}'
    before = metric(client, counted)
    for user in ("u5", "nobody%2F7", "%C3%BC%22"):
        for query in ("", "?k=7", "?k=007"):
            path = f"/v1/users/{user}/recommendations"
            first, second = (client.get(path + query, headers=client.keys.read) for _ in range(2))
            third = client.get(f"{path}?{query[1:]}&x=1", headers=client.keys.read)  # not a plain request
            ids, lists = zip(*(each.content.split(b",", 1) for each in (first, second, third)), strict=True)
            assert len(set(ids)) == 3
            assert lists[0] == lists[1] == lists[2]
            assert second.headers["content-type"] == third.headers["content-type"] == "application/json"
    assert metric(client, counted) == before + 27
    sources = [
        metric(client, f'fairstream_recommendations_total{{source="{source}"}}') for source in ("model", "popularity")
    ]
    assert min(sources) >= 9
    for k in ("0", "101", "99999999999999999999", "-1", "x", "%31", ""):
        path = f"/v1/users/u5/recommendations?k={k}"
        assert client.get(path, headers=client.keys.read).status_code == (200 if k == "%31" else 422), k
    for length, status in ((256, 200), (257, 422)):
        path = f"/v1/users/{'x' * length}/recommendations"
        for query in ("", "?x=1"):
            assert client.get(path + query, headers=client.keys.read).status_code == status


def metric(client: Running, name: str) -> float:
    lines = client.get("/metrics", headers=client.keys.read).text.splitlines()
    return next((float(line.removeprefix(name)) for line in lines if line.startswith(name)), 0.0)


def test_lists_of_sessions_and_lists_with_filters(shared: Shared) -> None:
    _, client = shared

    def ask(**question: Any) -> list[list[str]]:
        answer = client.post("/v1/recommendations", json={"k": 5, **question}, headers=client.keys.history)
        assert answer.status_code == 200, answer.text
        return [items_of(each) for each in answer.json()["answers"]]

    (best,) = ask(users=["u3"])
    assert ask(users=["u3"], exclude=best[:2])[0][:3] == best[2:]
    assert ask(users=["u3"], only=best[1:3]) == [best[1:3]]
    sessions = ask(histories=[[], best[:1], ["unheard of"]])
    assert all(len(session) == 5 for session in sessions)
    assert best[0] not in sessions[1]
    assert sessions[0] == sessions[2]
    path = f"/v1/users/u3/recommendations?k=5&exclude={best[0]}&exclude={best[1]}"
    assert items_of(client.get(path, headers=client.keys.history).json())[:3] == best[2:]
    path = f"/v1/users/u3/recommendations?only={best[1]}&only={best[2]}"
    assert items_of(client.get(path, headers=client.keys.history).json()) == best[1:3]


def test_a_withdrawn_item_leaves_every_list_at_once_and_comes_back(shared: Shared) -> None:
    workspace, client = shared
    before = items_for(client, "u4", 10)
    path, item = f"/v1/items/{before[0]}", {"item_id": before[0]}
    answer = client.put("/v1/items", json=[{**item, "available": False}], headers=client.keys.ingest)
    assert (answer.status_code, answer.json()) == (200, {"stored": 1})
    assert client.get(path, headers=client.keys.read).json()["available"] is False
    assert items_for(client, "u4", 9) == before[1:]
    assert before[0] not in items_for(client, "somebody new", 100)
    page = client.get("/v1/items?available=false", headers=client.keys.read).json()
    assert ([row["item_id"] for row in page["data"]], page["cursor"]) == ([before[0]], None)
    for _ in range(2):  # the second time it changes nothing
        again = client.put("/v1/items", json=[{**item, "available": True}], headers=client.keys.admin)
        assert again.status_code == 200
        assert items_for(client, "u4", 10) == before
    assert not [entry for entry in entries(workspace.engine) if entry.kind == "item"]  # stock is no decision


def test_what_a_user_has_just_had_is_not_recommended_again(shared: Shared) -> None:
    workspace, client = shared
    for user in ("u11", "stranger"):
        before = items_for(client, user, 10)
        gone = before[:3]
        events = [{"user_id": user, "item_id": item, "time": 10**6 + n} for n, item in enumerate(gone)]
        assert client.post("/v1/events", json=events, headers=client.keys.ingest).json()["accepted"] == 3
        after = items_for(client, user, 10)
        if user == "u11":  # matrix factorisation reads no history: the others keep their order
            assert after[:7] == before[3:]
        assert len(after) == 10
        assert not set(after) & set(gone)
    assert items_for(client, "another", 10) == items_for(client, "yet another", 10)
    first = items_for(client, "u12", 1)[0]  # what another process stores is known after the next look
    event = {"user_id": "u12", "item_id": first, "time": 1}
    EventStore(workspace).append(batch_from_json([event], workspace.config.limits))
    wait_until(lambda: items_for(client, "u12", 1)[0] != first)


def items_for(client: Running, user: str, k: int) -> list[str]:
    answer = client.get(f"/v1/users/{user}/recommendations?k={k}", headers=client.keys.read)
    assert answer.status_code == 200, answer.text
    return items_of(answer.json())


def items_of(answer: dict[str, Any]) -> list[str]:
    return [item["item_id"] for item in answer["items"]]


def test_a_person_to_be_forgotten_is_a_stranger_in_the_next_list(new_service: Maker) -> None:
    _, client = new_service()
    client.app.state.service._tasks["follower"].cancel()  # which would tell the list half a second later
    stranger = items_for(client, "nobody", 10)
    assert items_for(client, "u1", 10) != stranger
    answer = client.delete("/v1/users/u1", headers=client.keys.admin)
    assert answer.status_code == 202
    assert answer.json()["n_events"] > 0
    assert items_for(client, "u1", 10) == stranger


def test_a_rollback_waits_for_no_update(new_service: Maker) -> None:
    workspace, client = new_service()
    first = client.get("/v1/models", headers=client.keys.read).json()["data"][0]["id"]
    second = add_model(workspace, seed=1, promote=False)
    with writing(workspace.engine) as connection:
        connection.execute(update(schema.models).where(schema.models.c.id == second).values(parent=first))
    registry.promote(workspace, second, by="test")
    queued = updates.request(workspace, "test")
    with workspace.updating():  # as an update that runs holds it
        updates._begin(workspace.engine, queued, "test")
        answer = client.post("/v1/rollback", headers=client.keys.admin)
        assert (answer.status_code, answer.json()) == (200, {"model": first})
        wait_until(lambda: model_of(client) == first)
    assert updates.get(workspace.engine, queued.id).state == "running"


@pytest.mark.slow
def test_readiness_says_what_keeps_updates_from_learning(new_service: Maker) -> None:
    workspace, client = new_service(limits=Limits(max_open_events=1000))

    def problems() -> str:
        return " ".join(client.get("/readyz").json()["problems"])

    assert problems() == ""
    for n in range(2):
        queued = updates.request(workspace, "test")
        updates.close_left(workspace, queued.id, "skipped", f"too few, {n}")
    EventStore(workspace).append(
        batch_from_json([{"user_id": f"u{n}", "item_id": "i1", "time": n} for n in range(950)], Limits())
    )
    wait_until(lambda: "2 updates in a row promoted no model" in problems() and "open period is full" in problems())


def test_a_promotion_is_taken_up_and_a_rollback_too(new_service: Maker) -> None:
    workspace, client = new_service()
    first = client.get("/v1/models", headers=client.keys.read).json()["data"][0]["id"]
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
    kinds = [entry["kind"] for entry in client.get("/v1/audit", headers=client.keys.admin).json()["data"]]
    assert kinds.count("promote") == 2
    assert pages(client, "/v1/audit", "seq") == list(range(1, len(kinds) + 1))
    assert pages(client, "/v1/periods", "t") == [0, 1]
    assert pages(client, "/v1/models", "id") == [second, first]
    light = client.get("/v1/models", headers=client.keys.read).json()["data"][0]
    assert not {"decision", "about"} & light.keys()


def pages(client: Running, path: str, name: str) -> list[Any]:
    """That field of every entry, read a page of one at a time."""
    found, where = [], {}
    while True:
        page = client.get(path, params={"limit": 1, **where}, headers=client.keys.admin).json()
        found += [entry[name] for entry in page["data"]]
        if page["cursor"] is None:
            return found
        where = {"cursor": page["cursor"]}


def test_entries_of_the_record_are_read_from_where_a_page_begins(shared: Shared) -> None:
    workspace, client = shared
    for n in range(30):
        make_key(workspace.engine, f"more {n}", "read")
    n_rows = 0

    @event.listens_for(client.app.state.service.workspace.engine, "after_cursor_execute")
    def count(_: Any, cursor: Any, statement: str, *more: Any) -> None:
        nonlocal n_rows
        n_rows += "FROM audit" in statement and "audit.seq > ?" in statement and more[0][0] == 25

    page = client.get("/v1/audit?cursor=25&limit=3", headers=client.keys.admin).json()
    assert [entry["seq"] for entry in page["data"]] == [26, 27, 28]
    assert n_rows == 1


def model_of(client: Running) -> str:
    model: str = client.get("/v1/users/u1/recommendations", headers=client.keys.read).json()["model"]
    return model


def test_before_there_is_a_model_popularity_answers_and_the_service_says_so(new_workspace: Any) -> None:
    workspace = new_workspace()
    events = [{"user_id": f"u{n}", "item_id": item, "time": n} for n, item in enumerate("aaabbc")]
    EventStore(workspace).append(batch_from_json(events, workspace.config.limits))
    with running(workspace, make_keys(workspace)) as client:
        client.wait_until_ready()
        assert set(items_for(client, "stranger", 3)) == {"a", "b", "c"}
        answer = client.get("/v1/users/u0/recommendations", headers=client.keys.read).json()
        assert (answer["model"], answer["source"], set(items_of(answer))) == (None, "popularity", {"b", "c"})
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["status"], ready.json()["model"]) == (200, "degraded", None)
        assert "no model yet" in ready.json()["problems"][0]


def test_the_character_0_is_refused_wherever_an_address_may_have_it(
    new_workspace: Callable[..., Workspace],
) -> None:
    workspace = new_workspace()
    with running(workspace, make_keys(workspace)) as client:
        client.wait_until_ready()
        for path in (
            "/v1/users/a%00b/recommendations",
            "/v1/users/a%00b/data",
            "/v1/models/%00",
            "/v1/updates?cursor=a%00",
            "/v1/items?cursor=%00",
            "/models/%00",
        ):
            answer = client.get(path, headers=client.keys.admin)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), path
        assert client.get("/v1/users/a%2500b/recommendations", headers=client.keys.read).json()["user_id"] == "a%00b"


def test_probes_may_use_head_and_need_no_key(shared: Shared) -> None:
    _, client = shared
    for path in ("/healthz", "/readyz"):
        assert client.head(path).status_code == client.get(path).status_code == 200
    assert client.get("/healthz").json() == {"status": "alive"}
    assert client.get("/readyz").json()["status"] == "ready"


def test_lists_go_on_while_the_database_is_away_and_readiness_says_what_is_wrong(new_service: Maker) -> None:
    _, client = new_service()
    service = client.app.state.service
    wanted = items_for(client, "u1", 5)
    event = {"user_id": "u1", "item_id": "i1", "time": 5}
    with outage(service.workspace.engine):
        for user in ("u1", "u2", "stranger"):  # cached, and not
            assert len(items_for(client, user, 5)) == 5
        assert items_for(client, "u1", 5) == wanted
        for answer in (
            client.post("/v1/events", json=event, headers=client.keys.ingest),
            client.get("/v1/models", headers=client.keys.read),
            client.post("/v1/updates", headers=client.keys.admin),
        ):
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) > 0
            assert_one_sentence(answer)
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        assert any("stored" in problem for problem in ready.json()["problems"])
        text = client.get("/metrics", headers=client.keys.read).text
        assert "fairstream_database_up 0" in text
        assert "fairstream_ready 1" in text
    assert client.post("/v1/events", json=event, headers=client.keys.ingest).json()["accepted"] == 1
    wait_until(lambda: client.get("/readyz").json()["status"] == "ready")


@pytest.mark.slow
def test_readiness_tells_of_a_database_that_hangs_although_every_thread_waits_for_it(
    new_service: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = new_service()
    monkeypatch.setattr(service_module, "_LATE_SECONDS", 0.1)
    answers_again = threading.Event()
    event.listen(client.app.state.service.workspace.engine, "engine_connect", lambda _: answers_again.wait())
    in_service = registry.in_service  # before it wants a connection, of which there are fewer than threads
    monkeypatch.setattr(registry, "in_service", lambda engine: answers_again.wait() and in_service(engine))
    late = ["The database was last read", "Events have waited"]
    with ThreadPoolExecutor(61) as threads:
        try:
            blocked = [threads.submit(client.get, "/v1/models", headers=client.keys.read) for _ in range(60)]
            blocked.append(threads.submit(client.post, "/v1/events", json=EVENT, headers=client.keys.ingest))

            def told() -> list[str]:
                ready = client.get("/readyz", timeout=30).json()
                return [each for each in late if any(problem.startswith(each) for problem in ready["problems"])]

            wait_until(lambda: told() == late)
            assert len(items_for(client, "u1", 5)) == 5
            assert not blocked[-1].done()
        finally:
            answers_again.set()
    assert blocked[-1].result().status_code == 200
    monkeypatch.undo()
    wait_until(lambda: client.get("/readyz").json()["status"] == "ready")


def test_readiness_names_a_part_that_has_ended(new_service: Maker) -> None:
    _, client = new_service()
    service = client.app.state.service
    service._tasks["keys"].cancel()
    service._tasks["follower"].cancel()
    wait_until(lambda: len(client.get("/readyz").json()["problems"]) == 2)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    assert {"keys", "follower"} == {problem.split("'")[1] for problem in answer.json()["problems"]}


def test_the_login_is_as_slow_with_wrong_keys_as_the_interface(new_service: Maker) -> None:
    _, client = new_service(with_model=False)
    key = client.keys.read["Authorization"].removeprefix("Bearer ")
    statuses = [client.post("/login", data={"key": f"fs_{n:043}"}).status_code for n in range(30)]
    assert statuses[:5] == [401] * 5
    assert statuses.count(429) >= 15
    assert client.post("/login", data={"key": key}).status_code == 429
    unknown = client.get("/v1/models", headers={"Authorization": "Bearer fs_" + "x" * 43})
    assert unknown.status_code == 429  # of the same address
    assert client.get("/v1/models", headers=client.keys.read).status_code == 200  # a known key waits for nothing


ROUTES = [
    ("POST", "/v1/events", "ingest"),
    ("PUT", "/v1/items", "ingest"),
    ("PUT", "/v1/users", "attributes"),
    ("GET", "/v1/users/u1/recommendations", "read"),
    ("POST", "/v1/recommendations", "read"),
    ("GET", "/v1/items", "read"),
    ("GET", "/v1/items/popular", "read"),
    ("GET", "/v1/items/i1/similar", "read"),
    ("GET", "/v1/periods", "read"),
    ("GET", "/v1/models", "read"),
    ("GET", "/v1/models/m", "read"),
    ("GET", "/v1/updates", "read"),
    ("GET", "/v1/updates/u", "read"),
    ("GET", "/metrics", "read"),
    ("POST", "/v1/models/m/promote", "admin"),
    ("POST", "/v1/rollback", "admin"),
    ("GET", "/v1/audit", "admin"),
    ("POST", "/v1/updates", "admin"),
    ("DELETE", "/v1/users/nobody", "admin"),
    ("GET", "/v1/users/nobody/data", "admin"),
]
STARTS_PROCESSES = (("POST", "/v1/updates"), ("DELETE", "/v1/users/nobody"), ("GET", "/v1/users/nobody/data"))


def test_every_route_needs_its_scope_and_no_other_will_do(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    _, client = shared
    monkeypatch.setattr(auth, "_WRONG_KEYS", 1000)
    for method, path, scope in ROUTES:
        bad = ({}, {"Authorization": "Bearer fs_" + "x" * 43}, {"Authorization": "Basic abc"}, {"Authorization": "é"})
        for headers in bad:
            encoded = {name: value.encode() for name, value in headers.items()}
            answer = client.request(method, path, headers=encoded)
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert_one_sentence(answer)
        for other in {"ingest", "attributes", "read", "history"} - {scope, "history" if scope == "read" else ""}:
            answer = client.request(method, path, headers=getattr(client.keys, other))
            assert (answer.status_code, answer.json()["detail"]) == (403, f"This API key lacks the scope {scope!r}.")
        if (method, path) not in STARTS_PROCESSES:
            for headers in (client.keys.admin, getattr(client.keys, scope)):
                assert client.request(method, path, headers=headers).status_code not in (401, 403)


def without_lists(client: Running) -> Serving:
    """What answers, with nothing cached; some lists are made before anybody asks."""
    serving: Serving = client.app.state.service.serving
    with serving.current._lock:
        serving.current._lists.clear()
    return serving


def test_a_list_needs_a_key_with_the_scope_whether_it_is_cached_or_not(shared: Shared) -> None:
    _, client = shared
    serving, revoked = without_lists(client), {"Authorization": f"Bearer fs_{'x' * 43}"}
    for user in ("u31", "u32", "u33"):
        path = f"/v1/users/{user}/recommendations"
        for cached in (False, True):
            assert (serving.current.cached_json(user, Ask(20)) is not None) == cached
            for headers in (client.keys.ingest, client.keys.attributes):
                answer = client.get(path, headers=headers)
                assert (answer.status_code, answer.json()["detail"]) == (403, "This API key lacks the scope 'read'.")
            for headers in ({}, {"Authorization": "Bearer nonsense"}, revoked):
                assert client.get(path, headers=headers).status_code == 401
            assert (serving.current.cached_json(user, Ask(20)) is not None) == cached  # no list was made
            assert client.get(path, headers=client.keys.read).status_code == 200


def test_lists_count_towards_the_rate_of_a_key_whether_they_are_cached_or_not(new_service: Maker) -> None:
    _, client = new_service(limits=Limits(requests_per_second=1e-6))  # one at first, the next in 11 days
    serving = without_lists(client)
    for cached, headers in ((False, client.keys.read), (True, client.keys.admin)):
        path = "/v1/users/u31/recommendations"
        assert (serving.current.cached_json("u31", Ask(20)) is not None) == cached
        assert client.get(path, headers=headers).status_code == 200
        for user in ("u31", "u32"):
            answer = client.get(f"/v1/users/{user}/recommendations", headers=headers)
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) > 0


def test_a_missing_list_has_no_withdrawn_item(new_service: Maker) -> None:
    _, client = new_service()
    first = items_for(client, "u31", 5)
    withdrawn = [{"item_id": first[0], "available": False}]
    assert client.put("/v1/items", json=withdrawn, headers=client.keys.ingest).is_success
    assert first[0] not in items_for(client, "u31", 50)
    assert first[0] not in items_for(client, "u32", 60)


def test_before_anything_can_answer_lists_are_refused_with_a_sentence(
    new_workspace: Callable[..., Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = new_workspace()
    monkeypatch.setattr(Follower, "poll", lambda _: None)  # nothing is loaded
    with running(workspace, make_keys(workspace)) as client:
        answer = client.get("/v1/users/u31/recommendations", headers=client.keys.read)
        ready = client.get("/readyz")
    for each in (answer, ready):
        assert each.status_code == 503
        assert int(each.headers["retry-after"]) > 0
    assert_one_sentence(answer)


@pytest.mark.slow
def test_what_is_wrong_with_one_list_is_told_and_spoils_no_other(
    new_service: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = new_service()
    model = without_lists(client).current
    make = model._compute_and_cache

    def diverged_for_one(users: list[str], *rest: Any) -> Any:
        if "u31" in users:
            raise ModelError("the model returned NaN")
        return make(users, *rest)

    monkeypatch.setattr(model, "_compute_and_cache", diverged_for_one)
    with ThreadPoolExecutor(8) as threads:
        paths = [f"/v1/users/u{row}/recommendations" for row in range(25, 40)]
        found = threads.map(lambda path: client.get(path, headers=client.keys.read), paths)
        answers = dict(zip(paths, found, strict=True))
    bad = answers.pop("/v1/users/u31/recommendations")
    assert (bad.status_code, bad.json()["detail"]) == (500, "the model returned NaN")
    assert {answer.status_code for answer in answers.values()} == {200}


def test_too_large_and_too_long(new_service: Maker) -> None:
    limits = Limits(max_body_bytes=2000, max_k=30, max_users=3)
    _, client = new_service(limits=limits)
    kind = {"Content-Type": "application/json"}
    refused = client.post("/v1/events", content=b"x" * 2001, headers=kind)  # who sends it is asked first
    assert refused.status_code == 401
    for content in (b"x" * 2001, (b"x" * 500 for _ in range(5))):
        answer = client.post("/v1/events", content=content, headers={**client.keys.ingest, **kind})
        assert answer.status_code == 413
        assert_one_sentence(answer)
    for method, path in (("POST", "/v1/impressions"), ("PUT", "/v1/rules"), ("PUT", "/v1/experiment")):
        answer = client.request(method, path, content=b"x" * 2001, headers={**client.keys.admin, **kind})
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large"), path
    for k in ("31", "0", "-1", "x", "", "9" * 5000):
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
        {"users": [], "k": True},
        {"users": ["u1"], "histories": [["i1"]]},
        {"users": ["u1"], "more": 1},
        {"histories": ["i1"]},
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


def test_unknown_addresses_and_methods(shared: Shared) -> None:
    _, client = shared
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("DELETE", "/v1/events", 405),
        ("GET", "/v1/models/none", 404),
        ("POST", "/v1/models/none/promote", 404),
        ("GET", "/v1/updates/none", 404),
        ("GET", "/v1/updates?cursor=none", 404),
        ("POST", "/v1/periods", 405),
        ("GET", "/v1/users//recommendations", 422),
    ):
        answer = client.request(method, path, headers=client.keys.admin)
        assert answer.status_code == status, path
        assert_one_sentence(answer)
    answer = client.patch("/v1/experiment", headers=client.keys.admin)
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET, PUT")
