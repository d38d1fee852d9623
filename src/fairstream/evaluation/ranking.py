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
    """hits (U, k) in ranked order and n_positives (U,), one row for each user asked for."""

    hits: Tensor
    n_positives: Tensor


def rank_all(model: Scorer, users: Rows, positives: SeenItems, seen: SeenItems, *, n_items: int, k: int) -> RankedHits:
    """Rank all `n_items` known items less those the user has had.

    Positives that are not among the known items cannot be found; they count as missed.
    """
    device, parts = _device(model), []
    reachable = positives.below(n_items)
    for chunk in user_chunks(len(users), n_items):
        scores = all_scores(model, users[chunk], seen, n_items)
        is_positive = torch.zeros(scores.shape, dtype=torch.bool, device=device)
        row, item = reachable.of(users[chunk])
        is_positive[torch.from_numpy(row).to(device), torch.from_numpy(item).to(device)] = True
        parts.append(_top_hits(scores, is_positive, k))
    return _assemble(users, parts, positives, k)


def rank_sampled(
    model: Scorer,
    users: Rows,
    positives: SeenItems,
    seen: SeenItems,
    *,
    n_items: int,
    k: int,
    generator: torch.Generator,
) -> RankedHits:
    """Rank the positives among 100 items that are known, not had by the user, and not positive.

    The way of the paper; sampled candidates make every model look better than it is.
    """
    device, parts = _device(model), []
    sampler = NegativeSampler(
        seen.union(positives), n_users=int(users.max(initial=-1)) + 1, n_items=n_items, device=device
    )
    negatives = sampler.draw(torch.from_numpy(users).to(device), N_SAMPLED_CANDIDATES, generator)
    width = N_SAMPLED_CANDIDATES + int(_counts(positives, users).max(initial=0))
    for chunk in user_chunks(len(users), width):
        row, item = positives.of(users[chunk])
        candidates = _with_positives(negatives[chunk], row, item)  # (B, W), −1 where there is none
        scores = finite(model(torch.from_numpy(users[chunk]).to(device), candidates.clamp(min=0)))
        is_positive = torch.zeros(candidates.shape, dtype=torch.bool, device=device)
        is_positive[:, N_SAMPLED_CANDIDATES:] = candidates[:, N_SAMPLED_CANDIDATES:] >= 0
        parts.append(_top_hits(scores.masked_fill(candidates < 0, -torch.inf), is_positive, k))
    return _assemble(users, parts, positives, k)


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


def _top_hits(scores: Tensor, is_positive: Tensor, k: int) -> Tensor:
    """(B, k) of 0 and 1: whether each of the k best-scored columns is a positive."""
    fine = scores.double()
    # A step far below float32's resolution: enough to lose a tie, too small to lose anything else.
    step = fine.abs().clamp(min=1e-200) * 2.0**-40
    fine = torch.where(is_positive, fine - step, fine)
    best = fine.topk(min(k, fine.shape[1]), dim=1).indices
    hits = (is_positive & scores.isfinite()).gather(1, best).double()
    return torch.nn.functional.pad(hits, (0, k - hits.shape[1]))


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


def _assemble(users: Rows, parts: list[Tensor], positives: SeenItems, k: int) -> RankedHits:
    hits = torch.cat(parts).cpu() if parts else torch.zeros(0, k, dtype=torch.float64)
    return RankedHits(hits, torch.from_numpy(_counts(positives, users)).double())


def _device(model: Scorer) -> torch.device:
    return next(model.parameters()).device
