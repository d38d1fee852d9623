"""Keep what answers up to date with the database: models, events, the catalogue, rules, forgotten people."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from fairstream.errors import CheckpointError, DataError, FairstreamError, WorkspaceError
from fairstream.recommender import load
from fairstream.service import schema
from fairstream.service.database import now, reachable
from fairstream.service.event_store import EventStore, last_seq
from fairstream.service.experiments import Experiment
from fairstream.service.experiments import running as running_experiment
from fairstream.service.impressions import shown_after
from fairstream.service.items import CatalogueReader
from fairstream.service.people import digests as digests_of
from fairstream.service.ranking import popularity_of
from fairstream.service.recent import MAX_EVENTS
from fairstream.service.rules import NO_RULES, Rules, rules_from_json
from fairstream.service.rules import stored as stored_rules
from fairstream.service.serving import Serving
from fairstream.service.serving_model import ServingModel
from fairstream.service.workspace import Workspace

EVERY_SECONDS = 0.5
_RETRY_SECONDS = 10.0  # the time until a model that could not be loaded is tried again
_WARM_USERS = 1_000  # users whose lists are made before a new model answers
_SHARE_OF_TIME = 0.01  # of a thread, for counting popularity again
_EVENTS_AT_ONCE = 50_000
_EVENTS_OF_POPULARITY = 200_000
_MODELS = select(
    schema.models.c.id, schema.models.c.folder, schema.models.c.parent, schema.periods.c.first_seq
).join_from(schema.models, schema.periods)
_FAILURES = FairstreamError, MemoryError, OSError, RuntimeError  # the last: PyTorch, out of memory
_log = logging.getLogger(__name__)


class _InService(NamedTuple):
    """The model in service; forgetting changes the folder of a model that it rewrites, and `since` of a damaged one."""

    model: str
    folder: str
    parent: str | None
    first_seq: int  # the first event of its last period, some of whose events it may not have learned
    since: int


class _Snapshot(NamedTuple):
    """The state of the database at one poll."""

    in_service: _InService | None
    versions: dict[str, int]  # of `changes`
    last_seq: int


class Follower:
    """Polls the database and applies its changes to `serving`."""

    def __init__(self, workspace: Workspace, store: EventStore, serving: Serving) -> None:
        self._workspace, self._store, self._serving = workspace, store, serving
        self._catalogue = CatalogueReader(workspace.engine, workspace.config.items.properties)
        self._applying, self._counting = Lock(), Lock()
        self._max_lists = workspace.config.limits.cached_lists
        self._read_at = time.monotonic()
        self._last_seq = self._shown_seq = 0  # the last event and the last list that the serving model has
        self._has_dislikes = False
        # The versions that were applied.
        self._items_and_rules: list[int | None] | None = None
        self._forgotten: int | None = -1
        self._requested: set[tuple[str, int]] = set()  # digest and time of the requests to forget that were applied
        self._taken_up: _InService | None = None  # the model in service when the serving model was chosen
        self._retry_at = self._refresh_at = 0.0
        self._second: tuple[str, str, int] | None = None  # the experiment, folder and `since` when B was loaded
        self._second_problem: str | None = None
        self._retry_second_at = 0.0

    def seconds_since_look(self) -> float:
        """Return how long ago a read of the database succeeded."""
        return time.monotonic() - self._read_at

    def follow(self) -> None:
        """Poll; on an error the present model keeps answering, and the status says why it is stale."""
        try:
            self.poll()
            self._serving.stale_reason = self._second_problem
        except Exception as error:
            self._serving.stale_reason = _sentence(error)
            raise

    def poll(self) -> None:
        with reachable(self._workspace.engine):
            snapshot = self._read_snapshot()
            self._follow_items(snapshot)
            self._follow_dislikes(snapshot)
            self.follow_shown()
            must_load = self._must_load(snapshot)
            # Update the present models first: they keep answering if the next one cannot be loaded.
            self._follow_forgotten(snapshot)
            if self._serving.status().ready:
                self._catch_up(self._serving.models(), self._last_seq, snapshot.last_seq)
            if must_load:
                self._load(snapshot)
                self._taken_up, self._retry_at = snapshot.in_service, time.monotonic() + _RETRY_SECONDS
            self._follow_experiment(snapshot)
            self._refresh_popularity()

    def _read_snapshot(self) -> _Snapshot:
        """Read the model in service, the counters of all changes and the last event: no table that grows is scanned."""
        service, changes = schema.service.c, schema.changes.c
        in_service = _MODELS.add_columns(service.since).join(schema.service, service.model == schema.models.c.id)
        with self._workspace.engine.connect() as connection:
            end = last_seq(connection)
            versions = {row.name: row.version for row in connection.execute(select(changes.name, changes.version))}
            row = connection.execute(in_service).one_or_none()
        self._read_at = time.monotonic()
        return _Snapshot(None if row is None else _InService(*row), versions, end)

    def follow_items(self) -> None:
        """Apply all changes of items and rules that are committed; any thread may call it."""
        with self._applying:  # later items must not be replaced by earlier ones
            catalogue, problem = self._catalogue.catch_up(), None
            try:
                rules = Rules.of(stored_rules(self._workspace.engine), catalogue.kinds)
            except DataError as error:  # they name a property that the configuration does not declare any more
                rules, problem = NO_RULES, f"the rules of lists do not apply: {error}"
            self._serving.set_shop(catalogue, rules, problem)

    def _follow_items(self, snapshot: _Snapshot) -> None:
        versions = [snapshot.versions.get(name) for name in ("items", "rules")]
        if versions != self._items_and_rules:
            self.follow_items()
            self._items_and_rules = versions

    def _follow_dislikes(self, snapshot: _Snapshot) -> None:
        """Read the earlier negative feedback, once; `Serving.choices` notes that of later events."""
        if not self._has_dislikes:
            kinds = [kind for kind, weight in self._workspace.config.events.kinds.items() if weight < 0]
            self._serving.dislike(self._store.pairs_of(kinds, snapshot.last_seq))
            self._has_dislikes = True

    def _follow_forgotten(self, snapshot: _Snapshot) -> None:
        """Apply the requests to forget since the last poll; those before the first one are applied to each model."""
        version = snapshot.versions.get("forgotten")
        if self._forgotten != version:
            with self._workspace.engine.connect() as connection:
                requested = {(row.digest, row.requested) for row in connection.execute(select(schema.forgotten))}
            new, self._requested, self._forgotten = requested - self._requested, requested, version
            if self._serving.status().ready:
                self._forget({digest for digest, _ in new})

    def follow_shown(self) -> None:
        """Count the lists that people saw, whichever process stored them; any thread may call it."""
        config = self._workspace.config.impressions
        if config.avoid_after is not None:
            since = now() - round(config.avoid_days * 86_400_000_000)
            with self._counting:
                for seq, user, items, at in shown_after(self._workspace.engine, self._shown_seq, since):
                    self._serving.shown.add(user, items, at)
                    self._shown_seq = seq

    def _must_load(self, snapshot: _Snapshot) -> bool:
        status = self._serving.status()
        if not status.ready or snapshot.in_service != self._taken_up:
            return True
        now = time.monotonic()
        if snapshot.in_service is not None and status.source != "model":
            return now >= self._retry_at
        # Without a model popularity is counted again, new items included.
        return snapshot.in_service is None and snapshot.last_seq > self._last_seq and now >= self._refresh_at

    def _load(self, snapshot: _Snapshot) -> None:
        begin = time.perf_counter()
        problem = None
        for candidate in self._candidates(snapshot.in_service):
            is_wanted = snapshot.in_service is not None and candidate.model == snapshot.in_service.model
            if not is_wanted and self._serving.status().model == candidate.model:
                break  # the present model is the best one
            try:
                model = self._read_model(candidate.model, candidate.folder)
            except WorkspaceError:
                raise  # the database, not the model
            except _FAILURES as error:
                problem = problem or _failed(f"model {candidate.model}", error)
                continue
            self._get_ready(model, candidate.first_seq - 1, snapshot)
            self._serving.use(model, "model" if is_wanted else "earlier model", problem)
            _log.info("model %s answers after %.2f s", candidate.model, time.perf_counter() - begin)
            return
        if self._serving.status().model is not None:
            self._serving.use(self._serving.current, "earlier model", problem)
            return
        self._use_popularity(snapshot, problem or "there is no model yet; the first update makes one from the events")

    def _read_model(self, model_id: str, folder: str, rules: Rules | None = None) -> ServingModel:
        state = load(self._workspace.models.path(folder), frozen=True).state
        return ServingModel(state, model_id, cached_lists=self._max_lists, rules=rules)

    def _follow_experiment(self, snapshot: _Snapshot) -> None:
        """Load arm B of the running experiment, or drop that of one that has ended."""
        serving, at = self._serving, snapshot.in_service
        running, b = self._read_experiment() if "experiment" in snapshot.versions else (None, None)
        if running is None or b is None or at is None or running.a != serving.status().model:
            serving.experiment = self._second_problem = None
            return
        arms, second = running.arms(self._workspace.secret), (running.id, b.folder, at.since)
        if serving.experiment is not None and self._second == second:
            serving.experiment = arms, serving.experiment[1]
        elif self._second != second or time.monotonic() >= self._retry_second_at:
            self._second = second
            try:
                serving.use_second(arms, self._read_second(running, b, snapshot))
                self._second_problem = None
            except _FAILURES as error:  # everybody gets A
                serving.experiment, self._retry_second_at = None, time.monotonic() + _RETRY_SECONDS
                self._second_problem = _failed(f"model {b.id} of the experiment", error)

    def _read_experiment(self) -> tuple[Experiment | None, Any]:
        """Return the running experiment and the row of its model B."""
        with self._workspace.engine.connect() as connection:
            running = running_experiment(connection)
            if running is None:
                return None, None
            return running, connection.execute(_MODELS.where(schema.models.c.id == running.b)).first()

    def _read_second(self, running: Experiment, b: Any, snapshot: _Snapshot) -> ServingModel:
        rules, kinds = running.options.rules, self._workspace.config.items.properties
        own = None if rules is None else Rules.of(rules_from_json(rules, kinds), kinds)
        model = self._read_model(b.id, b.folder, own)
        self._get_ready(model, b.first_seq - 1, snapshot)
        return model

    def _candidates(self, wanted: _InService | None) -> list[_InService]:
        """Return the model in service and its ancestors, the nearest first."""
        if wanted is None:
            return []
        with self._workspace.engine.connect() as connection:
            rows = {row.id: row for row in connection.execute(_MODELS)}
        chain = [wanted]
        while (row := rows.get(chain[-1].parent)) is not None and self._workspace.models.exists(row.folder):
            chain.append(_InService(*row, wanted.since))
        return chain

    def _get_ready(self, model: ServingModel, after: int, snapshot: _Snapshot) -> None:
        """Bring a model up to date before it answers."""
        serving, forgotten = self._serving, schema.forgotten.c
        with self._workspace.engine.connect() as connection:
            wanted = {*connection.scalars(select(forgotten.digest).where(forgotten.completed.is_(None)))}
        self._forget(wanted, model)
        serving.prepare(model)
        # The models that answer now have all of these events.
        self._catch_up([model], max(after, snapshot.last_seq - MAX_EVENTS), snapshot.last_seq)
        # Nothing is compiled or paged in while somebody waits, and the latest visitors find their lists.
        before = serving.current.cached_users() if serving.status().ready else []
        model.make_lists(before[:_WARM_USERS] or islice(model.users(), _WARM_USERS), 20)
        # Meanwhile events came in.
        self._catch_up([*serving.models(), model], snapshot.last_seq, self._store.last_seq())

    def _use_popularity(self, snapshot: _Snapshot, problem: str) -> None:
        begin = time.monotonic()
        events = self._store.read(max(0, snapshot.last_seq - _EVENTS_OF_POPULARITY), snapshot.last_seq)
        self._last_seq = snapshot.last_seq
        model = ServingModel(popularity_of(self._serving.choices(events)), None, cached_lists=self._max_lists)
        self._serving.use(model, "popularity", problem)
        self._delay_refresh(begin)

    def _catch_up(self, models: Collection[ServingModel], after: int, end: int) -> None:
        """Add the events that any process has stored since the last poll, or since a model learned."""
        self._serving.events_behind = max(0, end - after)
        while after < end:
            until = min(end, after + _EVENTS_AT_ONCE)
            events = self._store.read(after, until)
            if events.num_rows:
                choices = self._serving.choices(events)
                for model in models:
                    model.add(choices)
            after = until
            self._serving.events_behind = end - until
            if until < end:  # withdrawn items do not wait for the rest
                self._follow_items(self._read_snapshot())
        self._last_seq = end

    def _refresh_popularity(self) -> None:
        if (begin := time.monotonic()) >= self._refresh_at:
            for model in self._serving.models():
                model.refresh_popularity()
            self._delay_refresh(begin)

    def _delay_refresh(self, begin: float) -> None:
        now = time.monotonic()
        self._refresh_at = now + (now - begin) / _SHARE_OF_TIME

    def _forget(self, digests: set[str], *others: ServingModel) -> None:
        """Forget people in all models that answer and these others."""
        if digests:
            models = (*self._serving.models(), *others)
            users = [*{*self._serving.users()}.union(*(model.users() for model in models))]
            pairs = zip(digests_of(self._workspace.secret, users), users, strict=True)
            self._serving.forget([user for digest, user in pairs if digest in digests], *others)


def _failed(model: str, error: Exception) -> str:
    """Log that a model cannot be loaded, and return a sentence for any reader."""
    _log.error("%s cannot be loaded: %s", model, error or type(error).__name__)
    return f"{model} cannot be loaded: {_sentence(error)}"


def _sentence(error: Exception) -> str:
    """Describe an error for any reader: without addresses of databases, paths or statements."""
    if isinstance(error, WorkspaceError | SQLAlchemyError):
        return "the database cannot be reached; lists are made from what is in memory"
    if isinstance(error, CheckpointError):
        return "its files are damaged or missing"
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    return str(error) if isinstance(error, FairstreamError) else type(error).__name__
