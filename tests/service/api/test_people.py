"""Groups go in and never out; people are forgotten and exported over HTTP."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from sqlalchemy import select
from streams import values_of

from fairstream.service import registry, schema
from fairstream.service.settings import LiveConfig
from fairstream.service.workspace import Workspace
from live_services import PATIENCE_SECONDS, Process, Running, add_model, make_keys, wait_until

pytestmark = pytest.mark.slow  # each of these requests starts a process

Maker = Callable[..., tuple[Workspace, Running]]
PEOPLE = [{"user_id": "u1", "group": "a"}, {"user_id": 2, "group": "b"}]


def ipc(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def test_groups_go_in_and_never_out(new_service: Maker) -> None:
    workspace, client = new_service(with_model=False)
    bodies = {
        "application/json": json.dumps(PEOPLE).encode(),
        "application/x-ndjson": b"\n".join(json.dumps(person).encode() for person in PEOPLE),
        "application/vnd.apache.arrow.stream": ipc(pa.table({"user_id": ["u1", "u9"], "group": ["secret", "b"]})),
    }
    for kind, body in bodies.items():
        answer = client.put("/v1/users", content=body, headers={**client.keys.attributes, "Content-Type": kind})
        assert (answer.status_code, answer.json()) == (200, {"stored": 2, "forgotten": 0})
    stored = dict(zip(*values_of(workspace).to_pydict().values(), strict=True))
    assert stored == {"u1": "secret", "2": "b", "u9": "b"}
    for wrong in ([{"user_id": "u"}], [{"user_id": "u", "value": "x"}], [{"user_id": "u", "group": None}], [3]):
        answer = client.put("/v1/users", json=wrong, headers=client.keys.attributes)
        assert answer.status_code == 422, wrong
        assert list(answer.json()) == ["detail"]
        assert "\n" not in answer.json()["detail"]
    for path in ("/v1/periods", "/v1/models", "/v1/audit", "/metrics", "/v1/users/u1/recommendations"):
        assert "secret" not in client.get(path, headers=client.keys.admin).text


def test_a_person_is_exported_and_forgotten_and_stays_so(new_service: Maker) -> None:
    workspace, client = new_service()
    path, event = "/v1/users/u1", {"user_id": "u1", "item_id": "i1", "time": 10**9, "event_id": "again"}
    assert client.post("/v1/events", json=event, headers=client.keys.ingest).json()["accepted"] == 1
    client.put("/v1/users", json=PEOPLE[:1], headers=client.keys.attributes).raise_for_status()
    data = client.get(f"{path}/data", headers=client.keys.admin).json()
    assert "i1" in json.dumps(data)
    stranger = client.get("/v1/users/nobody at all/recommendations", headers=client.keys.read).json()["items"]
    forgotten = client.delete(path, headers=client.keys.admin)
    assert forgotten.status_code == 202
    assert forgotten.json()["n_events"] > 1
    assert client.get(f"{path}/recommendations", headers=client.keys.read).json()["items"] == stranger
    query = select(schema.forgotten.c.completed)
    wait_until(lambda: all(row.completed for row in rows(workspace, query)))
    assert "u1" not in values_of(workspace)["user_id"].to_pylist()
    assert client.get(f"{path}/data", headers=client.keys.admin).status_code == 404
    twice = client.delete(path, headers=client.keys.admin)
    assert (twice.status_code, twice.json()) == (202, {"n_events": 0})
    again = client.post("/v1/events", json=event, headers=client.keys.ingest).json()
    assert again == {"accepted": 0, "repeated": 0, "forgotten": 1}
    put = client.put("/v1/users", json=PEOPLE[:1], headers=client.keys.attributes).json()
    assert put == {"stored": 0, "forgotten": 1}


def rows(workspace: Workspace, query: object) -> list[object]:
    with workspace.engine.connect() as connection:
        return list(connection.execute(query))  # type: ignore[call-overload]


def test_somebody_without_events_is_forgotten_although_an_update_holds_the_lock(new_service: Maker) -> None:
    workspace, client = new_service()
    client.put(
        "/v1/users", json=[{"user_id": "-quiet", "group": "a"}], headers=client.keys.attributes
    ).raise_for_status()
    with workspace.updating():
        answer = client.delete("/v1/users/-quiet", headers=client.keys.admin)
        assert (answer.status_code, answer.json()) == (202, {"n_events": 0})
        assert values_of(workspace)["user_id"].to_pylist() == ["-quiet"]
    wait_until(lambda: not values_of(workspace).num_rows)
    query = select(schema.forgotten.c.completed)
    wait_until(lambda: all(row.completed for row in rows(workspace, query)))


def test_an_unknown_id_is_accepted_and_its_request_completed(new_service: Maker) -> None:
    workspace, client = new_service()
    before = registry.in_service(workspace.engine)
    answer = client.delete("/v1/users/nobody", headers=client.keys.admin)
    assert (answer.status_code, answer.json()) == (202, {"n_events": 0})
    wait_until(lambda: all(row.completed for row in rows(workspace, select(schema.forgotten.c.completed))))
    assert registry.in_service(workspace.engine) == before  # no model knew the id, so none is loaded again


def test_the_serving_process_never_opens_the_attributes(tmp_path: Path) -> None:
    with Workspace.create(tmp_path / "w", LiveConfig()) as workspace:
        keys = make_keys(workspace)
        add_model(workspace)
        with Process(workspace.folder, tmp_path / "log") as process:
            process.wait_until_ready()
            with httpx.Client(base_url=process.address, timeout=PATIENCE_SECONDS) as client:
                assert client.put("/v1/users", json=PEOPLE, headers=keys.attributes).json()["stored"] == 2
                client.get("/v1/users/u1/recommendations", headers=keys.read).raise_for_status()
            open_files = []
            for link in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # closed meanwhile
                    open_files.append(str(link.readlink()))
            assert any("events.sqlite" in name for name in open_files)
            assert not any("people" in name for name in open_files)
