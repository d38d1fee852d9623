"""Who asks: keys in `Authorization: Bearer fs_…`, their scopes and how often they may ask."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from typing import NamedTuple

from sqlalchemy import Engine
from starlette.types import Scope

from fairstream.service.api.limits import Bucket
from fairstream.service.api.refusals import Refused
from fairstream.service.keys import scope_of

KEY_NAME = "fairstream.key"
"""Where the name of the key stands in a request's ASGI scope, for the log."""
_BELIEVED_SECONDS = 3.0
"""How long a key that was looked up is believed: so long one that was revoked may still be used."""
_MOST_REMEMBERED = 1000
_SHAPE = re.compile(rb"Bearer +(fs_[A-Za-z0-9_-]{43}) *", re.IGNORECASE)
_WANTED = "a key is needed, sent as `Authorization: Bearer fs_…`; make one with `fairstream keys add`"


class Known(NamedTuple):
    """A key as it was found in the database."""

    name: str
    scope: str
    until: float
    bucket: Bucket


class Keys:
    """Lets requests in."""

    def __init__(self, engine: Engine, requests_per_second: float) -> None:
        self._engine, self._rate = engine, requests_per_second
        # By digest, as in the database: how long a look takes tells nothing about what a key begins with.
        self._known: OrderedDict[bytes, Known] = OrderedDict()
        self._looking: dict[bytes, asyncio.Future[Known]] = {}

    async def admit(self, scope: Scope, needed: str) -> str:
        """The name of the key that asks, or a refusal: 401, 403 or 429."""
        key = _key_of(scope)
        digest = hashlib.sha256(key).digest()
        known = self._known.get(digest)
        if known is None or known.until < time.monotonic():
            known = await self._look_up_once(key, digest)
        scope[KEY_NAME] = known.name
        if known.scope not in (needed, "admin"):
            raise Refused(403, f"this needs a key of scope {needed}, the key {known.name!r} is of scope {known.scope}")
        if (wait := known.bucket.take()) > 0:
            raise Refused(
                429,
                f"the key {known.name!r} may ask {self._rate:g} times a second; try again in {wait} s",
                retry_after=wait,
            )
        return known.name

    async def _look_up_once(self, key: bytes, digest: bytes) -> Known:
        """Requests that come together with the same key wait for one look into the database."""
        if (looking := self._looking.get(digest)) is None:
            looking = self._looking[digest] = asyncio.ensure_future(self._look_up(key, digest))
            looking.add_done_callback(lambda _: self._looking.pop(digest))
        return await asyncio.shield(looking)

    async def _look_up(self, key: bytes, digest: bytes) -> Known:
        found = await asyncio.to_thread(scope_of, self._engine, key.decode())
        before = self._known.pop(digest, None)
        if found is None:
            raise _unknown("this key is not known, or was revoked; make another with `fairstream keys add`")
        bucket = before.bucket if before is not None else Bucket(self._rate)
        known = self._known[digest] = Known(found[0], found[1], time.monotonic() + _BELIEVED_SECONDS, bucket)
        if len(self._known) > _MOST_REMEMBERED:
            self._known.popitem(last=False)
        return known


def _key_of(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            if (found := _SHAPE.fullmatch(value)) is None:
                raise _unknown(_WANTED)
            return bytes(found[1])
    raise _unknown(_WANTED)


def _unknown(sentence: str) -> Refused:
    return Refused(401, sentence, {"WWW-Authenticate": "Bearer"})
