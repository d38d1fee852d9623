"""From a request's body to what is stored, by its content type."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from fairstream.service.api.limits import Bodies
from fairstream.service.api.refusals import Refused
from fairstream.service.api.schemas import JSON

Parsed = TypeVar("Parsed")
_AT_ONCE = 1 << 14
"""Bytes that are read in no time; larger bodies are read where they keep no other request waiting."""


async def parsed(request: Request, bodies: Bodies, parsers: dict[str, Callable[[bytes], Parsed]]) -> Parsed:
    """The body as the parser of its content type reads it; 415 where there is none."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if (parse := parsers.get(content_type)) is None:
        raise Refused(415, f"the Content-Type must be {' or '.join(parsers)}")
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise Refused(415, "the body must not be compressed; send it without Content-Encoding")
    body = await bodies.read(request)
    try:
        return parse(body) if len(body) <= _AT_ONCE else await asyncio.to_thread(parse, body)
    finally:
        bodies.done(body)


def json_response(content: str | bytes, status: int = 200) -> Response:
    """JSON that is written already."""
    return Response(content, status, media_type=JSON)


def whole_number(value: Any, name: str, low: int, high: int) -> int:
    """A number within its bounds, from a query's text or from JSON."""
    is_text = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20
    if is_text or type(value) is int:
        number = int(value)
        if low <= number <= high:
            return number
    raise Refused(422, f"{name} must be a whole number between {low} and {high}")
