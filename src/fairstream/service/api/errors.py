"""Errors as answers: `{"detail": sentence, "code": …}`, with the status that belongs to the code."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fastapi import HTTPException as FastAPIException
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from fairstream.data.filters import FilterError
from fairstream.errors import DataError, FairstreamError, WorkspaceError
from fairstream.service.database import DatabaseUnavailableError
from fairstream.service.records import UnknownIdError
from fairstream.service.serving import NotReadyError
from fairstream.service.updates import UpdateRunning


class Code(NamedTuple):
    """What a code of an error means."""

    status: int
    meaning: str


CODES = {
    "missing_key": Code(401, "The request has no API key."),
    "unknown_key": Code(401, "The API key is unknown or revoked."),
    "missing_scope": Code(403, "The API key lacks the scope."),
    "not_found": Code(404, "There is no such path."),
    "unknown_id": Code(404, "There is no such person, item, model, update or cursor."),
    "wrong_method": Code(405, "The path does not have this method."),
    "conflict": Code(409, "The present state of the service does not allow it."),
    "update_running": Code(409, "An update has not ended; `update_id` names it."),
    "body_too_large": Code(413, "The body is larger than `limits.max_body_bytes`."),
    "wrong_type": Code(415, "The service does not read this content type."),
    "invalid": Code(422, "A parameter or the body is not valid; nothing was stored."),
    "invalid_filter": Code(422, "The filter cannot be read; `position` is the character."),
    "too_many_requests": Code(429, "The key or the address sends too many requests."),
    "internal": Code(500, "An unexpected error; the log has its traceback and the request's id."),
    "model_failed": Code(500, "The model or a file of the service cannot be used."),
    "database_unavailable": Code(503, "The database does not answer, is locked or read-only."),
    "not_ready": Code(503, "The service has loaded no model yet."),
    "overloaded": Code(503, "Requests arrive faster than the service can answer them."),
    "too_many_open_events": Code(503, "Too many events wait for the next update."),
    "disk_full": Code(507, "The disk of the service is full; nothing was stored."),
}
"""Every code, which never changes its meaning."""
_RETRY_SECONDS = 5
_CODE_OF: dict[type[Exception], str] = {
    FilterError: "invalid_filter",
    DataError: "invalid",
    NotReadyError: "not_ready",
    UnknownIdError: "unknown_id",
    UpdateRunning: "update_running",
    WorkspaceError: "conflict",
    FairstreamError: "model_failed",
}
"""Errors whose sentence is the answer; the first type that fits counts."""
_FIELDS = ("update_id", "position")
"""Attributes of an error that its answer has as fields."""
_OF_STATUS = {404: "not_found", 405: "wrong_method"}
_DISK_FULL = ("disk is full", "no space left", "disk full", "quota exceeded")
_READ_ONLY = ("readonly database", "read-only")
_LOCKED = ("database is locked", "lock timeout")


class ApiError(FastAPIException):
    """A refused request: one of `CODES`, a sentence, and further fields of the answer.

    Of FastAPI's type, because FastAPI answers 400 to any other one that is raised while it reads a body.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        *,
        retry_after: int | None = None,
        **fields: Any,
    ) -> None:
        retry = {} if retry_after is None else {"Retry-After": str(retry_after)}
        super().__init__(CODES[code].status, detail, {**(headers or {}), **retry})
        self.code, self.fields = code, fields

    def response(self) -> Response:
        content = {"detail": self.detail, "code": self.code, **self.fields}
        return JSONResponse(content, self.status_code, self.headers)


