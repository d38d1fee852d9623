"""The k best of all known items for each user, on any device, in bounded memory.

Scores are computed a block of users × items at a time, and only the best so far outlive a block.
A higher score is better, and among equal scores a lower code: the code of an item is its row, plus
the number of items if it is a positive. So a positive loses to every other item with the same
score, and a model that gives all items one score has no hits.

On the CPU a compiled pass keeps a heap for each user. `torch.topk` made the evaluation of
MovieLens 1.7 × slower, and longer lists of items 2.5 × (docs/lab-log.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairstream.compiled import njit, parallel_ranges
from fairstream.data import Rows
from fairstream.errors import ModelError
from fairstream.evaluation.lists import Floats, ItemLists, Lists, Mask
from fairstream.evaluation.requests import Requests, rank_blocks
from fairstream.models import Context, Scorer, Tilt

Blocks = Iterable[tuple[int, Tensor]]
"""(first item, scores (B, W) of the W items from it on) for the same B users, block after block."""
Heaps = tuple[Floats, Rows]  # (B, k) scores and codes, the worst at the root; an empty place holds (−∞, 2 n_items)
_TILE = 64
_SCORES_OF_A_FEW = 1 << 18
_MANY = 1 << 15  # items, from which on few allowed ones are scored one by one
_COST_OF_ONE = 8  # times the cost of a score in a block of all items
_MAX_VIEWS = 8  # up to this many runs of neighbouring items are ranked as views; columns picked one by one are copied


class TopKBackend(NamedTuple):
    """How a device finds the k best items."""

    top_k: Callable[[Blocks, ItemLists, ItemLists, int, int], tuple[Floats, Rows]]
    """(blocks, seen, positives, n_items, k) → (B, k) scores and codes, best first."""
    items_at_once: int
    scores_at_once: int


@dataclass(frozen=True, eq=False)
class _AllItems:
    """Ranks all items, or the `allowed` ones, for a block of requests."""

    model: Scorer
    requests: Requests
    blocks: Sequence[range]  # of the items
    k: int
    n_ranked: int
    allowed: Rows | None
    tilts: Tilt | None = None  # (L, n_items) rank each list at L levels

    @torch.no_grad()
    def __call__(self, block: range) -> tuple[Floats, Rows]:
        """(B, k) scores and codes; with `tilts` (L, B, k)."""
        part, device = self.requests.where(slice(block.start, block.stop)), self.model.device
        users, context = torch.from_numpy(part.users).to(device), part.context()
        few, n_items = None, self.blocks[-1].stop
        if self.allowed is not None and n_items >= _MANY and len(self.allowed) * _COST_OF_ONE < n_items:
            few = self.allowed
        scored = self._all(users, context) if few is None else self._only_few(few, users, context)
        seen, positives = part.seen(), part.positives
        if self.allowed is not None:
            seen, positives = seen.among(self.allowed), positives.among(self.allowed)
        if self.tilts is not None:
            scored = list(scored)  # all levels share the scores

        def ranked(tilt: Tilt | None) -> tuple[Floats, Rows]:
            at_level = scored if tilt is None else self._tilted(scored, tilt, context, few)
            at_level = at_level if self.allowed is None or few is not None else _only(at_level, self.allowed)
            return backend_for(device).top_k(at_level, seen, positives, self.n_ranked, self.k)

        if self.tilts is None:
            return ranked(part.contexts.tilt)
        scores, codes = zip(*map(ranked, self.tilts), strict=True)
        return np.stack(scores), np.stack(codes)

    def _all(self, users: Tensor, context: Context) -> Blocks:
        score = self.model.block_scorer(users, context)
        for items in self.blocks:
            yield items.start, check_shape(score(items.start, items.stop), (len(users), len(items)))

    def _only_few(self, few: Rows, users: Tensor, context: Context) -> Blocks:
        """Score these items one by one: the first items are their places."""
        width = max(1, _SCORES_OF_A_FEW // len(users))
        for first in range(0, len(few), width):
            part = torch.from_numpy(few[first : first + width]).to(users.device).expand(len(users), -1)
            yield first, check_shape(self.model(users, part, context), tuple(part.shape))

    def _tilted(self, scored: Blocks, tilt: Tilt, context: Context, few: Rows | None) -> Blocks:
        """Items after the end of `tilt` came later: their popularity stays as it is."""
        shifts = torch.zeros(self.blocks[-1].stop)
        shifts[: len(tilt)] = torch.from_numpy(tilt[: len(shifts)])
        shifts = (shifts if few is None else shifts[torch.from_numpy(few)]).to(self.model.device)
        for first, scores in scored:
            yield first, self.model.tilted(scores, shifts[first : first + scores.shape[1]], context)


def top_k_of_all(model: Scorer, requests: Requests, *, n_items: int, k: int, allowed: Rows | None = None) -> Lists:
    """The k best of the first `n_items` items that the user has not had; among equals the positives come last.

    Items that the model cannot score are not ranked. With `allowed`, sorted item rows, only these are ranked.
    """
    if (scorable := requests.contexts.items) is not None:
        allowed = scorable if allowed is None else np.intersect1d(allowed, scorable, assume_unique=True)
    if allowed is not None and len(allowed) == 0:
        shape = (len(requests), k)
        return Lists(np.full(shape, -1), np.full(shape, -np.inf), np.zeros(shape, np.bool_))
    backend = backend_for(model.device)
    # Allocate once: small results between large temporary arrays would keep the memory of those from being freed.
    scores, codes = np.empty((len(requests), k)), np.empty((len(requests), k), np.int64)
    # Score all items at once for a few users: many models then copy none of their rows.
    at_once = max(backend.items_at_once, _SCORES_OF_A_FEW // max(1, len(requests)))
    blocks = list(chunks(n_items, at_once=at_once))
    n_ranked = n_items if allowed is None else len(allowed)

    def write(at: slice, ranked: tuple[Floats, Rows]) -> None:
        scores[at], codes[at] = ranked

    of_requests = list(chunks(len(requests), width=blocks[0].stop, at_once=backend.scores_at_once))
    rank_blocks(_AllItems(model, requests, blocks, k, n_ranked, allowed), of_requests, write, model, requests.index)
    return _decode_allowed(scores, codes, n_ranked, allowed)


def top_k_at_levels(model: Scorer, requests: Requests, tilts: Tilt, *, n_items: int, k: int) -> tuple[Lists, Mask]:
    """The lists as served, and (L, R, k) their hits at L levels (`tilts` is (L, n_items)), from the same scores."""
    allowed, served = requests.contexts.items, requests.contexts.tilt
    if not model.has_levels or (allowed is not None and len(allowed) == 0):  # levels change nothing
        lists = top_k_of_all(model, requests, n_items=n_items, k=k)
        return lists, np.broadcast_to(lists.hits, (len(tilts), *lists.hits.shape))
    first = np.zeros(n_items, np.float32)
    if served is not None:
        first[: len(served)] = served[:n_items]
    backend, n_ranked = backend_for(model.device), n_items if allowed is None else len(allowed)
    blocks = list(chunks(n_items, at_once=max(backend.items_at_once, _SCORES_OF_A_FEW // max(1, len(requests)))))
    scores, codes = np.empty((len(requests), k)), np.empty((len(requests), k), np.int64)
    hits = np.zeros((len(tilts), len(requests), k), np.bool_)

    def write(at: slice, ranked: tuple[Floats, Rows]) -> None:
        scores[at], codes[at] = ranked[0][0], ranked[1][0]
        hits[:, at] = (ranked[1][1:] >= n_ranked) & np.isfinite(ranked[0][1:])

    of_requests = list(chunks(len(requests), width=n_items, at_once=backend.scores_at_once))
    rank = _AllItems(model, requests, blocks, k, n_ranked, allowed, np.vstack([first[None], tilts]))
    rank_blocks(rank, of_requests, write, model, requests.index)
    return _decode_allowed(scores, codes, n_ranked, allowed), hits


def _only(blocks: Blocks, allowed: Rows) -> Iterator[tuple[int, Tensor]]:
    """Yield the columns of the allowed items; the first items are now places in `allowed`."""
    for first, scores in blocks:
        begin, end = np.searchsorted(allowed, [first, first + scores.shape[1]]).tolist()
        columns = allowed[begin:end] - first
        breaks = np.flatnonzero(np.diff(columns) > 1) + 1
        if len(breaks) < _MAX_VIEWS:
            for run in np.split(columns, breaks) if len(columns) else ():
                yield begin + int(np.searchsorted(columns, run[0])), scores[:, run[0] : run[-1] + 1]
        else:
            yield begin, scores[:, torch.from_numpy(columns).to(scores.device)]


def _decode_allowed(scores: Floats, codes: Rows, n_ranked: int, allowed: Rows | None) -> Lists:
    """Items and hits from codes that count the allowed items."""
    lists = decode(scores, codes, n_ranked)
    if allowed is None:
        return lists
    return Lists(np.where(lists.items >= 0, allowed[lists.items], -1), lists.scores, lists.hits)


def decode(scores: Floats, codes: Rows, n_items: int) -> Lists:
    """Items and hits from their codes."""
    is_item = np.isfinite(scores)
    return Lists(np.where(is_item, codes % n_items, -1), scores, (codes >= n_items) & is_item)


def chunks(n: int, *, width: int = 1, at_once: int) -> Iterator[range]:
    """Split 0 … n into ranges of at most `at_once` / `width` each."""
    step = max(1, at_once // max(1, width))
    return (range(start, min(start + step, n)) for start in range(0, n, step))


def check_shape(scores: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the scores; raise ModelError for another shape, because compiled code would read beyond its end."""
    if tuple(scores.shape) != shape:
        raise ModelError(f"a model must give a score per item: expected the shape {shape}, got {tuple(scores.shape)}")
    return scores


