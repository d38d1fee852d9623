"""One thread writes events: what waits meanwhile goes into the next transaction together."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from fairstream.service.api.logs import Logs
from fairstream.service.api.refusals import Refused
from fairstream.service.event_store import EventStore, Receipt
from fairstream.service.incoming import Batch
from fairstream.service.serving import Serving

_MOST_WAITING = 256
_MOST_EVENTS_TOGETHER = 100_000
_OPEN_IS_KNOWN_FOR = 1.0
"""Seconds; meanwhile what this thread stores is counted along."""


@dataclass(frozen=True, eq=False)
class _Asked:
    batch: Batch
    receipt: Future[Receipt] = field(default_factory=Future)


class Writer:
    """Stores batches; a receipt is given when its events are on disk, and only then."""

    def __init__(self, store: EventStore, serving: Serving, logs: Logs, max_open_events: int) -> None:
        self._store, self._serving, self._logs, self._max_open = store, serving, logs, max_open_events
        self._waiting: queue.Queue[_Asked | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._n_open, self._counted = 0, float("-inf")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Store what was taken, then end."""
        self._waiting.put(None)
        self._thread.join()

    @property
    def n_waiting(self) -> int:
        return self._waiting.qsize()

    def store(self, batch: Batch) -> Future[Receipt]:
        """Ask for a batch to be stored; refused where too much waits already."""
        asked = _Asked(batch)
        try:
            self._waiting.put_nowait(asked)
        except queue.Full:
            raise Refused(
                503, "events come in faster than they can be stored; try again in 1 s", retry_after=1
            ) from None
        return asked.receipt

    def _run(self) -> None:
        going_on = True
        while going_on:
            first = self._waiting.get()
            if first is None:
                return
            together, n_events = [first], len(first.batch)
            while n_events < _MOST_EVENTS_TOGETHER:
                try:
                    following = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    going_on = False
                    break
                together.append(following)
                n_events += len(following.batch)
            self._store_together([asked for asked in together if asked.receipt.set_running_or_notify_cancel()])

    def _store_together(self, together: list[_Asked]) -> None:
        try:
            together = self._with_room(together)
            receipts = self._store.append_all([asked.batch for asked in together])
        except Exception as error:  # of SQLAlchemy, of a driver, of the disk: nothing of it was stored
            self._logs.say("events not stored", why=type(error).__name__)
            if len(together) > 1:  # one that the database does not like spoils it for no other
                for asked in together:
                    self._store_together([asked])
                return
            _refuse(together, Refused(503, "the database cannot be written to now; try again in 5 s", retry_after=5))
            return
        self._n_open += sum(receipt.accepted for receipt in receipts)
        for asked, receipt in zip(together, receipts, strict=True):
            self._serving.stored(asked.batch.table)
            asked.receipt.set_result(receipt)

    def _with_room(self, together: list[_Asked]) -> list[_Asked]:
        """Those for which there is room; the others are refused."""
        if time.monotonic() - self._counted > _OPEN_IS_KNOWN_FOR:
            self._n_open, self._counted = self._store.n_open(), time.monotonic()
        n_open = self._n_open
        kept: list[_Asked] = []
        late: list[_Asked] = []
        for asked in together:
            n_open += len(asked.batch)
            (kept if n_open <= self._max_open else late).append(asked)
        sentence = f"{self._max_open} events wait for the next update already; try again when one has run"
        _refuse(late, Refused(503, sentence, retry_after=60))
        return kept


def _refuse(together: list[_Asked], why: Exception) -> None:
    for asked in together:
        if not asked.receipt.done():
            asked.receipt.set_exception(why)
