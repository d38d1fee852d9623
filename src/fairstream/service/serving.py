"""What answers: a model, the events since it learned, and the lists that were made of both.

A list is the one that `FairRecommender.recommend` gives after `observe` of what has been stored since the model
learned. Events with items that the model does not know wait for the next one: it has no row to read or recommend.
"""

from __future__ import annotations

import logging
from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from json.encoder import encode_basestring_ascii as quoted
from threading import Lock
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from fairstream.data import UNKNOWN, Groups, History, Rows, Vocabulary
from fairstream.errors import FairstreamError, ModelError
from fairstream.evaluation import best_items
from fairstream.models import ContextBuilder, Reads, RecentPopularity, Scorer
from fairstream.recommender import State

Source = Literal["model", "popularity"]
ServedBy = Literal["model", "earlier model", "popularity"]
MAX_EVENTS = 2_000_000
"""The most events since it learned that a model reads; beyond them those of who was away longest are left out."""
_BULK = 5_000
"""Events that nobody waits for when they come in at once."""
_AT_ONCE = 1_000
_CACHED_LISTS = 10_000
_LISTS_AT_ONCE = 64
_AT_LEAST = 32
"""Lists are made a little longer than requested: a few more items cost little, another list much."""
_NOTHING: Rows = np.empty(0, np.int64)
_log = logging.getLogger(__name__)


class NotReadyError(FairstreamError):
    """Nothing has been loaded yet that could answer."""


class Answer(NamedTuple):
    """The best items for somebody."""

    items: list[str]
    scores: list[float]
    source: Source
    """What made the list: the model, or popularity where it has nothing to say."""
    model: str | None
    """The model in memory; None where there is none and popularity answers everybody."""


class ServingStatus(NamedTuple):
    """What answers now, and what is wrong with it."""

    model: str | None
    source: ServedBy | None
    """The model in service, an earlier one in its place, or popularity; None: nothing is loaded yet."""
    problem: str | None
    """One sentence, where what answers is not the model in service as of now."""
    events_behind: int
    """Events in the database that the lists do not know of yet."""
    ready: bool
    """Whether lists can be made."""


@dataclass(eq=False, slots=True)
class _List:
    """Somebody's best items, best first."""

    rows: list[int]
    scores: list[float]
    source: Source
    is_all: bool
    """Nothing comes behind the last one."""
    written: tuple[tuple[int, int], bytes] | None = None
    """The answer as JSON, for which k and as of which change of the available items."""

    def places(self, k: int, *left_out: Collection[int]) -> list[int]:
        """Where the k best stand that are not left out; fewer where the list ends before."""
        if not any(left_out):
            return list(range(min(k, len(self.rows))))
        allowed = (at for at, row in enumerate(self.rows) if not any(row in rows for rows in left_out))
        return [at for at, _ in zip(allowed, range(k), strict=False)]

    def is_enough(self, places: list[int], k: int) -> bool:
        """Whether nothing that was not ranked could be among the k best."""
        return self.is_all or len(places) == k

    def without(self, rows: Collection[int]) -> _List:
        """The list that a model gives which reads no histories, after its user has had some more items."""
        kept = [at for at, row in enumerate(self.rows) if row not in rows]
        return replace(self, rows=[self.rows[at] for at in kept], scores=[self.scores[at] for at in kept], written=None)


