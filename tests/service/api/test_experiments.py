"""Experiments over HTTP, with people who click what they are shown."""

from __future__ import annotations

from typing import Any

import pytest

from live_services import Running, add_model


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
    assert "No impression of it has come in yet." in call(client, "GET").json()["sentences"]
    assert call(client, "DELETE").json()["decision"]["sentence"] == "It was stopped by adminer."
    assert call(client, "DELETE").status_code == 409
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
