"""What is refused is refused with one sentence, as {"detail": …}."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException
from pydantic import BaseModel


class Refusal(BaseModel):
    """Why a request was not done."""

    detail: str
    """One sentence."""


class Refused(HTTPException):
    """A request that is not done, and why."""

    def __init__(
        self, status: int, sentence: str, headers: dict[str, str] | None = None, *, retry_after: int | None = None
    ) -> None:
        if retry_after is not None:
            headers = {**(headers or {}), "Retry-After": str(retry_after)}
        super().__init__(status, sentence, headers)


_WHEN = {
    400: "The request cannot be read.",
    401: "There is no key, or not one that is known.",
    403: "The key may not do this.",
    404: "There is no such thing.",
    409: "This cannot be done now.",
    413: "The body is larger than is allowed.",
    415: "The body is of a kind that is not taken.",
    422: "The content cannot be used as it is.",
    429: "The key has asked for too much; try again after Retry-After seconds.",
    503: "The service cannot do this now; try again after Retry-After seconds.",
}
_WAIT = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route may refuse with, for its schema; keys and their limits apply to every one."""
    return {
        status: {"model": Refusal, "description": _WHEN[status], **({"headers": _WAIT} if status in (429, 503) else {})}
        for status in sorted({401, 403, 429, 503, *statuses})
    }
