"""Which of a user's top k are hits: against all known items, or against 100 sampled ones.

Ties are decided against the model: a positive loses to every other item with the same score,
so a model that gives all items one score finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fairstream.errors import ModelError
from fairstream.events import Rows, SeenItems
from fairstream.models import Scorer
from fairstream.sampling import NegativeSampler

_SCORES_AT_ONCE = 1 << 20
N_SAMPLED_CANDIDATES = 100


@dataclass(frozen=True, eq=False)
class RankedHits:
    """The top k of each user asked for, one row each, and what there was to find."""

    hits: Tensor
    """(U, k) of 0 and 1 in ranked order."""
    items: Rows
    """(U, k) the items in these places; what stands behind the end of a short list means nothing."""
    n_positives: Tensor
    """(U,)"""

    @classmethod
    def empty(cls, users: Rows, positives: SeenItems, k: int) -> RankedHits:
        """Nothing found yet for any of `users`.

        Room is made once, and filled chunk by chunk: small results kept between large and
        passing ones would hold on to the memory of all of them.
        """
        n_positives = torch.from_numpy(_counts(positives, users)).double()
        return cls(torch.zeros(len(users), k, dtype=torch.float64), np.zeros((len(users), k), np.int64), n_positives)

    def fill(self, chunk: slice, hits: Tensor, items: Tensor) -> None:
        """Put in what was found for a chunk of the users."""
        self.hits[chunk] = hits.cpu()
        self.items[chunk] = items.cpu().numpy()

    def followed_by(self, other: RankedHits) -> RankedHits:
        """These users, then the others."""
        return RankedHits(
            torch.cat([self.hits, other.hits]),
            np.concatenate([self.items, other.items]),
            torch.cat([self.n_positives, other.n_positives]),
        )


def rank_all(model: Scorer, users: Rows, positives: SeenItems, seen: SeenItems, *, n_items: int, k: int) -> RankedHits:
    """Rank all `n_items` known items less those the user has had.

    Positives that are not among the known items cannot be found; they count as missed.
    """
    device, found = _device(model), RankedHits.empty(users, positives, k)
    reachable = positives.below(n_items)
    for chunk in user_chunks(len(users), n_items):
        scores = all_scores(model, users[chunk], seen, n_items)
        is_positive = torch.zeros(scores.shape, dtype=torch.bool, device=device)
        row, item = reachable.of(users[chunk])
        is_positive[torch.from_numpy(row).to(device), torch.from_numpy(item).to(device)] = True
        hits, best = _top(scores, is_positive, k)
        found.fill(chunk, hits, best)
    return found


def rank_sampled(
    model: Scorer,
    users: Rows,
    positives: SeenItems,
    seen: SeenItems,
    *,
    n_items: int,
    n_rankable: int,
    k: int,
    key: int,
) -> RankedHits:
    """Rank the positives among 100 items that are known, not had by the user, and not positive.

    The way of the paper; sampled candidates make every model look better than it is. Positives
    from `n_rankable` on are items that the model has no row for; they count as missed.
    """
    device, found = _device(model), RankedHits.empty(users, positives, k)
    sampler = NegativeSampler(seen.union(positives), users, n_items=n_items, device=device)
    negatives = sampler.draw(users, N_SAMPLED_CANDIDATES, key)
    reachable = positives.below(n_rankable)
    width = N_SAMPLED_CANDIDATES + int(_counts(reachable, users).max(initial=0))
    for chunk in user_chunks(len(users), width):
        row, item = reachable.of(users[chunk])
        candidates = _with_positives(negatives[chunk], row, item)  # (B, W), −1 where there is none
        scores = finite(model(torch.from_numpy(users[chunk]).to(device), candidates.clamp(min=0)))
        is_positive = torch.zeros(candidates.shape, dtype=torch.bool, device=device)
        is_positive[:, N_SAMPLED_CANDIDATES:] = candidates[:, N_SAMPLED_CANDIDATES:] >= 0
        hits, best = _top(scores.masked_fill(candidates < 0, -torch.inf), is_positive, k)
        found.fill(chunk, hits, candidates.gather(1, best))
    return found


@torch.no_grad()
def best_items(
    model: Scorer, users: Rows, seen: SeenItems, *, n_items: int, k: int
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], Rows]:
    """(U, k) scores and item rows, best first; a score of −∞ marks the end of a short list."""
    scores, items = np.empty((len(users), k)), np.empty((len(users), k), dtype=np.int64)
    with evaluating(model):
        for chunk in user_chunks(len(users), n_items):
            best = all_scores(model, users[chunk], seen, n_items).topk(k, dim=1)
            scores[chunk], items[chunk] = best.values.cpu(), best.indices.cpu()
    return scores, items


def all_scores(model: Scorer, users: Rows, seen: SeenItems, n_items: int) -> Tensor:
    """(B, n_items) scores of the known items, −∞ where the user has had the item."""
    device = _device(model)
    scores = finite(model.score_all(torch.from_numpy(users).to(device), n_items))
    position, had = seen.of(users)
    known = had < n_items
    row, item = (torch.from_numpy(rows[known]).to(device) for rows in (position, had))
    # Into a copy: what a model returns may be a view of its own weights.
    return scores.index_put((row, item), scores.new_tensor(-torch.inf))


def finite(scores: Tensor) -> Tensor:
    """The scores themselves, if they are numbers."""
    if not bool(torch.isfinite(scores).all()):
        raise ModelError("the model returned NaN or infinite scores, which are never ranked; it has probably diverged")
    return scores


def user_chunks(n_users: int, width: int) -> Iterator[slice]:
    """Slices of users whose score tables of `width` columns stay within a fixed memory."""
    step = max(1, _SCORES_AT_ONCE // max(1, width))
    return (slice(start, min(start + step, n_users)) for start in range(0, n_users, step))


@contextmanager
def evaluating(model: Scorer) -> Iterator[None]:
    """Put the model in evaluation mode, and each part of it back into the mode it was in."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training


def _top(scores: Tensor, is_positive: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(B, k) of 0 and 1: whether each of the k best-scored columns is a positive; and the columns."""
    fine = scores.double()
    # A step far below float32's resolution: enough to lose a tie, too small to lose anything else.
    step = fine.abs().clamp(min=1e-200) * 2.0**-40
    fine = torch.where(is_positive, fine - step, fine)
    best = fine.topk(min(k, fine.shape[1]), dim=1).indices
    hits = (is_positive & scores.isfinite()).gather(1, best).double()
    short = (0, k - hits.shape[1])
    return torch.nn.functional.pad(hits, short), torch.nn.functional.pad(best, short)


def _with_positives(negatives: Tensor, row: Rows, item: Rows) -> Tensor:
    """(B, 100 + P): the positives of each row behind its negatives, filled up with −1."""
    n_rows = len(negatives)
    count = np.bincount(row, minlength=n_rows)
    place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    block = np.full((n_rows, int(count.max(initial=0))), -1, dtype=np.int64)
    block[row, place] = item
    return torch.cat([negatives, torch.from_numpy(block).to(negatives.device)], dim=1)


def _counts(pairs: SeenItems, users: Rows) -> Rows:
    return np.bincount(pairs.of(users)[0], minlength=len(users))


def _device(model: Scorer) -> torch.device:
    return next(model.parameters()).device
