"""Limits on the rate and the size of requests."""

from __future__ import annotations

import math
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fairstream.service.api.errors import ApiError

_ROUNDING = 1e-6
_BODIES_AT_ONCE = 4
_FRAME_BYTES = 16  # a chunk's length in hexadecimal digits, and two line ends


class Bucket:
    """A token bucket: `rate` requests a second on average, and a burst of `room`."""

    def __init__(self, rate: float, room: float | None = None) -> None:
        self._rate, self._room = rate, max(1.0, 2 * rate if room is None else room)
        self._tokens, self._filled = self._room, time.monotonic()

    def take(self) -> int:
        """Return 0 if the request may pass, else the seconds to wait."""
        now = time.monotonic()
        self._tokens = min(self._room, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens > 1 - _ROUNDING:
            self._tokens -= 1
            return 0
        return math.ceil((1 - self._tokens) / self._rate)


class BodyLimits:
    """Middleware: refuse a body that is too large (413), or several that are too large together (503)."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max, self._room = app, max_bytes, _BODIES_AT_ONCE * max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        n_bytes = 0

        async def counted() -> Message:
            nonlocal n_bytes
            message = await receive()
            n_new = len(message.get("body", b""))
            n_bytes += n_new
            self._room -= n_new
            if n_bytes > self._max:
                sentence = f"The body must have at most {self._max} bytes; send it in several parts."
                raise ApiError("body_too_large", sentence)
            if self._room < 0:
                raise ApiError("overloaded", "Too many large bodies at once; try again in 1 s.", retry_after=1)
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._room += n_bytes


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a limit on the bytes of a request outside of its body's data.

    httptools stores heads and trailers of any length: four connections without a key took 1.5 GiB in 5 s. uvicorn has
    no option against it, and no middleware sees these bytes. Its other parser, h11, has a limit, but takes 165 µs of
    CPU a list instead of 79 µs.
    """

    max_head_bytes = 1 << 18
    _n_head_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._n_head_bytes += len(data)
        super().data_received(data)
        if self._n_head_bytes > self.max_head_bytes:
            self.transport.abort()

    def on_headers_complete(self) -> None:
        self._n_head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._n_head_bytes = max(0, self._n_head_bytes - len(body) - _FRAME_BYTES)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._n_head_bytes = 0
        super().on_message_complete()
