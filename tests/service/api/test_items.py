"""Items, filters and rules over HTTP: what was acknowledged is in the next list of this process, and soon of all."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from fairstream.cli import app
from fairstream.service.audit import entries
from fairstream.service.database import writing
from fairstream.service.settings import Impressions
from fairstream.service.workspace import Workspace
from live_services import N_ITEMS, Running, running, wait_until

Maker = Callable[..., tuple[Workspace, Running]]
PRICED = [{"item_id": f"i{n}", "price": n, "category": f"c{n % 3}"} for n in range(N_ITEMS)]


def items_for(client: Running, user: str, **parameters: Any) -> list[str]:
    answer = client.get(f"/v1/users/{user}/recommendations", params={"k": 50, **parameters}, headers=client.keys.admin)
    assert answer.status_code == 200, answer.text
    return [item["item_id"] for item in answer.json()["items"]]


def put(client: Running, objects: Any, path: str = "/v1/items") -> Any:
    return client.put(path, json=objects, headers=client.keys.ingest if path == "/v1/items" else client.keys.admin)


def test_lists_are_filtered_by_what_was_put_a_moment_ago(new_service: Maker) -> None:
    _, client = new_service()
    assert put(client, PRICED).json() == {"stored": N_ITEMS}
    cheap = items_for(client, "u1", filter="price < 30")
    assert cheap == [item for item in items_for(client, "u1") if int(item[1:]) < 30]
    put(client, [{"item_id": cheap[0], "price": 99}])
    assert items_for(client, "u1", filter="price < 30") == cheap[1:]
    many = {"users": ["u1", "nobody"], "k": 3, "filter": "price < 30"}
    answer = client.post("/v1/recommendations", json=many, headers=client.keys.admin).json()
    assert [item["item_id"] for item in answer["answers"][0]["items"]] == cheap[1:4]
    lines = "\n".join(json.dumps({"item_id": item, "available": False}) for item in cheap)
    headers = {**client.keys.ingest, "Content-Type": "application/x-ndjson"}
    assert client.put("/v1/items", content=lines, headers=headers).json() == {"stored": len(cheap)}
    assert items_for(client, "u1", filter="price < 30") == []


def test_a_bad_filter_or_item_is_refused_with_its_place_and_nothing_is_stored(new_service: Maker) -> None:
    _, client = new_service()
    path = "/v1/users/u1/recommendations"
    for request in (
        lambda: client.get(path, params={"filter": "price < "}, headers=client.keys.admin),
        lambda: client.post(
            "/v1/recommendations", json={"users": ["u1"], "filter": "price < "}, headers=client.keys.admin
        ),
    ):
        answer = request()
        assert (answer.status_code, answer.json()["code"], answer.json()["position"]) == (422, "invalid_filter", 9)
        assert answer.json()["detail"] == "the filter, character 9: expected a number, found the end"
    answer = put(client, [*PRICED, {"item_id": "last", "colour": "red"}])
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert answer.json()["detail"].startswith(f"item {N_ITEMS + 1}: 'colour' is not a property")
    assert client.get("/v1/items", headers=client.keys.read).json()["data"] == []


def test_rules_shape_lists_are_recorded_and_apply_in_every_process(new_service: Maker) -> None:
    workspace, client = new_service()
    put(client, PRICED)
    plain = items_for(client, "u1")
    rules = [{"boost": {"filter": "price >= 50", "factor": 100}}, {"pin": {"items": [plain[5]], "position": 1}}]
    with running(workspace, client.keys) as other:
        other.wait_until_ready()
        assert put(client, rules, "/v1/rules").status_code == 200
        shaped = items_for(client, "u1")
        assert shaped[0] == plain[5]
        assert {int(item[1:]) >= 50 for item in shaped[1:4]} == {True}
        wait_until(lambda: items_for(other, "u1") == shaped)
        stored = client.get("/v1/rules", headers=client.keys.read).json()
        assert [next(iter(rule)) for rule in stored] == ["boost", "pin"]
        assert put(client, stored, "/v1/rules").json() == stored
        assert [entry.kind for entry in entries(workspace.engine)].count("rules") == 2
        bad = put(client, [{"boost": {"filter": "colour = 1", "factor": 2}}], "/v1/rules")
        assert bad.json()["detail"].startswith("rule 1: the filter, character 1: 'colour' is not a property")
        assert put(client, [], "/v1/rules").json() == []
        assert items_for(client, "u1") == plain
        wait_until(lambda: items_for(other, "u1") == plain)


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ({"at_most": {"n": 0, "per": "category"}}, "entry 2.at_most.n: Input should be greater than or equal to 1"),
        ({"hide": {"items": ["i1"]}}, "entry 2: it has a field that is not known; /docs lists the fields"),
        ({}, "entry 2: a rule has exactly one of pin, boost and at_most"),
        ({"boost": {"filter": "price <", "factor": 2}}, "rule 2: the filter, character 8: expected a number"),
    ],
)
def test_a_wrong_rule_is_named_and_the_others_stay(new_service: Maker, rule: dict[str, Any], sentence: str) -> None:
    _, client = new_service()
    good = [{"pin": {"items": ["i1"], "position": 1}}]
    client.put("/v1/rules", json=good, headers=client.keys.admin).raise_for_status()
    answer = client.put("/v1/rules", json=[*good, rule], headers=client.keys.admin)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(sentence)
    assert client.get("/v1/rules", headers=client.keys.admin).json() == good


def test_rules_come_from_the_command_line_and_wrong_ones_shape_nothing(new_service: Maker, tmp_path: Path) -> None:
    workspace, client = new_service()
    plain, file = items_for(client, "u1"), tmp_path / "rules.json"
    file.write_text(json.dumps([{"pin": {"items": [plain[9]]}}]))
    told = CliRunner().invoke(app, ["items", str(workspace.folder), "--rules", str(file)], catch_exceptions=False)
    assert "1 rules shape every list" in told.stdout
    wait_until(lambda: items_for(client, "u1")[0] == plain[9])
    with writing(workspace.engine) as connection:  # a property that the configuration does not declare any more
        connection.execute(text("UPDATE rules SET rules = :rules"), {"rules": '[{"at_most": {"n": 1, "per": "gone"}}]'})
        connection.execute(text("UPDATE changes SET version = version + 1 WHERE name = 'rules'"))
    wait_until(lambda: items_for(client, "u1") == plain)
    wait_until(lambda: client.get("/readyz").json()["status"] == "degraded")
    assert "the rules of lists do not apply" in client.get("/readyz").json()["problems"][0]


def test_a_catalogue_that_is_withdrawn_is_a_problem_that_readyz_tells(new_service: Maker) -> None:
    _, client = new_service()
    put(client, [{"item_id": f"i{n}", "available": False} for n in range(N_ITEMS)])
    assert items_for(client, "u1") == []
    ready = client.get("/readyz").json()
    assert (ready["status"], "are withdrawn; are they meant to be?" in ready["problems"][0]) == ("degraded", True)
    put(client, [{"item_id": f"i{n}", "available": True} for n in range(N_ITEMS)])
    assert client.get("/readyz").json()["status"] == "ready"


@pytest.mark.parametrize("kind", ["dislike", "view"])
def test_disliked_items_stay_away_after_a_restart(new_service: Maker, kind: str) -> None:
    workspace, client = new_service()
    first = items_for(client, "u1")[0]
    event = {"user_id": "u1", "item_id": first, "time": 5, "kind": kind}
    assert client.post("/v1/events", json=[event], headers=client.keys.ingest).status_code == 200
    assert first not in items_for(client, "u1")
    assert first in items_for(client, "nobody", k=N_ITEMS)
    with running(workspace, client.keys) as restarted:
        restarted.wait_until_ready()
        assert first not in items_for(restarted, "u1")


def test_what_was_shown_in_vain_is_left_out_until_somebody_reacts(new_service: Maker) -> None:
    workspace, client = new_service(impressions=Impressions(avoid_after=2))
    before = items_for(client, "u1")

    def show(items: list[str]) -> None:
        shown = {"impressions": [{"user_id": "u1", "items": items}]}
        assert client.post("/v1/impressions", json=shown, headers=client.keys.ingest).status_code == 200

    show(before[:3])
    event = {"user_id": "u1", "item_id": before[2], "time": 5, "kind": "like"}
    wait_until(lambda: client.app.state.service.serving.shown)
    assert items_for(client, "u1") == before
    client.post("/v1/events", json=[event], headers=client.keys.ingest)
    show(before[1:3])
    wait_until(lambda: before[1] not in items_for(client, "u1"))
    assert items_for(client, "u1")[:2] == [before[0], before[3]]
    assert before[1] in items_for(client, "nobody", k=N_ITEMS)
    with running(workspace, client.keys) as restarted:
        restarted.wait_until_ready()
        assert items_for(restarted, "u1") == items_for(client, "u1")


def test_a_withdrawn_item_leaves_the_lists_of_every_process_within_a_second(new_service: Maker) -> None:
    workspace, client = new_service()
    with running(workspace, client.keys) as other:
        other.wait_until_ready()
        put(client, PRICED)
        first = items_for(client, "u1")[0]
        wait_until(lambda: other.get(f"/v1/items/{first}", headers=client.keys.read).status_code == 200)
        begin = time.monotonic()
        put(client, [{"item_id": first, "available": False}])
        assert first not in items_for(client, "u1")
        wait_until(lambda: first not in items_for(other, "u1"))
        assert time.monotonic() - begin < 1 or os.getloadavg()[0] > os.cpu_count()
