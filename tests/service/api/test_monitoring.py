"""Logs, metrics, background loops and the mapping of errors, each by itself."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import OperationalError
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fairstream.errors import CheckpointError, DataError, ModelError, WorkspaceError
from fairstream.service.api.errors import CODES, cause_of, error_from
from fairstream.service.api.jobs import repeat
from fairstream.service.api.monitoring import LogQueue, Metrics, RequestLogging
from fairstream.service.database import DatabaseUnavailableError
from fairstream.service.records import UnknownIdError
from fairstream.service.updates import UpdateRunning


def test_counters_are_shown_in_prometheus_format() -> None:
    metrics = Metrics()
    metrics.requests("GET", "/v1/x", 200).inc()
    metrics.seconds("/v1/x").observe(0.002)
    metrics.events("accepted").inc(7)
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
    ("error", "code", "words"),
    [
        (DataError("event 3: time is missing"), "invalid", "time is missing"),
        (ModelError("model m1 has weights that are not finite"), "model_failed", "not finite"),
        (CheckpointError("model m1 is damaged"), "model_failed", "m1 is damaged"),
        (UnknownIdError("there is no model m1"), "unknown_id", "no model"),
        (WorkspaceError("model m1 is in service already"), "conflict", "in service already"),
        (
            DatabaseUnavailableError("the database sqlite:////home/x cannot be used: unable to open"),
            "database_unavailable",
            "database cannot",
        ),
        (DatabaseUnavailableError("…: database or disk is full"), "disk_full", "full"),
        (DatabaseUnavailableError("…: attempt to write a readonly database"), "database_unavailable", "read-only"),
        (DatabaseUnavailableError("…: database is locked"), "database_unavailable", "locked"),
        (OperationalError("SELECT secret", {"user": "u1"}, Exception("gone")), "database_unavailable", "database"),
        (MemoryError(), "overloaded", "memory"),
        (UpdateRunning("u-1"), "update_running", "u-1 is"),
        (KeyError("u1"), "internal", "log"),
    ],
)
def test_errors_are_answered_by_their_cause(error: Exception, code: str, words: str) -> None:
    answer = error_from(error)
    assert (answer.code, answer.status_code) == (code, CODES[code].status)
    assert words in answer.detail
    assert not any(secret in answer.detail for secret in ("SELECT", "u1", "/home/x"))


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """What the service logs meanwhile."""
    stream = io.StringIO()
    handler, logger = LogQueue(stream), logging.getLogger("fairstream")
    before = logger.handlers, logger.propagate, logger.level
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    handler.listener.start()
    try:
        yield stream
    finally:
        handler.listener.stop()
        logger.handlers, logger.propagate = before[:2]
        logger.setLevel(before[2])


def asked(app: ASGIApp, **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(RequestLogging(app, Metrics()))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/v1/users/ann", headers=headers)

    return asyncio.run(ask())


async def works(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.to_thread(logging.getLogger("fairstream.test").warning, "from a thread")
    await Response("fine")(scope, receive, send)


async def fails(scope: Scope, *_: object) -> None:
    name = scope["path"].rpartition("/")[2]
    try:
        raise KeyError(name)
    except KeyError as error:
        raise RuntimeError(name) from error


def test_every_answer_and_every_line_of_the_log_has_the_id_of_the_request() -> None:
    with logged() as stream:
        assert asked(works, **{"X-Request-ID": "a-1:b.c_D"}).headers["x-request-id"] == "a-1:b.c_D"
        made = [asked(app).headers["x-request-id"] for app in (works, fails)]
    ids = [line["request_id"] for line in lines_of(stream)]
    assert ids == ["a-1:b.c_D", "a-1:b.c_D", made[0], made[0], made[1], made[1]]
    assert made[0] != made[1]
    for bad in ("", "x" * 65, "a b", 'a"b'):
        assert asked(works, **{"X-Request-ID": bad}).headers["x-request-id"] != bad


def test_an_unexpected_error_logs_where_it_happened_and_whom_it_concerned_to_nobody() -> None:
    with logged() as stream:
        answer = asked(fails)
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    line = lines_of(stream)[0]
    assert (line["event"], line["why"]) == ("unexpected error", "RuntimeError")
    kinds = [each for each in line["where"] if ":" not in each]
    assert kinds == ["RuntimeError", "KeyError"]
    assert any(re.fullmatch(r".*/test_monitoring\.py:\d+ fails", each) for each in line["where"])
    assert "ann" not in answer.text + stream.getvalue()


def test_causes_in_the_log_repeat_no_value() -> None:
    assert cause_of(KeyError("ann")) == "KeyError"
    assert cause_of(OperationalError("SELECT", {"user": "ann"}, Exception("gone"))) == "Exception: gone"
    assert cause_of(DataError("event 3: time is missing")) == "DataError: event 3: time is missing"