def _check_finite(is_finite: bool) -> None:
    """Raise a `ModelError` for a diverged model, which ranking would hide."""
    if not is_finite:
        raise ModelError("the model returned NaN or infinite scores, which are never ranked; it has probably diverged")


def _as_floats(scores: Tensor) -> Tensor:
    """Return the scores in a type that both backends compare exactly."""
    return scores if scores.dtype in (torch.float32, torch.float64) else scores.double()


# ── on the CPU ───────────────────────────────────────────────────────────────────────────


def topk_cpu(blocks: Blocks, seen: ItemLists, positives: ItemLists, n_items: int, k: int) -> tuple[Floats, Rows]:
    """(B, k) scores and codes, best first, by one pass that reads each block while it is in the cache."""
    n_users = len(seen)
    best, codes = np.empty((n_users, k)), np.full((n_users, k), 2 * n_items)
    for first, scores in blocks:
        flat, stride = _flat(_as_floats(scores))
        if first == 0:
            best = np.full((n_users, k), -np.inf, flat.dtype)
        block = (flat, stride, scores.shape[1], first)
        pairs = (seen.bounds, seen.items), (positives.bounds, positives.items)
        _check_finite(all(parallel_ranges(n_users, partial(_scan, block, *pairs, n_items, (best, codes)))))
    parallel_ranges(n_users, partial(_sort_heaps, (best, codes)))
    return best, codes


