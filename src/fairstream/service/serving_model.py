"""The serving model: checkpoint, recent events, list cache.

A list equals that of `FairRecommender.recommend` after `observe` of all events stored since the model was trained.
Events with items that the model does not know wait for the next model, which has rows for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from fairstream.data import Rows
from fairstream.data.catalogue import Catalogue
from fairstream.periods import seconds_of
from fairstream.recommender import State
from fairstream.recommender.lists import request_time
from fairstream.service.lists import Answer, Ask, Key, ListCache, RankedList, with_user, written
from fairstream.service.ranking import Ranker
from fairstream.service.recent import RecentEvents, UserEvents
from fairstream.service.records import UnknownIdError
from fairstream.service.rules import Rules
from fairstream.service.shop import Allowed, Shop

_EVENTS_AT_ONCE = 1_000
_LISTS_AT_ONCE = 64
_SIMILAR_LISTS = 2_000  # cached lists for one set of allowed items
_FEW = 1 / 16  # of the items: if fewer are allowed, the model ranks only these, for this request alone
_HALF = 0.5  # of the items: if fewer are available, cached lists rank only these
_TENTH, _MIN_ITEMS = 0.1, 20  # of the items, if there are so many: if fewer are available, something may be wrong
_DEEPER = 4  # the factor by which a ranking that was too short becomes longer


class ServingModel:
    """One model in memory with the events since it learned; safe to use from many threads.

    Without an id the state's model is popularity. The time of a request is that of the `clock`. If the model reads
    times, a cached list is valid for a quarter of the time since the user's latest event, at least a minute.

    The cache holds rankings of all items that were available when it was last cleared. Items that are withdrawn,
    filtered or excluded since then are left out of the answer; where the ranking is too short for that, the model makes
    a longer one, or one of the few allowed items.
    """

    def __init__(
        self,
        state: State,
        model_id: str | None,
        clock: Callable[[], float] = time.time,
        *,
        cached_lists: int = 10_000,
        rules: Rules | None = None,
    ) -> None:
        self.id = model_id
        self._ranker = Ranker(state, model_id, clock)
        self._state = self._ranker.state
        self.left_out: Callable[[str], Collection[str]] = lambda user_id: ()  # items that never are in a user's lists
        self._rules = rules  # instead of those of all lists
        self._recent = RecentEvents()
        self._n_counted = 0  # how many of the events that arrived popularity has counted
        self._forgotten: set[str] = set()
        self._shop = Shop.of(state.item_ids, state.history.n_items)
        self._ranked = self._shop.available  # the items that cached lists rank
        self._names: dict[int, str] = {}
        self._lists = ListCache(cached_lists)
        self._lock = Lock()

    # ── lists ────────────────────────────────────────────────────────────────────────────

    def recommend(self, user_id: str, ask: Ask) -> Answer:
        """Return the best items for a user: available, passing the filter, and not those that the user has had."""

        def make(n: int, among: Rows | None) -> RankedList:
            if among is None:
                return self._compute_and_cache([user_id], n)[0]
            return self._ranker.rank(np.array([self._row(user_id)]), self._recent_of([user_id]), n, among)[0]

        has_had = partial(self._has_had, user_id)
        answer = self._search(ask, self.left_out(user_id), self._cached(user_id), has_had, make)
        if not ask.explain:
            return answer
        [recent] = self._recent_of([user_id])
        had = np.concatenate([self._ranker.latest_items(self._row(user_id)), recent.items])
        return self._explained(had, answer)

    def recommend_session(self, items: Sequence[str], ask: Ask) -> Answer:
        """The same for an anonymous user who has had these items, in this order; unknown items are ignored."""
        rows = self._shop.rows_of(items)
        events = UserEvents(rows, np.full(len(rows), np.nan), np.zeros(len(rows), np.bool_))

        def make(n: int, among: Rows | None) -> RankedList:
            among = self._ranked.among if among is None else among
            return self._ranker.rank(np.array([self._ranker.stranger]), [events], n, among)[0]

        answer = self._search(ask, (), None, items.__contains__, make)
        return self._explained(rows, answer) if ask.explain else answer

    def similar(self, item_id: str, k: int, where: str = "") -> Answer:
        """Return the available items most similar to one; raise `UnknownIdError` if the model does not know it."""
        row = self._state.item_ids.row_of(item_id)
        if row < 0:
            raise UnknownIdError("the model does not know this item yet")
        allowed = self._shop.passing(where)
        answer = allowed.similar.get((item_id, k))
        if answer is None:
            items, scores = self._ranker.similar(row, k, allowed.among)
            if len(allowed.similar) >= _SIMILAR_LISTS:
                allowed.similar.clear()
            answer = allowed.similar[item_id, k] = Answer(items, [*scores], "model", self.id)
        return answer

    def popular(self, k: int, where: str = "") -> Answer:
        """Return the available items with the most events of late."""
        rows = self._ranker.popular(k, self._shop.passing(where).among)
        return Answer([self._name(row) for row in rows], [None] * len(rows), "popularity", self.id)

    def json(self, user_id: str, ask: Ask) -> bytes:
        """Return a list as JSON."""
        return self.cached_json(user_id, ask) or with_user(user_id, written(self.recommend(user_id, ask)))

    def cached_json(self, user_id: str, ask: Ask) -> bytes | None:
        """The same from a cached ranking and a cached filter; None if that takes more work."""
        ranked, shop = self._cached(user_id), self._shop
        if ranked is None or ask.only is not None or ask.explain or not shop.has_cached(ask.where):
            return None
        left_out, wanted = {*self.left_out(user_id), *ask.exclude}, (ask.k, shop.serial)
        is_plain = not (ask.where or left_out)
        if is_plain and ranked.written is not None and ranked.written[0] == wanted:
            return with_user(user_id, ranked.written[1])
        allowed = shop.allowed(ask, left_out)
        answer = self._choose(shop, ask, allowed, ranked, left_out, partial(self._has_had, user_id))
        if answer is None:
            return None
        body = written(answer)
        if is_plain:
            ranked.written = wanted, body
        return with_user(user_id, body)

    def make_lists(self, user_ids: Iterable[str], k: int) -> None:
        """Compute the missing lists of these users, many at once: one list costs little more than its calls."""
        n, missing = self._shop.rules.depth(k), dict[Key, str]()
        for user in user_ids:
            ranked = self._cached(user)
            if ranked is None or not (ranked.is_complete or len(ranked.rows) >= n):
                missing[self._key(user)] = user
        users = list(missing.values())
        for start in range(0, len(users), _LISTS_AT_ONCE):
            self._compute_and_cache(users[start : start + _LISTS_AT_ONCE], n)

    def cached_users(self) -> list[str]:
        with self._lock:
            return self._lists.users()

    def request_at(self, at: Any) -> None:
        """Set the time of all later requests; raise a ConfigurationError if no list can be requested then."""
        with self._lock:
            newest = float(np.fmax(self._state.history.latest_time(), self._recent.latest()))
            seconds = request_time(at, newest, reads_times=self._state.model.reads_times)
            self._ranker.clock = lambda: seconds
            self._lists.clear()

    # ── changes ──────────────────────────────────────────────────────────────────────────

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
        seconds = seconds_of(events["time"].to_numpy().astype("datetime64[us]"))
        assert seconds is not None  # as of all timestamps
        is_new = items >= 0
        known = np.flatnonzero(is_new & (rows >= 0))
        is_new[known] = ~self._state.history.seen.has(rows[known], items[known])
        returns = np.zeros(len(events), np.bool_)
        if "returns" in events.column_names:
            returns = events["returns"].to_numpy()
            again = known[returns[known]]
            is_new[again] &= ~self._ranker.has_learned(rows[again], items[again], seconds[again])
        places = np.flatnonzero(is_new)
        columns = (column[places].tolist() for column in (items, seconds, returns))
        with self._lock:
            changed = self._recent.add([users[place] for place in places], *columns)
            dropped, is_cut = self._recent.evict()
            for user in (*changed, *dropped):
                self._lists.drop(user)
            self._n_counted = 0 if is_cut else self._n_counted

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
        shop = self._shop.using(catalogue, self._rules or rules)
        is_wanted, is_ranked = shop.available.mask, self._ranked.mask
        with self._lock:
            # Items that come back stay ranked from then on, so that a switch back and forth clears no list.
            is_new = bool((is_wanted & ~is_ranked).any())
            if is_new or shop.available.n < _HALF * self._ranked.n:
                is_wanted = is_wanted | (is_ranked & is_new)
                self._ranked = Allowed.of(is_wanted if is_wanted.mean() < _HALF else np.ones_like(is_wanted))
                self._lists.clear()
            self._shop = shop

    def shortage(self) -> str | None:
        """Return a sentence if most items are withdrawn: somebody made a mistake, or lists will be too short."""
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
        self._ranker.count_popularity(items)
        with self._lock:
            self._lists.drop_popular()

    # ── making a list ────────────────────────────────────────────────────────────────────

    def _search(
        self,
        ask: Ask,
        left_out: Collection[str],
        ranked: RankedList | None,
        has_had: Callable[[str], bool],
        make: Callable[[int, Rows | None], RankedList],
    ) -> Answer:
        """Answer from a ranking; if that is too short, from those that `make` returns, by length and items (or all)."""
        shop, left_out = self._shop, {*left_out, *ask.exclude}
        allowed = shop.allowed(ask, left_out)
        attempts = self._attempts(shop.rules.depth(ask.k), allowed)
        while ranked is None or (answer := self._choose(shop, ask, allowed, ranked, left_out, has_had)) is None:
            ranked = make(*next(attempts))
        return answer

    def _attempts(self, n: int, allowed: Allowed) -> Iterator[tuple[int, Rows | None]]:
        """Yield lengths of rankings, and their items: all (None), unless few are allowed, then the allowed ones."""
        n += len(allowed.left_out)
        if allowed.n >= _FEW * self._ranked.n:
            yield math.ceil(1.5 * n * self._ranked.n / max(1, allowed.n)), None
        rows = allowed.rows()
        while True:
            yield n, rows
            n *= _DEEPER

    def _choose(
        self,
        shop: Shop,
        ask: Ask,
        allowed: Allowed,
        ranked: RankedList,
        left_out: Collection[str],
        has_had: Callable[[str], bool],
    ) -> Answer | None:
        """Return the list from a ranking, with the pins of the rules; None if the ranking is too short."""
        places = shop.choose(ranked.rows, ask.k, allowed, is_complete=ranked.is_complete)
        if places is None:
            return None
        items = [self._name(row) for row in ranked.rows[places].tolist()]
        scores: list[float | None] = [None] * len(items)
        if ranked.source == "model":
            scores = ranked.scores[places].tolist()
        score_of = dict(zip(items, scores, strict=True))
        for pin in shop.rules.pins:
            candidates = [item for item in pin.items if item not in left_out and (ask.only is None or item in ask.only)]
            pinned = [item for item in candidates if shop.permits(item, ask.where) and not has_had(item)]
            rest = [item for item in items if item not in pinned]
            items = [*rest[: pin.position - 1], *pinned, *rest[pin.position - 1 :]][: ask.k]
        return Answer(items, [score_of.get(item) for item in items], ranked.source, self.id)

    def _explained(self, had: Rows, answer: Answer) -> Answer:
        rows = np.array([self._state.item_ids.row_of(item) for item in answer.items], np.int64)
        because = np.full(len(rows), None)
        because[rows >= 0] = self._ranker.reasons(had, rows[rows >= 0])  # the model may not know a pinned item
        return answer._replace(because=[None if row is None else self._name(row) for row in because])

    def _compute_and_cache(self, user_ids: list[str], n: int) -> list[RankedList]:
        """Rank the n best items for each user; cache the ranking unless an event of the user arrives meanwhile."""
        with self._lock:
            keys, recent = [self._key(user) for user in user_ids], self._recent.of(user_ids)
            among, making = self._ranked.among, self._lists.begin(keys)
        rows = np.array([self._row(user) for user in user_ids])
        ranked = self._ranker.rank(rows, recent, n, among)
        with self._lock:
            for key, each in zip(keys, ranked, strict=True):
                self._lists.put(key, each, making)
        return ranked

    def _recent_of(self, user_ids: list[str]) -> list[UserEvents]:
        with self._lock:
            return self._recent.of(user_ids)

    def _key(self, user_id: str) -> Key:
        return user_id if user_id in self._recent or self._row(user_id) != self._ranker.stranger else None

    def _cached(self, user_id: str) -> RankedList | None:
        with self._lock:
            ranked = self._lists.get(self._key(user_id))
            return None if ranked is None or self._ranker.clock() >= ranked.expires else ranked

    def _row(self, user_id: str) -> int:
        row = -1 if user_id in self._forgotten else self._state.user_ids.row_of(user_id)
        return row if row >= 0 else self._ranker.stranger

    def _has_had(self, user_id: str, item: str) -> bool:
        """Whether a user has had an item that may not come back."""
        row = self._state.item_ids.row_of(item)
        [recent] = self._recent_of([user_id])
        return row >= 0 and (row in recent.items[~recent.returns] or self._ranker.has_had(self._row(user_id), row))

    def _name(self, row: int) -> str:
        """The id of an item; most lists share a few items."""
        name = self._names.get(row)
        if name is None:
            name = self._names[row] = self._state.item_ids.ids[row].as_py()
        return name
