"""Logs as lines of JSON, metrics for Prometheus, and the middleware that feeds both."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairstream.service.api.auth import KEY
from fairstream.service.api.errors import ApiError, error_from

ROUTE = "fairstream.route"
"""Where a request's ASGI scope names its route, if no route of FastAPI has answered it."""
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
"""Where several workers share their counters, by prometheus-client's convention."""
_LOGGERS = ("fairstream", "uvicorn")
_FLUSH_SECONDS = 0.1
_MAX_WAITING = 100_000
_CLIENT_GONE = 499
"""The client left before there was an answer; the number is nginx's."""
_PROBES = ("/healthz", "/readyz")
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"))
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_encode = json.JSONEncoder(ensure_ascii=False, default=str).encode
_log = logging.getLogger("fairstream.api")
_requests = logging.getLogger("fairstream.requests")


class JsonFormatter(logging.Formatter):
    """A record as an object: time, level, event, and the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "level": record.levelname.lower(), "event": record.getMessage(), **extra}
        return _encode(line)


class BufferedHandler(logging.Handler):
    """Writes records in batches from a thread of its own: whoever reads them slowly delays no request."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self._stream = stream
        self._records: deque[logging.LogRecord] = deque(maxlen=_MAX_WAITING)
        self._n_emitted = self._n_written = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    def handle(self, record: logging.LogRecord) -> bool:
        self._n_emitted += 1
        self._records.append(record)
        return True

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self)
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        super().close()

    def _run(self) -> None:
        while not self._stop.wait(_FLUSH_SECONDS):
            self.flush()
        self.flush()

    def flush(self) -> None:
        records: list[logging.LogRecord] = []
        while self._records:
            records.append(self._records.popleft())
        self._n_written += len(records)
        if (n_lost := self._n_emitted - self._n_written - len(self._records)) > 0:
            self._n_written += n_lost
            records.append(logging.makeLogRecord({"msg": "log lines lost", "levelname": "WARNING", "n": n_lost}))
        if records:
            stream = self._stream or sys.stderr
            try:
                stream.write("\n".join(map(self.format, records)) + "\n")
                stream.flush()
            except (OSError, ValueError):  # nobody reads any more; the service goes on
                pass


def start_logging(level: str = "info", stream: TextIO | None = None) -> BufferedHandler:
    """Send what fairstream and uvicorn log to standard error; close the handler to end that."""
    handler = BufferedHandler(stream)
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper() if name == "fairstream" else logging.WARNING)
    handler.start()
    return handler


class _Measured(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class Metrics:
    """The counters of this process, or of all workers where they share a folder."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "fairstream_requests", "Requests.", ("method", "route", "status"), registry=self._registry
        )
        self.seconds = Histogram(
            "fairstream_request_seconds", "Duration of requests.", ("route",), buckets=BUCKETS, registry=self._registry
        )
        self.events = Counter("fairstream_events", "Events received over HTTP.", ("outcome",), registry=self._registry)
        self.lists = Counter(
            "fairstream_recommendations", "Lists by where they come from.", ("source",), registry=self._registry
        )

    def text(self, measured: Iterable[Metric]) -> bytes:
        """In Prometheus's format, with what was measured just now."""
        registry = self._registry
        if MULTIPROCESS in os.environ:
            MultiProcessCollector(registry := CollectorRegistry())  # type: ignore[no-untyped-call]
        now = CollectorRegistry(auto_describe=False)
        now.register(_Measured(measured))
        ProcessCollector(registry=now)
        return generate_latest(registry) + generate_latest(now)

    def count(self, *, min_status: int = 0) -> int:
        """How many requests of this process were answered, with at least this status."""
        samples = (sample for family in self.requests.collect() for sample in family.samples)
        return int(
            sum(
                sample.value
                for sample in samples
                if sample.name.endswith("_total") and int(sample.labels["status"]) >= min_status
            )
        )

    def quantile(self, route: str, q: float) -> float | None:
        """Of the durations of a route in this process, interpolated within its bucket; None before the first."""
        counts = [
            (float(sample.labels["le"]), sample.value)
            for family in self.seconds.collect()
            for sample in family.samples
            if sample.name.endswith("_bucket") and sample.labels["route"] == route
        ]
        return interpolated(counts, q)


def interpolated(cumulative: list[tuple[float, float]], q: float) -> float | None:
    """The q-quantile of a histogram given as (upper bound, how many are at most that), bounds rising to infinity.

    >>> interpolated([(1.0, 0), (2.0, 10), (float("inf"), 10)], 0.5)
    1.5
    """
    if not cumulative or not cumulative[-1][1]:
        return None
    rank, low, below = q * cumulative[-1][1], 0.0, 0.0
    for high, within in cumulative:
        if within >= rank and within > below:
            return low if high == float("inf") else low + (high - low) * (rank - below) / (within - below)
        low, below = (low if high == float("inf") else high), within
    return low


class RequestLogging:
    """The outermost middleware: every request is counted, timed and logged, and none ends in a traceback."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics
        self._children: dict[tuple[str, str, int], tuple[Any, Any]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except ClientDisconnect:
            status = status or _CLIENT_GONE
        except Exception as error:
            if not isinstance(error, ApiError):
                # Files and lines without what was in the variables: those may name users.
                frames = traceback.extract_tb(error.__traceback__)[-6:]
                where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
                _log.error("unexpected error", extra={"kind": type(error).__name__, "where": where})
            if not status:
                await error_from(error).response()(scope, receive, noted)
        self._note(scope, status, time.perf_counter() - begin)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        # The route as it is declared, because a path names users; methods are anything that a client likes to write.
        route = str(scope.get(ROUTE) or getattr(scope.get("route"), "path_format", "other"))
        method: str = scope["method"] if scope["method"] in _METHODS else "other"
        children = self._children.get((method, route, status))
        if children is None:
            children = self._metrics.requests.labels(method, route, status), self._metrics.seconds.labels(route)
            self._children[method, route, status] = children
        children[0].inc()
        children[1].observe(seconds)
        level = logging.DEBUG if route in _PROBES else logging.INFO
        if _requests.isEnabledFor(level):
            key = scope.get(KEY)
            extra = {
                "method": method,
                "route": route,
                "status": status,
                "milliseconds": round(seconds * 1000, 3),
                "key": None if key is None else key.name,
            }
            if status in (400, 401, 403, 429):
                extra["peer"] = (scope.get("client") or (None,))[0]
            _requests.log(level, "request", extra=extra)