def _flat(scores: Tensor) -> tuple[Floats, int]:
    """The scores as a flat array and the stride of its rows; seldom a copy."""
    scores = scores if scores.stride(1) == 1 else scores.contiguous()
    stride = scores.stride(0)
    return scores.as_strided(((len(scores) - 1) * stride + scores.shape[1],), (1,)).numpy(), stride


@njit
def _scan(
    block: tuple[Floats, int, int, int],
    seen: tuple[Rows, Rows],
    positives: tuple[Rows, Rows],
    n_items: int,
    heaps: Heaps,
    begin: int,
    end: int,
) -> bool:
    """Add a block of scores to the heaps of rows `begin` … `end`; False: some score is not finite.

    A block is (scores, stride, width, first): the scores of row u for the items `first` … `first` +
    `width` start at u · `stride`. Lists are (bounds, items) as in `ItemLists`.
    """
    flat, stride, width, first = block
    (seen_bounds, seen_items), (positive_bounds, positive_items), (best, codes) = seen, positives, heaps
    zero = flat.dtype.type(0)
    lowest = flat.dtype.type(-np.inf)
    for u in range(begin, end):
        row, heap, held = flat[u * stride : u * stride + width], best[u], codes[u]
        check = zero  # one sum is vectorised, while a branch for each score is not
        for j in range(width):
            check += row[j] * zero  # 0 for a finite number, else NaN
        if check != zero:
            return False
        s, seen_end = seen_bounds[u], seen_bounds[u + 1]
        p, positive_end = positive_bounds[u], positive_bounds[u + 1]
        s += np.searchsorted(seen_items[s:seen_end], first)
        p += np.searchsorted(positive_items[p:positive_end], first)
        bar = _bar(heap, held, n_items, lowest)
        for start in range(0, width, _TILE):
            tile = row[start : start + _TILE]
            n_above = 0  # most tiles hold nothing good enough, which a loop without branches finds fast
            for j in range(len(tile)):
                n_above += tile[j] > bar
            if n_above == 0:
                continue
            for j in range(len(tile)):
                score = tile[j]
                if score <= bar:
                    continue
                item = first + start + j
                while s < seen_end and seen_items[s] < item:
                    s += 1
                if s < seen_end and seen_items[s] == item:
                    continue
                while p < positive_end and positive_items[p] < item:
                    p += 1
                code = item + n_items if p < positive_end and positive_items[p] == item else item
                if score > heap[0] or code < held[0]:
                    _replace_root(heap, held, len(heap), score, code)
                    bar = _bar(heap, held, n_items, lowest)
    return True


