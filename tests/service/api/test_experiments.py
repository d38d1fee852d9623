"""Experiments over HTTP, with people who click what they are shown."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import pytest

from fairstream.service.api import service as services
from fairstream.service.settings import Impressions
from live_services import Running, add_model, wait_until

GOOD, BAD = ["i3", "i14", "i15"], ["i9", "i26", "i53"]
"""Items that people click often, and never."""


class People:
    """New people who ask for a list, see it, and click what they like of it."""

    def __init__(self, client: Running) -> None:
        self._client, self._n, self._random = client, 0, random.Random(5)

    def come(self, n: int, k: int = 10) -> list[Any]:
        """Return the lists that they were given; their clicks are counted when this returns."""
        client, lists, impressions, clicks = self._client, [], [], []
        for _ in range(n):
            self._n += 1
            user = f"p{self._n}"
            answer = client.get(f"/v1/users/{user}/recommendations?k={k}", headers=client.keys.read).json()
            items = [each["item_id"] for each in answer["items"]]
            lists.append(answer)
            impressions.append({"user_id": user, "items": items, "list_id": answer["list_id"]})
            rates = (0.4 if item in GOOD else 0.0 if item in BAD else 0.05 for item in items)
            liked = [item for item, rate in zip(items, rates, strict=True) if self._random.random() < rate]
            clicks += [{"user_id": user, "item_id": item, "time": time.time() + 1, "kind": "click"} for item in liked]
        ingest = client.keys.ingest
        assert client.post("/v1/impressions", json={"impressions": impressions}, headers=ingest).json()["accepted"] == n
        assert client.post("/v1/events", json=clicks, headers=ingest).status_code == 200
        for _ in range(2):
            client.app.state.service._tally_and_look()
        return lists


@pytest.fixture
def shop(new_service: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A service that counts only when people have come."""
    monkeypatch.setattr(services, "_TALLY_SECONDS", 3600)
    return new_service(impressions=Impressions(avoid_after=2))


def start(client: Running, **options: Any) -> Any:
    """Start an experiment, and wait until both arms answer."""
    experiment = call(client, "PUT", json={"step_hours": 0, **options})
    assert experiment.status_code == 200, experiment.text
    wait_until(lambda: client.app.state.service.serving.experiment)
    return experiment.json()


def call(client: Running, method: str, path: str = "/v1/experiment", **options: Any) -> Any:
    return client.request(method, path, headers=client.keys.admin, **options)


def test_one_experiment_at_a_time_from_start_to_promotion(new_service: Any) -> None:
    workspace, client = new_service()
    a, b = client.app.state.service.serving.status().model, add_model(workspace, seed=1, promote=False)
    nothing = call(client, "GET")
    assert (nothing.status_code, nothing.json()["code"]) == (404, "unknown_id")
    started = call(client, "PUT", json={"b": b})
    assert started.status_code == 200
    assert (started.json()["a"], started.json()["b"], started.json()["share"]) == (a, b, 0.01)
    again = call(client, "PUT", json={"b": b})
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert again.json()["detail"] == f"experiment {started.json()['id']} is running; end it before another one starts"
    update = call(client, "POST", "/v1/updates")
    assert (update.status_code, update.json()["code"]) == (409, "conflict")
    assert "No impressions yet." in call(client, "GET").json()["sentences"]
    assert call(client, "DELETE").json()["decision"]["sentence"] == "It was stopped by adminer."
    assert call(client, "DELETE").status_code == 409
    assert call(client, "POST", "/v1/experiment/promote").status_code == 409  # nobody was compared any more
    call(client, "PUT", json={"b": b})
    assert call(client, "POST", "/v1/experiment/promote").json() == {"model": b}
    kinds = [entry["kind"] for entry in call(client, "GET", "/v1/audit").json()["data"]]
    assert kinds[-3:] == ["experiment", "experiment", "promote"]


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        ({}, 422, "the body: b: Field required"),
        ({"b": "m"}, 404, "there is no model 'm'"),
        ({"b": "m", "mode": "half"}, 422, "the body: mode must be one of 'split', 'interleave' or 'shadow'"),
        ({"b": "m", "steps": [0.5, 0.1]}, 422, "the body: steps must rise, above 0 and up to 0.5"),
        ({"b": "m", "steps": [0.9]}, 422, "the body: steps must rise, above 0 and up to 0.5"),
        ({"b": "m", "alpha": 1}, 422, "the body: alpha must be < 1"),
        ({"b": "m", "days": 3}, 422, "the body: days is not an option; the options are alpha"),
        ({"b": "m", "rules": [{"boots": 1}]}, 422, "rule 1: "),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(
    shared: Any, options: dict[str, Any], status: int, sentence: str
) -> None:
    answer = call(shared[1], "PUT", json=options)
    assert answer.status_code == status
    assert answer.json()["detail"].startswith(sentence)


def test_reading_keys_see_experiments_and_change_none(shared: Any) -> None:
    _, client = shared
    assert client.get("/v1/experiment", headers=client.keys.read).status_code == 404
    for method in ("PUT", "DELETE"):
        answer = client.request(method, "/v1/experiment", headers=client.keys.read, json={"b": "m"})
        assert answer.json()["code"] == "missing_scope"


def pinned(items: list[str]) -> dict[str, Any]:
    return {"rules": [{"pin": {"items": items, "position": 1}}]}


