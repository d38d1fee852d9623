"""Logs, metrics, background loops and the mapping of errors, each by itself."""

from __future__ import annotations

import asyncio
import io
import json
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from fairstream.errors import CheckpointError, DataError, ModelError, WorkspaceError
from fairstream.service.api.errors import error_from
from fairstream.service.api.jobs import repeat
from fairstream.service.api.monitoring import BUCKETS, BufferedHandler, Metrics, interpolated
from fairstream.service.database import DatabaseUnavailableError


@given(seconds=st.lists(st.floats(0, 10), min_size=1), q=st.floats(0.01, 0.99))
def test_a_quantile_is_at_most_a_bucket_away_from_the_exact_one(seconds: list[float], q: float) -> None:
    bounds = [*BUCKETS, float("inf")]
    estimate = interpolated([(bound, sum(each <= bound for each in seconds)) for bound in bounds], q)
    exact = float(np.quantile(seconds, q, method="inverted_cdf"))
    place = int(np.searchsorted(BUCKETS, exact))
    assert estimate is not None
    assert (0.0, *BUCKETS)[place] - 1e-9 <= estimate <= bounds[min(place, len(BUCKETS) - 1)] + 1e-9


def test_a_quantile_lies_inside_its_bucket_and_is_none_before_the_first_request() -> None:
    metrics = Metrics()
    assert metrics.quantile("/x", 0.5) is None
    for _ in range(9):
        metrics.seconds.labels("/x").observe(0.02)
    assert metrics.quantile("/x", 0.5) == pytest.approx(0.0175)  # not the bucket's upper bound, 0.025


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
    assert (metrics.count(), metrics.count(min_status=500)) == (1, 0)


def test_logs_are_lines_of_json_and_what_is_lost_is_counted() -> None:
    stream = io.StringIO()
    handler = BufferedHandler(stream)
    handler._records = type(handler._records)(maxlen=3)
    logger = logging.Logger("test", logging.INFO)
    logger.addHandler(handler)
    for n in range(5):
        logger.info("request", extra={"n": n})
    logger.error("model %s\n", "ü", extra={"why": 'a "quote"'})
    handler.start()
    handler.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["request", "request", "model ü\n", "log lines lost"]
    assert (lines[0]["n"], lines[2]["why"], lines[2]["level"], lines[3]["n"]) == (3, 'a "quote"', "error", 3)


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