@njit
def _sort_heaps(heaps: Heaps, begin: int, end: int) -> None:
    """Turn the heaps of rows `begin` … `end` into lists, best first."""
    best, codes = heaps
    for u in range(begin, end):
        heap, held = best[u], codes[u]
        for last in range(len(heap) - 1, 0, -1):
            score, code = heap[last], held[last]
            heap[last], held[last] = heap[0], held[0]
            _replace_root(heap, held, last, score, code)


@njit
def _bar(heap: Floats, held: Rows, n_items: int, lowest: float) -> float:
    """The score that an item must exceed: the root's, or the next below it where an equal score may be better."""
    if n_items <= held[0] < 2 * n_items:
        return np.nextafter(heap[0], lowest)
    return heap[0]


@njit
def _replace_root(heap: Floats, held: Rows, size: int, score: float, code: int) -> None:
    """Drop the root of the first `size` pairs, and put this pair where it belongs."""
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and _is_worse(heap[child + 1], held[child + 1], heap[child], held[child]):
            child += 1
        if _is_worse(score, code, heap[child], held[child]):
            break
        heap[hole], held[hole] = heap[child], held[child]
        hole = child
    heap[hole], held[hole] = score, code


@njit
def _is_worse(score: float, code: int, other_score: float, other_code: int) -> bool:
    return score < other_score or (score == other_score and code > other_code)


# ── on an accelerator ────────────────────────────────────────────────────────────────────


