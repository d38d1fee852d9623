"""Who is signed in: kept in memory, by the hash of a random token, for half a day."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

LASTS = 12 * 60 * 60
"""Seconds."""
_AT_MOST = 10_000


class Session(NamedTuple):
    """A browser that showed a key."""

    key: str
    """The key's name."""
    ends: float


class Sessions:
    """All of them, in this process; a restart ends them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[bytes, Session] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, key: str) -> str:
        """A token for the browser to keep."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._forget_ended()
            self._open[_digest(token)] = Session(key, self._clock() + LASTS)
        return token

    def of(self, token: str | None) -> Session | None:
        """Whose token this is, if it is one and has not ended."""
        if not token:
            return None
        session = self._open.get(_digest(token))
        return session if session is not None and session.ends > self._clock() else None

    def end(self, token: str | None) -> None:
        """Sign out."""
        if token:
            with self._lock:
                self._open.pop(_digest(token), None)

    def _forget_ended(self) -> None:
        now = self._clock()
        # All last equally long, so the oldest ends first; where there are too many, it gives way before its end.
        while self._open:
            oldest, session = next(iter(self._open.items()))
            if session.ends > now and len(self._open) < _AT_MOST:
                return
            del self._open[oldest]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
