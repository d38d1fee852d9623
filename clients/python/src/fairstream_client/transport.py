"""Requests over one pool of connections: retries, errors with codes, and ids for the service's log."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self
from urllib.parse import quote

import httpx

_RETRIED = (429, 503)
_SAFE = ("GET", "PUT", "DELETE")  # the same again changes nothing, so they are repeated after a lost connection


class ApiError(Exception):
    """A refused request.

    `code` is a stable name for programs, `detail` a sentence, `request_id` finds the request in the service's log, and
    `fields` are further fields of the answer, such as `update_id`.
    """

    def __init__(self, status: int, code: str, detail: str, request_id: str, fields: Mapping[str, Any]) -> None:
        super().__init__(f"{detail} ({status} {code}, request {request_id})")
        self.status, self.code, self.detail, self.request_id, self.fields = status, code, detail, request_id, fields


class Transport:
    """Sends requests with a key; a request that the service cannot answer now is repeated when it says.

    Parameters
    ----------
    address
        Address of the service, such as http://localhost:8000, or http://localhost:8000/w/NAME of one shop of several.
    key
        API key, such as fs_…; only the schema and the probes need none.
    timeout
        Seconds until a request fails.
    retries
        How often a request is repeated that is answered with 429 or 503, or whose connection is lost.
    max_wait
        Longest wait between two of them; if the service asks for more, the error is raised at once.
    """

    def __init__(
        self, address: str, key: str | None = None, *, timeout: float = 30.0, retries: int = 3, max_wait: float = 30.0
    ) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=address.rstrip("/"), headers=headers, timeout=timeout)
        self._retries, self._max_wait = retries, max_wait

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    @staticmethod
    def quote(part: str) -> str:
        """Return an id as part of a path."""
        return quote(part, safe="")

    @staticmethod
    def iterate(read: Callable[[str | None], Any]) -> Iterator[Any]:
        """Yield the entries of all pages."""
        cursor = None
        while True:
            page = read(cursor)
            yield from page["data"]
            if (cursor := page["cursor"]) is None:
                return

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        answers: tuple[int, ...] = (),
    ) -> Any:
        """Send a request and return the content of its answer; `answers` are error statuses that are answers, too."""
        request_id = secrets.token_hex(8)
        parameters = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        options: dict[str, Any] = {"params": parameters, "headers": {"X-Request-ID": request_id}}
        if body is not None:
            options["json"] = body
        for attempt in range(self._retries + 1):
            is_last = attempt == self._retries
            try:
                answer = self._http.request(method, path, **options)
            except httpx.TransportError:
                if is_last or method not in _SAFE:
                    raise
                time.sleep(min(self._max_wait, 0.1 * 2**attempt))
                continue
            if answer.is_success or answer.status_code in answers:
                return answer.json() if answer.headers["content-type"].startswith("application/json") else answer.text
            wait = _seconds(answer.headers.get("retry-after", ""))
            if is_last or answer.status_code not in _RETRIED or wait > self._max_wait:
                raise _error(answer, request_id)
            time.sleep(wait)
        raise AssertionError("unreachable")


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _seconds(retry_after: str) -> float:
    return float(retry_after) if retry_after.isdecimal() else 1.0  # of a proxy, which may send a date or nothing


def _error(answer: httpx.Response, request_id: str) -> ApiError:
    try:
        fields = answer.json()
        code, detail = fields.pop("code"), fields.pop("detail")
    except (ValueError, KeyError, AttributeError, TypeError):  # a proxy's page
        fields, code, detail = {}, "unknown", answer.text[:200] or answer.reason_phrase
    return ApiError(answer.status_code, code, detail, answer.headers.get("x-request-id", request_id), fields)
