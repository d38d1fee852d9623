"""Scores in blocks of users × items, and lists of items beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairstream.data import Rows
from fairstream.errors import ModelError

Blocks = Iterable[tuple[int, Tensor]]
"""Scores (B, W) of W items for the same B users, and which item is the first; block after block."""


class Lists(NamedTuple):
    """Sorted items of some users behind each other: the u-th has items[bounds[u] : bounds[u + 1]]."""

    bounds: Rows
    items: Rows

    @classmethod
    def from_mask(cls, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> Lists:
        """Of the columns at which each row is True."""
        position, column = np.nonzero(mask)
        return cls(np.searchsorted(position, np.arange(len(mask) + 1)), column)

    def table(self) -> Rows:
        """(B, P) with a row for each list, filled up with −1."""
        count = np.diff(self.bounds)
        table = np.full((len(count), int(count.max(initial=0))), -1, dtype=np.int64)
        table[np.arange(table.shape[1]) < count[:, None]] = self.items
        return table


def chunks(n: int, *, width: int = 1, at_once: int) -> Iterator[range]:
    """0 … n in ranges of which each, times `width`, stays within `at_once`."""
    step = max(1, at_once // max(1, width))
    return (range(start, min(start + step, n)) for start in range(0, n, step))


def check_finite(are_numbers: bool) -> None:
    """Ranking what is NaN or infinite would hide that a model has diverged."""
    if not are_numbers:
        raise ModelError("the model returned NaN or infinite scores, which are never ranked; it has probably diverged")


def check_shape(scores: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The scores themselves, where there is one for each user and item; compiled code would read beyond others."""
    if tuple(scores.shape) != shape:
        raise ModelError(f"a model must give a score per item: expected the shape {shape}, got {tuple(scores.shape)}")
    return scores


def floats(scores: Tensor) -> Tensor:
    """In a kind of number that both ways can compare exactly."""
    return scores if scores.dtype in (torch.float32, torch.float64) else scores.double()
