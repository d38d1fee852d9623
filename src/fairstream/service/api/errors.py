"""Errors as answers: one sentence as `{"detail": …}`, with the status that belongs to its cause."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException, Request
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import JSONResponse

from fairstream.errors import DataError, FairstreamError, WorkspaceError
from fairstream.service.database import DatabaseUnavailableError
from fairstream.service.records import UnknownIdError
from fairstream.service.serving import NotReadyError

_RETRY_SECONDS = 5
_STATUSES = {DataError: 422, NotReadyError: 503, UnknownIdError: 404, WorkspaceError: 409, FairstreamError: 500}
"""Errors whose sentence is the answer; the first type that fits counts."""
_DISK_FULL = ("disk is full", "no space left", "disk full", "quota exceeded")
_READ_ONLY = ("readonly database", "read-only")
_LOCKED = ("database is locked", "lock timeout")


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str


class ApiError(HTTPException):
    """A request that is refused, and why."""

    def __init__(
        self, status: int, detail: str, headers: dict[str, str] | None = None, *, retry_after: int | None = None
    ) -> None:
        if retry_after is not None:
            headers = {**(headers or {}), "Retry-After": str(retry_after)}
        super().__init__(status, detail, headers)


def error_from(error: BaseException) -> ApiError:
    """Return the answer to an error, by its type and cause; an unexpected one is a 500 without details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, (SQLAlchemyError, DatabaseUnavailableError, OSError)):
        return _from_storage(error)
    if isinstance(error, MemoryError):
        return ApiError(503, "The service is out of memory.", retry_after=_RETRY_SECONDS)
    for kind, status in _STATUSES.items():
        if isinstance(error, kind):
            return ApiError(status, str(error), retry_after=_RETRY_SECONDS if status == 503 else None)
    return ApiError(500, "Internal error; the log of the service has the details.")


def _from_storage(error: Any) -> ApiError:
    cause = getattr(error, "strerror", None) or str(getattr(error, "orig", None) or error)
    if any(words in cause.lower() for words in _DISK_FULL):
        return ApiError(507, "The disk of the service is full; nothing of this request was stored.")
    if any(words in cause.lower() for words in _READ_ONLY):
        return ApiError(503, "The service cannot write: its file system or database is read-only.", retry_after=60)
    if isinstance(error, OSError):
        return ApiError(500, f"The service cannot read or write a file: {cause}.")
    is_locked = any(words in cause.lower() for words in _LOCKED)
    sentence = "The database is locked by another process" if is_locked else "The database cannot be used now"
    return ApiError(503, f"{sentence}; try again in {_RETRY_SECONDS} s.", retry_after=_RETRY_SECONDS)


async def answer_invalid(_: Request, error: Any) -> JSONResponse:
    """Say which part of a request is wrong, without repeating what a client wrote there."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return JSONResponse({"detail": f"the body: this is not JSON at character {first['loc'][-1]}"}, 422)
    place = [str(part) for part in first["loc"] if part != "body"]
    is_unknown = first["type"] == "extra_forbidden"
    where = "the body" if not place else "a field" if is_unknown else ".".join(place)
    return JSONResponse({"detail": f"{where}: {first['msg'][:200]}"}, 422)


def cause_of(error: BaseException) -> str:
    """Return a line for the log, without the statement and values that a driver's exception carries."""
    original = getattr(error, "orig", None) or error
    return f"{type(original).__name__}: {(str(original).splitlines() or [''])[0]}"


_DESCRIPTIONS = {
    400: "The request cannot be read.",
    401: "No API key, or not a known one.",
    403: "The API key lacks the scope.",
    404: "Not found.",
    409: "Conflict with what is running or in service.",
    413: "The body is larger than allowed.",
    415: "The content type is not supported.",
    422: "The content is not valid.",
    429: "Too many requests; try again after Retry-After seconds.",
    503: "Not possible now; try again after Retry-After seconds.",
    507: "The disk is full.",
}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors of a route for its schema; those of keys and rate limits apply to every route."""
    return {
        status: {
            "model": Problem,
            "description": _DESCRIPTIONS[status],
            **({"headers": _RETRY_AFTER} if status in (429, 503) else {}),
        }
        for status in sorted({401, 403, 429, 503, *statuses})
    }
