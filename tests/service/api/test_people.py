"""Groups go in and never out; people are forgotten and exported over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from sqlalchemy import select
from streams import values_of

from fairstream.service import registry, schema
from fairstream.service.workspace import Workspace
from live_services import Running, wait_until

Maker = Callable[..., tuple[Workspace, Running]]
PEOPLE = [{"user_id": "u1", "group": "hidden"}, {"user_id": 2, "group": "b"}]


def test_groups_go_in_and_never_out(new_service: Maker) -> None:
    workspace, client = new_service(with_model=False)
    bodies = {
        "application/json": json.dumps(PEOPLE).encode(),
        "application/x-ndjson": b"\n".join(json.dumps(person).encode() for person in PEOPLE),
    }
    for kind, body in bodies.items():
        answer = client.put("/v1/users", content=body, headers={**client.keys.attributes, "Content-Type": kind})
        assert (answer.status_code, answer.json()) == (200, {"accepted": 2})
    stored = dict(zip(*values_of(workspace).to_pydict().values(), strict=True))
    assert stored == {"u1": "hidden", "2": "b"}
    for wrong in ([{"user_id": "u"}], [{"user_id": "u", "value": "x"}], [{"user_id": "u", "group": None}], [3]):
        answer = client.put("/v1/users", json=wrong, headers=client.keys.attributes)
        assert answer.status_code == 422, wrong
        assert list(answer.json()) == ["detail", "code"]
        assert "\n" not in answer.json()["detail"]
    for path in ("/v1/periods", "/v1/models", "/v1/audit", "/metrics", "/v1/users/u1/recommendations"):
        assert "hidden" not in client.get(path, headers=client.keys.admin).text


@pytest.mark.slow
def test_a_person_is_exported_and_forgotten_and_stays_so(new_service: Maker) -> None:
    workspace, client = new_service()
    path, event = "/v1/users/u1", {"user_id": "u1", "item_id": "i1", "time": 10**9, "event_id": "again"}
    assert client.post("/v1/events", json=event, headers=client.keys.ingest).json()["accepted"] == 1
    client.put("/v1/users", json=PEOPLE[:1], headers=client.keys.attributes).raise_for_status()
    data = client.get(f"{path}/data", headers=client.keys.admin).json()
    assert "i1" in json.dumps(data)
    forgotten = client.delete(path, headers=client.keys.admin)
    assert forgotten.status_code == 202
    assert forgotten.json()["n_events"] > 1
    request = forgotten.headers["Location"]
    assert request == f"/v1/forgettings/{forgotten.json()['id']}"
    assert client.get(request, headers=client.keys.read).status_code == 403

    def items_of(user: str) -> object:
        return client.get(f"/v1/users/{user}/recommendations", headers=client.keys.read).json()["items"]

    wait_until(lambda: items_of("u1") == items_of("nobody at all"))  # popularity may be counted again in between
    wait_until(lambda: client.get(request, headers=client.keys.admin).json()["completed"] is not None)
    assert "fairstream_forgettings_pending 0.0" in client.get("/metrics", headers=client.keys.read).text
    assert client.get("/v1/forgettings/nobody", headers=client.keys.admin).status_code == 404
    assert "u1" not in values_of(workspace)["user_id"].to_pylist()
    assert client.get(f"{path}/data", headers=client.keys.admin).status_code == 404
    twice = client.delete(path, headers=client.keys.admin)
    assert (twice.status_code, twice.json()["n_events"]) == (202, 0)
    again = client.post("/v1/events", json=event, headers=client.keys.admin).json()
    assert again == {"accepted": 1, "stored": 0, "repeated": 0, "forgotten": 1}
    put = client.put("/v1/users", json=PEOPLE[:1], headers=client.keys.admin).json()
    assert put == {"accepted": 1, "stored": 0, "forgotten": 1}
    # Other keys do not learn who was forgotten.
    assert client.post("/v1/events", json=event, headers=client.keys.ingest).json() == {"accepted": 1}
    assert client.put("/v1/users", json=PEOPLE[:1], headers=client.keys.attributes).json() == {"accepted": 1}


def rows(workspace: Workspace, query: object) -> list[object]:
    with workspace.engine.connect() as connection:
        return list(connection.execute(query))  # type: ignore[call-overload]


@pytest.mark.slow
def test_somebody_without_events_is_forgotten_although_an_update_holds_the_lock(new_service: Maker) -> None:
    workspace, client = new_service()
    client.put(
        "/v1/users", json=[{"user_id": "-quiet", "group": "a"}], headers=client.keys.attributes
    ).raise_for_status()
    with workspace.updating():
        answer = client.delete("/v1/users/-quiet", headers=client.keys.admin)
        assert (answer.status_code, answer.json()["n_events"]) == (202, 0)
        assert values_of(workspace)["user_id"].to_pylist() == ["-quiet"]
    wait_until(lambda: not values_of(workspace).num_rows)
    query = select(schema.forgotten.c.completed)
    wait_until(lambda: all(row.completed for row in rows(workspace, query)))


@pytest.mark.slow
def test_an_unknown_id_is_accepted_and_its_request_completed(new_service: Maker) -> None:
    workspace, client = new_service()
    before = registry.in_service(workspace.engine)
    answer = client.delete("/v1/users/nobody", headers=client.keys.admin)
    assert (answer.status_code, answer.json()["n_events"]) == (202, 0)
    wait_until(lambda: all(row.completed for row in rows(workspace, select(schema.forgotten.c.completed))))
    assert registry.in_service(workspace.engine) == before  # no model knew the id, so none is loaded again
