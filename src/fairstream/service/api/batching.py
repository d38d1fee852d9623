"""Requests that wait together are handled together, in a thread: lists, and events and impressions to store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
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
_BULK = 5_000  # larger batches reach the lists with the follower's next poll
_OPEN_CACHE_SECONDS = 1.0  # how long the number of open events is remembered; the writer adds what it admits meanwhile
_log = logging.getLogger("fairstream.api")


class _Waiting(NamedTuple, Generic[Q, A]):
    request: Q
    answer: asyncio.Future[A]
    since: float


class Batcher(Generic[Q, A]):
    """While one batch is handled, requests add up, and the next batch has them all.

    `handle` returns an answer or an exception for each request; it runs in a thread, one batch at a time. A request
    never joins a batch that has begun: that may not know what the request depends on.
    """

    def __init__(
        self, handle: Callable[[list[Q]], Sequence[A | Exception]], threads: Executor | None, max_batch: int = 64
    ) -> None:
        self._handle, self._threads, self._max_batch = handle, threads, max_batch
        self._waiting: list[_Waiting[Q, A]] = []
        self._batch: list[_Waiting[Q, A]] = []
        self._task: asyncio.Task[None] | None = None

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
                self._batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
                requests = [each.request for each in self._batch]
                try:
                    results = await loop.run_in_executor(self._threads, self._handle, requests)
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

    def __init__(self, serving: Serving, threads: Executor) -> None:
        super().__init__(self._make, threads)
        self._serving = serving

    async def json(self, user_id: str, ask: Ask) -> bytes:
        return self._serving.cached_json(user_id, ask) or await self.ask((user_id, ask))

    def _make(self, requests: list[tuple[str, Ask]]) -> list[bytes | Exception]:
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
    """Stores requests in its own thread, and refuses them where too many wait."""

    def __init__(self, what: str, handle: Callable[[list[Q]], Sequence[A | Exception]], max_batch: int) -> None:
        self._what, self._thread = what, ThreadPoolExecutor(1, what)
        super().__init__(handle, self._thread, max_batch)

    async def ask(self, request: Q) -> A:
        if self.n_waiting() >= self._max_batch:
            sentence = f"{self._what} come in faster than they can be stored; try again in 1 s."
            raise ApiError("overloaded", sentence, retry_after=1)
        return await super().ask(request)

    async def stop(self) -> None:
        """Store what waits, and end the thread."""
        await self.finish()
        self._thread.shutdown()

    @contextmanager
    def _after_commit(self) -> Iterator[None]:
        """Log what fails after a commit: requests stay acknowledged, and the next poll reads them from the database."""
        try:
            yield
        except Exception as error:
            _log.error("stored rows not handed on", extra={"what": self._what, "why": cause_of(error)}, exc_info=error)


class _Sent(NamedTuple):
    """A batch, and the name of the ingest key that sent it."""

    events: pa.Table
    key: str | None


class Writer(_Storing[_Sent, EventsReceipt]):
    """Stores batches of events; a receipt is given when its events are on disk, and only then.

    `stored` is called with the events that were stored.
    """

    def __init__(self, store: EventStore, stored: Callable[[pa.Table], None], limits: Limits) -> None:
        super().__init__("Events", self._append, 256)
        self._store, self._stored, self._limits = store, stored, limits
        self._n_open, self._counted = 0, float("-inf")
        self._of_keys, self._n_keys = Counter[str | None](), 0
        self.problem: ApiError | None = None  # why the last transaction failed, if it did

    async def store(self, batch: pa.Table, key: str | None = None) -> EventsReceipt:
        """Store a batch; refused where too many wait already, in all or of the same key."""
        return await self.ask(_Sent(batch, key))

    def _append(self, requests: list[_Sent]) -> list[EventsReceipt | Exception]:
        """Store the batches that the limits on open events have room for."""
        try:
            refusals = self._refusals(requests)
            admitted = [each for each, refusal in zip(requests, refusals, strict=True) if refusal is None]
            receipts = iter(self._append_all(admitted) if admitted else ())
        except Exception as error:  # nothing of it was stored
            self._counted = float("-inf")
            if len(requests) > 1 and not isinstance(error, DatabaseDownError):
                # One that the database does not accept spoils it for no other.
                return [self._append([batch])[0] for batch in requests]
            self.problem = error_from(error)
            _log.error("events not stored", extra={"why": cause_of(error)}, exc_info=error)
            return [self.problem] * len(requests)
        self.problem = None
        return [refusal or next(receipts) for refusal in refusals]

    def _refusals(self, requests: list[_Sent]) -> list[ApiError | None]:
        """Return why there is no room for a batch; None where there is, and count its events as open."""
        if time.monotonic() - self._counted > _OPEN_CACHE_SECONDS:
            self._n_open, (of_keys, self._n_keys) = self._store.n_open(), self._store.open_by_key()
            self._of_keys, self._counted = Counter(of_keys), time.monotonic()
        most, share, refusals = self._limits.max_open_events, self._limits.max_key_share, list[ApiError | None]()
        for events, key in requests:
            sentence = None
            if self._n_open + len(events) > most:
                sentence = f"{most} events wait for the next update already; try again when one has run."
            elif key is not None and self._n_keys > 1 and self._of_keys[key] + len(events) > share * most:
                sentence = (
                    f"This key has sent {share:.0%} of the {most} events that may wait for the next update already; "
                    f"try again when one has run."
                )
            else:
                self._n_open += len(events)
                self._of_keys[key] += len(events)
            refusals.append(ApiError("too_many_open_events", sentence, retry_after=60) if sentence else None)
        return refusals

    def _append_all(self, requests: list[_Sent]) -> list[EventsReceipt]:
        before, batches = self._store.last_seq(), [each.events for each in requests]
        receipts = self._store.append_all(batches, [each.key for each in requests])
        with self._after_commit():
            small = [each for each in batches if len(each) <= _BULK]
            if any(receipt.repeated or receipt.forgotten for receipt in receipts):
                # Only the database knows what of them was stored, and what of the larger ones.
                small = [self._store.read(before)] if len(small) == len(batches) else []
            if any(map(len, small)):
                self._stored(pa.concat_tables(small))
        return receipts


class ImpressionWriter(_Storing[list[Shown], ImpressionsReceipt]):
    """Stores lists that people saw; `stored` is called when they are on disk."""

    def __init__(self, workspace: Workspace, stored: Callable[[], None]) -> None:
        super().__init__("Impressions", self._append, 64)
        self._workspace, self._stored = workspace, stored

    def _append(self, requests: list[list[Shown]]) -> list[ImpressionsReceipt]:
        receipts = store(self._workspace, requests)
        with self._after_commit():
            self._stored()
        return receipts