def error_from(error: BaseException) -> ApiError:
    """Return the answer to an error, by its type and cause; an unexpected one is a 500 without details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):
        return _from_validation(error)
    if isinstance(error, HTTPException):  # of FastAPI, which answers a body that it cannot parse with 400, or Starlette
        return ApiError(_OF_STATUS.get(error.status_code, "invalid"), error.detail, error.headers)
    if isinstance(error, (SQLAlchemyError, DatabaseUnavailableError, OSError)):
        return _from_storage(error)
    return _from_sentence(error)


def _from_sentence(error: BaseException) -> ApiError:
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # the latter is PyTorch's
        return ApiError("overloaded", "The service is out of memory.", retry_after=_RETRY_SECONDS)
    for kind, code in _CODE_OF.items():
        if isinstance(error, kind):
            fields = {name: getattr(error, name) for name in _FIELDS if hasattr(error, name)}
            return ApiError(code, str(error), retry_after=_RETRY_SECONDS if code == "not_ready" else None, **fields)
    return ApiError("internal", "Internal error; see the service log.")


def _from_storage(error: Any) -> ApiError:
    cause = getattr(error, "strerror", None) or str(getattr(error, "orig", None) or error)
    if any(words in cause.lower() for words in _DISK_FULL):
        return ApiError("disk_full", CODES["disk_full"].meaning)
    if any(words in cause.lower() for words in _READ_ONLY):
        sentence = "The service cannot write: its file system or database is read-only."
        return ApiError("database_unavailable", sentence, retry_after=60)
    if isinstance(error, OSError):
        return ApiError("model_failed", f"The service cannot read or write a file: {cause}.")
    is_locked = any(words in cause.lower() for words in _LOCKED)
    sentence = "The database is locked by another process." if is_locked else "The database cannot be used now."
    return ApiError("database_unavailable", sentence, retry_after=_RETRY_SECONDS)


def _from_validation(error: RequestValidationError) -> ApiError:
    """Name the wrong part of a request, without repeating what a client wrote there."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return ApiError("invalid", f"the body: this is not JSON at character {first['loc'][-1]}")
    place, why = [part for part in first["loc"] if part != "body"], first["msg"].removeprefix("Value error, ")[:200]
    if first["type"] == "extra_forbidden":  # its name is what a client wrote
        place, why = place[:-1], "it has a field that is not known; /docs lists the fields"
    if place and isinstance(place[0], int):  # of a body that is a list
        place[0] = f"entry {place[0] + 1}"
    return ApiError("invalid", f"{'.'.join(map(str, place)) or 'the body'}: {why}")


async def answer(request: Request, error: Exception) -> Response:
    """Answer an error that FastAPI or Starlette has raised."""
    response = error_from(error).response()
    if response.status_code == 405:  # Starlette names the methods of the first route with this path alone
        routes = (route for route in request.app.router.routes if route.matches(request.scope)[0] != Match.NONE)
        methods = {method for route in routes for method in getattr(route, "methods", None) or ()}
        response.headers["Allow"] = ", ".join(sorted(methods))
    return response


def cause_of(error: BaseException) -> str:
    """Return a line for the log, without statements and values, which may name people."""
    original = getattr(error, "orig", None) or error
    is_ours = original is not error or isinstance(error, FairstreamError | SQLAlchemyError | OSError | ApiError)
    first_line = (str(original).splitlines() or [""])[0] if is_ours else ""
    return f"{type(original).__name__}: {first_line}" if first_line else type(original).__name__


def places_of(error: BaseException | None, most: int = 30) -> Iterator[str]:
    """Yield types, files, lines and functions of an error and its causes; not the values, which may name people."""
    while error is not None and most > 0:
        yield type(error).__name__
        for frame in traceback.extract_tb(error.__traceback__)[-most:]:
            yield f"{frame.filename}:{frame.lineno} {frame.name}"
            most -= 1
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


class Problem(BaseModel):
    """Why a request was refused."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    detail: str = Field(examples=["k: Input should be greater than or equal to 1"])
    """One sentence: what was expected, what was found, what to do."""
    code: str = Field(examples=["invalid"], json_schema_extra={"enum": [*CODES]})
    """A name for programs, which never changes."""
    update_id: str | None = Field(None, examples=["u-5b7c9d21e0f43a68"])
    """With `update_running`: the update that has not ended."""
    position: int | None = Field(None, examples=[12])
    """With `invalid_filter`: the character of the filter that cannot be read, from 1."""


_EVERY = (
    *("missing_key", "unknown_key", "missing_scope", "invalid", "too_many_requests", "internal"),
    "database_unavailable",
)
_RETRY_AFTER = {
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "examples": [_RETRY_SECONDS]}}
}


def problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Return the errors of a route for its schema: these, and those that every route has."""
    by_status: dict[int, list[str]] = {}
    for code in (*_EVERY, *codes):
        by_status.setdefault(CODES[code].status, []).append(code)
    return {
        status: {
            "model": Problem,
            "description": " ".join(f"`{code}`: {CODES[code].meaning}" for code in names),
            **({"headers": _RETRY_AFTER} if status in (429, 503) else {}),
        }
        for status, names in sorted(by_status.items())
    }
