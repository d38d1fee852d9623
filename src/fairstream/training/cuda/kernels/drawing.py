"""Negatives, drawn on the device: `NegativeSampler.draw` bit for bit."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def uniform(key, counter, GOLDEN: tl.constexpr, MIX_1: tl.constexpr, MIX_2: tl.constexpr):
    """SplitMix64 as a function of a counter, as in `sampling.uniform`: float64 in [0, 1)."""
    x = key.to(tl.uint64) + (counter + 1).to(tl.uint64) * GOLDEN
    x = (x ^ (x >> 30)) * MIX_1
    x = (x ^ (x >> 27)) * MIX_2
    x = x ^ (x >> 31)
    return (x >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16  # 2⁻⁵³


@triton.jit(do_not_specialize=["n_all", "n_items", "n_halvings"])
def draw(
    key_at, n_all, n_items, n_halvings, place_at, bounds_at, free_before_at, positives_at, candidates_at, filled_at,
    N: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    GOLDEN: tl.constexpr, MIX_1: tl.constexpr, MIX_2: tl.constexpr,
):  # fmt: skip
    """The positive and N distinct negatives of ROWS interactions, to `candidates` (n_all, 1 + N) and to `filled`."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < n_all
    key = tl.load(key_at)
    place = tl.load(place_at + row, mask=is_row, other=0)
    begin, end = tl.load(bounds_at + place), tl.load(bounds_at + place + 1)
    to = row * (1 + N)
    positive = tl.load(positives_at + row, mask=is_row, other=0)
    tl.store(candidates_at + to, positive, mask=is_row)
    tl.store(filled_at + to, positive.to(tl.int32), mask=is_row)
    column = tl.arange(0, WIDTH)
    taken = tl.full((ROWS, WIDTH), 1 << 62, tl.int64)
    for c in range(N):
        # The r-th of what columns 0 … c − 1 have left: r + #{k : t_k − k ≤ r} for t sorted
        left = tl.maximum(n_items - (end - begin) - c, 0)
        r = (uniform(key, row * N + c, GOLDEN, MIX_1, MIX_2) * left.to(tl.float64)).to(tl.int64)
        rank = tl.sum((taken[:, None, :] < taken[:, :, None]).to(tl.int64), axis=2)
        r += tl.sum((taken - rank <= r[:, None]).to(tl.int64), axis=1)
        taken = tl.where(column[None, :] == c, r[:, None], taken)
        # The r-th item that is not excluded: r + #{j : e_j − j ≤ r}
        low, high = begin, end
        for _ in range(n_halvings):
            middle = (low + high) // 2
            is_open = low < high
            is_before = is_open & (tl.load(free_before_at + middle, mask=is_open, other=0) <= r)
            low = tl.where(is_before, middle + 1, low)
            high = tl.where(is_open & (is_before == 0), middle, high)
        item = tl.where(left > 0, r + low - begin, -1)
        tl.store(candidates_at + to + 1 + c, item, mask=is_row)
        tl.store(filled_at + to + 1 + c, item.to(tl.int32), mask=is_row)
