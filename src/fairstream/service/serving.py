"""The serving model: checkpoint, recent events, list cache.

A list equals that of `FairRecommender.recommend` after `observe` of all events stored since the model was trained.
Events with items that the model does not know wait for the next model, which has rows for them.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from json.encoder import encode_basestring_ascii as quoted
from threading import Lock
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from fairstream.data import UNKNOWN, Groups, History, Rows, Vocabulary
from fairstream.data.catalogue import Catalogue
from fairstream.errors import FairstreamError, ModelError
from fairstream.evaluation import best_items
from fairstream.models import ContextBuilder, RecentPopularityScorer, Scorer
from fairstream.periods import seconds_of
from fairstream.recommender import State
from fairstream.recommender.lists import request_time

Floats = np.ndarray[Any, np.dtype[np.float64]]
Source = Literal["model", "popularity"]
ServedBy = Literal["model", "earlier model", "popularity"]
MAX_EVENTS = 2_000_000  # that a model reads; beyond them it drops those of the least recently active users
_BULK = 5_000  # larger batches reach the lists with the follower's next poll
_EVENTS_AT_ONCE = 1_000
_CACHED_LISTS = 10_000
_LISTS_AT_ONCE = 64
_MIN_LENGTH = 32  # lists are computed a little longer than requested: a few more items cost little, another list much
_SHARE_OF_ELAPSED = 0.25  # a cached list is valid for this share of the time since the user's latest event
_Events = tuple[Rows, Floats]  # the items of a user's events, and their times in seconds since 1970
_log = logging.getLogger(__name__)


class NotReadyError(FairstreamError):
    """No model has been loaded yet."""


class Answer(NamedTuple):
    """A recommendation list."""

    items: list[str]
    scores: list[float | None]  # None in lists by popularity: they would show how much the level moves an item
    source: Source  # popularity, where the model cannot score the user
    model: str | None  # the model in memory; None: popularity answers everybody


class ServingStatus(NamedTuple):
    """The model that answers, and its problem."""

    model: str | None
    source: ServedBy | None  # None: nothing is loaded yet
    problem: str | None  # why the lists are not those of the model in service and all events, if so
    events_behind: int  # events in the database that the lists do not reflect yet
    ready: bool  # whether there are lists


@dataclass(eq=False, slots=True)
class _List:
    """A user's best items, best first."""

    rows: list[int]
    scores: list[float]
    source: Source
    is_complete: bool  # no further item could follow the last one
    expires: float = np.inf  # when the time since the user's events has changed too much
    written: tuple[tuple[int, int], bytes] | None = None  # the JSON, with its k and change of items

    def positions(self, k: int, *left_out: Collection[int]) -> list[int]:
        """The positions of the k best that are not left out; fewer where the list ends before."""
        if not any(left_out):
            return list(range(min(k, len(self.rows))))
        allowed = (at for at, row in enumerate(self.rows) if not any(row in rows for rows in left_out))
        return [at for at, _ in zip(allowed, range(k), strict=False)]

    def covers(self, places: list[int], k: int) -> bool:
        """Whether these positions hold the k best of all items."""
        return self.is_complete or len(places) == k

    def without(self, rows: Collection[int]) -> _List:
        """Drop items, for a model that reads no histories."""
        places = [at for at, row in enumerate(self.rows) if row not in rows]
        rest = [self.rows[at] for at in places], [self.scores[at] for at in places]
        return _List(*rest, self.source, self.is_complete, self.expires)


class _Recent(NamedTuple):
    """A user's events since the model learned."""

    items: array[int]
    seconds: array[float]


