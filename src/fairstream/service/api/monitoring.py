"""Logs as lines of JSON, metrics for Prometheus, and the middleware that feeds both."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache, partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairstream.service.api.auth import KEY
from fairstream.service.api.errors import ApiError, cause_of, error_from, places_of

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"  # prometheus-client's name of the folder in which workers share counters
_LOGGERS = ("fairstream", "uvicorn")
_MAX_WAITING = 100_000
_LOG_SECONDS = 0.02  # between two writes to the log
_CLIENT_GONE = 499  # the client left before there was an answer; the number is nginx's
_PROBES = ("/healthz", "/readyz")
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"))
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SENT_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PROCESS, _numbers = f"{secrets.token_hex(4)}-", count(1)
REQUEST_ID: ContextVar[str | None] = ContextVar("request id", default=None)
"""The id of the current request, for every line that it logs."""
SHOP: ContextVar[str | None] = ContextVar("shop", default=None)
"""The workspace of the current request or task, for every line that it logs."""
_encode = json.JSONEncoder(ensure_ascii=False, default=str).encode
_log = logging.getLogger("fairstream.api")
_requests = logging.getLogger("fairstream.requests")


class JsonFormatter(logging.Formatter):
    """Formats a record as an object: time, level, event, and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "level": record.levelname.lower(), "event": record.getMessage(), **extra}
        if record.exc_info and record.exc_info[1] is not None:
            line["where"] = list(places_of(record.exc_info[1]))
        return _encode(line)


class LogQueue(logging.handlers.QueueHandler):
    """Passes records to a thread that writes them, so that a slow reader of the log delays no request.

    A full queue drops records; their number follows the next record that fits.
    """

    queue: SimpleQueue[Any]

    def __init__(self, stream: TextIO | None = None, max_waiting: int = _MAX_WAITING) -> None:
        super().__init__(SimpleQueue())
        self.listener = _LogWriter(self.queue, stream or sys.stderr)
        self._max_waiting, self._n_lost = max_waiting, 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        for name, value in (("request_id", REQUEST_ID.get()), ("shop", SHOP.get())):
            if value is not None:
                setattr(record, name, value)
        return record  # the writer formats it: the queue does not leave the process

    def enqueue(self, record: logging.LogRecord) -> None:
        if self.queue.qsize() >= self._max_waiting:
            self._n_lost += 1
            return
        super().enqueue(record)
        if self._n_lost:
            lost = {"msg": "log lines lost", "levelname": "WARNING", "n": self._n_lost}
            super().enqueue(logging.makeLogRecord(lost))
            self._n_lost = 0


class _LogWriter(logging.handlers.QueueListener):
    """Writes all waiting records at once: to wake up for each would cost requests more than the lines themselves."""

    queue: SimpleQueue[Any]

    def __init__(self, records: SimpleQueue[Any], stream: TextIO) -> None:
        super().__init__(records)
        self._format, self._stream, self._lines = JsonFormatter().format, stream, list[str]()

    def dequeue(self, block: bool) -> logging.LogRecord:
        if self.queue.empty():
            self._write()
            time.sleep(_LOG_SECONDS)
        return super().dequeue(block)

    def handle(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # an argument that does not fit its message
            self._lines.append(f"{self._format(record)}\n")

    def stop(self) -> None:
        super().stop()
        self._write()

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        with suppress(OSError, ValueError):  # the stream is closed
            self._stream.write("".join(lines))
            self._stream.flush()


@contextmanager
def json_logs(level: str) -> Iterator[None]:
    """Send the logs of fairstream and uvicorn to standard error."""
    handler = LogQueue()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper() if logger.name == "fairstream" else logging.WARNING)
    handler.listener.start()
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        handler.listener.stop()


class _Measured(list[Metric]):
    def collect(self) -> Iterable[Metric]:
        return self


