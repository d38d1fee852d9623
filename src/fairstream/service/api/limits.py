"""Limits on requests: their rate, their size, and how long they may take to arrive."""

from __future__ import annotations

import math
import time
from asyncio import AbstractEventLoop, TimerHandle, Transport
from typing import Any, Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fairstream.service.api.errors import ApiError

_ROUNDING = 1e-6
_BODIES_AT_ONCE = 4
_FRAME_BYTES = 16
"""A chunk's length in hexadecimal digits, and two line ends."""


class Bucket:
    """A token bucket: `rate` requests a second on average, and a burst of `room`."""

    def __init__(self, rate: float, room: float | None = None) -> None:
        self._rate, self._room = rate, max(1.0, 2 * rate if room is None else room)
        self._tokens, self._filled = self._room, time.monotonic()

    def take(self) -> int:
        """0 if the request may pass, else the seconds to wait."""
        now = time.monotonic()
        self._tokens = min(self._room, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens > 1 - _ROUNDING:
            self._tokens -= 1
            return 0
        return math.ceil((1 - self._tokens) / self._rate)


class BodyLimits:
    """Middleware: refuses bodies that are too large, each by itself (413) or all that arrive together (503)."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max, self._room = app, max_bytes, _BODIES_AT_ONCE * max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        n_bytes = 0

        async def counted() -> Message:
            nonlocal n_bytes
            if announced > self._max:
                raise self._too_large()
            message = await receive()
            n_new = len(message.get("body", b""))
            n_bytes += n_new
            self._room -= n_new
            if n_bytes > self._max:
                raise self._too_large()
            if self._room < 0:
                raise ApiError(503, "Too many large bodies at once; try again in 1 s.", retry_after=1)
            return message

        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        announced = int(length[:20]) if length.isdigit() else 0
        try:
            await self._app(scope, counted, send)
        finally:
            self._room += n_bytes

    def _too_large(self) -> ApiError:
        return ApiError(413, f"The body must have at most {self._max} bytes; send it in several parts.")


class _Joined:
    """A transport that sends together what is written in one turn of the event loop: an answer's head and body."""

    def __init__(self, transport: Transport, loop: AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def _flush(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, []
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Deadlines(HttpToolsProtocol):
    """uvicorn's protocol with limits on heads and bodies that never end.

    A head has `head_seconds` from its first byte (or from the connection) and `max_head_bytes`. A body may
    pause for `idle_seconds` and take `body_seconds` in all; what a chunked body holds beside its data (trailers,
    extensions of chunks) has `max_head_bytes` as well. A request that is answered before its body has come, as one
    without a key is, gets its answer and the end of the connection: the rest is not kept, and may take `head_seconds`,
    so that the client reads the answer. When `limit_concurrency` connections are open
    a new one closes the one that has kept the server waiting longest, so that unfinished requests
    never keep others out. HTTP/1.1 requires exactly one Host.
    """

    head_seconds = 10.0
    idle_seconds = 30.0
    body_seconds = 600.0
    max_head_bytes = 1 << 18

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._awaited: Literal["head", "body", None] = "head"
        self._since = self._last_data = self.loop.time()
        self._n_head_bytes = 0
        """Bytes that are not data of a body."""
        self._is_refused = False
        """Whether the request was answered before its body had come."""
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(_Joined(transport, self.loop))  # type: ignore[arg-type]
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._make_room()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # what was on its way when it was refused
        self._last_data = self.loop.time()
        self._n_head_bytes += len(data)
        if self._awaited != "body" and self._n_head_bytes > self.max_head_bytes:
            self.send_400_response("The head of the request is too long.")
            return
        super().data_received(data)
        if self._n_head_bytes > self.max_head_bytes and not self.transport.is_closing():
            self.send_400_response("The request has too many bytes beside its body.")
        self._watch()

    def send_400_response(self, msg: str) -> None:
        is_answering = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if self._is_refused or is_answering:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        self._awaited, self._since = "head", self._last_data
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._is_refused:
            return  # nothing after a refused request is answered
        self._awaited, self._since, self._n_head_bytes = "body", self._last_data, 0
        if self.parser.get_http_version() == "1.1" and sum(name == b"host" for name, _ in self.headers) != 1:
            raise ValueError("HTTP/1.1 requires exactly one Host")  # answered with 400 by uvicorn
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._n_head_bytes = max(0, self._n_head_bytes - len(body) - _FRAME_BYTES)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._awaited, self._n_head_bytes = None, 0
        super().on_message_complete()
        if self._is_refused:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._awaited == "body" and self.cycle.response_complete and not self.transport.is_closing():
            # To close at once would reset the connection, and the client might never read the answer.
            self._is_refused, self._since = True, self.loop.time()
            if self.transport.can_write_eof():
                self.transport.write_eof()
            else:
                self.transport.close()

    def _deadline(self) -> float:
        if self._awaited == "head" or self._is_refused:
            return self._since + self.head_seconds
        return min(self._since + self.body_seconds, self._last_data + self.idle_seconds)

    def _watch(self) -> None:
        """Have a timer run while the client has something to send; a request in one piece needs none."""
        if self._awaited is not None and self._timer is None:
            wait = min(self._deadline() - self.loop.time(), self.head_seconds)
            self._timer = self.loop.call_later(max(wait, 0), self._look)

    def _look(self) -> None:
        self._timer = None
        if self.flow.read_paused:  # it is the service that does not read on
            self._last_data = self.loop.time()
        if self._awaited is None or self.transport.is_closing():
            return
        if self.loop.time() < self._deadline():
            self._watch()
            return
        if self.cycle is None or self._awaited == "head" or not self.cycle.response_started:
            self.transport.write(_TOO_LATE)
        self.transport.close()

    def _make_room(self) -> None:
        others = [other for other in self.connections if isinstance(other, Deadlines) and other is not self]
        waiting = [other for other in others if other._awaited or other.cycle is None or other.cycle.response_complete]
        if waiting:
            oldest = min(waiting, key=lambda other: other._since)
            self.connections.discard(oldest)
            oldest.transport.abort()


_TOO_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: 48\r\n\r\n"
    b'{"detail":"The request did not arrive in time."}'
)
