"""When the service updates by itself: every so often, or every so many events."""

from __future__ import annotations

import asyncio

from sqlalchemy import func, select

from fairstream.service.api.logs import Logs
from fairstream.service.api.updates import Updates
from fairstream.service.database import now
from fairstream.service.event_store import EventStore
from fairstream.service.schema import periods
from fairstream.service.settings import Every
from fairstream.service.workspace import Workspace

_LOOK_SECONDS = 1.0


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
