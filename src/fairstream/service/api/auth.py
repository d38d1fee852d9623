"""API keys in `Authorization: Bearer fs_…`: their scopes and rate limits."""

from __future__ import annotations

import hashlib
import logging
import re
from functools import lru_cache
from typing import Annotated, NamedTuple

from fastapi import Request, Security
from fastapi.security import HTTPBearer, SecurityScopes
from sqlalchemy import Engine, select
from starlette.types import ASGIApp, Receive, Scope, Send

from fairstream.service.api.batching import Batcher
from fairstream.service.api.errors import ApiError
from fairstream.service.api.limits import Bucket
from fairstream.service.schema import keys

READ_SCOPES, HISTORY_SCOPES = ("read", "history", "admin"), ("history", "admin")
KEY = "fairstream.key"  # the place of a request's key in its ASGI scope
POLL_SECONDS = 1.0  # how long a revoked key may still be used while the database can be reached
_WRONG_KEYS, _WRONG_KEYS_PER_SECOND, _MAX_PEERS = 10, 1.0, 10_000
_WRONG_KEYS_OF_ALL, _WRONG_KEYS_OF_ALL_PER_SECOND = 100, 20.0
_FORMAT = re.compile(rb"Bearer +(fs_[A-Za-z0-9_-]{43}) *", re.IGNORECASE)
_MISSING = "Missing API key: send `Authorization: Bearer fs_…`; `fairstream keys add` creates one."
_UNKNOWN = "Unknown or revoked API key; `fairstream keys add` creates another."
_log = logging.getLogger("fairstream.api")


class CachedKey(NamedTuple):
    """A valid key, as last read from the database."""

    name: str
    scope: str
    bucket: Bucket


class KeyCache:
    """All valid keys, in memory.

    They are read every second, so that revocations apply soon; without the database the last ones stay
    valid. Requests with unknown keys that wait together share one read of the database.
    """

    def __init__(self, engine: Engine, requests_per_second: float) -> None:
        self._engine, self._rate = engine, requests_per_second
        # By digest, as in the database: the duration of a search does not depend on how a key begins.
        self._keys: dict[str, CachedKey] = {}
        self._reads = Batcher[None, None](self._read_for, threads=None)
        self._bucket_of = lru_cache(_MAX_PEERS)(lambda _peer: Bucket(_WRONG_KEYS_PER_SECOND, _WRONG_KEYS))
        # A proxy names the address; a client that reaches the service past the proxy could name another each time.
        self._bucket_of_all = Bucket(_WRONG_KEYS_OF_ALL_PER_SECOND, _WRONG_KEYS_OF_ALL)

    def read(self) -> None:
        """Read the valid keys; each keeps its rate limit."""
        query = select(keys.c.digest, keys.c.name, keys.c.scope).where(keys.c.revoked.is_(None))
        with self._engine.connect() as connection:
            rows = connection.execute(query).all()
        known, rate = self._keys, self._rate
        self._keys = {
            digest: CachedKey(name, scope, known[digest].bucket if digest in known else Bucket(rate))
            for digest, name, scope in rows
        }

    def _read_for(self, requests: list[None]) -> list[None]:
        self.read()
        return requests

    async def authenticate(self, scope: Scope) -> CachedKey:
        """Return the key of a request; raise 401 without a known key, 429 if it is used too often."""
        digest = _digest(scope)
        key = self._keys.get(digest) or await self._find(digest, scope)
        if (wait := key.bucket.take()) > 0:
            sentence = f"The API key {key.name!r} is limited to {self._rate:g} requests/s; try again in {wait} s."
            raise ApiError("too_many_requests", sentence, retry_after=wait)
        return key

    def seconds_to_wait(self, peer: str) -> int:
        """Return 0 if an address may try an unknown key, else the seconds that it has to wait."""
        return self._bucket_of(peer).take() or self._bucket_of_all.take()

    async def _find(self, digest: str, scope: Scope) -> CachedKey:
        """Find a key that may be new; an address that sends many wrong ones has to wait."""
        peer = (scope.get("client") or ("unknown",))[0]
        if (wait := self.seconds_to_wait(peer)) > 0:
            sentence = f"Too many requests with unknown API keys from this address; try again in {wait} s."
            raise ApiError("too_many_requests", sentence, retry_after=wait)
        await self._reads.ask(None)
        if (key := self._keys.get(digest)) is None:
            _log.warning("unknown API key", extra={"peer": peer})
            raise _unauthorized("unknown_key", _UNKNOWN)
        return key


def _digest(scope: Scope) -> str:
    sent = [value for name, value in scope["headers"] if name == b"authorization"]
    for value in sent:
        if (match := _FORMAT.fullmatch(value)) is not None:
            return hashlib.sha256(match[1]).hexdigest()
    if any(value[:7].lower() == b"bearer " for value in sent):  # a key that was cut short, for example
        raise _unauthorized("unknown_key", _UNKNOWN)
    raise _unauthorized("missing_key", _MISSING)


def _unauthorized(code: str, sentence: str) -> ApiError:
    return ApiError(code, sentence, {"WWW-Authenticate": "Bearer"})


class Authentication:
    """Middleware: check the key of every request to the API before reading its body."""

    def __init__(self, app: ASGIApp, keys: KeyCache, public: frozenset[str]) -> None:
        self._app, self._keys, self._public = app, keys, public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path: str = scope["path"].removeprefix(scope.get("root_path", ""))
            if (path.startswith("/v1/") or path == "/metrics") and path not in self._public:
                scope[KEY] = await self._keys.authenticate(scope)
        await self._app(scope, receive, send)


_bearer = HTTPBearer(auto_error=False, scheme_name="key", description="An API key (`fairstream keys add`).")


async def authorize(
    request: Request, required: SecurityScopes, _: Annotated[object, Security(_bearer)] = None
) -> CachedKey:
    """Return the key of a request if it has the scope that the route requires."""
    key: CachedKey = request.scope[KEY]
    (scope,) = required.scopes
    if key.scope not in (READ_SCOPES if scope == "read" else (scope, "admin")):
        raise ApiError("missing_scope", f"This API key lacks the scope {scope!r}.")
    return key


Ingester = Annotated[CachedKey, Security(authorize, scopes=["ingest"])]
UserWriter = Annotated[CachedKey, Security(authorize, scopes=["attributes"])]
Reader = Annotated[CachedKey, Security(authorize, scopes=["read"])]
Admin = Annotated[CachedKey, Security(authorize, scopes=["admin"])]
