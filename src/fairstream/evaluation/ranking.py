"""Ranked lists of all known items."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fairstream.data import History, Rows
from fairstream.evaluation.lists import Floats, ItemLists
from fairstream.evaluation.requests import Requests
from fairstream.evaluation.top_k import top_k_of_all
from fairstream.models import ContextBuilder, Scorer


def best_items(
    model: Scorer, users: Rows, history: History, *, contexts: ContextBuilder, k: int, allowed: Rows | None = None
) -> tuple[Floats, Rows]:
    """(U, k) scores and rows of the items of `history`, best first; −∞ and −1 after the end of a short list.

    Items that the user has had are left out. With `allowed` (sorted item rows), only these are ranked.
    """
    with evaluating(model):
        return rank_items(model, users, history, contexts=contexts, k=k, allowed=allowed)


def rank_items(
    model: Scorer, users: Rows, history: History, *, contexts: ContextBuilder, k: int, allowed: Rows | None = None
) -> tuple[Floats, Rows]:
    """As `best_items`, with a model in evaluation mode; to ask all modules for theirs may cost more than a list."""
    nothing = ItemLists(np.zeros(len(users) + 1, np.int64), np.empty(0, np.int64))
    requests = Requests(users, nothing, history, contexts)
    lists = top_k_of_all(model, requests, n_items=history.n_items, k=k, allowed=allowed)
    return lists.scores, lists.items


@contextmanager
def evaluating(model: Scorer) -> Iterator[None]:
    """Put a model into evaluation mode, and each of its modules back into its own mode afterwards.

    A model that is in evaluation mode already is not touched: other threads may be using it.
    """
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
