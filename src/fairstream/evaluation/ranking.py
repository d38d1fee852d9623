"""Ranked lists of all known items, or, as in the paper, of the positives among 100 sampled items."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from fairstream.cluster import Cluster
from fairstream.data import History, Rows, SeenItems
from fairstream.evaluation.blocks import rank_blocks
from fairstream.evaluation.lists import Floats, ItemLists, Lists
from fairstream.evaluation.requests import Requests
from fairstream.evaluation.top_k import backend_for, check_shape, chunks, decode, top_k_of_all
from fairstream.models import ContextBuilder, Scorer
from fairstream.sampling import NegativeSampler

N_SAMPLED_CANDIDATES = 100


@dataclass(frozen=True, eq=False)
class _Sampled:
    """Ranks the candidates of a block of users."""

    model: Scorer
    users: Rows
    negatives: Rows
    """(U, 100)"""
    positives: SeenItems
    contexts: ContextBuilder
    k: int

    @torch.no_grad()
    def __call__(self, block: range) -> Lists:
        at, device = slice(block.start, block.stop), self.model.device
        users = self.users[at]
        table = ItemLists(*self.positives.lists(users)).table()
        candidates = np.concatenate([self.negatives[at], table], axis=1)  # (B, W), −1 where there is none
        rows, items = torch.from_numpy(users).to(device), torch.from_numpy(candidates.clip(0)).to(device)
        scores = check_shape(self.model(rows, items, self.contexts.at(users)), candidates.shape)
        is_positive = (candidates >= 0) & (np.arange(candidates.shape[1]) >= N_SAMPLED_CANDIDATES)
        absent, present = (ItemLists.from_mask(mask) for mask in (candidates < 0, is_positive))
        n = candidates.shape[1]
        best = decode(*backend_for(device).top_k([(0, scores)], absent, present, n, self.k), n)
        chosen = np.where(best.items < 0, -1, np.take_along_axis(candidates, best.items.clip(0), axis=1))
        return Lists(chosen, best.scores, best.hits)


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
    cluster: Cluster | None = None,
) -> Lists:
    """Rank the positives among 100 sampled items that are known, not seen by the user, and not positive.

    The paper's protocol; sampled candidates make every model look better than it is. Positives
    from `n_rankable` on are items that the model has no row for; they are missed.
    """
    sampler = NegativeSampler(seen.union(positives), users, n_items=n_items, device=model.device)
    negatives = sampler.draw(users, N_SAMPLED_CANDIDATES, key).cpu().numpy()
    reachable = positives.below(n_rankable)
    width = N_SAMPLED_CANDIDATES + int(np.diff(reachable.lists(users)[0]).max(initial=0))
    shape = (len(users), k)
    lists = Lists(np.empty(shape, np.int64), np.empty(shape), np.empty(shape, np.bool_))

    def write(at: slice, ranked: Lists) -> None:
        lists.items[at], lists.scores[at], lists.hits[at] = ranked.items, ranked.scores, ranked.hits

    blocks = list(chunks(len(users), width=width, at_once=backend_for(model.device).scores_at_once))
    if cluster is not None:
        contexts.index()  # once for all tasks
    rank_blocks(_Sampled(model, users, negatives, reachable, contexts, k), blocks, write, model, cluster)
    return lists


def best_items(
    model: Scorer,
    users: Rows,
    history: History,
    *,
    contexts: ContextBuilder,
    k: int,
    allowed: Rows | None = None,
    cluster: Cluster | None = None,
) -> tuple[Floats, Rows]:
    """(U, k) scores and rows of the items of `history`, best first; −∞ and −1 behind the end of a short list.

    Items that the user has had are left out, and so are all but the `allowed` ones, sorted item rows.
    """
    nothing = ItemLists(np.zeros(len(users) + 1, np.int64), np.empty(0, np.int64))
    with evaluating(model):
        requests = Requests(users, nothing, history, contexts)
        lists = top_k_of_all(model, requests, n_items=history.n_items, k=k, allowed=allowed, cluster=cluster)
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
