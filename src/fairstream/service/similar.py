"""Which items are similar, by one model: for lists of similar items, and as the reasons of a recommendation."""

from __future__ import annotations

import numpy as np

from fairstream.data import Rows
from fairstream.recommender.state import State
from fairstream.recommender.vectors import similar_items, similarities

MIN_SHARED = 5
"""People whom two items must have in common: what is similar to an item of one person would show the others."""
_MAX_USERS = 5_000  # of an item; more cost time and change little
_LATEST = 200  # items of a history that may explain a recommendation


def similar(state: State, item: int, k: int, allowed: Rows | None) -> tuple[list[str], list[float]]:
    """Return the k items most similar to one, best first, and their scores."""
    limits = {"min_shared": MIN_SHARED, "max_users": _MAX_USERS}
    table = similar_items(state, state.item_ids.ids[item : item + 1], k, **limits, allowed=allowed)
    return table["similar_id"].to_pylist(), table["score"].to_pylist()


def reasons(state: State, had: Rows, items: Rows) -> list[int | None]:
    """Return, for each item, the most similar one of those that somebody has had; None if none is similar."""
    had = np.unique(had[-_LATEST:])
    if not len(had) or not len(items):
        return [None] * len(items)
    of_items = similarities(state, items, had)
    best = of_items.argmax(axis=1)
    is_similar = of_items[np.arange(len(items)), best] > 0
    return [int(had[at]) if known else None for at, known in zip(best, is_similar, strict=True)]
