"""When the service updates by itself: every so often, or every so many events."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import func, select

from fairstream.errors import ConfigurationError
from fairstream.service.api.logs import Logs
from fairstream.service.api.updates import Updates
from fairstream.service.database import now
from fairstream.service.event_store import EventStore
from fairstream.service.schema import periods
from fairstream.service.workspace import Workspace

_LOOK_SECONDS = 1.0
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WRITTEN = re.compile(r"([0-9]{1,12}) *(s|m|h|d|events?)")


@dataclass(frozen=True)
class Every:
    """A schedule."""

    n: int
    unit: Literal["seconds", "events"]

    @classmethod
    def parse(cls, text: str) -> Every:
        """From "1d", "6h", "30m", "90s" or "10000 events".

        >>> Every.parse("6h"), Every.parse("10000 events")
        (Every(n=21600, unit='seconds'), Every(n=10000, unit='events'))
        """
        found = _WRITTEN.fullmatch(text.strip())
        if found is None or int(found[1]) == 0:
            raise ConfigurationError(f'every must be like "1d", "6h", "30m", "90s" or "10000 events", got {text!r}')
        if found[2].startswith("event"):
            return cls(int(found[1]), "events")
        return cls(int(found[1]) * _SECONDS[found[2]], "seconds")


class Scheduler:
    """Starts an update when one is due; one that had too little to learn from is not repeated at once."""

    def __init__(self, workspace: Workspace, store: EventStore, updates: Updates, logs: Logs, every: Every) -> None:
        self._workspace, self._store, self._updates, self._logs = workspace, store, updates, logs
        self._every = every
        self._tried: int | None = None
        """Where the clock or the events stood at the last try."""

    async def run(self) -> None:
        """Go on for ever."""
        if self._every.unit == "seconds":
            self._tried = await asyncio.to_thread(self._last_closed) or now() // 1_000_000
        while True:
            try:
                position = await asyncio.to_thread(self._position)
                if position - (self._tried or 0) >= self._every.n and await self._updates.start("schedule"):
                    self._tried = position
            except Exception as error:  # the database may be away for a while
                self._logs.say("schedule failed", why=type(error).__name__)
            await asyncio.sleep(_LOOK_SECONDS)

    def _position(self) -> int:
        if self._every.unit == "seconds":
            return now() // 1_000_000
        last = self._store.last_seq()
        self._tried = max(self._tried or 0, last - self._store.n_open())
        return last

    def _last_closed(self) -> int:
        with self._workspace.engine.connect() as connection:
            return int(connection.execute(select(func.max(periods.c.closed))).scalar() or 0) // 1_000_000