class ServingModel:
    """One model in memory with the events since it learned; safe to use from many threads.

    Without an id the state's model is popularity. The time of a request is that of the `clock`. If the model reads
    times, a cached list is valid for a quarter of the time since the user's latest event, at least a minute.
    """

    def __init__(self, state: State, model_id: str | None, clock: Callable[[], float] = time.time) -> None:
        if not all(bool(torch.isfinite(weights).all()) for weights in state.model.parameters()):
            raise ModelError(f"model {model_id} has weights that are not finite; promote another one")
        self.id = model_id
        self._state = state.without_groups()
        self._fallback = self._state.fallback
        self._reads_events = state.contexts.history_length > 0
        self._stranger = max(state.history.n_users, len(state.user_ids))  # a row without events
        self.clock = clock
        self._recent: dict[str, _Recent] = {}  # by last activity
        self._n_recent = 0
        self._arrived = array("i")  # the items of all recent events in the order of arrival
        self._n_counted = 0  # how many of them the fallback has counted
        self._forgotten: set[str] = set()
        self._withdrawn: frozenset[int] = frozenset()
        self._n_changes = 0  # how often the available items have changed
        self._names: dict[int, str] = {}
        self._lists: OrderedDict[str | None, _List | object] = OrderedDict()
        """By user; None stands for all strangers. A plain object marks a list in the making."""
        self._lock = Lock()

    # ── lists ────────────────────────────────────────────────────────────────────────────

    def recommend(
        self, user_id: str, k: int, exclude: Collection[str] = (), only: Collection[str] | None = None
    ) -> Answer:
        """Return the k best available items for a user, without those that the user has had."""
        if only is not None:
            with self._lock:
                recent = self._recent_of([user_id])
            [ranked] = self._make([user_id], recent, k, self._allowed(exclude, only))
            return self._answer(ranked, range(len(ranked.rows))[:k])
        left_out = frozenset(self._rows_of(exclude))
        if (cached := self._cached(self._key(user_id))) is not None:
            places = cached.positions(k, self._withdrawn, left_out)
            if cached.covers(places, k):
                return self._answer(cached, places)
        return self._answer(*self._compute(user_id, k, left_out))

    def recommend_session(
        self, items: Sequence[str], k: int, exclude: Collection[str] = (), only: Collection[str] | None = None
    ) -> Answer:
        """The same for an anonymous user who has had these items, in this order; unknown ones are ignored."""
        rows = np.array(self._rows_of(items), np.int64)
        events = rows, np.full(len(rows), np.nan)
        [ranked] = self._rank(np.array([self._stranger]), [events], k, self._allowed(exclude, only))
        return self._answer(ranked, range(len(ranked.rows))[:k])

    def json(self, user_id: str, k: int) -> bytes:
        body = self.cached_json(user_id, k)
        return body or self._with_user(user_id, self._written(*self._compute(user_id, k)))

    def cached_json(self, user_id: str, k: int) -> bytes | None:
        """The same from the cache; None if it holds no valid list of this length."""
        ranked, question = self._cached(self._key(user_id)), (k, self._n_changes)
        if ranked is None:
            return None
        written = ranked.written
        if written is None or written[0] != question:
            places = ranked.positions(k, self._withdrawn)
            if not ranked.covers(places, k):
                return None
            written = ranked.written = question, self._written(ranked, places)
        return self._with_user(user_id, written[1])

    def make_lists(self, user_ids: Iterable[str], k: int) -> None:
        """Compute the missing lists of these users, many at once: one list costs little more than its calls."""
        missing: dict[str | None, str] = {}
        for user_id in user_ids:
            key = self._key(user_id)
            if key not in missing:
                ranked = self._cached(key)
                if ranked is None or not ranked.covers(ranked.positions(k, self._withdrawn), k):
                    missing[key] = user_id
        users = list(missing.values())
        for start in range(0, len(users), _LISTS_AT_ONCE):
            self._compute_and_cache(users[start : start + _LISTS_AT_ONCE], k)

    def cached_users(self) -> list[str]:
        with self._lock:
            return [user for user in reversed(self._lists) if user is not None]

    def some_users(self, n: int) -> list[str]:
        return list(self._state.user_ids.ids[:n].to_pylist())

    def request_at(self, at: Any) -> None:
        """Set the time of all later requests; raise a ConfigurationError if no list can be requested then."""
        with self._lock:
            latest = [max(recent.seconds, default=np.nan) for recent in self._recent.values()]
            newest = float(np.fmax.reduce([self._state.history.latest_time(), *latest]))
            seconds = request_time(at, newest, reads_times=self._state.model.reads_times)
            self.clock = lambda: seconds
            self._lists.clear()

    # ── what changes them ────────────────────────────────────────────────────────────────

    def add(self, events: pa.Table) -> None:
        """Add events (user_id, item_id, time); known ones change nothing."""
        if len(events) > 1:  # by time, those of one time by arrival
            events = events.take(pa.array(np.argsort(events["time"].to_numpy(), kind="stable")))
        for start in range(0, len(events), _EVENTS_AT_ONCE):  # so that requests for lists do not wait for the lock
            self._add(events.slice(start, _EVENTS_AT_ONCE))

    def _add(self, events: pa.Table) -> None:
        users = events["user_id"].to_pylist()
        items, rows = self._state.item_ids.lookup(events["item_id"]), self._state.user_ids.lookup(events["user_id"])
        if self._forgotten:
            rows = np.array([-1 if user in self._forgotten else row for user, row in zip(users, rows, strict=True)])
        is_known = items >= 0
        pairs = is_known & (rows >= 0)
        is_known[pairs] = ~self._state.history.seen.has(rows[pairs], items[pairs])
        places = np.flatnonzero(is_known)
        seconds = seconds_of(events["time"].to_numpy().astype("datetime64[us]"))
        assert seconds is not None  # as of all timestamps
        by_user: dict[str, dict[int, int]] = {}
        for place, item in zip(places.tolist(), items[places].tolist(), strict=True):
            by_user.setdefault(users[place], {}).setdefault(item, place)
        arrived: list[int] = []
        with self._lock:
            for user, place_of in by_user.items():
                recent = self._recent.pop(user, None) or _Recent(array("i"), array("d"))
                had = recent.items if len(place_of) == 1 else set(recent.items)
                fresh = [item for item in place_of if item not in had]
                at = [place_of[item] for item in fresh]
                recent.items.extend(fresh)
                recent.seconds.extend(seconds[at].tolist())
                self._recent[user] = recent
                if fresh:
                    arrived += at
                    self._invalidate(user, fresh)
            self._n_recent += len(arrived)
            self._arrived.extend(items[np.sort(arrived)].tolist() if arrived else ())
            self._evict()

    def _invalidate(self, user: str, items: list[int]) -> None:
        """Update a cached list after new events: a model that reads them needs a new list."""
        ranked = self._lists.get(user)
        if self._reads_events or not isinstance(ranked, _List):
            self._lists.pop(user, None)
        elif not set(items).isdisjoint(ranked.rows):
            self._lists[user] = ranked.without(items)

    def forget(self, user_ids: Iterable[str]) -> None:
        """Treat these users as strangers, although the model knows them."""
        with self._lock:
            for user in user_ids:
                self._forgotten.add(user)
                self._drop_recent(user)
                self._lists.pop(user, None)

    def _drop_recent(self, user: str) -> None:
        recent = self._recent.pop(user, None)
        self._n_recent -= 0 if recent is None else len(recent.items)

    def users(self) -> Iterable[str]:
        return {*self._state.user_ids.ids.to_pylist(), *list(self._recent)} - self._forgotten

    def set_catalogue(self, catalogue: Catalogue) -> None:
        """Use another catalogue: withdrawn items leave every list at once."""
        gone = catalogue.item_ids.ids.filter(pa.array(~catalogue.available[:-1]))
        rows = self._state.item_ids.lookup(gone) if len(gone) else np.empty(0, np.int64)
        with self._lock:
            before, self._withdrawn = self._withdrawn, frozenset(rows[rows >= 0].tolist())
            self._n_changes += before != self._withdrawn
            if before - self._withdrawn:  # lists were made without them
                self._lists.clear()

    def refresh_popularity(self) -> None:
        """Count recent events in the popularity that answers users whom the model cannot score."""
        with self._lock:
            if len(self._arrived) == self._n_counted:
                return
            items, self._n_counted = np.array(self._arrived, np.int64), len(self._arrived)
        state = self._state
        history = state.history.after(np.full(len(items), self._stranger), items, ends_period=False)
        self._fallback = replace(state, history=history).fallback
        with self._lock:
            old = [user for user, ranked in self._lists.items() if getattr(ranked, "source", None) != "model"]
            for user in old:
                del self._lists[user]

    def _evict(self) -> None:
        """Drop recent events of the least recently active users where there are too many."""
        n_left_out = 0
        while self._n_recent > MAX_EVENTS:
            user = next(iter(self._recent))
            self._drop_recent(user)
            self._lists.pop(user, None)
            n_left_out += 1
        if (n_over := len(self._arrived) - MAX_EVENTS) > 0:
            del self._arrived[: n_over + MAX_EVENTS // 10]
            self._n_counted = 0
        if n_left_out:
            _log.warning(
                "more than %d events since the last update: dropped those of the %d least recently active users "
                "until the next one",
                MAX_EVENTS,
                n_left_out,
            )

    # ── making a list ────────────────────────────────────────────────────────────────────

    def _compute(self, user_id: str, k: int, left_out: Collection[int] = ()) -> tuple[_List, list[int]]:
        """A new list with a user's k best, and their positions."""
        [ranked] = self._compute_and_cache([user_id], k + len(left_out))
        return ranked, ranked.positions(k, self._withdrawn, left_out)

    def _compute_and_cache(self, user_ids: list[str], n: int) -> list[_List]:
        """The n best for each user; a list is cached unless an event of its user arrives meanwhile."""
        making = object()
        with self._lock:
            keys, recent = [self._key(user) for user in user_ids], self._recent_of(user_ids)
            for key in keys:
                self._lists[key] = making
        ranked = self._make(user_ids, recent, n, self._allowed())
        with self._lock:
            for key, each in zip(keys, ranked, strict=True):
                if self._lists.get(key) is making:
                    self._lists[key] = each
            while len(self._lists) > _CACHED_LISTS:
                self._lists.popitem(last=False)
        return ranked

    def _key(self, user_id: str) -> str | None:
        # All strangers share one list, so that they evict no other.
        return user_id if user_id in self._recent or self._row(user_id) != self._stranger else None

    def _cached(self, key: str | None) -> _List | None:
        with self._lock:
            ranked = self._lists.get(key)
            if not isinstance(ranked, _List) or self.clock() >= ranked.expires:
                return None
            self._lists.move_to_end(key)
            return ranked

    def _row(self, user_id: str) -> int:
        row = -1 if user_id in self._forgotten else self._state.user_ids.row_of(user_id)
        return row if row >= 0 else self._stranger

    def _recent_of(self, user_ids: Iterable[str]) -> list[_Events]:
        of_users = (self._recent.get(user, ((), ())) for user in user_ids)
        return [(np.array(items, np.int64), np.array(seconds, np.float64)) for items, seconds in of_users]

    def _make(self, user_ids: list[str], recent: list[_Events], n: int, allowed: Rows | None) -> list[_List]:
        """The n best for each user after the model's and the recent events."""
        rows = np.array([self._row(user) for user in user_ids])
        is_stranger = rows == self._stranger
        rows[is_stranger] += np.arange(np.count_nonzero(is_stranger))  # each with separate events
        both = zip(self._known(rows), recent, strict=True)
        events = [(np.append(items, more), np.append(seconds, later)) for (items, seconds), (more, later) in both]
        return self._rank(rows, events, n, allowed)

    def _known(self, rows: Rows) -> list[_Events]:
        """Each user's events in the model, in order if the model reads it (8 bytes an event, 16 with times)."""
        history = self._state.history
        if not self._reads_events:
            bounds, items = history.items_of(rows)
            return [(part, np.full(len(part), np.nan)) for part in np.split(items, bounds[1:-1])]
        counts = history.n_events_of(rows)
        places = history.latest_positions(rows, int(counts.max()))[0]
        latest = history.items_of_events(places)
        minutes = history.minutes_of_events(places) if self._state.model.reads_times else np.full_like(places, -1)
        seconds = np.where(minutes < 0, np.nan, 60.0 * minutes)
        ends = zip(latest, seconds, counts.tolist(), strict=True)
        return [(items[len(items) - n :], times[len(times) - n :]) for items, times, n in ends]

    def _rank(self, rows: Rows, events: list[_Events], n: int, allowed: Rows | None) -> list[_List]:
        """The n best for users by their rows and their events, in order."""
        state = self._state
        n_items = state.history.n_items
        n_ranked = n_items if allowed is None else len(allowed)
        n = min(max(n, _MIN_LENGTH), n_ranked)
        if n == 0:
            return [_List([], [], "popularity", is_complete=True) for _ in rows]
        items_of_all, seconds_of_all = (np.concatenate(column) for column in zip(*events, strict=True))
        users_of_all, now = np.repeat(rows, [len(items) for items, _ in events]), self.clock()
        history = History.of(users_of_all, items_of_all, seconds_of_all, n_items=n_items)
        contexts = replace(state.contexts.observing(history), now=now)
        by_model = contexts.can_score(state.model, rows) & (self.id is not None)
        ranked: dict[int, _List] = {}
        answering: list[tuple[Scorer, ContextBuilder, Source, Rows]] = [
            (state.model, contexts, "model", np.flatnonzero(by_model)),
            (self._fallback, ContextBuilder(0, history, tilt=state.tilt), "popularity", np.flatnonzero(~by_model)),
        ]
        for model, known, source, users in answering:
            if not len(users):
                continue
            scores, items = best_items(model, rows[users], history, contexts=known, k=n, allowed=allowed)
            lengths = np.isfinite(scores).sum(axis=1).tolist()
            lists = zip(users.tolist(), lengths, items.tolist(), scores.astype(np.float32).tolist(), strict=True)
            for user, length, best, best_scores in lists:
                is_complete = length < n or n == n_ranked
                expires = self._expires(events[user][1], now) if source == "model" else np.inf
                ranked[user] = _List(best[:length], best_scores[:length], source, is_complete, expires)
        return [ranked[at] for at in range(len(rows))]

    def _expires(self, seconds: Floats, now: float) -> float:
        """Return when the time since the latest event will have grown by a quarter, or reached a pause of the model."""
        model = self._state.model
        if not model.reads_times or np.isnan(seconds).all():
            return np.inf
        latest = float(np.nanmax(seconds))
        reached = (60.0 * (latest // 60 + pause) for pause in model.pauses)  # the model reads whole minutes
        return min(now + max(60.0, _SHARE_OF_ELAPSED * (now - latest)), *(at for at in reached if at > now), np.inf)

    def _allowed(self, exclude: Collection[str] = (), only: Collection[str] | None = None) -> Rows | None:
        """The sorted rows of the allowed items; None: all."""
        withdrawn = self._withdrawn
        if not exclude and only is None and not withdrawn:
            return None
        is_allowed = np.full(self._state.history.n_items, only is None)
        is_allowed[self._rows_of(only or ())] = True
        is_allowed[self._rows_of(exclude)] = False
        is_allowed[list(withdrawn)] = False
        return np.flatnonzero(is_allowed)

    def _rows_of(self, items: Collection[str]) -> list[int]:
        return [row for row in map(self._state.item_ids.row_of, items) if row >= 0]

    def _answer(self, ranked: _List, places: Sequence[int]) -> Answer:
        scores = [None if ranked.source == "popularity" else ranked.scores[at] for at in places]
        return Answer([self._name(ranked.rows[at]) for at in places], scores, ranked.source, self.id)

    def _written(self, ranked: _List, places: Sequence[int]) -> bytes:
        """An answer without its user; nine digits distinguish any two scores."""
        items, scores, source, _ = self._answer(ranked, places)
        pairs = ",".join(
            f'{{"item_id":{quoted(item)},"score":{"null" if score is None else f"{score:.9g}"}}}'
            for item, score in zip(items, scores, strict=True)
        )
        model = "null" if self.id is None else quoted(self.id)
        return f'"model":{model},"source":"{source}","items":[{pairs}]}}'.encode()

    @staticmethod
    def _with_user(user_id: str, written: bytes) -> bytes:
        return b'{"user_id":%b,%b' % (quoted(user_id).encode(), written)

    def _name(self, row: int) -> str:
        """The id of an item; most lists share a few items."""
        name = self._names.get(row)
        if name is None:
            name = self._names[row] = self._state.item_ids.ids[row].as_py()
        return name


def popularity_of(events: pa.Table) -> State:
    """A state that recommends what is popular among these events; each pair counts once."""
    user_ids, item_ids = Vocabulary(), Vocabulary()
    users, items = user_ids.extend(events["user_id"]), item_ids.extend(events["item_id"])
    _, first = np.unique((users << 32) | items, return_index=True)
    first.sort()
    history = History.of(users[first], items[first])
    n_users = len(user_ids)
    return State(
        RecentPopularityScorer.of(history).eval(),
        None,
        history,
        Groups("group", (), np.full(n_users, UNKNOWN, np.int16)),
        user_ids.indexed(),
        item_ids.indexed(),
        np.zeros(n_users, np.bool_),
        np.full(history.n_items, True),
        0,
        0,
    )


class Serving:
    """The serving model; a `Follower` replaces it when another one is promoted.

    >>> serving = Serving()
    >>> serving.status().ready
    False
    >>> events = pa.table({"user_id": ["ann", "bob", "bob"], "item_id": ["tea", "tea", "jam"], "time": [1, 2, 3]})
    >>> serving.use(ServingModel(popularity_of(events), None), "popularity")
    >>> serving.current.recommend("ann", k=2).items
    ['jam']
    >>> serving.set_catalogue(Catalogue.of({}).updated(["jam"], [False], [{}]))
    >>> serving.current.json("carl", k=2)
    b'{"user_id":"carl","model":null,"source":"popularity","items":[{"item_id":"tea","score":null}]}'
    """

    def __init__(self) -> None:
        self._current: ServingModel | None = None
        self._next: ServingModel | None = None
        self._served_by: ServedBy | None = None
        self._catalogue = Catalogue.of({})
        self._lock = Lock()
        self._problem: str | None = "nothing has been loaded yet; try again in a few seconds"
        self.stale_reason: str | None = None  # a sentence, where the database cannot be read
        self.events_behind = 0

    @property
    def current(self) -> ServingModel:
        """The model that answers now; keep the reference to get lists of one model."""
        if self._current is None:
            raise NotReadyError(self.stale_reason or self._problem)
        return self._current

    def stored(self, events: pa.Table) -> None:
        """Add stored events (user_id, item_id, time) at once; the follower's next poll adds a bulk load."""
        if len(events) <= _BULK:
            for model in self._models():
                model.add(events)

    def set_catalogue(self, catalogue: Catalogue) -> None:
        """Use another catalogue: withdrawn items leave every list at once."""
        with self._lock:
            self._catalogue = catalogue
            models = self._models()
        for model in models:
            model.set_catalogue(catalogue)

    def forget(self, user_ids: Iterable[str]) -> None:
        user_ids = list(user_ids)
        for model in self._models():
            model.forget(user_ids)

    def prepare(self, model: ServingModel) -> None:
        """Keep a model up to date that is about to be used."""
        with self._lock:
            model.set_catalogue(self._catalogue)
            self._next = model

    def discard_prepared(self) -> None:
        self._next = None

    def use(self, model: ServingModel, served_by: ServedBy, problem: str | None = None) -> None:
        self.prepare(model)
        self._current, self._next, self._served_by, self._problem = model, None, served_by, problem

    def status(self) -> ServingStatus:
        current = self._current
        model = None if current is None else current.id
        problem = self._problem or self.stale_reason if current is not None else self.stale_reason or self._problem
        return ServingStatus(model, self._served_by, problem, self.events_behind, current is not None)

    def _models(self) -> list[ServingModel]:
        return [model for model in (self._current, self._next) if model is not None]
