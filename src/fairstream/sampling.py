"""Negatives: distinct items that a user has no event with, drawn uniformly and exactly.

A draw is a pure function of (key, position, column). No state passes from one draw to the next, so every engine, on any
device and any number of threads, draws the same negatives.

No rejection and no user × item matrix. To draw the r-th of the items that are *not* in a user's
sorted list e_0 < e_1 < …, note that e_j has j of the list before it, hence e_j − j free items
before it; the r-th free item is r + #{j : e_j − j ≤ r}. The same count leaves out the draws of
earlier columns.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairstream.compiled import njit, njit_inline, parallel_ranges
from fairstream.data import Rows, SeenItems
from fairstream.randomness import GOLDEN, MIX_1, MIX_2, uniform_at

_MANY = 1 << 20


class NegativeSampler:
    """Uniform draws without replacement from the first `n_items` rows less the `excluded` ones.

    `excluded` decides the protocol: a user's items so far (point in time), or the future ones, too (the paper's leak).
    `users` are the rows to draw for; memory is proportional to the number of their items. `among` limits the draws to
    some sorted rows, which must include all excluded ones.
    """

    def __init__(
        self,
        excluded: SeenItems,
        users: Rows,
        *,
        n_items: int,
        among: Rows | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        # The distinct rows in order. Counting needs less time and memory than sorting where there are many.
        self.users = np.unique(users) if len(users) < _MANY else np.flatnonzero(np.bincount(users))
        self.n_items, self._device = n_items, device
        bounds, items = excluded.lists(self.users)
        self._among = None if among is None else torch.from_numpy(among).to(device)
        if among is not None:  # draws are positions in `among`
            self.n_items, items = len(among), np.searchsorted(among, items)
        known = items < self.n_items
        if not known.all():
            bounds, items = np.append(0, np.cumsum(known))[bounds], items[known]
        place = np.arange(len(items)) - np.repeat(bounds[:-1], np.diff(bounds))  # j
        self.bounds, self.free_before = bounds, (items - place).astype(np.int32)
        """`free_before[bounds[a] : bounds[a + 1]]` is e_j − j for the a-th of `users`."""

    def place(self, users: Rows) -> Rows:
        """Return the position of each user row in `users`."""
        serves_everyone = len(self.users) and self.users[-1] == len(self.users) - 1
        return users if serves_everyone else np.searchsorted(self.users, users)

    def draw(self, users: Rows, n: int, key: int, first: int = 0, *, positions: Rows | None = None) -> Tensor:
        """(B, n) distinct items for each user, in random order; −1 where a user has no more.

        Row b is the draw of position `first` + b under this key, or of the b-th of `positions`.
        """
        positions = np.arange(first, first + len(users)) if positions is None else positions
        drawn = (self._draw_on_cpu if torch.device(self._device).type == "cpu" else self._draw_on_device)(
            self.place(users), n, key, positions
        )
        if self._among is None:
            return drawn
        return torch.where(drawn < 0, drawn, self._among[drawn.clamp(0, self.n_items - 1)])

    def _draw_on_cpu(self, place: Rows, n: int, key: int, positions: Rows) -> Tensor:
        out = np.empty((len(place), n), dtype=np.int64)

        def draw(begin: int, end: int) -> None:
            lists = self.bounds, self.free_before, self.n_items
            _draw(place[begin:end], positions[begin:end], *lists, np.uint64(key), out[begin:end])

        parallel_ranges(len(place), draw)
        return torch.from_numpy(out)

    def _draw_on_device(self, places: Rows, n: int, key: int, positions: Rows) -> Tensor:
        """Draw by operations on whole tensors: a GPU needs milliseconds for an epoch that takes one core a second."""
        free = torch.from_numpy((self.n_items - np.diff(self.bounds))[places]).to(self._device)
        place = torch.from_numpy(places).to(self._device)
        ranks = _distinct(free, n, key, torch.from_numpy(positions).to(self._device))  # (B, n)
        keys, starts = self._search_keys
        wanted = place[:, None] * (self.n_items + 1) + ranks.clamp(min=0)
        skipped = torch.searchsorted(keys, wanted, right=True) - starts[place][:, None]
        return torch.where(ranks < 0, ranks, ranks + skipped)

    @cached_property
    def _search_keys(self) -> tuple[Tensor, Tensor]:
        """All lists in one sorted array, with the user in the upper digits of e_j − j: one search serves all users."""
        owner = np.repeat(np.arange(len(self.users)), np.diff(self.bounds))
        keys = owner * (self.n_items + 1) + self.free_before
        return torch.from_numpy(keys).to(self._device), torch.from_numpy(self.bounds).to(self._device)


class SharedNegatives:
    """Negatives that all interactions of a batch share, drawn with replacement.

    Half of them uniformly from the catalogue, half in proportion to the items' events. A draw is a
    pure function of (key, batch). With `rows` the catalogue is these items alone.

    >>> shared = SharedNegatives(np.array([3, 1, 0]), n=2)
    >>> items, log_expected = shared.draw(key=7, batch=0)
    >>> tuple(items.shape), log_expected.exp().sum() > 0
    ((2,), tensor(True))
    """

    def __init__(self, n_events: Rows, n: int, device: torch.device | str = "cpu", *, rows: Rows | None = None) -> None:
        share = 0.5 / len(n_events) + 0.5 * n_events / max(1, n_events.sum())
        self.n, self._device = n, device
        self._cumulative = torch.from_numpy(np.cumsum(share)).to(device)
        self._log_expected = torch.from_numpy(np.log(n * share)).float().to(device)
        self._rows = None if rows is None else torch.from_numpy(rows).to(device)

    def draw(self, key: int, batch: int | Tensor) -> tuple[Tensor, Tensor]:
        """(n,) items, and the log of how often each is expected among n draws."""
        counter = batch * self.n + torch.arange(self.n, device=self._device)
        at = uniform(key, counter) * self._cumulative[-1]
        items = torch.searchsorted(self._cumulative, at, right=True).clamp(max=len(self._cumulative) - 1)
        return items if self._rows is None else self._rows[items], self._log_expected[items]


class EveryItem(SharedNegatives):
    """All of some items, each once, in place of a sample."""

    def __init__(self, rows: Rows, device: torch.device | str = "cpu") -> None:
        super().__init__(np.ones(len(rows), np.int64), len(rows), device, rows=rows)

    def draw(self, key: int, batch: int | Tensor) -> tuple[Tensor, Tensor]:
        """(n,) the items, and the log of 1."""
        assert self._rows is not None
        return self._rows, torch.zeros_like(self._log_expected)


@njit
def _draw(place: Any, positions: Any, bounds: Any, free_before: Any, n_items: Any, key: Any, out: Any) -> None:
    """Draw items into `out` (B, n) for users at `place` (B,); `positions` (B,) and `key` decide the draw."""
    n = out.shape[1]
    taken = np.empty(n, dtype=np.int64)
    for b in range(len(place)):
        begin, end = bounds[place[b]], bounds[place[b] + 1]
        n_free = n_items - (end - begin)
        n_drawn = min(n, max(0, n_free))
        _draw_ranks(n_free, np.uint64(positions[b] * n), key, taken, out[b, :n_drawn])
        _ranks_to_items(free_before, begin, end, taken, out[b, :n_drawn])
        out[b, n_drawn:] = -1


@njit_inline
def _draw_ranks(n_free: Any, counter: Any, key: Any, taken: Any, out: Any) -> None:
    """Draw distinct integers below `n_free` into `out` (n,): each is the r-th that earlier columns have not drawn."""
    for c in range(len(out)):
        rank = np.int64(uniform_at(key, counter + np.uint64(c)) * np.float64(n_free - c))
        at = 0
        while at < c and taken[at] - at <= rank:  # `taken` is sorted
            at += 1
        rank += at
        for later in range(c, at, -1):
            taken[later] = taken[later - 1]
        taken[at] = rank
        out[c] = rank


@njit_inline
def _ranks_to_items(free_before: Any, begin: Any, end: Any, at: Any, out: Any) -> None:
    """Turn each rank r into the r-th free item, r + #{j : e_j − j ≤ r}.

    The binary searches of all columns run in step and without branches, which the processor could not predict: this is
    three times as fast as one search after the other.
    """
    length = end - begin
    at[:] = begin
    while length > 1:
        half = length >> 1
        for c in range(len(out)):
            at[c] += half * (free_before[at[c] + half - 1] <= out[c])
        length -= half
    for c in range(len(out)):
        last = length == 1 and free_before[at[c]] <= out[c]
        out[c] += at[c] - begin + (1 if last else 0)


def _distinct(available: Tensor, n: int, key: int, positions: Tensor) -> Tensor:
    """(B, n) distinct integers below `available` (B,), each ordered n-tuple equally likely; −1 where none is left.

    Column c draws the r-th integer that columns 0 … c − 1 have not drawn, r uniform below available − c.
    """
    device = available.device
    counter = positions[:, None] * n + torch.arange(n, device=device)
    left = (available[:, None] - torch.arange(n, device=device)).clamp(min=0)
    wanted = (uniform(key, counter) * left).long()  # r, (B, n)
    drawn = torch.full_like(wanted, -1)
    taken = torch.empty(len(available), 0, dtype=torch.int64, device=device)  # (B, c), sorted
    for c in range(n):
        free_before = taken - torch.arange(c, device=device)
        value = wanted[:, c] + (free_before <= wanted[:, c : c + 1]).sum(dim=1)
        drawn[:, c] = torch.where(left[:, c] > 0, value, -1)
        taken = torch.cat([taken, value[:, None]], dim=1).sort(dim=1).values
    return drawn


def uniform(key: int, counter: Tensor) -> Tensor:
    """Numbers in [0, 1) with 53 random bits (float64), one for each counter: `randomness.uniform_at` of tensors.

    >>> uniform(7, torch.arange(3))
    tensor([0.3898, 0.0168, 0.9008], dtype=torch.float64)
    """
    x = _signed(key) + (counter + 1) * _signed(GOLDEN)  # 64-bit arithmetic wraps around
    x = (x ^ _shifted(x, 30)) * _signed(MIX_1)
    x = (x ^ _shifted(x, 27)) * _signed(MIX_2)
    return _shifted(x ^ _shifted(x, 31), 11).double() * 2.0**-53


def _shifted(x: Tensor, n_bits: int) -> Tensor:
    """X >> n_bits of an unsigned integer: PyTorch's shift would copy the sign bit."""
    return (x >> n_bits) & ((1 << (64 - n_bits)) - 1)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x
