"""Which of a user's top k are hits: against all known items, or against 100 sampled ones.

Ties are decided against the model: a positive loses to every other item with the same score,
so a model that gives all items one score finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairstream.data import Rows, SeenItems
from fairstream.evaluation.best import backend_for, decoded, top_k_of_all
from fairstream.evaluation.blocks import Lists, check_shape, chunks
from fairstream.evaluation.top_k import Floats
from fairstream.models import ContextBuilder, Scorer
from fairstream.sampling import NegativeSampler

N_SAMPLED_CANDIDATES = 100


@dataclass(frozen=True, eq=False)
class RankedHits:
    """The top k of each user asked for, one row each, and what there was to find."""

    hits: Tensor
    """(U, k) of 0 and 1 in ranked order."""
    items: Rows
    """(U, k) the items in these places; what stands behind the end of a short list means nothing."""
    scores: Floats
    """(U, k) what the model gave them; −∞ behind the end of a short list."""
    n_positives: Tensor
    """(U,)"""

    @classmethod
    def of(
        cls, hits: np.ndarray[Any, np.dtype[np.bool_]], items: Rows, scores: Floats, n_positives: Rows
    ) -> RankedHits:
        return cls(torch.from_numpy(hits).double(), items, scores, torch.from_numpy(n_positives).double())

    def at(self, columns: Rows) -> RankedHits:
        """For each user only these places of its list, in this order."""
        items, scores = (np.take_along_axis(table, columns, axis=1) for table in (self.items, self.scores))
        return RankedHits(self.hits.gather(1, torch.from_numpy(columns)), items, scores, self.n_positives)

    def merge(self, other: RankedHits, is_mine: np.ndarray[Any, np.dtype[np.bool_]]) -> RankedHits:
        """Both together: these in the rows that `is_mine` marks, the others in the rest."""
        order = np.argsort(np.concatenate([np.flatnonzero(is_mine), np.flatnonzero(~is_mine)]))
        rows = torch.from_numpy(order)
        return RankedHits(
            torch.cat([self.hits, other.hits])[rows],
            np.concatenate([self.items, other.items])[order],
            np.concatenate([self.scores, other.scores])[order],
            torch.cat([self.n_positives, other.n_positives])[rows],
        )


def rank_all(
    model: Scorer,
    users: Rows,
    positives: SeenItems,
    seen: SeenItems,
    *,
    contexts: ContextBuilder,
    n_items: int,
    k: int,
) -> RankedHits:
    """Rank all `n_items` known items less those the user has had.

    Positives that are not among the known items cannot be found; they count as missed.
    """
    found = top_k_of_all(model, users, seen, positives, contexts=contexts, n_items=n_items, k=k)
    return RankedHits.of(found.is_positive, found.items, found.scores, found.n_positives)


@torch.no_grad()
def rank_sampled(
    model: Scorer,
    users: Rows,
    positives: SeenItems,
    seen: SeenItems,
    *,
    contexts: ContextBuilder,
    n_items: int,
    n_rankable: int,
    k: int,
    key: int,
) -> RankedHits:
    """Rank the positives among 100 items that are known, not had by the user, and not positive.

    The way of the paper; sampled candidates make every model look better than it is. Positives
    from `n_rankable` on are items that the model has no row for; they count as missed.
    """
    device = model.device
    sampler = NegativeSampler(seen.union(positives), users, n_items=n_items, device=device)
    negatives = sampler.draw(users, N_SAMPLED_CANDIDATES, key)
    reachable = positives.below(n_rankable)
    width = N_SAMPLED_CANDIDATES + int(counts(reachable, users).max(initial=0))
    way, hits, items = backend_for(device), np.zeros((len(users), k), np.bool_), np.zeros((len(users), k), np.int64)
    best = np.empty((len(users), k))
    for chunk in chunks(len(users), width=width, at_once=way.scores_at_once):
        at = slice(chunk.start, chunk.stop)
        table = Lists(*reachable.lists(users[at])).table()
        candidates = np.concatenate([negatives[at].cpu().numpy(), table], axis=1)  # (B, W), −1 where there is none
        rows, columns = torch.from_numpy(users[at]).to(device), torch.from_numpy(candidates.clip(0)).to(device)
        scores = model(rows, columns, contexts.at(users[at]))
        check_shape(scores, candidates.shape)
        is_positive = (candidates >= 0) & (np.arange(candidates.shape[1]) >= N_SAMPLED_CANDIDATES)
        absent, wanted = (Lists.from_mask(mask) for mask in (candidates < 0, is_positive))
        found, codes = way.rank([(0, scores)], absent, wanted, candidates.shape[1], k)
        places, hits[at] = decoded(found, codes, candidates.shape[1])
        items[at], best[at] = np.take_along_axis(candidates, places, axis=1), found
    return RankedHits.of(hits, items, best, counts(positives, users))


@torch.no_grad()
def best_items(
    model: Scorer, users: Rows, seen: SeenItems, *, contexts: ContextBuilder, n_items: int, k: int
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], Rows]:
    """(U, k) scores and item rows, best first; a score of −∞ marks the end of a short list."""
    with evaluating(model):
        nothing = SeenItems.from_pairs(users[:0], users[:0])
        found = top_k_of_all(model, users, seen, nothing, contexts=contexts, n_items=n_items, k=k)
    return found.scores, found.items


@contextmanager
def evaluating(model: Scorer) -> Iterator[None]:
    """Put a model that is in training mode into evaluation mode, and back afterwards.

    A model in service is in evaluation mode already and is not touched: other threads may be using it.
    """
    if not model.training:
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()


def counts(pairs: SeenItems, users: Rows) -> Rows:
    """(U,) how many items each of the users has."""
    return np.diff(pairs.lists(users)[0])
