"""The OpenAPI schema is true: whatever is sent, the answers are those that it tells of."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fairstream.live.settings import Limits
from fairstream.live.workspace import Workspace
from live_services import Running, add_model, make_keys, running

Maker = Callable[..., Workspace]
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
PHASES = ("examples", "coverage", "fuzzing")


@pytest.fixture
def client(new_workspace: Maker) -> Iterator[Running]:
    # Shorter lists than the default length, so that the default is not taken for granted either.
    workspace = new_workspace(limits=Limits(max_k=10, max_users=20, max_body_bytes=1 << 20, requests_per_second=10**6))
    add_model(workspace)
    with running(workspace, make_keys(workspace)) as client:
        client.wait_until_ready()
        yield client


def outcomes(client: Running, max_examples: int) -> tuple[Counter[int], list[str]]:
    """How many answers of each status there were, and what was wrong with any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of schemathesis about itself
        import schemathesis
        from schemathesis.config import SchemathesisConfig
        from schemathesis.engine import events, from_schema

        settings: dict[str, Any] = {
            "headers": client.keys.admin,
            "checks": {"enabled": False, **{name: {"enabled": True} for name in CHECKS}},
            "phases": {
                "stateful": {"enabled": False},
                **{name: {"enabled": True} for name in PHASES},
            },
            "generation": {"mode": "all", "max-examples": max_examples, "deterministic": True, "no-shrink": True},
            "continue-on-failure": True,
        }
        schema = schemathesis.openapi.from_url(
            f"{client.base_url}/v1/openapi.json", config=SchemathesisConfig.from_dict(settings)
        )
        statuses: Counter[int] = Counter()
        wrong: list[str] = []
        for event in from_schema(schema).execute():
            if isinstance(event, events.NonFatalError):
                wrong.append(str(event.info))
            elif isinstance(event, events.FatalError):
                wrong.append(repr(event.exception))
            elif isinstance(event, events.ScenarioFinished):
                for one in event.recorder.interactions.values():
                    statuses[one.response.status_code if one.response else 0] += 1
                wrong += [
                    f"{event.recorder.label}: {node.failure_info.failure}"
                    for nodes in event.recorder.checks.values()
                    for node in nodes
                    if node.failure_info is not None
                ]
    return statuses, wrong


def assert_true(client: Running, max_examples: int) -> None:
    statuses, wrong = outcomes(client, max_examples)
    print(f"{statuses.total()} requests: {dict(sorted(statuses.items()))}")
    assert not wrong, "\n".join(dict.fromkeys(wrong))
    assert statuses[200]
    assert statuses[422]
    assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize("new_database", ["sqlite"], indirect=True)
def test_answers_are_those_of_the_schema(client: Running) -> None:
    assert_true(client, 3)


@pytest.mark.slow
def test_many_answers_are_those_of_the_schema(client: Running) -> None:
    assert_true(client, 50)
