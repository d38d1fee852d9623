"""The k best of all known items for each user, on either device, without a user × item table.

Scores are made a block of users × items at a time, and only the best so far outlive their block.
On the CPU a compiled pass reads a block while it is in the cache; on an accelerator it is `topk`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairstream.compiled import share
from fairstream.errors import ModelError
from fairstream.evaluation.top_k import Floats, scan, settle
from fairstream.events import Rows, SeenItems
from fairstream.models import Scorer

_TILE = 64
Blocks = Iterable[tuple[int, Tensor]]
"""Scores (B, W) of W items for the same B users, and which item is the first; block after block."""


@dataclass(frozen=True, eq=False)
class Best:
    """The best items of each user asked for, one row each."""

    scores: np.ndarray[Any, np.dtype[np.float64]]
    """(U, k) best first; −∞ behind the end of a short list."""
    items: Rows
    """(U, k); what stands behind the end of a short list means nothing."""
    is_positive: np.ndarray[Any, np.dtype[np.bool_]]
    """(U, k)"""
    n_positives: Rows
    """(U,) what there was to find, whether it can be found or not."""


class Lists(NamedTuple):
    """Sorted items of some users behind each other: the u-th has items[bounds[u] : bounds[u + 1]]."""

    bounds: Rows
    items: Rows

    @classmethod
    def from_pairs(cls, position: Rows, items: Rows, n_users: int) -> Lists:
        """Of pairs that are sorted."""
        return cls(np.append(0, np.cumsum(np.bincount(position, minlength=n_users))), items)

    @classmethod
    def from_mask(cls, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> Lists:
        """Of the columns at which each row is True."""
        position, column = np.nonzero(mask)
        return cls.from_pairs(position, column, len(mask))

    def pairs(self, start: int, stop: int) -> tuple[Rows, Rows]:
        """(position, item) of the items from `start` to `stop`."""
        position = np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))
        inside = (self.items >= start) & (self.items < stop)
        return position[inside], self.items[inside]

    def table(self) -> Rows:
        """(B, P) with a row for each list, filled up with −1."""
        count = np.diff(self.bounds)
        table = np.full((len(count), int(count.max(initial=0))), -1, dtype=np.int64)
        table[np.arange(table.shape[1]) < count[:, None]] = self.items
        return table


class Way(NamedTuple):
    """How a device goes about it."""

    rank: Callable[[Blocks, Lists, Lists, int, int], tuple[Floats, Rows]]
    """Blocks, what was had, positives, n_items, k → (B, k) scores and codes as in `top_k`, best first."""
    items_at_once: int
    scores_at_once: int


@torch.no_grad()
def best_of_all(model: Scorer, users: Rows, seen: SeenItems, positives: SeenItems, *, n_items: int, k: int) -> Best:
    """The k best of the first `n_items` items that are not `seen`; among equals the `positives` come last."""
    device = next(model.parameters()).device
    way = way_of(device)
    # Room is made once: small results kept between large and passing ones would hold on to their memory.
    scores, codes = np.empty((len(users), k)), np.empty((len(users), k), np.int64)
    n_positives = np.empty(len(users), np.int64)
    blocks = list(chunks(n_items, at_once=way.items_at_once))
    for chunk in chunks(len(users), width=blocks[0].stop, at_once=way.scores_at_once):
        at = slice(chunk.start, chunk.stop)
        had, wanted = (Lists.from_pairs(*pairs.of(users[at]), len(chunk)) for pairs in (seen, positives))
        rows = torch.from_numpy(users[at]).to(device)
        made = ((block.start, model.score_range(rows, block.start, block.stop)) for block in blocks)  # when asked for
        scores[at], codes[at] = way.rank(made, had, wanted, n_items, k)
        n_positives[at] = np.diff(wanted.bounds)
    return Best(scores, *decoded(scores, codes, n_items), n_positives)


def decoded(scores: Floats, codes: Rows, n_items: int) -> tuple[Rows, np.ndarray[Any, np.dtype[np.bool_]]]:
    """The items, and whether each is a positive."""
    return codes % n_items, (codes >= n_items) & np.isfinite(scores)


def chunks(n: int, *, width: int = 1, at_once: int) -> Iterator[range]:
    """0 … n in ranges of which each, times `width`, stays within `at_once`."""
    step = max(1, at_once // max(1, width))
    return (range(start, min(start + step, n)) for start in range(0, n, step))


def by_scan(blocks: Blocks, had: Lists, wanted: Lists, n_items: int, k: int) -> tuple[Floats, Rows]:
    """By a compiled pass over each block."""
    n_users = len(had.bounds) - 1
    found, codes = np.empty((n_users, k)), np.full((n_users, k), 2 * n_items)
    for first, scores in blocks:
        flat, stride = _flat(_floats(scores))
        if first == 0:
            found = np.full((n_users, k), -np.inf, flat.dtype)
        take = partial(scan, (flat, stride, scores.shape[1], first), had, wanted, n_items, (found, codes))
        need_numbers(all(share(n_users, take)))
    share(n_users, partial(settle, (found, codes)))
    return found, codes


def by_topk(blocks: Blocks, had: Lists, wanted: Lists, n_items: int, k: int) -> tuple[Floats, Rows]:
    """By PyTorch's operators: the best of each block that are no positives, and all positives, sorted.

    `topk` promises nothing about equal scores, so it is asked for the others alone; the positives
    stand behind them, and a stable sort leaves them behind their equals.
    """
    grid = torch.from_numpy(wanted.table())  # (B, P), −1 where there is none
    of_positives, extremes = torch.empty(0), list[Tensor]()
    scores_of, codes_of = [], []
    for first, made in blocks:
        scores = _floats(made)
        grid, last = grid.to(scores.device), first + scores.shape[1]
        extremes += scores.aminmax()
        # Into a copy: what a model returns may be a view of its own weights.
        free = F.pad(scores, (0, -scores.shape[1] % _TILE), value=-torch.inf)
        free = _without(free, had.pairs(first, last), first)
        here = free.gather(1, (grid - first).clamp(0, scores.shape[1] - 1))
        here = here.masked_fill((grid < first) | (grid >= last), -torch.inf)
        of_positives = here if first == 0 else torch.maximum(of_positives, here)
        others, columns = _topk(_without(free, wanted.pairs(first, last), first), min(k, scores.shape[1]))
        scores_of.append(others)
        codes_of.append(columns + first)
    ranked = torch.cat([*scores_of, of_positives], dim=1).sort(dim=1, descending=True, stable=True)
    codes = torch.cat([*codes_of, grid + n_items], dim=1).gather(1, ranked.indices)
    need_numbers(bool(torch.stack(extremes).isfinite().all()))  # asked once: an answer makes the host wait
    short = (0, max(0, k - codes.shape[1]))
    best_scores = F.pad(ranked.values.double(), short, value=-torch.inf)[:, :k]
    return best_scores.cpu().numpy(), F.pad(codes, short)[:, :k].cpu().numpy()


WAYS = {"cpu": Way(by_scan, items_at_once=1 << 12, scores_at_once=1 << 20)}  # a block stays in the cache
OTHERWISE = Way(by_topk, items_at_once=1 << 16, scores_at_once=1 << 26)  # a block keeps an accelerator busy


def way_of(device: torch.device) -> Way:
    """The way of this device."""
    return WAYS.get(device.type, OTHERWISE)


def need_numbers(are_numbers: bool) -> None:
    """Ranking what is NaN or infinite would hide that a model has diverged."""
    if not are_numbers:
        raise ModelError("the model returned NaN or infinite scores, which are never ranked; it has probably diverged")


def _floats(scores: Tensor) -> Tensor:
    return scores if scores.dtype in (torch.float32, torch.float64) else scores.double()


def _flat(scores: Tensor) -> tuple[Floats, int]:
    """The scores as one array in which row u begins at u times the number that comes with it; seldom a copy."""
    scores = scores if scores.stride(1) == 1 else scores.contiguous()
    stride = scores.stride(0)
    return scores.as_strided(((len(scores) - 1) * stride + scores.shape[1],), (1,)).numpy(), stride


def _topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(B, W) → (B, k) the k highest of each row, and their columns; W is a multiple of the tile.

    None of them lies outside the k tiles with the highest maxima (of equal ones as many are
    inside), so most of a row is read once, for the maxima.
    """
    tiles = scores.view(len(scores), -1, _TILE)
    if tiles.shape[1] <= k:
        found = scores.topk(k, dim=1)
        return found.values, found.indices
    which = tiles.amax(dim=2).topk(k, dim=1).indices  # (B, k)
    found = tiles.gather(1, which[:, :, None].expand(-1, -1, _TILE)).flatten(1).topk(k, dim=1)
    return found.values, which.gather(1, found.indices // _TILE) * _TILE + found.indices % _TILE


def _without(scores: Tensor, pairs: tuple[Rows, Rows], first: int) -> Tensor:
    """−∞ at these pairs, in place."""
    row, item = (torch.from_numpy(rows).to(scores.device) for rows in pairs)
    return scores.index_put_((row, item - first), scores.new_full((), -torch.inf))
