"""The k best on an accelerator, by PyTorch's operators."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairstream.data import Rows
from fairstream.evaluation.blocks import Blocks, Lists, check_finite, floats
from fairstream.evaluation.top_k import Floats

_TILE = 64


def topk_torch(blocks: Blocks, had: Lists, wanted: Lists, n_items: int, k: int) -> tuple[Floats, Rows]:
    """(B, k) scores and codes as in `top_k`: the best of each block that are no positives, and all positives, sorted.

    `topk` promises nothing about equal scores, so it is asked for the others alone; the positives
    stand behind them, and a stable sort leaves them behind their equals. Nothing in here makes
    the host wait until the end.
    """
    scores_of, codes_of, extremes = list[Tensor](), list[Tensor](), list[Tensor]()
    for first, made in blocks:
        scores = floats(made)
        width = scores.shape[1]
        if first == 0:
            left_out, positives = (_Moved.of(lists, scores.device) for lists in (had, wanted))
            table = positives.table()  # (B, P), −1 where there is none
            of_positives = scores.new_full(table.shape, -torch.inf)
        extremes += scores.aminmax()
        # Into a copy: what a model returns may be a view of its own weights. At least one column is added.
        free = F.pad(scores, (0, _TILE - width % _TILE), value=-torch.inf)
        left_out.blot(free, first, width)
        here = free.gather(1, _columns(table, first, width))
        of_positives = torch.maximum(of_positives, here)
        positives.blot(free, first, width)
        others, columns = _topk(free, min(k, width))
        scores_of.append(others)
        codes_of.append(columns + first)
    ranked = torch.cat([*scores_of, of_positives], dim=1).sort(dim=1, descending=True, stable=True)
    codes = torch.cat([*codes_of, table + n_items], dim=1).gather(1, ranked.indices)
    check_finite(bool(torch.stack(extremes).isfinite().all()))
    short = (0, max(0, k - codes.shape[1]))
    best_scores = F.pad(ranked.values.double(), short, value=-torch.inf)[:, :k]
    return best_scores.cpu().numpy(), F.pad(codes, short)[:, :k].cpu().numpy()


class _Moved(NamedTuple):
    """Lists on the device."""

    bounds: Tensor
    position: Tensor
    """Whose each of the items is."""
    items: Tensor
    longest: int

    @classmethod
    def of(cls, lists: Lists, device: torch.device) -> _Moved:
        bounds, items = (torch.from_numpy(rows).to(device) for rows in lists)
        users = torch.arange(len(bounds) - 1, device=device)
        position = users.repeat_interleave(bounds.diff(), output_size=len(items))
        return cls(bounds, position, items, int(np.diff(lists.bounds).max(initial=0)))

    def table(self) -> Tensor:
        """(B, P) with a row for each list, filled up with −1."""
        table = self.items.new_full((len(self.bounds) - 1, self.longest), -1)
        place = torch.arange(len(self.items), device=table.device) - self.bounds[self.position]
        return table.index_put_((self.position, place), self.items)

    def blot(self, scores: Tensor, first: int, width: int) -> None:
        """−∞ at the items of these lists."""
        at = (self.position, _columns(self.items, first, width))
        scores.index_put_(at, scores.new_full((), -torch.inf))


def _columns(items: Tensor, first: int, width: int) -> Tensor:
    """Where these items stand in a block; those of other blocks in the column behind it, where −∞ stands."""
    return torch.where((items >= first) & (items < first + width), items - first, width)


def _topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(B, W) → (B, k) the k highest of each row, and their columns; W is a multiple of the tile.

    A tile is every T-th column. None of the k lies outside the k tiles with the highest maxima
    (or as good a one lies inside), so most of a row is read once, for the maxima.
    """
    tiles = scores.view(len(scores), _TILE, -1)  # (B, 64, T)
    n_tiles = tiles.shape[2]
    if n_tiles <= k:
        found = scores.topk(k, dim=1)
        return found.values, found.indices
    which = tiles.amax(dim=1).topk(k, dim=1).indices  # (B, k)
    found = tiles.gather(2, which[:, None].expand(-1, _TILE, -1)).flatten(1).topk(k, dim=1)
    return found.values, found.indices // k * n_tiles + which.gather(1, found.indices % k)
