"""Alerts reach the webhook: signed, retried, and for every way in which updates stop learning."""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from streams import named_stream, take_in

from fairstream.service import alerts, updates
from fairstream.service.alerts import alert
from fairstream.service.registry import n_unpromoted, promote
from fairstream.service.settings import Alerts
from fairstream.service.workspace import Workspace

PERIODS, _ = named_stream()
SECRET = "correct horse battery staple"


@dataclass
class Webhook:
    """A server that takes what is posted to it, after it has refused some attempts."""

    address: str = ""
    n_refusals: int = 0
    n_attempts: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)
    signatures: list[tuple[str | None, bytes]] = field(default_factory=list)


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    monkeypatch.setattr(alerts, "_WAIT_SECONDS", (0.01, 0.01))
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.n_attempts += 1
            if hook.n_attempts <= hook.n_refusals:
                self.send_error(503)
                return
            hook.messages.append(json.loads(body))
            hook.signatures.append((self.headers["X-Fairstream-Signature"], body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hook.address = f"http://127.0.0.1:{server.server_port}/"
    yield hook
    server.shutdown()
    server.server_close()
    thread.join()


def alerting(workspace: Workspace, hook: Webhook, **options: Any) -> Workspace:
    return replace(workspace, config=workspace.config.with_options(alerts=Alerts(webhook=hook.address, **options)))


def test_an_alert_is_signed_with_the_secret_and_retried(learned: Workspace, webhook: Webhook) -> None:
    webhook.n_refusals = 2
    assert alert(alerting(learned, webhook, secret=SECRET), "experiment", "it ended", winner="b")
    assert webhook.n_attempts == 3
    (message,), ((signature, body),) = webhook.messages, webhook.signatures
    assert (message["kind"], message["message"], message["winner"]) == ("experiment", "it ended", "b")
    assert signature == "sha256=" + hmac.digest(SECRET.encode(), body, "sha256").hex()
    assert SECRET not in body.decode()


def test_a_webhook_that_never_accepts_changes_nothing(
    learned: Workspace, webhook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    webhook.n_refusals = 10
    assert not alert(alerting(learned, webhook), "failed", "no memory")
    assert webhook.n_attempts == 3
    assert "did not accept an alert in 3 attempts" in caplog.text
    assert "failed: no memory" in caplog.text


@pytest.mark.parametrize("address", ["http://[", "http://a..b/", "https://"])
def test_an_address_that_cannot_be_read_changes_nothing(
    learned: Workspace, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(alerts, "_WAIT_SECONDS", ())
    assert not alert(alerting(learned, Webhook(address)), "failed", "no memory")
    assert "did not accept an alert in 1 attempts" in caplog.text


def test_every_update_that_promotes_nothing_counts_towards_the_alert(learned: Workspace, webhook: Webhook) -> None:
    learned = alerting(learned, webhook, after=3)
    for n in range(1, 4):  # too few events to judge by
        take_in(learned, PERIODS[2].slice(n, 1))
        assert updates.run(learned).state == "skipped"
        assert n_unpromoted(learned.engine) == n
    (message,) = webhook.messages
    assert (message["kind"], message["in_a_row"]) == ("skipped", 3)
    assert "3 in a row without a promotion: the period stays open" in message["message"]
    take_in(learned, PERIODS[2])
    done = updates.run(learned)
    assert done.state == "promoted"
    assert n_unpromoted(learned.engine) == 0
    assert (webhook.messages[-1]["kind"], webhook.messages[-1]["update"]) == ("promoted", done.id)


@pytest.mark.slow
def test_a_promotion_by_hand_ends_the_count(learned: Workspace) -> None:
    config = learned.config.with_options(gate=learned.config.gate.with_options(max_drift=1e-9, max_fall=0.0))
    learned = replace(learned, config=config)
    take_in(learned, PERIODS[2].set_column(1, "item_id", PERIODS[3]["item_id"].slice(0, len(PERIODS[2]))))
    done = updates.run(learned)
    assert done.state == "rejected", done
    assert n_unpromoted(learned.engine) == 1
    promote(learned, str(done.model), by="test")
    assert n_unpromoted(learned.engine) == 0