def topk_torch(blocks: Blocks, seen: ItemLists, positives: ItemLists, n_items: int, k: int) -> tuple[Floats, Rows]:
    """(B, k) scores and codes: the best other items of each block, and all positives, sorted.

    `topk` guarantees no order of equal scores, so it ranks only items that are not positives. The
    positives follow them, and a stable sort leaves them behind their equals. The order of other
    items with equal scores is undefined. The host does not wait before the end.
    """
    scores_of, codes_of, extremes = list[Tensor](), list[Tensor](), list[Tensor]()
    for first, block in blocks:
        scores = _as_floats(block)
        width = scores.shape[1]
        if first == 0:
            seen_at, seen_items, _ = _on_device(seen, scores.device)
            positive_at, positive_items, place = _on_device(positives, scores.device)
            table = positive_items.new_full((len(positives), int(positives.counts.max(initial=0))), -1)  # (B, P)
            table.index_put_((positive_at, place), positive_items)
            of_positives = scores.new_full(table.shape, -torch.inf)
        extremes += scores.aminmax()
        # A copy, because a model may return a view of its own weights. At least one column is added.
        free = F.pad(scores, (0, _TILE - width % _TILE), value=-torch.inf)
        _mask(free, seen_at, seen_items, first, width)
        here = free.gather(1, _columns(table, first, width))
        of_positives = torch.maximum(of_positives, here)
        _mask(free, positive_at, positive_items, first, width)
        others, columns = _topk(free, min(k, width))
        scores_of.append(others)
        codes_of.append(columns + first)
    ranked = torch.cat([*scores_of, of_positives], dim=1).sort(dim=1, descending=True, stable=True)
    codes = torch.cat([*codes_of, table + n_items], dim=1).gather(1, ranked.indices)
    _check_finite(bool(torch.stack(extremes).isfinite().all()))
    short = (0, max(0, k - codes.shape[1]))
    best_scores = F.pad(ranked.values.double(), short, value=-torch.inf)[:, :k]
    return best_scores.cpu().numpy(), F.pad(codes, short)[:, :k].cpu().numpy()


def _on_device(lists: ItemLists, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For each item of the lists its user's position, the item, and its place in the list."""
    bounds, items = (torch.from_numpy(rows).to(device) for rows in (lists.bounds, lists.items))
    users = torch.arange(len(lists), device=device)
    position = users.repeat_interleave(bounds.diff(), output_size=len(items))
    return position, items, torch.arange(len(items), device=device) - bounds[position]


def _mask(scores: Tensor, position: Tensor, items: Tensor, first: int, width: int) -> None:
    """−∞ at these items of these rows."""
    scores.index_put_((position, _columns(items, first, width)), scores.new_full((), -torch.inf))


def _columns(items: Tensor, first: int, width: int) -> Tensor:
    """The columns of these items in a block; items of other blocks get the padding column, which holds −∞."""
    return torch.where((items >= first) & (items < first + width), items - first, width)


def _topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(B, W) → (B, k) the k highest of each row, and their columns; W is a multiple of the tile.

    A tile is every T-th column. The k tiles with the highest maxima hold the k highest scores (or
    equal ones), so most of a row is read only once, for the maxima.
    """
    tiles = scores.view(len(scores), _TILE, -1)  # (B, 64, T)
    n_tiles = tiles.shape[2]
    if n_tiles <= k:
        best = scores.topk(k, dim=1)
        return best.values, best.indices
    which = tiles.amax(dim=1).topk(k, dim=1).indices  # (B, k)
    best = tiles.gather(2, which[:, None].expand(-1, _TILE, -1)).flatten(1).topk(k, dim=1)
    return best.values, best.indices // k * n_tiles + which.gather(1, best.indices % k)


BACKENDS = {"cpu": TopKBackend(topk_cpu, items_at_once=1 << 12, scores_at_once=1 << 20)}  # a block stays in the cache
_ACCELERATOR = TopKBackend(topk_torch, items_at_once=1 << 16, scores_at_once=1 << 26)  # a block keeps a GPU busy


def backend_for(device: torch.device) -> TopKBackend:
    """Return the backend of a device."""
    return BACKENDS.get(device.type, _ACCELERATOR)
