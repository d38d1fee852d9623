"""Requests that wait together are handled together, in a thread: lists, and events to store."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa

from fairstream.service.api.errors import ApiError, cause_of, error_from
from fairstream.service.database import DatabaseDownError
from fairstream.service.event_store import EventsReceipt, EventStore
from fairstream.service.impressions import ImpressionsReceipt, Shown, store
from fairstream.service.lists import Ask
from fairstream.service.serving import Serving
from fairstream.service.settings import Limits
from fairstream.service.workspace import Workspace

Q = TypeVar("Q")
A = TypeVar("A")
_OPEN_CACHE_SECONDS = 1.0  # how long the number of open events is remembered; the writer adds what it stores meanwhile
_log = logging.getLogger("fairstream.api")


class _Waiting(NamedTuple, Generic[Q, A]):
    request: Q
    answer: asyncio.Future[A]
    since: float


class Batcher(ABC, Generic[Q, A]):
    """While one batch is handled, requests add up, and the next batch has them all.

    A request never joins a batch that has begun: that may not know what the request depends on.
    """

    max_batch: int

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._waiting: list[_Waiting[Q, A]] = []
        self._batch: list[_Waiting[Q, A]] = []
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    def handle(self, requests: list[Q]) -> list[A | Exception]:
        """Return an answer or an exception for each request; runs in a thread, one batch at a time."""

    async def ask(self, request: Q) -> A:
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(request, answer, time.monotonic()))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await answer

    def n_waiting(self) -> int:
        """Return the number of requests outside of the batch that is being handled."""
        return len(self._waiting)

    def seconds_waiting(self) -> float:
        """Return how long the oldest unanswered request has waited; 0 if there is none."""
        return max((time.monotonic() - each.since for each in (*self._batch, *self._waiting)), default=0.0)

    async def finish(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                self._batch, self._waiting = self._waiting[: self.max_batch], self._waiting[self.max_batch :]
                requests = [each.request for each in self._batch]
                try:
                    results = await loop.run_in_executor(self._threads, self.handle, requests)
                except Exception as error:
                    results = [error] * len(requests)
                for each, result in zip(self._batch, results, strict=True):
                    if each.answer.done():  # the client has gone
                        continue
                    if isinstance(result, Exception):
                        each.answer.set_exception(result)
                    else:
                        each.answer.set_result(result)
                self._batch = []
        finally:
            self._task = None


class ListBatcher(Batcher[tuple[str, Ask], bytes]):
    """Lists as JSON: from the cache, or computed together. Sixteen lists take little longer than one."""

    max_batch = 64

    def __init__(self, serving: Serving, threads: Executor) -> None:
        super().__init__(threads)
        self._serving = serving

    async def json(self, user_id: str, ask: Ask) -> bytes:
        return self._serving.cached_json(user_id, ask) or await self.ask((user_id, ask))

    def handle(self, requests: list[tuple[str, Ask]]) -> list[bytes | Exception]:
        """Compute lists; a failure of one list spoils no other."""
        with suppress(Exception):  # each list is then computed alone, and fails alone
            users = [user_id for user_id, ask in requests if ask.only is None]
            self._serving.make_lists(users, max(ask.k for _, ask in requests))
        bodies: list[bytes | Exception] = []
        for user_id, ask in requests:
            try:
                bodies.append(self._serving.json(user_id, ask))
            except Exception as error:
                bodies.append(error)
        return bodies


class _Storing(Batcher[Q, A]):
    """Stores what comes in, in a thread of its own; refuses it where too much waits."""

    what: str

    def __init__(self) -> None:
        super().__init__(ThreadPoolExecutor(1, self.what))

    async def ask(self, request: Q) -> A:
        if self.n_waiting() >= self.max_batch:
            sentence = f"{self.what} come in faster than they can be stored; try again in 1 s."
            raise ApiError("overloaded", sentence, retry_after=1)
        return await super().ask(request)

    async def stop(self) -> None:
        """Store what was accepted, then end."""
        await self.finish()
        self._threads.shutdown()


class _Sent(NamedTuple):
    """A batch, and the name of the ingest key that sent it."""

    events: pa.Table
    key: str | None


class Writer(_Storing[_Sent, EventsReceipt]):
    """Stores batches; a receipt is given when its events are on disk, and only then.

    `stored` is called with the events that were stored; whatever it raises, they stay stored and acknowledged.
    """

    max_batch, what = 256, "Events"

    def __init__(self, store: EventStore, stored: Callable[[pa.Table], None], limits: Limits) -> None:
        super().__init__()
        self._store, self._stored, self._limits = store, stored, limits
        self._n_open, self._counted = 0, float("-inf")
        self._of_keys, self._n_keys = dict[str, int](), 0
        self.problem: ApiError | None = None  # why the last transaction failed, if it did

    async def store(self, batch: pa.Table, key: str | None = None) -> EventsReceipt:
        """Store a batch; refused where too many wait already, in all or of the same key."""
        return await self.ask(_Sent(batch, key))

    def handle(self, requests: list[_Sent]) -> list[EventsReceipt | Exception]:
        try:
            receipts = self._append(requests)
        except Exception as error:  # nothing of it was stored
            if len(requests) > 1 and not isinstance(error, DatabaseDownError):
                # One that the database does not accept spoils it for no other.
                return [self.handle([batch])[0] for batch in requests]
            self.problem = error_from(error)
            _log.error("events not stored", extra={"why": cause_of(error)}, exc_info=error)
            return [self.problem] * len(requests)
        self.problem = None
        return receipts

    def _append(self, requests: list[_Sent]) -> list[EventsReceipt | Exception]:
        """Store the batches that the limits on open events have room for."""
        if time.monotonic() - self._counted > _OPEN_CACHE_SECONDS:
            self._n_open, self._counted = self._store.n_open(), time.monotonic()
            self._of_keys, self._n_keys = self._store.open_by_key()
        n_open, of_keys = self._n_open, Counter(self._of_keys)
        refusals: list[ApiError | None] = []
        for events, key in requests:
            refusal = self._refusal(n_open + len(events), of_keys[key] + len(events) if key is not None else 0)
            refusals.append(refusal)
            if refusal is None:
                n_open += len(events)
                of_keys[key or ""] += len(events)
        receipts = iter(self._store_all([each for each, no in zip(requests, refusals, strict=True) if no is None]))
        return [refusal or next(receipts) for refusal in refusals]

    def _refusal(self, n_open: int, n_of_key: int) -> ApiError | None:
        most = self._limits.max_open_events
        if n_open > most:
            sentence = f"{most} events wait for the next update already; try again when one has run."
        elif self._n_keys > 1 and n_of_key > self._limits.max_key_share * most:
            share = f"{self._limits.max_key_share:.0%} of the {most} events that may wait for the next update"
            sentence = f"This key has sent {share} already; try again when one has run."
        else:
            return None
        return ApiError("too_many_open_events", sentence, retry_after=60)

    def _store_all(self, requests: list[_Sent]) -> list[EventsReceipt]:
        if not requests:
            return []
        before, batches, keys = self._store.last_seq(), [each.events for each in requests], [e.key for e in requests]
        receipts = self._store.append_all(batches, keys)
        for receipt, key in zip(receipts, keys, strict=True):
            self._n_open += receipt.accepted
            if key is not None:
                self._of_keys[key] = self._of_keys.get(key, 0) + receipt.accepted
        try:
            # Where not everything that was sent was stored, only the database knows what was.
            is_whole = not any(receipt.repeated or receipt.forgotten for receipt in receipts)
            if len(events := pa.concat_tables(batches) if is_whole else self._store.read(before)):
                self._stored(events)
        except Exception as error:  # the follower reads them from the database in a moment
            _log.error("stored events not handed on", extra={"why": cause_of(error)}, exc_info=error)
        return receipts


class ImpressionWriter(_Storing[list[Shown], ImpressionsReceipt]):
    """Stores lists that people saw; `stored` is called when they are on disk."""

    max_batch, what = 64, "Impressions"

    def __init__(self, workspace: Workspace, stored: Callable[[], None]) -> None:
        super().__init__()
        self._workspace, self._stored = workspace, stored

    def handle(self, requests: list[list[Shown]]) -> list[ImpressionsReceipt | Exception]:
        receipts = store(self._workspace, requests)
        try:
            self._stored()
        except Exception as error:  # the next poll reads them
            _log.error("stored impressions not handed on", extra={"why": cause_of(error)})
        return [*receipts]
