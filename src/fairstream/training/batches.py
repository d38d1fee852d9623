"""The interactions of one training, cut into batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fairstream.data import UNKNOWN, Rows
from fairstream.data.groups import Codes
from fairstream.errors import DataError
from fairstream.sampling import NegativeSampler

_INTERACTIONS_AT_ONCE = 1 << 20


@dataclass(frozen=True, eq=False)
class Batches:
    """Interactions in chronological order, of which `size` at a time make a batch.

    The columns may be views of a memory-mapped log: nothing here copies them.
    """

    users: Rows
    items: Rows
    codes: Codes
    """The group of every user row (not of every interaction)."""
    size: int

    def __len__(self) -> int:
        """How many batches there are; the last one may be short."""
        return math.ceil(len(self.users) / self.size)

    def span(self, b: int) -> slice:
        """Where batch b lies."""
        return slice(b * self.size, min((b + 1) * self.size, len(self.users)))

    @cached_property
    def have_two_groups(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each batch has users of two groups or more; one that has not has no disparity."""
        found = np.empty(len(self), dtype=np.bool_)
        at_once = max(1, _INTERACTIONS_AT_ONCE // self.size)
        for first in range(0, len(self), at_once):
            part = self.codes[self.users[first * self.size : (first + at_once) * self.size]]
            starts = np.arange(0, len(part), self.size)
            highest = np.maximum.reduceat(part, starts)
            lowest = np.minimum.reduceat(np.where(part == UNKNOWN, np.iinfo(part.dtype).max, part), starts)
            found[first : first + at_once] = lowest < highest
        return found


def cut_batches(
    users: Rows, items: Rows, codes: Codes, sampler: NegativeSampler, *, n_drawn: int, size: int
) -> Batches:
    """The interactions whose user has `n_drawn` items left to draw from, cut into batches."""
    has_enough = sampler.n_items - np.diff(sampler.bounds) >= n_drawn
    if not has_enough.all():
        kept = has_enough[sampler.place(users)]
        users, items = users[kept], items[kept]
    if len(users) == 0:
        raise DataError(
            f"{n_drawn} distinct negatives an interaction (the larger of n_negatives and "
            f"n_fairness_negatives) are more than any user has items left to draw from; ask for fewer"
        )
    if users.max() >= len(codes) or items.max() >= sampler.n_items:  # compiled code would read beyond the end
        raise DataError("the events name users or items that do not exist; the log has probably been changed by hand")
    return Batches(users, items, codes, min(size, len(users)))
