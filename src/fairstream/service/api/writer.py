"""One thread writes events: the batches that wait meanwhile share the next transaction."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import pyarrow as pa

from fairstream.service.api.errors import ApiError, cause_of, error_from
from fairstream.service.database import DatabaseDownError
from fairstream.service.event_store import EventStore, Receipt
from fairstream.service.incoming import Batch

_MAX_WAITING = 256
_MAX_EVENTS_TOGETHER = 100_000
_OPEN_CACHE_SECONDS = 1.0
"""How long the number of open events is remembered; meanwhile what this thread stores is added to it."""
_log = logging.getLogger("fairstream.api")


@dataclass(frozen=True, eq=False)
class _Job:
    batch: Batch
    receipt: Future[Receipt] = field(default_factory=Future)
    queued: float = field(default_factory=time.monotonic)

    def refuse(self, error: ApiError) -> None:
        if not self.receipt.done():
            self.receipt.set_exception(error)


class Writer:
    """Stores batches; a receipt is given when its events are on disk, and only then.

    `stored` is called with the events that were stored; whatever it raises, they stay stored and acknowledged.
    """

    def __init__(self, store: EventStore, stored: Callable[[pa.Table], None], max_open_events: int) -> None:
        self._store, self._stored, self._max_open = store, stored, max_open_events
        self._jobs: queue.Queue[_Job | None] = queue.Queue(_MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._writing: list[_Job] = []
        self._n_open, self._counted = 0, float("-inf")
        self.problem: ApiError | None = None
        """Why the last transaction failed, if it did."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Store what was accepted, then end."""
        self._jobs.put(None)
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def n_waiting(self) -> int:
        return self._jobs.qsize()

    def seconds_waiting(self) -> float:
        """For how long the oldest batch that is not answered has waited; 0 where there is none."""
        with self._jobs.mutex:
            jobs = [job for job in (*self._writing, *self._jobs.queue) if job is not None and not job.receipt.done()]
        return time.monotonic() - jobs[0].queued if jobs else 0.0

    def store(self, batch: Batch) -> Future[Receipt]:
        """Queue a batch; refused where too many wait already."""
        job = _Job(batch)
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            sentence = "Events come in faster than they can be stored; try again in 1 s."
            raise ApiError(503, sentence, retry_after=1) from None
        return job.receipt

    def _run(self) -> None:
        while jobs := self._next():
            self._writing = jobs
            try:
                self._write([job for job in jobs if job.receipt.set_running_or_notify_cancel()])
            except BaseException as error:  # the thread outlives everything
                _log.exception("writer failed", exc_info=False, extra={"why": cause_of(error)})
                for job in jobs:
                    job.refuse(error_from(error))

    def _next(self) -> list[_Job]:
        """The jobs of the next transaction, at least one; none when the writer is to stop."""
        first = self._jobs.get()
        if first is None:
            return []
        jobs, n_events = [first], len(first.batch)
        while n_events < _MAX_EVENTS_TOGETHER:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                self._jobs.put(None)  # for the next round
                break
            jobs.append(job)
            n_events += len(job.batch)
        return jobs

    def _write(self, jobs: list[_Job]) -> None:
        try:
            jobs = self._with_room(jobs)
            before = self._store.last_seq()
            receipts = self._store.append_all([job.batch for job in jobs])
        except Exception as error:  # nothing of it was stored
            if len(jobs) > 1 and not isinstance(error, DatabaseDownError):
                # One that the database does not accept spoils it for no other.
                for job in jobs:
                    self._write([job])
                return
            self.problem = error_from(error)
            _log.error("events not stored", extra={"why": cause_of(error)})
            for job in jobs:
                job.refuse(self.problem)
            return
        self.problem = None
        self._n_open += sum(receipt.accepted for receipt in receipts)
        try:
            self._hand_on(jobs, receipts, before)
        except Exception as error:  # the follower reads them from the database in a moment
            _log.error("stored events not handed on", extra={"why": cause_of(error)})
        for job, receipt in zip(jobs, receipts, strict=True):
            job.receipt.set_result(receipt)

    def _hand_on(self, jobs: list[_Job], receipts: list[Receipt], before: int) -> None:
        if any(receipt.repeated or receipt.forgotten for receipt in receipts):
            # Not everything that was sent was stored: only the database knows what was.
            events = self._store.read(before)
        else:
            events = pa.concat_tables([job.batch.table for job in jobs])
        if len(events):
            self._stored(events)

    def _with_room(self, jobs: list[_Job]) -> list[_Job]:
        """The jobs that the limit on open events has room for; the others are refused."""
        if time.monotonic() - self._counted > _OPEN_CACHE_SECONDS:
            self._n_open, self._counted = self._store.n_open(), time.monotonic()
        n_open, accepted = self._n_open, list[_Job]()
        for job in jobs:
            n_open += len(job.batch)
            if n_open <= self._max_open:
                accepted.append(job)
            else:
                sentence = f"{self._max_open} events wait for the next update already; try again when one has run."
                job.refuse(ApiError(503, sentence, retry_after=60))
        return accepted
