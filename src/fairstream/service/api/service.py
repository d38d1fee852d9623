"""The parts of a running service, and how routes come to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, Request

from fairstream.service import items
from fairstream.service.api.auth import POLL_SECONDS, KeyCache
from fairstream.service.api.batching import RequestBatcher
from fairstream.service.api.follower import Follower
from fairstream.service.api.jobs import Commands, Forgetter, UpdateRunner, repeat
from fairstream.service.api.monitoring import Metrics
from fairstream.service.api.writer import Writer
from fairstream.service.dashboard import Health
from fairstream.service.database import now
from fairstream.service.event_store import EventStore
from fairstream.service.items import Item
from fairstream.service.records import from_microseconds
from fairstream.service.serving import Answer, Serving
from fairstream.service.settings import Every
from fairstream.service.workspace import Workspace

RECOMMENDATIONS = "/v1/users/{user_id}/recommendations"
_LIST_THREADS = 2
_SCHEDULE_SECONDS = 1.0
_FORGET_SECONDS = 5.0
_LATE_SECONDS = 10.0
"""The age of the last look at the database, or of a batch that waits, from which on the service is degraded."""
_log = logging.getLogger("fairstream.api")


class Service:
    """A running service of one workspace in one process."""

    def __init__(self, workspace: Workspace, every: Every | None = None) -> None:
        limits = workspace.config.limits
        self.workspace, self.every, self.limits = workspace, every, limits
        self.store, self.metrics, self.serving = EventStore(workspace), Metrics(), Serving()
        self.keys = KeyCache(workspace.engine, limits.requests_per_second)
        self.follower = Follower(workspace, self.store, self.serving)
        self.writer = Writer(self.store, self.serving.stored, limits.max_open_events)
        self.commands = Commands(workspace.folder)
        self.updates = UpdateRunner(workspace, self.commands)
        self.forgetter = Forgetter(workspace, self.commands)
        # Of their own, so that a database that hangs takes no thread from recommendations.
        self.list_threads = ThreadPoolExecutor(_LIST_THREADS, "lists")
        self.lists = RequestBatcher(self.serving, self.list_threads)
        self.started = now()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start what runs beside the requests, and stop it in the end."""
        self.follower.start()
        self.writer.start()
        steps = {"keys": (lambda: asyncio.to_thread(self.keys.read), POLL_SECONDS)}
        steps["forgetting"] = (self.forgetter.step, _FORGET_SECONDS)
        if (every := self.every) is not None:
            steps["schedule"] = (lambda: self.updates.request_if_due(every), _SCHEDULE_SECONDS)
        self._tasks = {
            name: asyncio.create_task(repeat(step, seconds, name)) for name, (step, seconds) in steps.items()
        }
        try:
            yield
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await self.commands.stop()
            await self.updates.stop()
            await asyncio.to_thread(self._stop)
            await (
                asyncio.get_running_loop().shutdown_default_executor()
            )  # what was cancelled may still use the database
            self.workspace.close()

    def _stop(self) -> None:
        self.writer.stop()
        self.follower.stop()
        self.list_threads.shutdown()

    def problems(self) -> list[str]:
        """What is wrong, a sentence each; none where all is well."""
        status = self.serving.status()
        alive = {name: not task.done() for name, task in self._tasks.items()}
        alive |= {"writer": self.writer.is_alive, "follower": self.follower.is_alive}
        unread, waiting = self.follower.seconds_since_look(), self.writer.seconds_waiting()
        return [
            *([status.problem] if status.problem else []),
            *([f"The database was last read {unread:.0f} s ago."] if unread > _LATE_SECONDS else []),
            *([f"Events cannot be stored: {self.writer.problem.detail}"] if self.writer.problem else []),
            *([f"Events have waited {waiting:.0f} s to be stored."] if waiting > _LATE_SECONDS else []),
            *(f"The background task {name!r} has ended; restart." for name, is_alive in alive.items() if not is_alive),
        ]

    def health(self) -> Health:
        """How this process does, for the dashboard."""
        problems = self.problems()
        return Health(
            started=from_microseconds(self.started),
            n_requests=self.metrics.count(),
            n_errors=self.metrics.count(min_status=500),
            p50_seconds=self.metrics.quantile(RECOMMENDATIONS, 0.5),
            p99_seconds=self.metrics.quantile(RECOMMENDATIONS, 0.99),
            source=self.serving.status().source,
            problem=problems[0] if problems else None,
        )

    def recommend(self, user_id: str, k: int) -> Answer:
        """A user's list, for the dashboard."""
        return self.serving.recommend(user_id, k)

    async def set_available(self, item_id: str, available: bool, *, by: str) -> Item:
        """Withdraw an item from every list, or bring it back."""
        item = await asyncio.to_thread(items.set_available, self.workspace.engine, item_id, available, by=by)
        self.serving.set_available({item_id: available})
        return item

    async def start_update(self, by: str) -> None:
        """Queue an update and run it; raises `UpdateRunning` where one has not ended."""
        await self.updates.request(by)


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


RunningService = Annotated[Service, Depends(_service)]
