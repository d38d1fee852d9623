"""Logs, metrics, background loops and the mapping of errors, each by itself."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time

import pytest
from sqlalchemy.exc import OperationalError

from fairstream.errors import CheckpointError, DataError, ModelError, WorkspaceError
from fairstream.service.api.errors import error_from
from fairstream.service.api.jobs import repeat
from fairstream.service.api.monitoring import LogQueue, Metrics
from fairstream.service.database import DatabaseUnavailableError
from fairstream.service.records import UnknownIdError


def test_counters_are_shown_in_prometheus_format() -> None:
    metrics = Metrics()
    metrics.requests.labels("GET", "/v1/x", 200).inc()
    metrics.seconds.labels("/v1/x").observe(0.002)
    metrics.events.labels("accepted").inc(7)
    text = metrics.text([]).decode()
    for line in (
        'fairstream_requests_total{method="GET",route="/v1/x",status="200"} 1.0',
        'fairstream_request_seconds_bucket{le="0.0025",route="/v1/x"} 1.0',
        'fairstream_events_total{outcome="accepted"} 7.0',
    ):
        assert line in text


def test_logs_are_lines_of_json_and_lost_lines_are_counted() -> None:
    stream = io.StringIO()
    handler = LogQueue(stream, max_waiting=3)
    logger = logging.Logger("test", logging.INFO)
    logger.addHandler(handler)
    for n in range(5):
        logger.info("request", extra={"n": n})
    handler.listener.start()
    while handler.queue.qsize():
        time.sleep(0.001)
    logger.error("model %s\n", "ü", extra={"why": 'a "quote"'})
    handler.listener.stop()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["request"] * 3 + ["model ü\n", "log lines lost"]
    assert (lines[0]["n"], lines[3]["why"], lines[3]["level"], lines[4]["n"]) == (0, 'a "quote"', "error", 2)


def test_a_loop_outlives_exceptions_also_the_first_time() -> None:
    calls: list[int] = []

    async def step() -> None:
        calls.append(len(calls))
        if len(calls) != 3:
            raise OperationalError("SELECT", {}, Exception("connection refused"))

    async def some_time() -> None:
        task = asyncio.create_task(repeat(step, 0, "test"))
        while len(calls) < 6:
            await asyncio.sleep(0)
        assert not task.done()
        task.cancel()

    asyncio.run(some_time())


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (DataError("event 3: time is missing"), 422, "time is missing"),
        (ModelError("model m1 has weights that are not finite"), 500, "not finite"),
        (CheckpointError("model m1 is damaged"), 500, "m1 is damaged"),
        (UnknownIdError("there is no model m1"), 404, "no model"),
        (WorkspaceError("model m1 is in service already"), 409, "in service already"),
        (
            DatabaseUnavailableError("the database sqlite:////home/x cannot be used: unable to open"),
            503,
            "database cannot",
        ),
        (DatabaseUnavailableError("…: database or disk is full"), 507, "full"),
        (DatabaseUnavailableError("…: attempt to write a readonly database"), 503, "read-only"),
        (DatabaseUnavailableError("…: database is locked"), 503, "locked"),
        (OperationalError("SELECT secret", {"user": "u1"}, Exception("gone")), 503, "database"),
        (MemoryError(), 503, "memory"),
        (KeyError("u1"), 500, "log"),
    ],
)
def test_errors_are_answered_by_their_cause(error: Exception, status: int, words: str) -> None:
    answer = error_from(error)
    assert answer.status_code == status
    assert words in answer.detail
    assert not any(secret in answer.detail for secret in ("SELECT", "u1", "/home/x"))
