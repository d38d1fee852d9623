"""Keeps what answers up with the database: the model in service, events, withdrawn items, forgotten people."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from sqlalchemy import func, literal_column, select
from sqlalchemy.exc import SQLAlchemyError

from fairstream.errors import CheckpointError, FairstreamError, WorkspaceError
from fairstream.recommender import load
from fairstream.service import schema
from fairstream.service.database import reachable
from fairstream.service.event_store import EventStore
from fairstream.service.people import digests
from fairstream.service.serving import MAX_EVENTS, Serving, ServingModel, popularity_of
from fairstream.service.workspace import Workspace

EVERY_SECONDS = 0.5
_RETRY_SECONDS = 10.0
"""Before a model that could not be loaded is tried again."""
_WARM_USERS = 20
_MAKE_LISTS_SECONDS, _MAKE_LISTS_FIRST_SECONDS = 0.2, 0.5
"""At each look, and before a model answers."""
_LISTS_AT_ONCE = 32
_POLITE_SECONDS = 0.0005
"""Between a few lists and the next the requests that come in have their turn."""
_SHARE_OF_TIME = 0.01
"""The most that computing popularity again may take."""
_EVENTS_AT_ONCE = 50_000
_PRIME = 1_000_000_007
"""Times are summed up by their remainder, so that the sum of many fits into 64 bits."""
_EVENTS_OF_POPULARITY = 200_000
_log = logging.getLogger(__name__)


class _InService(NamedTuple):
    """The model in service; `since` also changes when it was rewritten because somebody was forgotten."""

    model: str
    folder: str
    parent: str | None
    first_seq: int
    """Where its last period begins; some of its events it may not have learned yet."""
    since: int


class _Look(NamedTuple):
    """What a look at the database found."""

    in_service: _InService | None
    items: tuple[int, int]
    """Changes with any row of the items."""
    forgotten: tuple[int, int]
    """Changes with any row of the forgotten."""
    last_seq: int


class Follower:
    """A thread that looks at the database twice a second; whatever goes wrong, it goes on.

    Parameters
    ----------
    workspace, store
        What is followed.
    serving
        What is kept up with it.

    """

    def __init__(self, workspace: Workspace, store: EventStore, serving: Serving) -> None:
        self._workspace, self._store, self._serving = workspace, store, serving
        self._stop, self._looked = threading.Event(), time.monotonic()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._taken_up: _InService | None = None
        """What was in service when the model that answers was chosen."""
        self._retry_at = 0.0
        self._last_seq = 0
        """The last event that what answers knows of."""
        self._items: tuple[int, int] | None = None
        self._forgotten: tuple[int, int] | None = None
        self._requested: set[tuple[str, int]] = set()
        """The requests to forget somebody that what answers knows of: digest and time."""
        self._refresh_at = 0.0
        self._to_make: deque[str] = deque()
        """Whose lists the model before had made."""

    def start(self) -> None:
        self._looked = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def seconds_since_look(self) -> float:
        """How long ago a look at the database succeeded."""
        return time.monotonic() - self._looked

    def poll(self) -> None:
        """Look once, and take up what has changed."""
        look = self._look()
        self._follow_items(look)
        must_load = self._must_load(look)
        # Update the present model first: it keeps answering if the next one cannot be loaded.
        wanted = self._new_requests(look) if self._forgotten != look.forgotten else set()
        if self._serving.status().ready:
            self._forget(self._serving.current, wanted)
            self._catch_up(self._serving.current, look.last_seq)
        if must_load:
            self._load(look)
            self._taken_up, self._retry_at = look.in_service, time.monotonic() + _RETRY_SECONDS
        self._refresh_popularity()
        self._make_lists(self._serving.current, _MAKE_LISTS_SECONDS)

    # ── the steps ────────────────────────────────────────────────────────────────────────

    def _look(self) -> _Look:
        models, periods, service, items = schema.models.c, schema.periods.c, schema.service.c, schema.items.c
        current = (
            select(models.id, models.folder, models.parent, periods.first_seq, service.since)
            .join_from(schema.service, schema.models, models.id == service.model)
            .join(schema.periods, periods.t == models.t)
            .subquery()
        )
        # A left join to one row that is always there: the numbers come also where no model is in service.
        one = select(literal_column("1").label("one")).subquery()
        query = select(
            current,
            select(func.count()).select_from(schema.items).scalar_subquery(),
            select(func.coalesce(func.sum(items.changed % _PRIME), 0)).scalar_subquery(),
            select(func.count()).select_from(schema.forgotten).scalar_subquery(),
            select(func.coalesce(func.max(schema.forgotten.c.requested), 0)).scalar_subquery(),
            select(func.coalesce(func.max(schema.events.c.seq), 0)).scalar_subquery(),
        ).select_from(one.outerjoin(current, literal_column("1") == literal_column("1")))
        with reachable(self._workspace.engine), self._workspace.engine.connect() as connection:
            row = tuple(connection.execute(query).one())
        self._looked = time.monotonic()
        in_service = None if row[0] is None else _InService(*row[:5])
        return _Look(in_service, (row[5], int(row[6])), (row[7], int(row[8])), row[9])

    def _follow_items(self, look: _Look) -> None:
        if self._items == look.items:
            return
        items = schema.items.c
        with reachable(self._workspace.engine), self._workspace.engine.connect() as connection:
            withdrawn = list(connection.scalars(select(items.item_id).where(items.available.is_(False))))
        self._serving.set_withdrawn(withdrawn)
        self._items = look.items

    def _must_load(self, look: _Look) -> bool:
        status = self._serving.status()
        if not status.ready or look.in_service != self._taken_up:
            return True
        now = time.monotonic()
        if look.in_service is not None and status.source != "model":
            return now >= self._retry_at
        # Without a model what is popular is counted anew, new items among it.
        return look.in_service is None and look.last_seq > self._last_seq and now >= self._refresh_at

    def _load(self, look: _Look) -> None:
        begin = time.perf_counter()
        problem = None
        for candidate in self._candidates(look.in_service):
            is_wanted = look.in_service is not None and candidate.model == look.in_service.model
            if not is_wanted and self._serving.status().model == candidate.model:
                self._serving.use(self._serving.current, "earlier model", problem)
                return  # what answers is the best there is
            try:
                state = load(self._workspace.models.path(candidate.folder), mapped=True).state
                model = ServingModel(state, candidate.model)
            except WorkspaceError:
                raise  # the database, not the model
            except (FairstreamError, MemoryError, OSError, RuntimeError) as error:  # the last: PyTorch, out of memory
                _log.error("model %s cannot be loaded: %s", candidate.model, error or type(error).__name__)
                problem = problem or f"model {candidate.model} cannot be loaded: {_sentence(error)}"
                continue
            self._to_make = deque(self._serving.cached_users())
            try:
                self._get_ready(model, candidate.first_seq - 1, look)
            except BaseException:
                self._serving.discard_prepared()
                raise
            self._serving.use(model, "model" if is_wanted else "earlier model", problem)
            _log.info("model %s answers after %.2f s", candidate.model, time.perf_counter() - begin)
            _give_back_memory()
            return
        if self._serving.status().model is not None:
            self._serving.use(self._serving.current, "earlier model", problem)
            return
        self._use_popularity(look, problem or "there is no model yet; the first update makes one from the events")

    def _candidates(self, wanted: _InService | None) -> list[_InService]:
        """The model in service and those that it descends from, the nearest first."""
        found: list[_InService] = []
        models, periods = schema.models.c, schema.periods.c
        while wanted is not None:
            found.append(wanted)
            query = (
                select(models.id, models.folder, models.parent, periods.first_seq)
                .join_from(schema.models, schema.periods, periods.t == models.t)
                .where(models.id == wanted.parent)
            )
            with reachable(self._workspace.engine), self._workspace.engine.connect() as connection:
                row = connection.execute(query).first()
            wanted = None if row is None else _InService(*row, found[0].since)
            if wanted is not None and not self._workspace.models.exists(wanted.folder):
                wanted = None
        return found

    def _get_ready(self, model: ServingModel, after: int, look: _Look) -> None:
        """Let a model know what has happened since it learned, before it answers."""
        self._forget(model, self._pending())
        self._serving.prepare(model)
        self._last_seq = max(after, look.last_seq - MAX_EVENTS)
        self._catch_up(model, look.last_seq)
        model.make_lists(model.some_users(_WARM_USERS), 20)  # nothing is compiled or paged in while somebody waits
        self._make_lists(model, _MAKE_LISTS_FIRST_SECONDS)

    def _make_lists(self, model: ServingModel, seconds: float) -> None:
        """Make lists for those who asked the model before, as many as the time allows."""
        end = time.monotonic() + seconds
        while self._to_make and time.monotonic() < end and not self._stop.is_set():
            users = [self._to_make.popleft() for _ in range(min(_LISTS_AT_ONCE, len(self._to_make)))]
            model.make_lists(users, 20)
            time.sleep(_POLITE_SECONDS)

    def _use_popularity(self, look: _Look, problem: str) -> None:
        begin = time.monotonic()
        events = self._store.read(max(0, look.last_seq - _EVENTS_OF_POPULARITY), look.last_seq)
        self._last_seq = look.last_seq
        self._serving.use(ServingModel(popularity_of(events), None), "popularity", problem)
        self._next_refresh(begin)

    def _catch_up(self, model: ServingModel, end: int) -> None:
        """Take in what has been stored since the last time, by whomever."""
        self._serving.events_behind = max(0, end - self._last_seq)
        while self._last_seq < end:
            until = min(end, self._last_seq + _EVENTS_AT_ONCE)
            events = self._store.read(self._last_seq, until)
            if events.num_rows:
                model.add(events)
            self._last_seq = until
            self._serving.events_behind = end - until
            if until < end:  # a long way to go: nobody waits for it to see an item withdrawn
                self._follow_items(self._look())

    def _refresh_popularity(self) -> None:
        begin = time.monotonic()
        if begin >= self._refresh_at:
            self._serving.current.refresh_popularity()
            self._next_refresh(begin)

    def _next_refresh(self, begin: float) -> None:
        now = time.monotonic()
        self._refresh_at = now + (now - begin) / _SHARE_OF_TIME

    # ── forgotten people ─────────────────────────────────────────────────────────────────

    def _pending(self) -> set[str]:
        """Digests of those who are to be forgotten and may still be in models."""
        forgotten = schema.forgotten.c
        with reachable(self._workspace.engine), self._workspace.engine.connect() as connection:
            return {*connection.scalars(select(forgotten.digest).where(forgotten.completed.is_(None)))}

    def _new_requests(self, look: _Look) -> set[str]:
        """Digests of those whom somebody has asked to forget since the last look."""
        with reachable(self._workspace.engine), self._workspace.engine.connect() as connection:
            requested = {(row.digest, row.requested) for row in connection.execute(select(schema.forgotten))}
        known, self._requested, self._forgotten = self._requested, requested, look.forgotten
        return {digest for digest, _ in requested - known}

    def _forget(self, model: ServingModel, wanted: set[str]) -> None:
        if wanted:
            users = list(model.users())
            found = zip(digests(self._workspace.secret, users), users, strict=True)
            model.forget([user for digest, user in found if digest in wanted])

    # ── the thread ───────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.poll()
                self._serving.lag = None
            except Exception as error:  # whatever it is: what answers goes on answering, and it is tried again
                sentence = _sentence(error)
                if sentence != self._serving.lag:
                    _log.error("what answers is not kept up to date: %s", error)
                self._serving.lag = sentence
            self._stop.wait(EVERY_SECONDS)


def _give_back_memory() -> None:
    """Give the system what the model before has left: glibc keeps freed memory, more with each larger model."""
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _sentence(error: Exception) -> str:
    """What is wrong, for anybody to read: without addresses of databases, paths of folders or statements."""
    if isinstance(error, WorkspaceError | SQLAlchemyError):
        return "the database cannot be reached; lists are made from what is in memory"
    if isinstance(error, CheckpointError):
        return "its files are damaged or missing"
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    return str(error) if isinstance(error, FairstreamError) else type(error).__name__
