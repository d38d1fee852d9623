"""Every request is counted, timed and logged, and none ends in a traceback."""

from __future__ import annotations

import time
import traceback

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairstream.service.api.auth import KEY_NAME
from fairstream.service.api.logs import Logs
from fairstream.service.api.metrics import Metrics
from fairstream.service.api.reading import json_response

_GONE = 499
"""The client left before there was an answer; the number is nginx's."""


class Observed:
    """The outermost of the service's own middlewares."""

    def __init__(self, app: ASGIApp, logs: Logs, metrics: Metrics) -> None:
        self._app, self._logs, self._metrics = app, logs, metrics

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
            status = status or _GONE
        except Exception as error:
            self._logs.say("unexpected error", kind=type(error).__name__, where=_where(error))
            if not status:
                said = '{"detail":"something went wrong inside the service; its log says what"}'
                await json_response(said, 500)(scope, receive, noted)
        seconds = time.perf_counter() - begin
        route, method = _template(scope), _method(scope)
        self._metrics.count(method, route, status, seconds)
        self._logs.request(method, route, status, seconds, scope.get(KEY_NAME))


def _template(scope: Scope) -> str:
    """The route as it is declared; never the path, which names users."""
    return getattr(scope.get("route"), "path_format", "other")


_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"))


def _method(scope: Scope) -> str:
    """Methods are anything that a client likes to write; those that are not known count as one."""
    method: str = scope["method"]
    return method if method in _METHODS else "other"


def _where(error: Exception) -> list[str]:
    """Files and lines without what was in the variables: those may name users."""
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)[-6:]]