class Metrics:
    """The numbers of a workspace in this process, or in all workers if they share a folder.

    The label `shop` is shown where several are served.
    """

    def __init__(self, shop: str = "") -> None:
        registry = self._registry = CollectorRegistry()
        self._shop, self._label = shop, {"shop": shop} if shop else {}
        if MULTIPROCESS in os.environ:
            _drop_dead_workers(Path(os.environ[MULTIPROCESS]))

        def metric(kind: type[Any], name: str, about: str, *labels: str, **options: Any) -> Callable[..., Any]:
            """Return a function of the other labels' values, which are few."""
            named = kind(f"fairstream_{name}", about, ("shop", *labels), registry=registry, **options)
            return cache(partial(named.labels, shop))

        self.requests = metric(Counter, "requests", "Requests.", "method", "route", "status")
        self.seconds = metric(Histogram, "request_seconds", "Duration of requests.", "route", buckets=BUCKETS)
        self.events = metric(Counter, "events", "Events received over HTTP.", "outcome")
        self.lists = metric(Counter, "recommendations", "Lists of people and sessions by their source.", "source")
        self._gauges = {
            name: metric(Gauge, name, about, multiprocess_mode=mode)()
            for name, about, mode in (
                ("ready", "The service can make lists.", "livemin"),
                ("problems", "Problems that /readyz names.", "livemax"),
                ("batches_waiting", "Batches to be stored.", "livesum"),
                ("events_behind", "Stored events that lists do not know of yet.", "livemax"),
            )
        }

    def measure(self, **values: float) -> None:
        """Set gauges, of which a scrape shows the worst of all workers."""
        for name, value in values.items():
            self._gauges[name].set(value)

    def n_lists(self, source: str) -> int:
        """Return how many lists of a source this process has answered."""
        labels = {"shop": self._shop, "source": source}
        return int(self._registry.get_sample_value("fairstream_recommendations_total", labels) or 0)

    def text(self, measured: Iterable[Metric]) -> bytes:
        registry = self._registry
        if MULTIPROCESS in os.environ:
            MultiProcessCollector(registry := CollectorRegistry())  # type: ignore[no-untyped-call]
        families = _Measured((*registry.collect(), *measured, *ProcessCollector(registry=None).collect()))
        for family in families:
            samples = (sample for sample in family.samples if sample.labels.pop("shop", self._shop) == self._shop)
            family.samples = [sample._replace(labels=sample.labels | self._label) for sample in samples]
        return generate_latest(families)


def _drop_dead_workers(folder: Path) -> None:
    """Remove the gauges of killed workers, and keep their counters."""
    for file in folder.glob("gauge_live*_*.db"):
        pid = int(file.stem.rpartition("_")[2])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            mark_process_dead(pid)  # type: ignore[no-untyped-call]


def _request_id(scope: Scope) -> str:
    """Return the client's id of the request, or a new one."""
    sent: bytes = dict(scope["headers"]).get(b"x-request-id", b"")
    return sent.decode() if _SENT_ID.fullmatch(sent) else f"{_PROCESS}{next(_numbers):x}"


class RequestLogging:
    """The outermost middleware: count, time and log every request, and answer every exception."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0
        REQUEST_ID.set(request_id := _request_id(scope))

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            if b"%00" in scope["query_string"] or _CONTROL.search(scope["path"]):  # PostgreSQL stores no 0
                raise ApiError("invalid", "the address: an id or a parameter must not contain control characters")
            await self._app(scope, receive, send_and_note)
        except ClientDisconnect:
            status = status or _CLIENT_GONE
        except Exception as error:
            answer = error_from(error)
            if answer.status_code >= 500:
                name = "unexpected error" if answer.code == "internal" else "request failed"
                _log.error(name, extra={"why": cause_of(error)}, exc_info=error)
            if not status:
                await answer.response()(scope, receive, send_and_note)
        self._note(scope, status, time.perf_counter() - begin)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        # The declared route, because a path names users; and a client may send any method.
        route = str(getattr(scope.get("route"), "path_format", "other"))
        method: str = scope["method"] if scope["method"] in _METHODS else "other"
        metrics = self._metrics
        metrics.requests(method, route, status).inc()
        metrics.seconds(route).observe(seconds)
        level = logging.DEBUG if route in _PROBES else logging.INFO
        if _requests.isEnabledFor(level):
            key = scope.get(KEY)
            extra = {"method": method, "route": route, "status": status, "milliseconds": round(seconds * 1000, 3)}
            extra["key"] = None if key is None else key.name
            if status in (400, 401, 403, 429):
                extra["peer"] = (scope.get("client") or (None,))[0]
            _requests.log(level, "request", extra=extra)
