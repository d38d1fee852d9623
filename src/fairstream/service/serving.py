"""The serving model: checkpoint, recent events, list cache.

A list equals that of `FairRecommender.recommend` after `observe` of all events stored since the model was trained.
Events with items that the model does not know wait for the next model, which has rows for them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from json import dumps
from json.encoder import encode_basestring_ascii as quoted
from secrets import randbits
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
from fairstream.service.arms import Arms, encode, interleave
from fairstream.service.database import now
from fairstream.service.impressions import ShownInVain
from fairstream.service.lists import ITEMS_PER_PLACE, MAX_LENGTH, MIN_LENGTH, Key, ListCache, RankedList, Source
from fairstream.service.recent import Floats, RecentEvents, UserEvents
from fairstream.service.records import UnknownIdError
from fairstream.service.rules import NO_RULES, Rules
from fairstream.service.settings import EventKinds, Impressions
from fairstream.service.shop import Allowed, Shop
from fairstream.service.similar import ItemLists

ServedBy = Literal["model", "earlier model", "popularity"]
_BULK = 5_000  # larger batches reach the lists with the follower's next poll
_EVENTS_AT_ONCE = 1_000
_LISTS_AT_ONCE = 64
_FEW = 1 / 16  # of the items: if fewer are allowed, only these are ranked, for this request alone
_HALF = 0.5  # of the items: if fewer are available, cached lists rank only these
_TENTH, _MIN_ITEMS = 0.1, 20  # of that many items at least: if fewer are available, something may be wrong
_DEEPER = 4  # how many times longer a ranking becomes that was too short for a list
_SHARE_OF_ELAPSED = 0.25  # a cached list is valid for this share of the time since the user's latest event
_Make = Callable[[int, Rows | None], RankedList]  # a ranking of this length, of these items or all
_KINDS, _IMPRESSIONS = EventKinds(), Impressions()
_log = logging.getLogger(__name__)


class NotReadyError(FairstreamError):
    """No model has been loaded yet."""


class Ask(NamedTuple):
    """A request for a list."""

    k: int
    where: str = ""  # a filter of the items
    exclude: Collection[str] = ()
    only: Collection[str] | None = None
    explain: bool = False  # whether to add the item of the history that is most similar to each


class Answer(NamedTuple):
    """A recommendation list."""

    items: list[str]
    scores: list[float | None]  # None in lists by popularity: they would show how much the level moves an item
    source: Source  # popularity, where the model cannot score the user
    model: str | None  # the model in memory; None: popularity answers everybody
    because: list[str | None] | None = None  # the item of the history that is most similar to each


class ServingStatus(NamedTuple):
    """The model that answers, and its problem."""

    model: str | None
    source: ServedBy | None  # None: nothing is loaded yet
    problem: str | None  # why the lists are not those of the model in service and all events, if so
    events_behind: int  # events in the database that the lists do not reflect yet
    ready: bool  # whether there are lists


class ServingModel:
    """One model in memory with the events since it learned; safe to use from many threads.

    Without an id the state's model is popularity. The time of a request is that of the `clock`. If the model reads
    times, a cached list is valid for a quarter of the time since the user's latest event, at least a minute.

    The cache holds rankings of all items that were available when it was last cleared. What is withdrawn, filtered or
    excluded now is left out of the answer; where the ranking is too short for that, a longer one is made, or one of
    the few allowed items.
    """

    def __init__(
        self,
        state: State,
        model_id: str | None,
        clock: Callable[[], float] = time.time,
        *,
        cached_lists: int = 10_000,
    ) -> None:
        if not all(bool(torch.isfinite(weights).all()) for weights in state.model.parameters()):
            raise ModelError(f"model {model_id} has weights that are not finite; promote another one")
        self.id = model_id
        self._state = state.without_groups()
        self._fallback = RecentPopularityScorer.capped(state.history).eval()
        self._reads_events = state.contexts.history_length > 0
        self._stranger = max(state.history.n_users, len(state.user_ids))  # a row without events
        self.clock = clock
        self.left_out: Callable[[str], Collection[str]] = lambda user_id: ()  # items that never are in a user's lists
        self.rules: Rules | None = None  # instead of those of all lists
        self._recent = RecentEvents()
        self._n_counted = 0  # how many of the events that arrived the fallback has counted
        self._forgotten: set[str] = set()
        self._shop = Shop.of(state.item_ids, state.history.n_items)
        self._base: Rows | None = None  # the items that cached lists rank; None: all
        self._names: dict[int, str] = {}
        self._of_items = ItemLists(self._state)
        self._lists = ListCache(cached_lists)
        self._lock = Lock()

    # ── lists ────────────────────────────────────────────────────────────────────────────

    def recommend(
        self,
        user_id: str,
        k: int,
        exclude: Collection[str] = (),
        only: Collection[str] | None = None,
        where: str = "",
        *,
        explain: bool = False,
    ) -> Answer:
        """Return the k best items for a user: available, passing the filter, and not those that the user has had."""
        return self._find(user_id, Ask(k, where, exclude, only, explain))

    def recommend_session(
        self,
        items: Sequence[str],
        k: int,
        exclude: Collection[str] = (),
        only: Collection[str] | None = None,
        where: str = "",
        *,
        explain: bool = False,
    ) -> Answer:
        """The same for an anonymous user who has had these items, in this order; unknown ones are ignored."""
        shop, ask = self._shop, Ask(k, where, exclude, only)
        rows = shop.rows_of(items)
        events = UserEvents(rows, np.full(len(rows), np.nan), np.zeros(len(rows), np.bool_))

        def make(n: int, among: Rows | None) -> RankedList:
            among = self._base if among is None else among
            return self._rank(np.array([self._stranger]), [events], n, among)[0]

        allowed = self._allowed(shop, ask, ())
        ranked, places = self._search(shop, k, allowed, None, make)
        answer = self._shown(shop, ask, ranked, places, lambda item: item not in items)
        return self._explained(rows, answer) if explain else answer

    def similar(self, item_id: str, k: int, where: str = "") -> Answer:
        """Return the available items most similar to one; raise `UnknownIdError` if the model does not know it."""
        row = self._state.item_ids.row_of(item_id)
        if row < 0:
            raise UnknownIdError("the model does not know this item yet")
        allowed, change = self._rows_passing(where)
        rows, scores = self._of_items.similar(row, k, allowed, change)
        return Answer([self._name(each) for each in rows], [*scores], "model", self.id)

    def popular(self, k: int, where: str = "") -> Answer:
        """Return the available items with the most events of late."""
        rows = self._of_items.popular(self._fallback, k, self._rows_passing(where)[0])
        return Answer([self._name(row) for row in rows], [None] * len(rows), "popularity", self.id)

    def _rows_passing(self, where: str) -> tuple[Rows | None, object]:
        """The rows of the items that pass a filter, None if all do; and what tells them from those of before."""
        shop = self._shop
        allowed = shop.passing(where)
        return (None if allowed.n == len(allowed.mask) else allowed.rows()), (shop.serial if not where else object())

    def json(self, user_id: str, ask: Ask) -> bytes:
        """Return a list as JSON."""
        return self.cached_json(user_id, ask) or with_user(user_id, written(self._find(user_id, ask)))

    def cached_json(self, user_id: str, ask: Ask) -> bytes | None:
        """The same from a cached ranking and a cached filter; None if that takes more work."""
        ranked, shop = self._cached(self._key(user_id)), self._shop
        if ranked is None or ask.only is not None or ask.explain or not shop.has_cached(ask.where):
            return None
        left_out, wanted = self.left_out(user_id), (ask.k, shop.serial)
        is_plain = not (ask.where or ask.exclude or left_out)
        if is_plain and ranked.written is not None and ranked.written[0] == wanted:
            return with_user(user_id, ranked.written[1])
        allowed = self._allowed(shop, ask, left_out)
        places = shop.choose(ranked.rows, ask.k, allowed, is_complete=ranked.is_complete)
        if places is None:
            return None
        may_have = partial(self._may_have, user_id, left_out)
        body = written(self._shown(shop, ask, ranked, places, may_have))
        if is_plain:
            ranked.written = wanted, body
        return with_user(user_id, body)

    def make_lists(self, user_ids: Iterable[str], k: int) -> None:
        """Compute the missing lists of these users, many at once: one list costs little more than its calls."""
        n, missing = self._shop.rules.depth(k), dict[Key, str]()
        for user in user_ids:
            ranked = self._cached(key := self._key(user))
            if ranked is None or not (ranked.is_complete or len(ranked.rows) >= n):
                missing[key] = user
        users = list(missing.values())
        for start in range(0, len(users), _LISTS_AT_ONCE):
            self._compute_and_cache(users[start : start + _LISTS_AT_ONCE], n)

    def cached_users(self) -> list[str]:
        with self._lock:
            return self._lists.users()

    def some_users(self, n: int) -> list[str]:
        return list(self._state.user_ids.ids[:n].to_pylist())

    def request_at(self, at: Any) -> None:
        """Set the time of all later requests; raise a ConfigurationError if no list can be requested then."""
        with self._lock:
            newest = float(np.fmax(self._state.history.latest_time(), self._recent.latest()))
            seconds = request_time(at, newest, reads_times=self._state.model.reads_times)
            self.clock = lambda: seconds
            self._lists.clear()

    # ── what changes them ────────────────────────────────────────────────────────────────

    def add(self, events: pa.Table) -> None:
        """Add events (user_id, item_id, time and, optionally, returns); known ones change nothing.

        `returns` says whether the item may be recommended to the user again.
        """
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
        may_return = "returns" in events.column_names
        returns = events["returns"].to_pylist() if may_return else [False] * len(events)
        by_user: dict[str, list[tuple[int, tuple[int, float, bool]]]] = {}
        for place, item in zip(places.tolist(), items[places].tolist(), strict=True):
            by_user.setdefault(users[place], []).append((place, (item, float(seconds[place]), returns[place])))
        arrived: list[int] = []
        with self._lock:
            for user, of_user in by_user.items():
                if added := self._recent.add(user, [of_place for _, of_place in of_user]):
                    arrived += [of_user[at][0] for at in added]
                    self._invalidate(
                        user, [item for item, _, comes_back in (of_user[at][1] for at in added) if not comes_back]
                    )
            self._recent.arrived.extend(items[np.sort(arrived)].tolist() if arrived else ())
            dropped, is_cut = self._recent.evict()
            for user in dropped:
                self._lists.drop(user)
            self._n_counted = 0 if is_cut else self._n_counted

    def _invalidate(self, user: str, items: list[int]) -> None:
        """Update a cached list after new events; `items` may not return. A model that reads events needs a new list."""
        ranked = self._lists.get(user)
        if self._reads_events or not isinstance(ranked, RankedList):
            self._lists.drop(user)
        elif not set(items).isdisjoint(ranked.rows.tolist()):
            self._lists.replace(user, ranked.without(items))

    def forget(self, user_ids: Iterable[str]) -> None:
        """Treat these users as strangers, although the model knows them."""
        with self._lock:
            for user in user_ids:
                self._forgotten.add(user)
                self._recent.drop(user)
                self._lists.drop(user)

    def users(self) -> Iterable[str]:
        return {*self._state.user_ids.ids.to_pylist(), *self._recent.users()} - self._forgotten

    def set_shop(self, catalogue: Catalogue, rules: Rules) -> None:
        """Use another catalogue and other rules, for every list from now on."""
        rules = rules if self.rules is None else self.rules
        shop, n_items = self._shop.using(catalogue, rules), len(self._shop.rows)
        with self._lock:
            if shop.available is not self._shop.available:
                is_ranked = np.ones(n_items, np.bool_)
                if self._base is not None:
                    is_ranked = np.isin(np.arange(n_items), self._base, assume_unique=True)
                # Items that come back stay ranked from then on, so that a switch back and forth clears no list.
                is_new = self._base is not None and bool((shop.available.mask & ~is_ranked).any())
                if is_new or (self._base is None and shop.available.n < _HALF * n_items):
                    wanted = shop.available.mask | (is_ranked & is_new)
                    self._base = np.flatnonzero(wanted) if wanted.mean() < _HALF else None
                    self._lists.clear()
            self._shop = shop

    def shortage(self) -> str | None:
        """A sentence, if most items are withdrawn: by mistake, or lists will be shorter than they should be."""
        n, n_items = self._shop.available.n, len(self._shop.rows)
        if n_items < _MIN_ITEMS or n >= _TENTH * n_items:
            return None
        return f"{n_items - n:,} of the {n_items:,} items that the model knows are withdrawn; are they meant to be?"

    def refresh_popularity(self) -> None:
        """Count recent events in the popularity that answers users whom the model cannot score."""
        with self._lock:
            if len(self._recent.arrived) == self._n_counted:
                return
            items, self._n_counted = np.array(self._recent.arrived, np.int64), len(self._recent.arrived)
        state = self._state
        history = state.history.after(np.full(len(items), self._stranger), items, ends_period=False)
        self._fallback = RecentPopularityScorer.capped(history).eval()
        with self._lock:
            self._lists.drop_popular()

    # ── making a list ────────────────────────────────────────────────────────────────────

    def _find(self, user_id: str, ask: Ask) -> Answer:
        shop, left_out = self._shop, self.left_out(user_id)

        def make(n: int, among: Rows | None) -> RankedList:
            if among is None:
                return self._compute_and_cache([user_id], n)[0]
            with self._lock:
                recent = self._recent.of([user_id])
            return self._make([user_id], recent, n, among)[0]

        allowed = self._allowed(shop, ask, left_out)
        ranked, places = self._search(shop, ask.k, allowed, self._cached(self._key(user_id)), make)
        answer = self._shown(shop, ask, ranked, places, partial(self._may_have, user_id, left_out))
        return self._explained(self._had(user_id), answer) if ask.explain else answer

    def _had(self, user_id: str) -> Rows:
        """The items that a user has had, in order if the model reads it."""
        with self._lock:
            [recent] = self._recent.of([user_id])
        row = self._row(user_id)
        known = [] if row == self._stranger else self._known(np.array([row]))
        return np.concatenate([*(events.items for events in known), recent.items])

    def _explained(self, had: Rows, answer: Answer) -> Answer:
        because = self._of_items.because(had, self._shop.rows_of(answer.items))
        return answer._replace(because=[None if row is None else self._name(row) for row in because])

    def _allowed(self, shop: Shop, ask: Ask, left_out: Collection[str]) -> Allowed:
        allowed = shop.passing(ask.where)
        if ask.only is not None:
            rows = shop.rows_of(ask.only)
            mask = np.zeros(len(shop.rows), np.bool_)
            mask[rows] = allowed.mask[rows]
            allowed = Allowed(mask, int(np.count_nonzero(mask)))
        if left_out or ask.exclude:
            return allowed._replace(left_out=shop.rows_of((*left_out, *ask.exclude)))
        return allowed

    def _search(
        self, shop: Shop, k: int, allowed: Allowed, ranked: RankedList | None, make: _Make
    ) -> tuple[RankedList, Rows]:
        """Return a ranking that is long enough, and the positions of the items to show."""
        n_ranked = len(shop.rows) if self._base is None else len(self._base)
        n, is_second = shop.rules.depth(k) + len(allowed.left_out), False
        among = allowed.rows() if allowed.n < _FEW * n_ranked else None
        n_full = n if among is not None else math.ceil(1.5 * n * n_ranked / max(1, allowed.n))
        while True:
            if ranked is not None:
                places = shop.choose(ranked.rows, k, allowed, is_complete=ranked.is_complete)
                if places is not None:
                    return ranked, places
            if is_second and among is None:
                among, n_full = allowed.rows(), n
            ranked, is_second = make(n_full, among), True
            n_full *= _DEEPER

    def _compute_and_cache(self, user_ids: list[str], n: int) -> list[RankedList]:
        """The n best for each user; a list is cached unless an event of its user arrives meanwhile."""
        with self._lock:
            keys, recent, base = [self._key(user) for user in user_ids], self._recent.of(user_ids), self._base
            making = self._lists.begin(keys)
        ranked = self._make(user_ids, recent, n, base)
        with self._lock:
            for key, each in zip(keys, ranked, strict=True):
                self._lists.put(key, each, making)
        return ranked

    def _key(self, user_id: str) -> Key:
        return user_id if user_id in self._recent or self._row(user_id) != self._stranger else None

    def _cached(self, key: Key) -> RankedList | None:
        with self._lock:
            ranked = self._lists.get(key)
            if not isinstance(ranked, RankedList) or self.clock() >= ranked.expires:
                return None
            self._lists.touch(key)
            return ranked

    def _row(self, user_id: str) -> int:
        row = -1 if user_id in self._forgotten else self._state.user_ids.row_of(user_id)
        return row if row >= 0 else self._stranger

    def _make(self, user_ids: list[str], recent: list[UserEvents], n: int, among: Rows | None) -> list[RankedList]:
        """The n best for each user after the model's and the recent events."""
        rows = np.array([self._row(user) for user in user_ids])
        is_stranger = rows == self._stranger
        rows[is_stranger] += np.arange(np.count_nonzero(is_stranger))  # each with separate events
        events = [known + more for known, more in zip(self._known(rows), recent, strict=True)]
        return self._rank(rows, events, n, among)

    def _known(self, rows: Rows) -> list[UserEvents]:
        """Each user's events in the model, in order if the model reads it (8 bytes an event, 16 with times)."""
        history = self._state.history
        if not self._reads_events:
            bounds, items = history.items_of(rows)
            parts = np.split(items, bounds[1:-1])
            return [UserEvents(part, np.full(len(part), np.nan), np.zeros(len(part), np.bool_)) for part in parts]
        counts = history.n_events_of(rows)
        places = history.latest_positions(rows, int(counts.max()))[0]
        latest = history.items_of_events(places)
        minutes = history.minutes_of_events(places) if self._state.model.reads_times else np.full_like(places, -1)
        seconds = np.where(minutes < 0, np.nan, 60.0 * minutes)
        returns = history.returns_of_events(places)
        ends = zip(latest, seconds, returns, counts.tolist(), strict=True)
        return [UserEvents(*(column[len(column) - n :] for column in columns)) for *columns, n in ends]

    def _rank(self, rows: Rows, events: list[UserEvents], n: int, among: Rows | None) -> list[RankedList]:
        """The n best for users by their rows and their events, in order."""
        state = self._state
        n_items = state.history.n_items
        n_ranked = n_items if among is None else len(among)
        n = min(max(n, MIN_LENGTH, min(MAX_LENGTH, n_ranked // ITEMS_PER_PLACE)), n_ranked)
        if n == 0:
            nothing = np.empty(0, np.int32), np.empty(0, np.float32)
            return [RankedList(*nothing, "popularity", is_complete=True) for _ in rows]
        items_of_all, seconds_of_all, returns = (np.concatenate(column) for column in zip(*events, strict=True))
        users_of_all, now = np.repeat(rows, [len(each.items) for each in events]), self.clock()
        history = History.of(users_of_all, items_of_all, seconds_of_all, returns=returns, n_items=n_items)
        contexts = replace(state.contexts.observing(history), now=now)
        by_model = contexts.can_score(state.model, rows) & (self.id is not None)
        ranked: dict[int, RankedList] = {}
        answering: list[tuple[Scorer, ContextBuilder, Source, Rows]] = [
            (state.model, contexts, "model", np.flatnonzero(by_model)),
            (self._fallback, ContextBuilder(0, history, tilt=state.tilt), "popularity", np.flatnonzero(~by_model)),
        ]
        for model, known, source, users in answering:
            if not len(users):
                continue
            scores, items = best_items(model, rows[users], history, contexts=known, k=n, allowed=among)
            lengths = np.isfinite(scores).sum(axis=1).tolist()
            lists = zip(users.tolist(), lengths, items.astype(np.int32), scores.astype(np.float32), strict=True)
            for user, length, best, best_scores in lists:
                is_complete = length < n or n == n_ranked
                expires = self._expires(events[user].seconds, now) if source == "model" else np.inf
                # Copies, so that no list keeps the others of its batch in memory.
                parts = best[:length].copy(), best_scores[:length].copy()
                ranked[user] = RankedList(*parts, source, is_complete, expires)
        return [ranked[at] for at in range(len(rows))]

    def _expires(self, seconds: Floats, now: float) -> float:
        """Return when the time since the latest event will have grown by a quarter, or reached a pause of the model."""
        model = self._state.model
        if not model.reads_times or np.isnan(seconds).all():
            return np.inf
        latest = float(np.nanmax(seconds))
        reached = (60.0 * (latest // 60 + pause) for pause in model.pauses)  # the model reads whole minutes
        return min(now + max(60.0, _SHARE_OF_ELAPSED * (now - latest)), *(at for at in reached if at > now), np.inf)

    def _may_have(self, user_id: str, left_out: Collection[str], item: str) -> bool:
        """Whether an item may be in a user's list at all."""
        row, user = self._state.item_ids.row_of(item), self._row(user_id)
        with self._lock:
            [recent] = self._recent.of([user_id])
        had = row >= 0 and (row in recent.items[~recent.returns] or self._has_had(user, row))
        return not had and item not in left_out

    def _has_had(self, user: int, item: int) -> bool:
        return bool(self._state.history.seen.has(np.array([user]), np.array([item]))[0])

    def _shown(self, shop: Shop, ask: Ask, ranked: RankedList, places: Rows, may_have: Callable[[str], bool]) -> Answer:
        """The items at these positions as an answer, and the pins of the rules among them."""
        items = [self._name(row) for row in ranked.rows[places].tolist()]
        scores: list[float | None] = [None] * len(items)
        if ranked.source == "model":
            scores = ranked.scores[places].tolist()
        score_of = dict(zip(items, scores, strict=True))
        for pin in shop.rules.pins:
            allowed = [item for item in pin.items if ask.only is None or item in ask.only]
            allowed = [item for item in allowed if item not in ask.exclude and shop.permits(item, ask.where)]
            pinned = [item for item in allowed if may_have(item)]
            rest = [item for item in items if item not in pinned]
            items = [*rest[: pin.position - 1], *pinned, *rest[pin.position - 1 :]][: ask.k]
        return Answer(items, [score_of.get(item) for item in items], ranked.source, self.id)

    def _name(self, row: int) -> str:
        """The id of an item; most lists share a few items."""
        name = self._names.get(row)
        if name is None:
            name = self._names[row] = self._state.item_ids.ids[row].as_py()
        return name


def written(answer: Answer) -> bytes:
    """The JSON of a list without its user; nine digits distinguish any two scores."""
    scores = ("null" if score is None else f"{score:.9g}" for score in answer.scores)
    parts = [f'"item_id":{quoted(item)},"score":{score}' for item, score in zip(answer.items, scores, strict=True)]
    if answer.because is not None:
        reasons = ("null" if item is None else quoted(item) for item in answer.because)
        parts = [f'{part},"because":{reason}' for part, reason in zip(parts, reasons, strict=True)]
    pairs = ",".join(f"{{{part}}}" for part in parts)
    model = "null" if answer.model is None else quoted(answer.model)
    return f'"model":{model},"source":"{answer.source}","items":[{pairs}]}}'.encode()


def with_user(user_id: str | None, answer: bytes) -> bytes:
    """Return the JSON of a list: the answer, and whom it is for."""
    return b'{"user_id":%b,%b' % (("null" if user_id is None else quoted(user_id)).encode(), answer)


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
    >>> serving.set_shop(Catalogue.of({}).updated(["jam"], [False], [{}]))
    >>> serving.current.json("carl", Ask(2))
    b'{"user_id":"carl","model":null,"source":"popularity","items":[{"item_id":"tea","score":null}]}'
    """

    def __init__(self, kinds: EventKinds = _KINDS, impressions: Impressions = _IMPRESSIONS) -> None:
        self._kinds, self.shown = kinds, ShownInVain(impressions)
        self._disliked: dict[str, frozenset[str]] = {}
        self._shop_problem: str | None = None
        self._current: ServingModel | None = None
        self._next: ServingModel | None = None
        self._served_by: ServedBy | None = None
        self.experiment: tuple[Arms, ServingModel] | None = None
        """The running experiment, and the model of its arm B."""
        self._catalogue, self._rules = Catalogue.of({}), NO_RULES
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

    def of(self, user_id: str) -> ServingModel:
        """Return the model that answers a user, in an experiment that of the user's arm."""
        if self.experiment is not None and self.experiment[0].mode == "split":
            arms, second = self.experiment
            return second if arms.arm_of(user_id) == "B" else self.current
        return self.current

    def cached_json(self, user_id: str, ask: Ask) -> bytes | None:
        """Return a list as JSON if it is in the cache."""
        return None if self._has_both(user_id, ask) else self.of(user_id).cached_json(user_id, ask)

    def json(self, user_id: str, ask: Ask) -> bytes:
        """Return a list as JSON, of one model or interleaved."""
        experiment = self.experiment
        if experiment is None or not self._has_both(user_id, ask):
            return self.of(user_id).json(user_id, ask)
        arms, second = experiment
        a, b = (model.recommend(user_id, ask.k, ask.exclude, ask.only, ask.where) for model in (self.current, second))
        entries = interleave(a.items, b.items, ask.k, b_first=bool(randbits(1)))
        source = "model" if "model" in (a.source, b.source) else "popularity"
        items = [{"item_id": item, "score": None} for item, _, _ in entries]
        body = {"list_id": encode(arms.id, entries), "user_id": user_id, "model": arms.both, "source": source}
        return dumps(body | {"items": items}, separators=(",", ":")).encode()

    def _has_both(self, user_id: str, ask: Ask) -> bool:
        """Whether a list is interleaved; one with reasons is of one model."""
        if self.experiment is None or self.experiment[0].mode != "interleave" or ask.explain:
            return False
        return self.experiment[0].arm_of(user_id) != ""

    def make_lists(self, user_ids: Iterable[str], k: int) -> None:
        """Compute the missing lists of these users, many at once."""
        users: dict[ServingModel, list[str]] = {}
        for user_id in user_ids:
            users.setdefault(self.of(user_id), []).append(user_id)
        for model, own in users.items():
            model.make_lists(own, k)

    def stored(self, events: pa.Table) -> None:
        """Add stored events (user_id, item_id, time) at once; the follower's next poll adds a bulk load."""
        if len(events) <= _BULK:
            chosen = self.choices(events)
            for model in self.models():
                model.add(chosen)

    def choices(self, events: pa.Table) -> pa.Table:
        """Note negative feedback; return the other events that count, and which of their items may come back."""
        if self.shown:
            self.shown.reacted(events["user_id"].to_pylist(), events["item_id"].to_pylist())
        if "kind" not in events.column_names:
            return events
        kinds, weight = events["kind"].to_pylist(), self._kinds.kinds
        counts = [weight.get(kind, 1.0) for kind in kinds]  # 1: a kind that is not configured any more
        if min(counts, default=1.0) <= 0:
            columns = (events["user_id"].to_pylist(), events["item_id"].to_pylist())
            self.dislike((user, item) for user, item, n in zip(*columns, counts, strict=True) if n < 0)
        if self._kinds.repeats:
            events = events.append_column("returns", pa.array([kind in self._kinds.repeats for kind in kinds]))
        return events.filter(pa.array([n > 0 for n in counts])) if min(counts, default=1.0) <= 0 else events

    def dislike(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Leave items out of all lists of a user from now on."""
        with self._lock:
            for user, item in pairs:
                self._disliked[user] = self._disliked.get(user, frozenset()) | {item}

    def users(self) -> set[str]:
        """Return the users of whom something is known apart from the model."""
        with self._lock:
            return {*self._disliked, *self.shown.users()}

    def forget_feedback(self, user_ids: Collection[str]) -> None:
        """Forget what users disliked, and what they were shown in vain."""
        self.shown.forget(user_ids)
        with self._lock:
            for user in user_ids:
                self._disliked.pop(user, None)

    def set_shop(self, catalogue: Catalogue, rules: Rules = NO_RULES, problem: str | None = None) -> None:
        """Use another catalogue and other rules; `problem` says what is wrong with them."""
        with self._lock:
            self._catalogue, self._rules, self._shop_problem = catalogue, rules, problem
            for model in self.models():
                model.set_shop(catalogue, rules)

    def forget(self, user_ids: Iterable[str]) -> None:
        user_ids = list(user_ids)
        self.forget_feedback(user_ids)
        for model in self.models():
            model.forget(user_ids)

    def prepare(self, model: ServingModel) -> None:
        """Keep a model up to date that is about to be used."""
        with self._lock:
            model.left_out = self._left_out
            model.set_shop(self._catalogue, self._rules)
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
        problem = problem or self._shop_problem or (None if current is None else current.shortage())
        return ServingStatus(model, self._served_by, problem, self.events_behind, current is not None)

    def _left_out(self, user_id: str) -> Collection[str]:
        disliked, avoided = self._disliked.get(user_id, ()), self.shown.avoided_by(user_id, now())
        return (*disliked, *avoided) if avoided else disliked

    def models(self) -> list[ServingModel]:
        """Return every model that is kept up to date."""
        second = None if self.experiment is None else self.experiment[1]
        return [model for model in (self._current, self._next, second) if model is not None]