class ServingModel:
    """One model in memory, with what has happened since it learned; safe to use from many threads.

    Parameters
    ----------
    state
        What was loaded; it is never changed.
    model_id
        The model's id; None: the state's model is popularity, which answers for want of a model.
    withdrawn
        Items that are not available.

    """

    def __init__(self, state: State, model_id: str | None, withdrawn: Iterable[str] = ()) -> None:
        if not all(bool(torch.isfinite(weights).all()) for weights in state.model.parameters()):
            raise ModelError(f"model {model_id} has weights that are not finite; promote another one")
        self.id = model_id
        self._state = state.without_groups()
        self._fallback = self._state.fallback
        self._reads_events = state.contexts.reads.history > 0
        self._stranger = max(state.history.n_users, len(state.user_ids))
        """A row without events."""
        self._recent: dict[str, array[int]] = {}
        """The items of each user's events since the model learned; who was active last comes last."""
        self._n_recent = 0
        self._arrived = array("i")
        """The same items in the order of arrival, whoever had them."""
        self._n_counted = 0
        """How many of them the fallback has counted."""
        self._forgotten: set[str] = set()
        self._withdrawn: frozenset[int] = frozenset()
        self._n_changes = 0
        """How often the available items have changed."""
        self._names: dict[int, str] = {}
        self._lists: OrderedDict[str | None, _List | object] = OrderedDict()
        """By user; None stands for everybody of whom nothing is known. A plain object: is being made."""
        self._lock = Lock()
        self.set_available(dict.fromkeys(withdrawn, False))

    # ── lists ────────────────────────────────────────────────────────────────────────────

    def recommend(
        self, user_id: str, k: int, exclude: Collection[str] = (), only: Collection[str] | None = None
    ) -> Answer:
        """The k best available items for a user, without those the user has had."""
        if only is not None:
            with self._lock:
                recent = self._recent_of([user_id])
            [made] = self._make([user_id], recent, k, self._allowed(exclude, only))
            return self._answer(made, range(len(made.rows))[:k])
        left_out = frozenset(self._rows_of(exclude))
        if (cached := self._cached(self._key(user_id))) is not None:
            places = cached.places(k, self._withdrawn, left_out)
            if cached.is_enough(places, k):
                return self._answer(cached, places)
        return self._answer(*self._anew(user_id, k, left_out))

    def recommend_session(
        self, items: Sequence[str], k: int, exclude: Collection[str] = (), only: Collection[str] | None = None
    ) -> Answer:
        """The same for somebody without an id who has had these items, in this order; unknown ones are ignored."""
        events = np.array(self._rows_of(items), np.int64)
        [made] = self._rank(np.array([self._stranger]), [events], k, self._allowed(exclude, only))
        return self._answer(made, range(len(made.rows))[:k])

    def json(self, user_id: str, k: int) -> bytes:
        """The answer to `recommend`, as JSON."""
        body = self.cached_json(user_id, k)
        return self._with_user(user_id, self._written(*self._anew(user_id, k))) if body is None else body

    def cached_json(self, user_id: str, k: int) -> bytes | None:
        """The same where a list of this user was made before that still holds and is long enough, else None."""
        made, question = self._cached(self._key(user_id)), (k, self._n_changes)
        if made is None:
            return None
        written = made.written
        if written is None or written[0] != question:
            places = made.places(k, self._withdrawn)
            if not made.is_enough(places, k):
                return None
            written = made.written = question, self._written(made, places)
        return self._with_user(user_id, written[1])

    def make_lists(self, user_ids: Iterable[str], k: int) -> None:
        """Make those lists of these users that are missing, many at once: the time of one goes into calls mostly."""
        missing: dict[str | None, str] = {}
        for user_id in user_ids:
            key = self._key(user_id)
            if key not in missing:
                made = self._cached(key)
                if made is None or not made.is_enough(made.places(k, self._withdrawn), k):
                    missing[key] = user_id
        users = list(missing.values())
        for start in range(0, len(users), _LISTS_AT_ONCE):
            self._make_and_keep(users[start : start + _LISTS_AT_ONCE], k)

    def cached_users(self) -> list[str]:
        """The users whose lists are cached, who was last to ask first."""
        with self._lock:
            return [user for user in reversed(self._lists) if user is not None]

    def some_users(self, n: int) -> list[str]:
        """The first n users that the model knows."""
        users: list[str] = self._state.user_ids.ids[:n].to_pylist()
        return users

    # ── what changes them ────────────────────────────────────────────────────────────────

    def add(self, events: pa.Table) -> None:
        """Take in events (user_id, item_id, time); those that are known already change nothing."""
        if len(events) > 1:  # in the order in which they happened; what happened at once as it arrived
            events = events.take(pa.array(np.argsort(events["time"].to_numpy(), kind="stable")))
        for start in range(0, len(events), _AT_ONCE):  # whoever wants a list waits for so many at most
            self._add(events.slice(start, _AT_ONCE))

    def _add(self, events: pa.Table) -> None:
        users = events["user_id"].to_pylist()
        items, rows = self._state.item_ids.lookup(events["item_id"]), self._state.user_ids.lookup(events["user_id"])
        if self._forgotten:
            rows = np.array([-1 if user in self._forgotten else row for user, row in zip(users, rows, strict=True)])
        is_known = items >= 0
        pairs = is_known & (rows >= 0)
        is_known[pairs] = ~self._state.history.seen.has(rows[pairs], items[pairs])
        places = np.flatnonzero(is_known)
        by_user: dict[str, dict[int, int]] = {}
        for place, item in zip(places.tolist(), items[places].tolist(), strict=True):
            by_user.setdefault(users[place], {}).setdefault(item, place)
        arrived: list[int] = []
        with self._lock:
            for user, place_of in by_user.items():
                recent = self._recent.pop(user, None) or array("i")
                had = recent if len(place_of) == 1 else set(recent)
                fresh = [item for item in place_of if item not in had]
                recent.extend(fresh)
                self._recent[user] = recent
                if fresh:
                    arrived += map(place_of.__getitem__, fresh)
                    self._has_had(user, fresh)
            self._n_recent += len(arrived)
            self._arrived.extend(items[np.sort(arrived)].tolist() if arrived else ())
            self._within_bounds()

    def _has_had(self, user: str, items: list[int]) -> None:
        """Let a cached list know of new events: another one is needed only where the model reads them."""
        made = self._lists.get(user)
        if self._reads_events or not isinstance(made, _List):
            self._lists.pop(user, None)
        elif not set(items).isdisjoint(made.rows):
            self._lists[user] = made.without(items)

    def forget(self, user_ids: Iterable[str]) -> None:
        """Treat these users as nobody ever heard of, whatever the model knows."""
        with self._lock:
            for user in user_ids:
                self._forgotten.add(user)
                self._n_recent -= len(self._recent.pop(user, ()))
                self._lists.pop(user, None)

    def users(self) -> Iterable[str]:
        """Everybody the model or an event since names."""
        known: list[str] = self._state.user_ids.ids.to_pylist()
        return {*known, *list(self._recent)} - self._forgotten

    def set_available(self, items: Mapping[str, bool]) -> None:
        """Take items out of every list, or let them back in."""
        with self._lock:
            before, withdrawn = self._withdrawn, set(self._withdrawn)
            for item, is_available in items.items():
                (withdrawn.discard if is_available else withdrawn.add)(self._state.item_ids.row_of(item))
            withdrawn.discard(-1)
            self._withdrawn = frozenset(withdrawn)
            self._n_changes += 1
            if before - self._withdrawn:  # lists were made without them
                self._lists.clear()

    def refresh_popularity(self) -> None:
        """Let the events since count in what users get of whom the model has nothing to say."""
        with self._lock:
            if len(self._arrived) == self._n_counted:
                return
            items, self._n_counted = np.array(self._arrived, np.int64), len(self._arrived)
        state = self._state
        history = state.history.after(np.full(len(items), self._stranger), items, ends_period=False)
        self._fallback = replace(state, history=history).fallback
        with self._lock:
            old = [user for user, made in self._lists.items() if getattr(made, "source", None) != "model"]
            for user in old:
                del self._lists[user]

    def _within_bounds(self) -> None:
        """Leave out the events of who was away longest where there are too many."""
        n_left_out = 0
        while self._n_recent > MAX_EVENTS:
            user = next(iter(self._recent))
            self._n_recent -= len(self._recent.pop(user))
            self._lists.pop(user, None)
            n_left_out += 1
        if (n_over := len(self._arrived) - MAX_EVENTS) > 0:
            del self._arrived[: n_over + MAX_EVENTS // 10]
            self._n_counted = 0
        if n_left_out:
            _log.warning(
                "more than %d events have come in since the model learned; those of %d users who were away longest "
                "are not read until the next update",
                MAX_EVENTS,
                n_left_out,
            )

    # ── making a list ────────────────────────────────────────────────────────────────────

    def _anew(self, user_id: str, k: int, left_out: Collection[int] = ()) -> tuple[_List, list[int]]:
        """A new list that holds a user's k best, and where they stand in it."""
        [made] = self._make_and_keep([user_id], k + len(left_out))
        return made, made.places(k, self._withdrawn, left_out)

    def _make_and_keep(self, user_ids: list[str], n: int) -> list[_List]:
        """The n best for each user; the lists are cached, unless something happens that they do not know of."""
        making = object()
        with self._lock:
            keys, recent = [self._key(user) for user in user_ids], self._recent_of(user_ids)
            for key in keys:
                self._lists[key] = making
        made = self._make(user_ids, recent, n, self._allowed())
        with self._lock:
            for key, each in zip(keys, made, strict=True):
                if self._lists.get(key) is making:
                    self._lists[key] = each
            while len(self._lists) > _CACHED_LISTS:
                self._lists.popitem(last=False)
        return made

    def _key(self, user_id: str) -> str | None:
        # Those of whom nothing is known have one list with all the others: strangers crowd nobody out.
        return user_id if user_id in self._recent or self._row(user_id) != self._stranger else None

    def _cached(self, key: str | None) -> _List | None:
        with self._lock:
            made = self._lists.get(key)
            if not isinstance(made, _List):
                return None
            self._lists.move_to_end(key)
            return made

    def _row(self, user_id: str) -> int:
        row = -1 if user_id in self._forgotten else self._state.user_ids.row_of(user_id)
        return row if row >= 0 else self._stranger

    def _recent_of(self, user_ids: Iterable[str]) -> list[Rows]:
        return [np.array(self._recent.get(user, ()), np.int64) for user in user_ids]

    def _make(self, user_ids: list[str], recent: list[Rows], n: int, allowed: Rows | None) -> list[_List]:
        """The n best for each user, who has had what the model knows and then the recent items."""
        rows = np.array([self._row(user) for user in user_ids])
        is_stranger = rows == self._stranger
        rows[is_stranger] += np.arange(np.count_nonzero(is_stranger))  # each has events of its own
        events = [np.concatenate(both) for both in zip(self._known(rows), recent, strict=True)]
        return self._rank(rows, events, n, allowed)

    def _known(self, rows: Rows) -> list[Rows]:
        """The items that the model knows each user to have had, in their order if the model reads it.

        To know the order takes eight bytes for each event.
        """
        history = self._state.history
        if not self._reads_events:
            bounds, items = history.items_of(rows)
            return np.split(items, bounds[1:-1])
        counts = history.latest(rows, 1)[1]
        latest = history.latest(rows, int(counts.max()))[0]
        return [each[len(each) - n :] for each, n in zip(latest, counts.tolist(), strict=True)]

    def _rank(self, rows: Rows, events: list[Rows], n: int, allowed: Rows | None) -> list[_List]:
        """The n best for the users of some rows whose items are these, in order."""
        state = self._state
        n_items = state.history.n_items
        n_ranked = n_items if allowed is None else len(allowed)
        n = min(max(n, _AT_LEAST), n_ranked)
        if n == 0:
            return [_List([], [], "popularity", is_all=True) for _ in rows]
        history = History.of(np.repeat(rows, [*map(len, events)]), np.concatenate(events), n_items=n_items)
        contexts = state.contexts.observing(history)
        by_model = contexts.can_score(state.model, rows) & (self.id is not None)
        made: dict[int, _List] = {}
        answering: list[tuple[Scorer, ContextBuilder, Source, Rows]] = [
            (state.model, contexts, "model", np.flatnonzero(by_model)),
            (self._fallback, ContextBuilder(Reads(), history), "popularity", np.flatnonzero(~by_model)),
        ]
        for model, known, source, users in answering:
            if not len(users):
                continue
            scores, items = best_items(model, rows[users], history, contexts=known, k=n, allowed=allowed)
            lengths = np.isfinite(scores).sum(axis=1).tolist()
            lists = zip(users.tolist(), lengths, items.tolist(), scores.astype(np.float32).tolist(), strict=True)
            for user, length, best, best_scores in lists:
                is_all = length < n or n == n_ranked
                made[user] = _List(best[:length], best_scores[:length], source, is_all)
        return [made[at] for at in range(len(rows))]

    def _allowed(self, exclude: Collection[str] = (), only: Collection[str] | None = None) -> Rows | None:
        """The sorted rows of the items that may be recommended; None: all of them."""
        withdrawn = self._withdrawn
        if not exclude and only is None and not withdrawn:
            return None
        is_allowed = np.full(self._state.history.n_items, only is None)
        is_allowed[self._rows_of(only or ())] = True
        is_allowed[self._rows_of(exclude)] = False
        is_allowed[list(withdrawn)] = False
        return np.flatnonzero(is_allowed)

    def _rows_of(self, items: Collection[str]) -> list[int]:
        """The rows of the items that are known."""
        return [row for row in map(self._state.item_ids.row_of, items) if row >= 0]

    def _answer(self, made: _List, places: Sequence[int]) -> Answer:
        return Answer(
            [self._name(made.rows[at]) for at in places], [made.scores[at] for at in places], made.source, self.id
        )

    def _written(self, made: _List, places: Sequence[int]) -> bytes:
        """All of an answer but who it is for; nine digits are what tells two scores apart."""
        items, scores, source, _ = self._answer(made, places)
        pairs = ",".join(
            f'{{"item_id":{quoted(item)},"score":{score:.9g}}}' for item, score in zip(items, scores, strict=True)
        )
        model = "null" if self.id is None else quoted(self.id)
        return f'"model":{model},"source":"{source}","items":[{pairs}]}}'.encode()

    @staticmethod
    def _with_user(user_id: str, written: bytes) -> bytes:
        return b'{"user_id":%b,%b' % (quoted(user_id).encode(), written)

    def _name(self, row: int) -> str:
        """The id of an item; most lists are of the same few."""
        name = self._names.get(row)
        if name is None:
            name = self._names[row] = self._state.item_ids.ids[row].as_py()
        return name


def popularity_of(events: pa.Table) -> State:
    """A state without any model, to recommend what is popular among these events; each pair counts once."""
    user_ids, item_ids = Vocabulary(), Vocabulary()
    users, items = user_ids.extend(events["user_id"]), item_ids.extend(events["item_id"])
    _, first = np.unique((users << 32) | items, return_index=True)
    first.sort()
    history = History.of(users[first], items[first])
    n_users = len(user_ids)
    return State(
        RecentPopularity.of(history).eval(),
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
    """What answers: one model at a time, which a `Follower` replaces whenever another one is promoted.

    >>> serving = Serving()
    >>> serving.status().ready
    False
    >>> events = pa.table({"user_id": ["ann", "bob", "bob"], "item_id": ["tea", "tea", "jam"], "time": [1, 2, 3]})
    >>> serving.use(ServingModel(popularity_of(events), None), "popularity")
    >>> serving.recommend("ann", k=2).items
    ['jam']
    >>> serving.set_available({"jam": False})
    >>> serving.json("carl", k=2)
    b'{"user_id":"carl","model":null,"source":"popularity","items":[{"item_id":"tea","score":0.75}]}'
    """

    def __init__(self) -> None:
        self._current: ServingModel | None = None
        self._next: ServingModel | None = None
        self._served_by: ServedBy | None = None
        self._withdrawn: frozenset[str] = frozenset()
        self._lock = Lock()
        self._problem: str | None = "nothing has been loaded yet; try again in a few seconds"
        self.lag: str | None = None
        """Why what answers cannot be kept up to date at the moment, in a sentence."""
        self.events_behind = 0

    @property
    def current(self) -> ServingModel:
        """What answers now: whoever has taken this reference answers from one model, whatever is promoted."""
        if self._current is None:
            raise NotReadyError(self.lag or self._problem)
        return self._current

    def recommend(
        self, user_id: str, k: int, exclude: Collection[str] = (), only: Collection[str] | None = None
    ) -> Answer:
        """The k best available items for a user, without those the user has had.

        Parameters
        ----------
        user_id
            Anybody; of whom nothing is known gets what is popular.
        k
            How many items; fewer where there are not as many.
        exclude, only
            Items that must not be recommended, and the only ones that may be; unknown ids change nothing.

        """
        return self.current.recommend(user_id, k, exclude, only)

    def recommend_session(
        self, items: Sequence[str], k: int, exclude: Collection[str] = (), only: Collection[str] | None = None
    ) -> Answer:
        """The same for somebody without an id who has had these items, in this order; unknown ones are ignored."""
        return self.current.recommend_session(items, k, exclude, only)

    def json(self, user_id: str, k: int) -> bytes:
        """The answer to `recommend` as JSON, written once until something changes it."""
        return self.current.json(user_id, k)

    def cached_json(self, user_id: str, k: int) -> bytes | None:
        """The same where it is at hand; None where it takes some milliseconds, or where nothing can answer yet."""
        return None if self._current is None else self._current.cached_json(user_id, k)

    def stored(self, events: pa.Table) -> None:
        """Take in events (user_id, item_id, time) that were just stored: the next list knows of them.

        Of a bulk load the follower's next look takes note, so that storing it goes on meanwhile.
        """
        if len(events) <= _BULK:
            for model in self._models():
                model.add(events)

    def set_available(self, items: Mapping[str, bool]) -> None:
        """Take items out of every list at once, or let them back in."""
        with self._lock:
            gone = {item for item, is_available in items.items() if not is_available}
            self._withdrawn = (self._withdrawn - items.keys()) | gone
            models = self._models()
        for model in models:
            model.set_available(items)

    def set_withdrawn(self, items: Iterable[str]) -> None:
        """The items that are not available; all others are."""
        wanted = frozenset(items)
        self.set_available(dict(zip(self._withdrawn - wanted, repeat(True))) | dict.fromkeys(wanted, False))

    def forget(self, user_ids: Iterable[str]) -> None:
        """Drop what is known of these users, and their lists."""
        user_ids = list(user_ids)
        for model in self._models():
            model.forget(user_ids)

    def prepare(self, model: ServingModel) -> None:
        """Let a model that is about to be used hear of what happens."""
        with self._lock:
            model.set_available(dict.fromkeys(self._withdrawn, False))
            self._next = model

    def discard_prepared(self) -> None:
        """Drop the prepared model: it will not be used."""
        self._next = None

    def use(self, model: ServingModel, served_by: ServedBy, problem: str | None = None) -> None:
        """Let this model answer from now on."""
        self.prepare(model)
        self._current, self._next, self._served_by, self._problem = model, None, served_by, problem

    def status(self) -> ServingStatus:
        """What answers, and what is wrong."""
        current = self._current
        model = None if current is None else current.id
        problem = self._problem or self.lag if current is not None else self.lag or self._problem
        return ServingStatus(model, self._served_by, problem, self.events_behind, current is not None)

    def cached_users(self) -> list[str]:
        """The users whose lists are cached, who was last to ask first."""
        return [] if self._current is None else self._current.cached_users()

    def _models(self) -> list[ServingModel]:
        return [model for model in (self._current, self._next) if model is not None]
