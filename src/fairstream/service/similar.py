"""Lists about items, from one model: similar items, popular items, and why an item was recommended."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fairstream.data import History, Rows
from fairstream.evaluation import best_items
from fairstream.models import ContextBuilder, Scorer
from fairstream.recommender.state import State
from fairstream.recommender.vectors import similar_items, similarities

MIN_SHARED = 5
"""People whom two items must have in common: what is similar to an item of one person would show the others."""
_MAX_USERS = 5_000  # of an item; more cost time and change little
_CACHED_ITEMS = 10_000
_LATEST = 200  # items of a history that may explain a recommendation
Scored = tuple[list[int], list[float]]  # rows of items and their scores, best first


class ItemLists:
    """Lists about the items of one state; nothing is computed before somebody asks."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._similar = lru_cache(_CACHED_ITEMS)(self._compute_similar)

    def similar(self, item: int, k: int, allowed: Rows | None, change: object) -> Scored:
        """Return the k items most similar to one; the answer is cached until `change` is another."""
        return self._similar(item, k, change, _Uncompared(allowed))

    def _compute_similar(self, item: int, k: int, _: object, allowed: _Uncompared) -> Scored:
        ids = self._state.item_ids.ids
        limits = {"min_shared": MIN_SHARED, "max_users": _MAX_USERS}
        table = similar_items(self._state, ids[item : item + 1], k, **limits, allowed=allowed.rows)
        return self._state.item_ids.lookup(table["similar_id"]).tolist(), table["score"].to_pylist()

    def popular(self, fallback: Scorer, k: int, allowed: Rows | None) -> list[int]:
        """Return the k items with the most recent events."""
        history = History.of(np.empty(0, np.int64), np.empty(0, np.int64), n_items=self._state.history.n_items)
        contexts = ContextBuilder(0, history, tilt=self._state.tilt)
        n = self._state.history.n_items if allowed is None else len(allowed)
        if n == 0:
            return []
        _, items = best_items(fallback, np.zeros(1, np.int64), history, contexts=contexts, k=min(k, n), allowed=allowed)
        return [item for item in items[0].tolist() if item >= 0]

    def because(self, had: Rows, items: Rows) -> list[int | None]:
        """Return, for each item, the most similar one of those that somebody has had; None if none is similar."""
        had = np.unique(had[-_LATEST:])
        if not len(had) or not len(items):
            return [None] * len(items)
        of_items = similarities(self._state, items, had)
        best = of_items.argmax(axis=1)
        is_similar = of_items[np.arange(len(items)), best] > 0
        return [int(had[at]) if known else None for at, known in zip(best, is_similar, strict=True)]


class _Uncompared:
    """Allowed rows, which the cache does not look at: `change` stands for them."""

    def __init__(self, rows: Rows | None) -> None:
        self.rows = rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Uncompared)

    def __hash__(self) -> int:
        return 0
