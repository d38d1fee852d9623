"""The schema is true: whatever it gives rise to, and whatever it forbids, is answered as it says."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from fairstream.service.api.schemas import JSON, JSON_LINES
from fairstream.service.event_store import EventStore
from fairstream.service.settings import Limits, LiveConfig
from fairstream.service.workspace import Workspace
from live_services import Running, add_model, make_keys, running

pytestmark = pytest.mark.slow

load_all_checks()
# A time that the schema allows may be ahead of the clock, and a model's id may be none that there is.
_LEFT_OUT = {"positive_data_acceptance"}
CHECKED = [check for check in CHECKS.get_all() if check.__name__ not in _LEFT_OUT]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Workspace, Running]]:
    config = LiveConfig(limits=Limits(requests_per_second=100_000))
    with Workspace.create(tmp_path_factory.mktemp("schema") / "workspace", config) as workspace:
        add_model(workspace)
        with running(workspace, make_keys(workspace)) as client:
            client.wait_until_ready()
            yield workspace, client


LEFT_ALONE = {
    ("post", "/v1/updates"),
    ("put", "/v1/users"),
    ("delete", "/v1/users/{user_id}"),
    ("get", "/v1/users/{user_id}/data"),
    ("get", "/v1/forgettings/{id}"),
}
"""Operations that start processes."""


def operations() -> list[tuple[str, str]]:
    return [
        ("post", "/v1/events"),
        ("put", "/v1/items"),
        ("get", "/v1/items/{item_id}"),
        ("get", "/v1/items"),
        ("get", "/v1/users/{user_id}/recommendations"),
        ("post", "/v1/recommendations"),
        ("get", "/v1/rules"),
        ("put", "/v1/rules"),
        ("get", "/v1/privacy"),
        ("get", "/v1/experiment"),
        ("put", "/v1/experiment"),
        ("delete", "/v1/experiment"),
        ("post", "/v1/experiment/promote"),
        ("get", "/v1/items/popular"),
        ("post", "/v1/impressions"),
        ("get", "/v1/impressions/report"),
        ("get", "/v1/items/{item_id}/similar"),
        ("get", "/v1/periods"),
        ("get", "/v1/updates"),
        ("get", "/v1/updates/{update_id}"),
        ("get", "/v1/models"),
        ("get", "/v1/models/{model_id}"),
        ("post", "/v1/models/{model_id}/promote"),
        ("post", "/v1/rollback"),
        ("get", "/v1/audit"),
        ("get", "/healthz"),
        ("get", "/readyz"),
        ("get", "/metrics"),
    ]


def test_all_operations_but_those_that_start_processes_are_tried(service: tuple[Workspace, Running]) -> None:
    _, client = service
    declared = client.get("/v1/openapi.json").json()
    found = {(method, path) for path, methods in declared["paths"].items() for method in methods}
    assert found == {*operations(), *LEFT_ALONE}
    secured = {path for path, methods in declared["paths"].items() for each in methods.values() if each.get("security")}
    assert secured == {path for _, path in found} - {"/healthz", "/readyz"}
    names = [each["operationId"] for methods in declared["paths"].values() for each in methods.values()]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() and len(name) < 20 for name in names)


@pytest.mark.parametrize(("method", "path"), operations())
def test_answers_are_as_the_schema_says(service: tuple[Workspace, Running], method: str, path: str) -> None:
    _, client = service
    schema = schemathesis.openapi.from_url(f"{client.base_url}/v1/openapi.json")
    schema.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])

    @settings(max_examples=80, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=schema[path][method].as_strategy())
    def try_it(case: schemathesis.Case) -> None:
        response = case.call(headers=client.keys.admin)
        assert response.status_code < 500, response.text
        case.validate_response(response, checks=CHECKED, headers=client.keys.admin)

    try_it()


def mutations(seed: int, n: int) -> Iterator[tuple[str, bytes]]:
    """Bodies that were whole once."""
    event = {"user_id": "u1", "item_id": "i1", "time": 5, "event_id": "e"}
    good = json.dumps([event, event]).encode()
    source = random.Random(seed)
    for _ in range(n):
        body = bytearray(good)
        for _ in range(source.randint(1, 4)):
            at = source.randrange(len(body))
            match source.randrange(4):
                case 0:
                    body[at] = source.randrange(256)
                case 1:
                    del body[at : at + source.randint(1, 9)]
                case 2:
                    body[at:at] = bytes(source.randrange(256) for _ in range(source.randint(1, 9)))
                case 3:
                    body[at:at] = source.choice([b"null", b"1e999", b"[[", b'"\\ud800"', b"-0", b"NaN", b"{}"])
            body = body or bytearray(b" ")
        yield source.choice([JSON, JSON_LINES]), bytes(body)


def test_damaged_bodies_are_refused_or_stored_and_nothing_else(service: tuple[Workspace, Running]) -> None:
    workspace, client = service
    store, before = EventStore(workspace), EventStore(workspace).last_seq()
    accepted = 0
    for kind, body in mutations(0, 400):
        answer = client.post("/v1/events", content=body, headers={**client.keys.admin, "Content-Type": kind})
        assert answer.status_code in (200, 422), (kind, body, answer.text)
        accepted += answer.json().get("stored", 0)
    assert store.last_seq() == before + accepted
