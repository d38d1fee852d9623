"""The parts of a running service."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from fairstream.service.api.auth import POLL_SECONDS, KeyCache
from fairstream.service.api.batching import ImpressionWriter, ListBatcher, Writer
from fairstream.service.api.follower import EVERY_SECONDS, Follower
from fairstream.service.api.jobs import Forgetter, UpdateRunner, repeat
from fairstream.service.api.monitoring import SHOP, Metrics
from fairstream.service.dashboard.routes import Health
from fairstream.service.event_store import EventStore
from fairstream.service.impressions import Shown
from fairstream.service.lists import Answer, Ask
from fairstream.service.looks import Served, compare_in_shadow, look
from fairstream.service.serving import Serving
from fairstream.service.settings import Every
from fairstream.service.tally import Tally
from fairstream.service.workspace import Workspace

T = TypeVar("T")
_LIST_THREADS = 2
_SCHEDULE_SECONDS = 1.0
_FORGET_SECONDS = 5.0
_TALLY_SECONDS = 5.0
_MEASURE_SECONDS = 1.0
_LOOK_SECONDS = 5.0  # for what keeps updates from learning
_LATE_SECONDS = 10.0  # degraded, if the last read of the database or a waiting batch is older


class Service:
    """A running service of one workspace in one process."""

    def __init__(self, workspace: Workspace, every: Every | None = None) -> None:
        limits = workspace.config.limits
        self.workspace, self.every, self.limits = workspace, every, limits
        self.store, self.metrics = EventStore(workspace), Metrics(SHOP.get() or "")
        self.serving = Serving(workspace.config.events, workspace.config.impressions)
        self.keys = KeyCache(workspace.engine, limits.requests_per_second)
        self.follower = Follower(workspace, self.store, self.serving)
        self.writer = Writer(self.store, self.serving.stored, limits)
        self.impressions, self._tally = ImpressionWriter(workspace, self.follower.follow_shown), Tally(workspace)
        self._served = Served()
        self.updates, self.forgetter = UpdateRunner(workspace), Forgetter(workspace)
        self.request_update = self.updates.request
        # Separate threads: a database that hangs takes none from lists, and lists do not wait for batches.
        self.list_threads = ThreadPoolExecutor(_LIST_THREADS, "lists")
        self.batch_threads = ThreadPoolExecutor(1, "batches")
        self.lists = ListBatcher(self.serving, self.list_threads)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        steps = {
            "keys": (lambda: asyncio.to_thread(self.keys.read), POLL_SECONDS),
            "follower": (lambda: asyncio.to_thread(self._follow), EVERY_SECONDS),
            "forgetting": (self.forgetter.step, _FORGET_SECONDS),
            "impressions": (lambda: asyncio.to_thread(self._tally_and_look), _TALLY_SECONDS),
            "metrics": (lambda: asyncio.to_thread(self.measure), _MEASURE_SECONDS),
            "updates": (self.updates.look, _LOOK_SECONDS),
        }
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
            await self.updates.stop()
            await self.writer.stop()
            await self.impressions.stop()
            await asyncio.to_thread(self.list_threads.shutdown)
            await asyncio.to_thread(self.batch_threads.shutdown)
            # The thread of a cancelled task may still use the database.
            await asyncio.get_running_loop().shutdown_default_executor()
            self.workspace.close()

    def _follow(self) -> None:
        self.follower.follow()
        if not gc.get_freeze_count():
            # Parsing JSON starts full collections. Each of them would scan everything imported and loaded, and stop
            # every thread for half a second.
            gc.collect()
            gc.freeze()

    def problems(self) -> list[str]:
        problem, late = self.serving.status().problem, _LATE_SECONDS
        unread, waiting = self.follower.seconds_since_look(), self.writer.seconds_waiting()
        return [
            *([problem] if problem else []),
            *([f"The database was last read {unread:.0f} s ago."] if unread > late else []),
            *([f"Events cannot be stored: {self.writer.problem.detail}"] if self.writer.problem else []),
            *([f"Events have waited {waiting:.0f} s to be stored."] if waiting > late else []),
            *self.updates.problems,
            *(f"The background task {name!r} has ended; restart." for name, task in self._tasks.items() if task.done()),
        ]

    def measure(self) -> None:
        """Set the gauges of this process."""
        status = self.serving.status()
        self.metrics.measure(
            ready=status.ready,
            problems=len(self.problems()),
            batches_waiting=self.writer.n_waiting(),
            events_behind=status.events_behind,
        )

    def health(self) -> Health:
        problems, metrics = self.problems(), self.metrics
        n_popular = metrics.n_lists("popularity")
        return Health(
            source=self.serving.status().source,
            problem=problems[0] if problems else None,
            n_lists=n_popular + metrics.n_lists("model"),
            n_fallbacks=n_popular,
        )

    def stamp(self, user_id: str, items: list[str], time: int, list_id: str | None) -> Shown:
        """Return a list that a user saw, with the model that made it and the probability of each item."""
        stamp: dict[str, Any] = {"model": self.serving.status().model or "", "propensities": [1.0] * len(items)}
        if (experiment := self.serving.experiment) is not None:
            stamp |= experiment[0].stamp(user_id, items, list_id)
        return Shown(user_id, items, time, list_id, **stamp)

    async def in_thread(self, threads: Executor, work: Callable[..., T], *arguments: object) -> T:
        """Run in one of `threads`, as part of this request: the log shows its id."""
        run = copy_context().run
        return await asyncio.get_running_loop().run_in_executor(threads, run, work, *arguments)

    def seconds_to_wait(self, peer: str) -> int:
        return self.keys.seconds_to_wait(peer)

    def served(self, user_id: str, seconds: float, *, by_model: bool) -> None:
        """Count a list for the running experiment."""
        arms = self.serving.experiment and self.serving.experiment[0]
        if arms is not None and arms.mode == "split" and (arm := arms.arm_of(user_id)):
            self._served.note(arms, arm, user_id, seconds, by_model=by_model)

    def _tally_and_look(self) -> None:
        self._tally.count()
        if (experiment := self.serving.experiment) is not None:
            if experiment[0].mode == "shadow":
                compare_in_shadow(self.serving, self._served)
            self._served.store(self.workspace.engine)
            look(self.workspace)

    def recommend(self, user_id: str, ask: Ask) -> Answer:
        return self.serving.of(user_id).recommend(user_id, ask)


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


RunningService = Annotated[Service, Depends(_service)]
