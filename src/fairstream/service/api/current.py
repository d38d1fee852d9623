"""The model in service, followed: a promotion by any process is taken up within a second or so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from sqlalchemy import select

from fairstream.errors import CheckpointError, FairstreamError
from fairstream.service.api.answering import Answering, warm
from fairstream.service.api.logs import Logs
from fairstream.service.event_store import EventStore
from fairstream.service.recent import Recent
from fairstream.service.registry import InService, in_service, model
from fairstream.service.schema import models, periods
from fairstream.service.serving import Served
from fairstream.service.workspace import Workspace

_EVERY_SECONDS = 0.5
_AFTER_A_FAILURE = 10.0


class Current:
    """Holds what answers in ONE reference, and puts another in its place when a model was promoted."""

    def __init__(self, workspace: Workspace, store: EventStore, logs: Logs) -> None:
        self._workspace, self._store, self._logs = workspace, store, logs
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._taken: InService | None = None
        self.answering: Answering | None = None
        self.is_reachable = False
        """Whether the database answered the last time that it was asked."""

    def start(self) -> None:
        for name, step in (("models", self.follow_model), ("events", self.follow_events)):
            thread = threading.Thread(target=self._repeat, args=(step,), name=f"follow-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def add(self, events: pa.Table) -> None:
        """Take in events that were just stored, so that the very next answer leaves them out."""
        if (answering := self.answering) is not None:
            answering.recent.add(events["user_id"], events["item_id"])

    def follow_events(self) -> None:
        """Take in what others have stored."""
        if (answering := self.answering) is not None:
            answering.recent.catch_up(self._store)

    def follow_model(self) -> None:
        """Take up what was promoted."""
        wanted = in_service(self._workspace.engine)
        self.is_reachable = True
        if wanted is None or wanted == self._taken:
            return
        begin = time.perf_counter()
        try:
            folder = model(self._workspace.engine, wanted.model).folder
            served = Served.load(self._workspace.models.path(folder), wanted.model)
        except CheckpointError:
            if in_service(self._workspace.engine) == wanted:
                raise
            return  # another was put into service and this one removed meanwhile; the next round takes that one
        recent = Recent(served, self._first_seq(wanted.model) - 1)
        recent.catch_up(self._store)
        self.answering = warm(served, recent, self.answering)
        recent.catch_up(self._store)  # what was stored, and told to the one before, while this one was got ready
        self._taken = wanted
        self._logs.say("model swapped", model=wanted.model, seconds=round(time.perf_counter() - begin, 3))

    def _first_seq(self, model_id: str) -> int:
        """Where the model's last period begins; some of its events it may not have learned yet."""
        found = select(periods.c.first_seq).join(models, models.c.t == periods.c.t).where(models.c.id == model_id)
        with self._workspace.engine.connect() as connection:
            return int(connection.execute(found).scalar_one())

    def _repeat(self, step: Callable[[], Any]) -> None:
        while not self._stop.is_set():
            wait = _EVERY_SECONDS
            try:
                step()
            except Exception as error:  # whatever it is: what answers goes on answering, and it is tried again
                self.is_reachable = self.is_reachable and isinstance(error, FairstreamError)
                self._logs.say("following failed", what=threading.current_thread().name, why=_sentence(error))
                wait = _AFTER_A_FAILURE if isinstance(error, FairstreamError) else 2.0
            self._stop.wait(wait)


def _sentence(error: Exception) -> str:
    """What is wrong, without what an exception of a driver carries along: statements and their values."""
    original = getattr(error, "orig", None) or error
    return f"{type(original).__name__}: {str(original).splitlines()[0] if str(original) else ''}"
