"""Rankings of items for users, after the events that a model has learned and later ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch

from fairstream.data import UNKNOWN, Groups, History, Rows, Vocabulary
from fairstream.data.filters import Mask
from fairstream.errors import ModelError
from fairstream.evaluation import best_items
from fairstream.evaluation.ranking import rank_items
from fairstream.models import ContextBuilder, RecentPopularityScorer, Scorer
from fairstream.periods import minutes_of
from fairstream.recommender import State
from fairstream.recommender.vectors import similar_items, similarities
from fairstream.service.lists import ITEMS_PER_PLACE, MAX_LENGTH, MIN_LENGTH, RankedList, Source
from fairstream.service.recent import Floats, UserEvents

MIN_SHARED = 5
"""People whom two items must have in common: what is similar to an item of one person would show the others."""
_MAX_USERS = 5_000  # of an item whose users are compared; more cost time and change little
_LATEST = 200  # events of a history that may explain a recommendation, or be stored again
_SHARE_OF_ELAPSED = 0.25  # a cached list is valid for this share of the time since the user's latest event


class Ranker:
    """Ranks items for users by their rows; `stranger` is a row without events.

    Without an id the state's model is popularity, which also answers users whom a model cannot score. `clock` gives
    the time of a request.
    """

    def __init__(self, state: State, model_id: str | None, clock: Callable[[], float] = time.time) -> None:
        if not all(bool(torch.isfinite(weights).all()) for weights in state.model.parameters()):
            raise ModelError(f"model {model_id} has weights that are not finite; promote another one")
        self.state = state.without_groups()
        self.clock = clock
        self._reads_events = state.contexts.history_length > 0
        self.stranger = max(state.history.n_users, len(state.user_ids))
        self._is_model = model_id is not None
        self._popularity = RecentPopularityScorer.capped(state.history).eval()
        self._history = replace(state.history)  # without counts of popularity, which longer histories would add to
        state.model.eval()

    def count_popularity(self, items: Rows) -> None:
        """Count later events with these items in the popularity."""
        history = self.state.history.after(np.full(len(items), self.stranger), items, ends_period=False)
        self._popularity = RecentPopularityScorer.capped(history).eval()

    def popular(self, k: int, among: Rows | None) -> list[int]:
        """Return the k items with the most events of late."""
        n_items = self.state.history.n_items
        history = History.of(np.empty(0, np.int64), np.empty(0, np.int64), n_items=n_items)
        contexts, k = ContextBuilder(0, history, tilt=self.state.tilt), min(k, n_items if among is None else len(among))
        if k == 0:
            return []
        nobody = np.zeros(1, np.int64)
        _, items = best_items(self._popularity, nobody, history, contexts=contexts, k=k, allowed=among)
        return [item for item in items[0].tolist() if item >= 0]

    def similar(self, item: int, k: int, among: Rows | None) -> tuple[list[str], list[float]]:
        """Return the k items most similar to one, best first, and their scores."""
        ids, limits = self.state.item_ids.ids[item : item + 1], {"min_shared": MIN_SHARED, "max_users": _MAX_USERS}
        table = similar_items(self.state, ids, k, **limits, allowed=among)
        return table["similar_id"].to_pylist(), table["score"].to_pylist()

    def reasons(self, had: Rows, items: Rows) -> list[int | None]:
        """Return the most similar item of a history for each item; None if none is similar."""
        had = np.unique(had[-_LATEST:])
        if not len(had) or not len(items):
            return [None] * len(items)
        of_items = similarities(self.state, items, had)
        best = of_items.argmax(axis=1)
        is_similar = of_items[np.arange(len(items)), best] > 0
        return [int(had[at]) if known else None for at, known in zip(best, is_similar, strict=True)]

    def has_had(self, user: int, item: int) -> bool:
        """Whether the model knows that a user has had an item, which may not come back."""
        return bool(self.state.history.seen.has(np.array([user]), np.array([item]))[0])

    def has_learned(self, users: Rows, items: Rows, seconds: Floats) -> Mask:
        """(P,) each → (P,) whether the model has learned these events; it looks at the latest ones of each user."""
        history = self.state.history
        length = min(_LATEST, int(history.n_events_of(users).max(initial=0)))
        latest = history.latest_positions(users, length)[0]
        is_same = history.items_of_events(latest) == items[:, None]
        return (is_same & (history.minutes_of_events(latest) == minutes_of(seconds)[:, None])).any(axis=1)

    def latest_items(self, user: int) -> Rows:
        """Return the latest items of a user, in order if the model reads it: else no index of all users is built."""
        history, rows = self.state.history, np.array([user])
        if not self._reads_events:
            return history.items_of(rows)[1]
        items = history.latest(rows, _LATEST)[0][0]
        return items[items >= 0]

    def rank(self, rows: Rows, recent: list[UserEvents], n: int, among: Rows | None) -> list[RankedList]:
        """The n best for each user after the model's and the recent events."""
        rows, is_stranger = rows.copy(), rows == self.stranger
        rows[is_stranger] += np.arange(np.count_nonzero(is_stranger))  # each with separate events
        state, history, now = self.state, self._history, self.clock()
        n_items = history.n_items
        n_ranked = n_items if among is None else len(among)
        n = min(max(n, MIN_LENGTH, min(MAX_LENGTH, n_ranked // ITEMS_PER_PLACE)), n_ranked)
        if n == 0:
            nothing = np.empty(0, np.int32), np.empty(0, np.float32)
            return [RankedList(*nothing, "popularity", is_complete=True) for _ in rows]
        counts = [len(each.items) for each in recent]
        if any(counts):
            items, seconds, returns = (np.concatenate(column) for column in zip(*recent, strict=True))
            history = history.after(np.repeat(rows, counts), items, seconds, returns=returns, ends_period=False)
        contexts = replace(state.contexts, observed=history, now=now)
        by_model = contexts.can_score(state.model, rows) & self._is_model
        ranked: dict[int, RankedList] = {}
        answering: list[tuple[Scorer, ContextBuilder, Source, Rows]] = [
            (state.model, contexts, "model", np.flatnonzero(by_model)),
            (self._popularity, ContextBuilder(0, history, tilt=state.tilt), "popularity", np.flatnonzero(~by_model)),
        ]
        for model, known, source, users in answering:
            if not len(users):
                continue
            scores, items = rank_items(model, rows[users], history, contexts=known, k=n, allowed=among)
            lengths = np.isfinite(scores).sum(axis=1).tolist()
            expires = self._expires(rows[users], history, now) if source == "model" else [np.inf] * len(users)
            # Copies, so that no list keeps the others of its batch in memory.
            lists = zip(users.tolist(), lengths, items, scores, expires, strict=True)
            for user, length, best, best_scores, until in lists:
                parts = best[:length].astype(np.int32), best_scores[:length].astype(np.float32)
                ranked[user] = RankedList(*parts, source, length < n or n == n_ranked, until)
        return [ranked[at] for at in range(len(rows))]

    def _expires(self, rows: Rows, history: History, now: float) -> list[float]:
        """Return when the time since each user's latest event will have grown by a quarter, or reached a pause."""
        model = self.state.model
        if not model.reads_times:
            return [np.inf] * len(rows)
        places = history.latest_positions(rows, model.history_length)[0]
        return [_expiry(minute, now, model.pauses) for minute in history.minutes_of_events(places).max(axis=1).tolist()]


def _expiry(minute: int, now: float, pauses: tuple[int, ...]) -> float:
    """Return until when a list is valid after an event in this minute, −1 where it is unknown."""
    if minute < 0:
        return np.inf
    reached = (60.0 * (minute + pause) for pause in pauses)  # the model reads whole minutes
    return min(now + max(60.0, _SHARE_OF_ELAPSED * (now - 60.0 * minute)), *(at for at in reached if at > now), np.inf)


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
