"""The Python client is that of this version's service, and every operation of it works against a running one."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse

from fairstream.service.settings import Limits, LiveConfig
from fairstream.service.workspace import Workspace
from live_services import Running, add_model, make_keys, running, served

CLIENTS = Path(__file__).parents[2] / "clients"
sys.path.append(str(CLIENTS / "python" / "src"))

from fairstream_client import ApiError, Client  # noqa: E402


def imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = imported(CLIENTS / "generate.py")


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return generate.schema_of(generate.ROUTES)  # type: ignore[no-any-return]


def test_the_client_is_that_of_this_service(schema: dict[str, Any]) -> None:
    source = generate.source_of(schema)
    stored = generate.TARGET.read_text(encoding="utf-8")
    assert ast.dump(ast.parse(stored)) == ast.dump(ast.parse(source)), "run `python clients/generate.py`"


@pytest.mark.slow
def test_the_client_has_types() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "-p", "fairstream_client"]
    checked = subprocess.run(command, cwd=CLIENTS / "python" / "src", capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Callable[..., tuple[Workspace, Running, Client]]]:
    opened: list[Any] = []

    def start(**limits: Any) -> tuple[Workspace, Running, Client]:
        workspace = Workspace.create(tmp_path / "shop", LiveConfig(limits=Limits(**limits)))
        add_model(workspace)
        running_service = running(workspace, make_keys(workspace))
        http = running_service.__enter__()
        http.wait_until_ready()
        client = Client(str(http.base_url), http.keys.admin["Authorization"].removeprefix("Bearer "))
        opened.extend([workspace, running_service, client])
        return workspace, http, client

    yield start
    if opened:
        workspace, running_service, client = opened
        client.close()
        running_service.__exit__(None, None, None)
        workspace.close()


class Recording:
    """Notes which operations of a client were called."""

    def __init__(self, client: Client) -> None:
        self._client, self.called = client, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.called.add(name)
        return getattr(self._client, name)


@pytest.mark.slow
def test_every_operation_works_against_a_running_service(  # noqa: PLR0915
    schema: dict[str, Any], service: Callable[..., tuple[Workspace, Running, Client]]
) -> None:
    workspace, _, plain = service()
    client: Any = Recording(plain)
    first = client.list_models()["data"][0]["id"]
    assert client.healthz() == {"status": "alive"}
    assert client.readyz()["model"] == first
    assert "fairstream_ready" in client.metrics()
    assert client.show_privacy()["left"] > 0

    event = {"user_id": "ann/ä?", "item_id": "i1", "time": 10**9}
    assert client.ingest_events([event])["stored"] == 1
    assert client.ingest_events(event)["repeated"] == 1
    assert client.put_users([{"user_id": "ann/ä?", "group": "a"}])["accepted"] == 1
    assert client.put_items([{"item_id": "i/2", "category": "shoes", "available": False}])["stored"] == 1
    assert client.get_item("i/2")["category"] == "shoes"
    assert [item["item_id"] for item in client.iterate_items(available=False, limit=1)] == ["i/2"]
    assert client.list_items(limit=1)["cursor"] is None
    assert client.put_rules([{"at_most": {"n": 3, "per": "category"}}]) == client.get_rules()
    client.put_rules([])

    answer = client.recommend("ann/ä?", k=5, exclude=["i3"], explain=True, filter='not category = "shoes"')
    assert (answer["user_id"], len(answer["items"])) == ("ann/ä?", 5)
    assert client.recommend("ann/ä?", only=["i/2"])["items"] == []
    assert len(client.recommend_many({"histories": [["i1"], []], "k": 3})["answers"]) == 2
    assert len(client.list_popular_items(k=3)["items"]) == 3
    assert len(client.list_similar_items("i1", k=3)["items"]) == 3
    shown = {"user_id": "ann/ä?", "items": ["i4", "i5"], "list_id": answer["list_id"]}
    assert client.ingest_impressions({"impressions": [shown]})["accepted"] == 1
    assert client.report_impressions(hours=2)["everyone"]

    second = add_model(workspace, seed=1, promote=False)
    assert [model["id"] for model in client.iterate_models(limit=1)] == [second, first]
    assert client.start_experiment({"b": second})["state"] == "running"
    assert client.show_experiment()["b"] == second
    assert client.stop_experiment()["state"] == "ended"
    client.start_experiment({"b": second})
    assert client.promote_experiment() == {"model": second}
    assert client.promote_model(first) == {"model": first}
    assert client.show_model(first)["in_service"]
    with pytest.raises(ApiError) as refused:
        client.rollback()
    assert (refused.value.status, refused.value.code) == (409, "conflict")
    assert [period["t"] for period in client.iterate_periods(limit=1)] == [0, 1]
    assert client.list_periods(limit=1)["cursor"] == "0"
    assert len(list(client.iterate_audit(limit=2))) == len(client.list_audit()["data"])

    assert client.export_user("ann/ä?")["user_id"] == "ann/ä?"
    forgetting = client.forget_user("ann/ä?")
    assert forgetting["n_events"] == 1
    assert client.show_forgetting(forgetting["id"])["id"] == forgetting["id"]
    update = client.request_update()
    assert client.list_updates()["data"][0]["id"] == update["id"]
    while (state := client.show_update(update["id"])["state"]) in ("queued", "running"):
        time.sleep(0.2)
    assert state in ("promoted", "rejected", "skipped", "failed")

    operations = {operation["operationId"] for _, _, operation in generate.operations_of(schema)}
    assert operations <= client.called, "use each operation here"


def test_errors_have_a_code_a_sentence_and_the_id_in_the_log(
    service: Callable[..., tuple[Workspace, Running, Client]],
) -> None:
    _, http, client = service()
    with pytest.raises(ApiError) as unknown:
        client.show_model("none")
    assert (unknown.value.status, unknown.value.code) == (404, "unknown_id")
    assert "no model" in unknown.value.detail
    assert len(unknown.value.request_id) == 16
    with pytest.raises(ApiError) as wrong:
        client.recommend("ann", filter="price <")
    assert wrong.value.code == "invalid_filter"
    with Client(str(http.base_url), "fs_" + "x" * 43) as stranger, pytest.raises(ApiError) as refused:
        stranger.list_models()
    assert refused.value.code == "unknown_key"


def test_a_request_is_repeated_when_the_service_says(
    service: Callable[..., tuple[Workspace, Running, Client]], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    sleep = time.sleep
    monkeypatch.setattr("fairstream_client.transport.time.sleep", lambda wait: (waits.append(wait), sleep(wait)))
    _, http, client = service(requests_per_second=2)  # a burst of four
    for _ in range(6):
        assert client.list_models()["data"]
    assert 1.0 in waits  # Retry-After
    key = http.keys.read["Authorization"].removeprefix("Bearer ")
    with Client(str(http.base_url), key, retries=0) as impatient, pytest.raises(ApiError) as refused:
        list(map(Client.list_models, [impatient] * 10))
    assert (refused.value.status, refused.value.code) == (429, "too_many_requests")


def test_a_proxy_may_say_when_to_repeat_by_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairstream_client.transport.time.sleep", lambda _: None)
    statuses = [503, 200]

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        date = {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}
        await JSONResponse({"status": "alive"}, statuses.pop(0), date)(scope, receive, send)

    with served(proxy, lifespan="off") as address, Client(address) as client:
        assert client.healthz() == {"status": "alive"}
