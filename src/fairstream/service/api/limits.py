"""How often, how large, and how much at once."""

from __future__ import annotations

import math
import time

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairstream.service.api.refusals import Refused

_ROUNDING = 1e-6


class Bucket:
    """So many requests a second on average, and twice as many in a burst."""

    def __init__(self, rate: float) -> None:
        self._rate, self._room = rate, max(1.0, 2 * rate)
        self._tokens, self._filled = self._room, time.monotonic()

    def take(self) -> int:
        """0 where one may go on, else after how many seconds."""
        now = time.monotonic()
        self._tokens = min(self._room, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens > 1 - _ROUNDING:
            self._tokens -= 1
            return 0
        return math.ceil((1 - self._tokens) / self._rate)


class BodyLimit:
    """Refuses bodies that are too large, by what they say they are and by what arrives."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "GET":
            await self._app(scope, receive, send)
            return
        n_bytes = 0

        async def counted() -> Message:
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            if n_bytes > self._max:
                raise self._refused()
            return message

        async def refused() -> Message:
            raise self._refused()

        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        too_large = announced.isdigit() and int(announced[:20]) > self._max
        await self._app(scope, refused if too_large else counted, send)

    def _refused(self) -> Refused:
        return Refused(413, f"the body must have at most {self._max} bytes; send it in several parts")


class Bodies:
    """Reads bodies, as many at once as there is room for."""

    def __init__(self, max_bytes: int) -> None:
        self._room = max_bytes

    async def read(self, request: Request) -> bytes:
        """The whole body; give the room back with `done` when it has been dealt with."""
        parts: list[bytes] = []
        try:
            async for part in request.stream():
                self._room -= len(part)
                parts.append(part)
                if self._room < 0:
                    raise Refused(503, "too many large bodies are being dealt with; try again in 1 s", retry_after=1)
        except BaseException:
            self._room += sum(map(len, parts))
            raise
        return b"".join(parts)

    def done(self, body: bytes) -> None:
        self._room += len(body)
