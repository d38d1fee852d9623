"""Lists that are not a user's plain one: of items, with reasons, and of many users at once; and who may have them."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fairstream import load
from fairstream.recommender.vectors import similar_items
from fairstream.service import registry
from fairstream.service.event_store import EventStore
from fairstream.service.lists import Ask
from fairstream.service.ranking import MIN_SHARED
from fairstream.service.serving_model import ServingModel
from fairstream.service.workspace import Workspace
from live_services import N_ITEMS, Running, events_of
from support import make_recommender

Shared = tuple[Workspace, Running]


def items_of(answer: dict[str, Any]) -> list[str]:
    return [item["item_id"] for item in answer["items"]]


def get(client: Running, path: str, status: int = 200) -> dict[str, Any]:
    answer = client.get(path, headers=client.keys.history)
    assert answer.status_code == status, answer.text
    return answer.json()  # type: ignore[no-any-return]


def test_similar_items_are_the_models(shared: Shared) -> None:
    workspace, client = shared
    recommender = load(workspace.models.path(registry.models(workspace.engine)[0].folder), device="cpu")
    table = recommender.similar_items(["i3"], k=7)
    for _ in range(2):  # made, then cached
        answer = get(client, "/v1/items/i3/similar?k=7")
        assert items_of(answer) == table["similar_id"].to_pylist()
        assert [item["score"] for item in answer["items"]] == pytest.approx(table["score"].to_pylist(), rel=1e-5)
    assert len(items_of(get(client, "/v1/items/i3/similar?k=100"))) == N_ITEMS - 1
    assert get(client, "/v1/items/nothing%2Flike/similar", 404)["code"] == "unknown_id"
    assert get(client, "/v1/items/i3/similar?k=101", 422)["code"] == "invalid"


def test_popular_items_are_those_of_a_stranger(shared: Shared) -> None:
    _, client = shared
    popular = get(client, "/v1/items/popular?k=10")
    assert (popular["user_id"], popular["source"]) == (None, "popularity")
    assert items_of(popular) == items_of(get(client, "/v1/users/a-stranger/recommendations?k=10"))
    assert {item["score"] for item in popular["items"]} == {None}


def test_popular_items_are_no_fallback(shared: Shared) -> None:
    _, client = shared

    def counted() -> list[str]:
        lines = client.get("/metrics", headers=client.keys.read).text.splitlines()
        return [line for line in lines if line.startswith("fairstream_recommendations_total")]

    before = counted()
    get(client, "/v1/items/popular")
    get(client, "/v1/items/i3/similar")
    assert counted() == before


def test_withdrawn_items_are_in_no_list_of_items(new_service: Callable[..., Shared]) -> None:
    _, client = new_service()
    similar, popular = "/v1/items/i3/similar?k=10", "/v1/items/popular?k=10"
    before = items_of(get(client, similar)), items_of(get(client, popular))
    gone = [{"item_id": items[0], "available": False} for items in before]
    client.put("/v1/items", json=gone, headers=client.keys.ingest).raise_for_status()
    after = items_of(get(client, similar)), items_of(get(client, popular))
    for items, were in zip(after, before, strict=True):
        assert not {item["item_id"] for item in gone} & set(items)
        assert len(items) == len(were) == 10


def test_a_reason_is_the_most_similar_item_of_the_own_history(shared: Shared) -> None:
    workspace, client = shared
    state = client.app.state.service.serving.current._state
    had = EventStore(workspace).items_of("u1")
    answer = get(client, "/v1/users/u1/recommendations?k=5&explain=true")
    assert items_of(answer) == items_of(get(client, "/v1/users/u1/recommendations?k=5"))
    for item in answer["items"]:
        table = similar_items(state, pa.array([item["item_id"]]), N_ITEMS)
        best = next(row for row in table.to_pylist() if row["similar_id"] in had)
        assert item["because"] == (best["similar_id"] if best["score"] > 0 else None)
    question = {"histories": [["i1", "i2"], []], "explain": True, "k": 5}
    session, empty = client.post("/v1/recommendations", json=question, headers=client.keys.read).json()["answers"]
    assert {item["because"] for item in session["items"]} <= {"i1", "i2", None}  # null: not similar
    assert {item["because"] for item in empty["items"]} == {None}
    many = {"users": ["u1"], "explain": True, "k": 5}
    [same] = client.post("/v1/recommendations", json=many, headers=client.keys.history).json()["answers"]
    assert same["items"] == answer["items"]


HISTORIES = ("exclude=i1", "only=i1", "only=i1&only=i2", "explain=true", "k=5&exclude=i1")


def test_a_read_key_gets_nothing_but_the_plain_list_of_a_person(shared: Shared) -> None:
    _, client = shared
    for query in HISTORIES:
        path = f"/v1/users/u1/recommendations?{query}"
        refused = client.get(path, headers=client.keys.read)
        assert (refused.status_code, refused.json()["code"]) == (403, "missing_scope")
        for headers in (client.keys.history, client.keys.admin):
            assert client.get(path, headers=headers).status_code == 200
    for more in ({"exclude": ["i1"]}, {"only": ["i1"]}, {"only": []}, {"explain": True}):
        for users, status in (({"users": ["u1"]}, 403), ({"histories": [["i1"]]}, 200)):
            answer = client.post("/v1/recommendations", json={**users, **more}, headers=client.keys.read)
            assert answer.status_code == status, (users, more)
        answer = client.post("/v1/recommendations", json={"users": ["u1"], **more}, headers=client.keys.history)
        assert answer.status_code == 200
    for path in ("/v1/users/u1/recommendations?explain=false", "/v1/users/u1/recommendations?k=3"):
        assert client.get(path, headers=client.keys.read).status_code == 200


def test_an_item_that_few_people_had_is_similar_to_nothing() -> None:
    events = events_of(0)
    probe = {"user_id": ["u1"] * 2 + [f"u{n}" for n in range(MIN_SHARED)]}
    probe |= {"item_id": ["probe", "other"] + ["common"] * MIN_SHARED, "time": list(range(MIN_SHARED + 2))}
    recommender = make_recommender("item-item", device="cpu").fit(pa.concat_tables([events, pa.table(probe)]))
    model = ServingModel(recommender.state, "m1")
    assert model.similar("probe", 10).items == []  # else it would name what its one owner has had
    assert "probe" not in [item for n in range(60) for item in model.similar(f"i{n}", 100).items]
    shared = Counter(item for n in range(N_ITEMS) for item in model.similar(f"i{n}", 10).items)
    assert shared  # common items do have similar ones
    own = {"probe", "other", "common", None}
    own |= set(events.filter(pc.equal(events["user_id"], "u1"))["item_id"].to_pylist())
    explained = json.loads(model.json("u1", Ask(5, explain=True)))["items"]
    assert {item["because"] for item in explained} <= own


def test_a_large_batch_does_not_stop_the_event_loop(shared: Shared) -> None:
    _, client = shared
    question = {"users": [f"u{n % 40}" for n in range(1000)], "k": 100}
    answers: list[int] = []

    def ask() -> None:
        for _ in range(5):
            answer = client.post("/v1/recommendations", json=question, headers=client.keys.read)
            answers.append(len(answer.json()["answers"]))

    asking = threading.Thread(target=ask)
    asking.start()
    seconds = []
    with Running(base_url=client.base_url) as probe:
        while asking.is_alive():
            begin = time.perf_counter()
            probe.get("/healthz")
            seconds.append(time.perf_counter() - begin)
    asking.join()
    assert answers == [1000] * 5
    print(f"healthz during batches: median {np.median(seconds) * 1e3:.1f} ms, longest {max(seconds) * 1e3:.1f} ms")
    assert np.quantile(seconds, 0.9) < 0.1
