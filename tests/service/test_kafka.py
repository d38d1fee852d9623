"""The consumer against librdkafka's own mock cluster: nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any

import pytest
from confluent_kafka import Producer
from sqlalchemy import insert

from fairstream.errors import ConfigurationError
from fairstream.service.database import now, writing
from fairstream.service.event_store import EventStore
from fairstream.service.kafka import KafkaEvents, make_consumer
from fairstream.service.schema import periods
from fairstream.service.settings import Limits
from fairstream.service.workspace import Workspace
from live_services import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow

Maker = Callable[..., Workspace]
QUICK = {"session.timeout.ms": "6000", "log_level": "0"}
"""The mock cluster waits for a member that is gone until its session has ended."""


@pytest.fixture
def producer() -> Producer:
    """It carries the mock cluster, which is there as long as it is."""
    return Producer({"test.mock.num.brokers": 1, "log_level": 0})


@pytest.fixture
def brokers(producer: Producer) -> str:
    found = producer.list_topics(timeout=PATIENCE_SECONDS).brokers.values()
    return ",".join(f"{broker.host}:{broker.port}" for broker in found)


def send(producer: Producer, messages: list[bytes | str]) -> None:
    for message in messages:
        producer.produce("events", message)
    assert producer.flush(PATIENCE_SECONDS) == 0


def event(n: int, **change: Any) -> dict[str, Any]:
    return {"user_id": f"u{n % 7}", "item_id": f"i{n}", "time": 1_700_000_000 + n, **change}


class CountingConsumer:
    """A consumer that counts how often it was asked for messages."""

    def __init__(self, consumer: Any) -> None:
        self._consumer, self.n_asked = consumer, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def consume(self, *arguments: Any) -> Any:
        messages = self._consumer.consume(*arguments)
        self.n_asked += 1
        return messages


class Running:
    """A consumer in a thread."""

    def __init__(self, workspace: Workspace, brokers: str) -> None:
        self.lines: list[Mapping[str, Any]] = []
        self.events = KafkaEvents(workspace, self.lines.append)
        self.consumer = CountingConsumer(make_consumer(brokers, "g", QUICK))
        self._thread = Thread(target=self.events.run, args=(self.consumer, "events"))

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.events.stop()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()


def test_messages_are_taken_and_the_malformed_ones_counted(
    new_workspace: Maker, producer: Producer, brokers: str
) -> None:
    workspace = new_workspace()
    store = EventStore(workspace)
    twice = json.dumps(event(1))
    bad = [b"", b"\xff", b"3", b'{"user_id": "secret person"}', json.dumps([event(5), event(6, time="never")])]
    good = [twice, twice, json.dumps([event(2), event(3, event_id="x")]), json.dumps([event(4, event_id="x")]), "[]"]
    send(producer, [*bad, *good])
    with Running(workspace, brokers) as running:
        wait_until(lambda: store.last_seq() >= 4 and running.events.n_dead >= len(bad))
    assert Counter(store.read(0)["item_id"].to_pylist())["i1"] == 2  # equal, but two
    assert len(store.read(0)) == 4
    assert running.events.stored == (4, 1, 0)
    dead = [line for line in running.lines if line["event"] == "dead letter"]
    assert len(dead) == running.events.n_dead == len(bad)
    assert "secret person" not in json.dumps(dead)
    assert {"topic", "partition", "offset", "reason", "dead"} <= set(dead[0])


@pytest.mark.slow
def test_a_consumer_waits_while_too_many_events_are_open(
    new_workspace: Maker, producer: Producer, brokers: str
) -> None:
    workspace = new_workspace(limits=Limits(max_open_events=1000))
    store = EventStore(workspace)
    send(producer, [json.dumps([event(n) for n in range(1500)])])
    with Running(workspace, brokers) as running:
        wait_until(lambda: any(line["event"] == "paused" for line in running.lines))
        send(producer, [json.dumps(event(n)) for n in range(2000, 2100)])
        n_asked = running.consumer.n_asked
        wait_until(lambda: running.consumer.n_asked >= n_asked + 3)
        assert store.last_seq() == 1500
        with writing(workspace.engine) as connection:
            counts = dict.fromkeys(("n_events", "n_users", "n_late", "split_time", "split_seq"), 0)
            connection.execute(insert(periods).values(t=0, first_seq=1, last_seq=1500, closed=now(), **counts))
        wait_until(lambda: store.last_seq() == 1600)


@pytest.mark.slow
def test_killed_and_started_again_nothing_is_lost_and_nothing_twice(
    new_workspace: Maker, producer: Producer, brokers: str
) -> None:
    workspace = new_workspace()
    store = EventStore(workspace)
    command = [sys.executable, "-m", "fairstream", "consume", str(workspace.folder)]
    command += ["--brokers", brokers, "--topic", "events"]
    command += [part for name, value in QUICK.items() for part in ("--set", f"{name}={value}")]
    n, n_sent = 500, 0

    def send_more() -> None:
        nonlocal n_sent
        send(producer, [json.dumps(event(n)) for n in range(n_sent, n_sent + n)])
        n_sent += n

    for end in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
        before = store.last_seq()
        send_more()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ})
        try:
            wait_until(lambda before=before: store.last_seq() > before)
            if end == signal.SIGTERM:
                wait_until(lambda: store.last_seq() >= n_sent)
        finally:
            process.send_signal(end)
            out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert b"accepted" in out
    assert sorted(store.read(0)["item_id"].to_pylist()) == sorted(f"i{n}" for n in range(n_sent))


@pytest.mark.parametrize("options", [{"no.such.option": "1"}, {"group.id": "other"}])
def test_options_that_cannot_be_honoured_are_one_sentence(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError) as told:
        make_consumer("localhost:1", "g", options)
    assert "\n" not in str(told.value)
