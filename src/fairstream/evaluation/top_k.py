"""The k best of each row of scores, in one pass that looks at most of them sixty-four at a time.

What has been found of a row is a heap of k pairs (score, code), its worst at the root. Of two
pairs the higher score is better, and of equal scores the lower code. The code of an item is its
row, plus the number of items if it is a positive: so a positive loses to every other item with
the same score. A place that is still empty holds (−∞, twice the number of items).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fairstream.compiled import njit
from fairstream.data import Rows

Floats = np.ndarray[Any, np.dtype[Any]]
Heaps = tuple[Floats, Rows]
"""(B, k) scores and codes."""
_TILE = 64


@njit
def scan(
    block: tuple[Floats, int, int, int],
    had: tuple[Rows, Rows],
    wanted: tuple[Rows, Rows],
    n_items: int,
    heaps: Heaps,
    begin: int,
    end: int,
) -> bool:
    """Take a block of scores into the heaps of rows `begin` … `end`; False: some score is not a number.

    A block is (scores, stride, width, first): of row u the scores of the items `first` … `first` +
    `width` lie from u · `stride` on. What a row `had` is left out, what is `wanted` of it are its
    positives: sorted items behind each other, and where the list of each row begins and ends.
    """
    flat, stride, width, first = block
    (had_bounds, had_items), (wanted_bounds, wanted_items), (best, codes) = had, wanted, heaps
    zero = flat.dtype.type(0)
    lowest = flat.dtype.type(-np.inf)
    for u in range(begin, end):
        row, heap, held = flat[u * stride : u * stride + width], best[u], codes[u]
        check = zero
        for j in range(width):
            check += row[j] * zero  # 0 for a number, NaN for what is none
        if check != zero:
            return False
        h, had_end = had_bounds[u], had_bounds[u + 1]
        w, wanted_end = wanted_bounds[u], wanted_bounds[u + 1]
        h += np.searchsorted(had_items[h:had_end], first)
        w += np.searchsorted(wanted_items[w:wanted_end], first)
        bar = _bar(heap, held, n_items, lowest)
        for start in range(0, width, _TILE):
            tile = row[start : start + _TILE]
            n_above = 0
            for j in range(len(tile)):
                n_above += tile[j] > bar
            if n_above == 0:
                continue
            for j in range(len(tile)):
                score = tile[j]
                if score <= bar:
                    continue
                item = first + start + j
                while h < had_end and had_items[h] < item:
                    h += 1
                if h < had_end and had_items[h] == item:
                    continue
                while w < wanted_end and wanted_items[w] < item:
                    w += 1
                code = item + n_items if w < wanted_end and wanted_items[w] == item else item
                if score > heap[0] or code < held[0]:
                    _replace_root(heap, held, len(heap), score, code)
                    bar = _bar(heap, held, n_items, lowest)
    return True


@njit
def settle(heaps: Heaps, begin: int, end: int) -> None:
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
    """What a score must exceed to be worth a look: the root's, or where an equal one may beat it the next below."""
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
