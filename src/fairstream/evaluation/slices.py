"""Parts of a test that a mean would hide: newcomers among users and items, and people without a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fairstream.data import UNKNOWN, History, Rows
from fairstream.evaluation.blocks import Lists
from fairstream.evaluation.by_group import GroupScores
from fairstream.evaluation.user_results import UserResults

_Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Slice:
    """How the model does on one part."""

    n_users: int
    n_positives: int
    """Events that there were to find."""
    metrics: Mapping[str, GroupScores]

    def __getitem__(self, metric: str) -> GroupScores:
        return self.metrics[metric]

    def to_dict(self) -> dict[str, Any]:
        scores = {name: score.to_dict() for name, score in self.metrics.items()}
        return {"n_users": self.n_users, "n_positives": self.n_positives, **scores}


def cut_slices(tested: UserResults, items: Rows, positives: Lists, known: History) -> Iterator[tuple[str, UserResults]]:
    """The slices by name: of the users, and, with only some items counting as found, of the items.

    `items` (U, k) are the best of each tested user, `positives` what there was to find.

    A cold item is one that nobody has had yet: no recommender without knowledge of its content
    can find it, and its slice says how much that costs. A new item came with the last period.
    """
    yield "warm_users", tested.where(~tested.is_cold)
    yield "cold_users", tested.where(tested.is_cold)
    yield "no_group", tested.where(tested.codes == UNKNOWN)
    yield "cold_items", _only(tested, items, positives, lambda rows: rows >= known.n_items)
    if known.n_items_before:
        young = range(known.n_items_before, known.n_items)
        yield "new_items", _only(tested, items, positives, lambda rows: (rows >= young.start) & (rows < young.stop))


def _only(tested: UserResults, items: Rows, positives: Lists, counts: Callable[[Rows], _Mask]) -> UserResults:
    """The same lists with only some items counting, for the users who had any of them to find."""
    n_before = np.zeros(len(positives.items) + 1, dtype=np.int64)
    np.cumsum(counts(positives.items), out=n_before[1:])
    n_positives = np.diff(n_before[positives.bounds])
    hits = tested.hits * torch.from_numpy(counts(items))
    part = replace(tested, hits=hits, n_positives=torch.from_numpy(n_positives).double())
    return part.where(n_positives > 0)