def test_a_better_arm_is_found_and_promoted_with_its_rules(shop: Any) -> None:
    _, client = shop
    people, model = People(client), client.app.state.service.serving.status().model
    client.put("/v1/rules", json=pinned(BAD)["rules"], headers=client.keys.admin)
    start(client, b=model, steps=[0.3, 0.5], **pinned(GOOD))
    shares, n_with_rules = set(), 0
    for _ in range(10):
        lists = people.come(150, k=4)
        n_with_rules += sum([each["item_id"] for each in answer["items"][:3]] == GOOD for answer in lists)
        found = call(client, "GET").json()
        shares.add(found["share"])
        if found["decision"]:
            break
    assert (found["state"], found["decision"]["outcome"]) == ("running", "better")
    assert shares <= {0.3, 0.5}
    assert n_with_rules > 100
    report = client.get("/v1/impressions/report", headers=client.keys.read).json()
    assert report["everyone"]["click_through"] > 0.05
    assert call(client, "POST", "/v1/experiment/promote").json() == {"model": model}
    wait_until(lambda: client.app.state.service.serving.experiment is None)
    assert all([each["item_id"] for each in answer["items"][:3]] == GOOD for answer in people.come(5))
    assert call(client, "GET").json()["state"] == "ended"


def test_a_worse_arm_is_rolled_back_and_nobody_gets_it_any_more(shop: Any) -> None:
    _, client = shop
    people, model = People(client), client.app.state.service.serving.status().model
    client.put("/v1/rules", json=pinned(GOOD)["rules"], headers=client.keys.admin)
    start(client, b=model, steps=[0.5], **pinned(BAD))
    for _ in range(10):
        people.come(150)
        if call(client, "GET").json()["ended"]:
            break
    found = call(client, "GET").json()
    assert (found["decision"]["outcome"], found["share"]) == ("worse", 0.0)
    wait_until(lambda: client.app.state.service.serving.experiment is None)
    assert all([each["item_id"] for each in answer["items"][:3]] == GOOD for answer in people.come(20))


def test_an_interleaved_list_is_of_both_models_and_people_choose(shop: Any) -> None:
    workspace, client = shop
    people, model = People(client), client.app.state.service.serving.status().model
    experiment = start(client, b=model, mode="interleave", steps=[1.0], **pinned(GOOD))
    for _ in range(8):
        lists = people.come(100)
        assert {answer["model"] for answer in lists} == {f"{model}+{model}"[:32]}
        first = Counter(answer["items"][0]["item_id"] for answer in lists)
        assert 20 < first[GOOD[0]] < 80  # a coin says who begins
        found = call(client, "GET").json()
        if found["decision"]:
            break
    assert found["decision"]["outcome"] == "better"
    with workspace.engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT arms, propensities FROM impressions").all()
    assert {letter for row in rows for letter in row[0]} == {"a", "b"}
    assert experiment["id"] == found["id"]


def test_shadow_lists_are_measured_and_never_shown(shop: Any) -> None:
    workspace, client = shop
    people, other = People(client), add_model(workspace, seed=1, promote=False)
    start(client, b=other, mode="shadow", steps=[1.0])
    for n in range(40):
        client.get(f"/v1/users/u{n}/recommendations", headers=client.keys.read)
    lists = people.come(30)
    assert {answer["model"] for answer in lists} == {client.app.state.service.serving.status().model}
    people.come(1)
    found = call(client, "GET").json()
    assert "pairs of lists both models share" in found["looks"]["shadow"]
    assert found["looks"]["shadow"] in found["sentences"]


def test_forgotten_people_and_withdrawn_items_are_in_no_arm(shop: Any) -> None:
    workspace, client = shop
    other = add_model(workspace, seed=1, promote=False)
    start(client, b=other, steps=[0.5])
    arms, second = client.app.state.service.serving.experiment
    user = next(f"u{n}" for n in range(40) if arms.arm_of(f"u{n}") == "B")
    address = f"/v1/users/{user}/recommendations"
    before = client.get(address, headers=client.keys.read).json()
    assert before["model"] == second.id
    withdrawn = before["items"][0]["item_id"]
    client.put("/v1/items", json=[{"item_id": withdrawn, "available": False}], headers=client.keys.ingest)
    after = client.get(address, headers=client.keys.read).json()
    assert withdrawn not in {each["item_id"] for each in after["items"]}
    client.delete(f"/v1/users/{user}", headers=client.keys.admin)
    assert client.get(address, headers=client.keys.read).json()["source"] == "popularity"


def test_a_rollback_ends_the_experiment_within_a_second(shop: Any) -> None:
    workspace, client = shop
    a = client.app.state.service.serving.status().model
    b = add_model(workspace, seed=1)
    with workspace.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE models SET parent = '{a}' WHERE id = '{b}'")
    wait_until(lambda: client.app.state.service.serving.status().model == b)
    start(client, b=a, steps=[0.5])
    assert call(client, "POST", "/v1/rollback").json() == {"model": a}
    begin = time.monotonic()
    wait_until(lambda: client.app.state.service.serving.experiment is None)
    assert time.monotonic() - begin < 10
    assert call(client, "GET").json()["decision"]["outcome"] == "replaced"


def test_what_was_shown_in_vain_leaves_the_persons_lists_at_once(shop: Any) -> None:
    _, client = shop
    address = "/v1/users/newcomer/recommendations?k=5"
    first = [each["item_id"] for each in client.get(address, headers=client.keys.read).json()["items"]]
    for n in range(2):
        body = {"impressions": [{"user_id": "newcomer", "items": first[:2], "list_id": f"l{n}"}]}
        client.post("/v1/impressions", json=body, headers=client.keys.ingest)
    after = [each["item_id"] for each in client.get(address, headers=client.keys.read).json()["items"]]
    assert after[:3] == first[2:]
    other = client.get(address.replace("newcomer", "other"), headers=client.keys.read).json()["items"]
    assert [each["item_id"] for each in other] == first
