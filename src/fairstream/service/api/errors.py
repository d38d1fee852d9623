"""Errors as answers: one sentence as `{"detail": …}`, with the status that belongs to its cause."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import JSONResponse

from fairstream.errors import DataError, FairstreamError, WorkspaceError
from fairstream.service.database import DatabaseUnavailableError
from fairstream.service.serving import NotReadyError

_log = logging.getLogger("fairstream.api")
_RETRY_SECONDS = 5
_DISK_FULL = ("disk is full", "no space left", "disk full")
_READ_ONLY = ("readonly database", "read-only")
_LOCKED = ("database is locked", "lock timeout")


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str


class ApiError(HTTPException):
    """A request that is refused, and why."""

    def __init__(
        self,
        status: int,
        detail: str,
        headers: dict[str, str] | None = None,
        *,
        retry_after: int | None = None,
    ) -> None:
        if retry_after is not None:
            headers = {**(headers or {}), "Retry-After": str(retry_after)}
        super().__init__(status, detail, headers)

    def response(self) -> JSONResponse:
        return JSONResponse({"detail": self.detail}, self.status_code, self.headers)


def error_from(error: BaseException) -> ApiError:
    """The answer to an error, by its type and cause; what is not expected is a 500 without details."""
    for kind, answer in _ANSWERS:
        if isinstance(error, kind):
            return answer(error)
    return ApiError(500, "Internal error; the log of the service has the details.")


def _from_system(error: Any) -> ApiError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _disk_full()
    if error.errno == errno.EROFS:
        return _read_only()
    return ApiError(500, f"The service cannot read or write a file: {error.strerror}.")


def _from_database(error: Any) -> ApiError:
    cause = str(error.orig if isinstance(error, DBAPIError) else error).lower()
    if any(words in cause for words in _DISK_FULL):
        return _disk_full()
    if any(words in cause for words in _READ_ONLY):
        return _read_only()
    busy = any(words in cause for words in _LOCKED)
    sentence = "The database is locked by another process." if busy else "The database cannot be used now."
    return ApiError(503, f"{sentence[:-1]}; try again in {_RETRY_SECONDS} s.", retry_after=_RETRY_SECONDS)


def _disk_full() -> ApiError:
    return ApiError(507, "The disk of the service is full; nothing of this request was stored.")


def _read_only() -> ApiError:
    return ApiError(503, "The service cannot write: its file system or database is read-only.", retry_after=60)


_ANSWERS: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], Callable[[Any], ApiError]], ...] = (
    (ApiError, lambda error: error),
    (DataError, lambda error: ApiError(422, str(error))),
    (MemoryError, lambda _: ApiError(503, "The service is out of memory.", retry_after=_RETRY_SECONDS)),
    ((SQLAlchemyError, DatabaseUnavailableError), _from_database),
    (NotReadyError, lambda error: ApiError(503, str(error), retry_after=_RETRY_SECONDS)),
    # Something else is in the way: an update that runs, a model without files.
    (WorkspaceError, lambda error: ApiError(409, str(error))),
    (FairstreamError, lambda error: ApiError(500, str(error))),  # a model or a checkpoint: its own sentence
    (OSError, _from_system),
)
"""How errors are answered; the first kind that fits counts."""


def add_exception_handlers(app: FastAPI) -> None:
    """Answer every exception with a sentence."""

    async def known(_: Request, error: Exception) -> JSONResponse:
        answer = error_from(error)
        if answer.status_code >= 500:
            _log.error("request failed", extra={"why": cause_of(error)})
        return answer.response()

    for kind in (FairstreamError, SQLAlchemyError, MemoryError, OSError):
        app.add_exception_handler(kind, known)

    @app.exception_handler(StarletteHTTPException)
    async def refused(_: Request, error: StarletteHTTPException) -> JSONResponse:
        return JSONResponse({"detail": str(error.detail)}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": _sentence(error.errors())}, 422)


def _sentence(errors: Sequence[Any]) -> str:
    """Which part of the request is wrong, without repeating what a client wrote there."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return f"the body: this is not JSON at character {first['loc'][-1]}"
    place = [str(part) for part in first["loc"] if part != "body"]
    unknown = first["type"] == "extra_forbidden"
    where = "the body" if not place else "a field" if unknown else ".".join(place)
    return f"{where}: {first['msg'][:200]}"


def cause_of(error: BaseException) -> str:
    """What is wrong, in a line for the log, without the statement and values that a driver's exception carries."""
    original = getattr(error, "orig", None) or error
    return f"{type(original).__name__}: {(str(original).splitlines() or [''])[0]}"


_DESCRIPTIONS = {
    400: "The request cannot be read.",
    401: "No API key, or not a known one.",
    403: "The API key lacks the scope.",
    404: "Not found.",
    408: "The request did not arrive in time.",
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
    """The errors of a route, for its schema; those of keys and their limits apply to every one."""
    return {
        status: {
            "model": Problem,
            "description": _DESCRIPTIONS[status],
            **({"headers": _RETRY_AFTER} if status in (429, 503) else {}),
        }
        for status in sorted({401, 403, 429, 503, *statuses})
    }
