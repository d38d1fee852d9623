"""The events of one training, cut into batches: of interactions, or of windows of users' sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fairstream.data import UNKNOWN, History, Rows
from fairstream.data.groups import Codes
from fairstream.data.history import Positions
from fairstream.errors import DataError
from fairstream.sampling import NegativeSampler

Floats = np.ndarray[Any, np.dtype[np.float64]]
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
    positions: Positions
    """Where each interaction is in the history."""
    n_without_negatives: int = 0
    """Events left out because their user has too few items left to draw negatives from."""

    def __len__(self) -> int:
        """How many batches there are; the last one may be short."""
        return math.ceil(len(self.users) / self.size)

    @property
    def positives(self) -> Rows:
        """The items to learn."""
        return self.items

    def span(self, b: int) -> slice:
        """Where batch b lies."""
        return slice(b * self.size, min((b + 1) * self.size, len(self.users)))

    @cached_property
    def have_two_groups(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each batch has users of two groups or more; one that has not has no disparity."""
        mask = np.empty(len(self), dtype=np.bool_)
        at_once = max(1, _INTERACTIONS_AT_ONCE // self.size)
        for first in range(0, len(self), at_once):
            part = self.codes[self.users[first * self.size : (first + at_once) * self.size]]
            starts = np.arange(0, len(part), self.size)
            highest = np.maximum.reduceat(part, starts)
            lowest = np.minimum.reduceat(np.where(part == UNKNOWN, np.iinfo(part.dtype).max, part), starts)
            mask[first : first + at_once] = lowest < highest
        return mask


def cut_batches(
    history: History, events: Positions, codes: Codes, sampler: NegativeSampler, *, n_drawn: int, size: int
) -> Batches:
    """The events whose user has `n_drawn` items left to draw negatives from, cut into batches."""
    n_before, events = len(events), _with_negatives(history, events, sampler, n_drawn)
    users, items = history.users_at(events), history.items_at(events)
    if users.max() >= len(codes) or items.max() >= sampler.n_items:  # compiled code would read beyond the end
        raise DataError("the events name users or items that do not exist; the log has probably been changed by hand")
    return Batches(users, items, codes, min(size, len(users)), events, n_before - len(events))


def _with_negatives(history: History, events: Positions, sampler: NegativeSampler, n_drawn: int) -> Positions:
    """The events whose user has `n_drawn` items left to draw from; there has to be one."""
    if len(events) == 0:
        raise DataError("there are no events to learn")
    has_enough = sampler.n_items - np.diff(sampler.bounds) >= n_drawn
    if not has_enough.all():
        events = np.asarray(events)[has_enough[sampler.place(history.users_at(events))]]
    if len(events) == 0:
        raise DataError(
            f"{n_drawn} distinct negatives an interaction (the larger of n_negatives and "
            f"n_fairness_negatives) are more than any user has items left to draw from; ask for fewer"
        )
    return events


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of users' sequences: what was known at each place, and what came next."""

    history: Rows
    """(W, L) padded with −1 at the front."""
    targets: Rows
    """(W, L) the item that followed each place; −1 where it is not to be learned."""
    users: Rows
    """(W,)"""
    codes: Codes
    """The group of every user row."""
    size: int
    """Windows per batch."""
    weights: Floats
    """(W,) how much each target of a window counts; 1 on average over all targets."""
    n_without_negatives: int = 0
    """Events left out because their user has too few items left to draw negatives from."""

    def __len__(self) -> int:
        return math.ceil(len(self.users) / self.size)

    @property
    def positives(self) -> Rows:
        """The items to learn."""
        return self.targets[self.targets >= 0]

    def span(self, b: int) -> slice:
        """Where batch b lies."""
        return slice(b * self.size, min((b + 1) * self.size, len(self.users)))

    @cached_property
    def have_two_groups(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each batch has users of two groups or more."""
        groups = [self.codes[self.users[self.span(b)]] for b in range(len(self))]
        return np.array([len(np.unique(part[part != UNKNOWN])) > 1 for part in groups], dtype=np.bool_)

    @cached_property
    def first_target(self) -> Rows:
        """(batches + 1,) how many targets there are before each batch."""
        counts = (self.targets >= 0).sum(axis=1)
        before = np.append(0, np.cumsum(counts))
        return before[[*(self.span(b).start for b in range(len(self))), len(self.users)]]


def cut_windows(
    history: History,
    events: Positions,
    codes: Codes,
    sampler: NegativeSampler,
    *,
    n_drawn: int,
    length: int,
    size: int,
    activity_exponent: float = 0.0,
    user_weights: Floats | None = None,
) -> Windows:
    """Windows of `length` that end with the events to learn, as many as `size` events in a batch.

    An event counts (the number of its user's events to learn)^−`activity_exponent` times, and as many
    times as `user_weights` says for its user.

    A user's first event is predicted from padding alone. The events of users without `n_drawn` items
    left to draw negatives from are left out.
    """
    n_before, events = len(events), np.asarray(_with_negatives(history, events, sampler, n_drawn))
    users = history.users_at(events)
    learned = np.zeros(len(history), dtype=np.bool_)
    learned[events] = True
    order = np.lexsort((events, users))
    last = order[np.append(users[order][1:] != users[order][:-1], True)]
    first = order[np.append(True, users[order][1:] != users[order][:-1])]
    owner, end, begin = users[last], events[last], events[first]
    items, parts = history.items, []
    while len(owner):
        places = history.latest_positions(owner, length + 1, end + 1)  # (U, L + 1), −1 where there is none
        known, following = places[:, :-1], places[:, 1:]
        is_target = learned[following.clip(0)] & (following >= 0)
        parts.append(
            (
                np.where(known >= 0, items[known.clip(0)], -1),
                np.where(is_target, items[following.clip(0)], -1),
                owner,
                end,
            )
        )
        goes_on = places[:, 0] >= begin
        owner, end, begin = owner[goes_on], places[goes_on, 0], begin[goes_on]
    windows, targets, owners, ends = (np.concatenate(column) for column in zip(*parts, strict=True))
    useful = np.flatnonzero((targets >= 0).any(axis=1))
    useful = useful[np.argsort(ends[useful], kind="stable")]
    windows, targets, owners = windows[useful], targets[useful], owners[useful]
    n_targets = (targets >= 0).sum(axis=1)
    weights = np.bincount(owners, n_targets)[owners] ** -activity_exponent
    if user_weights is not None:
        weights *= user_weights[owners]
    weights *= n_targets.sum() / (weights * n_targets).sum()
    size = max(1, round(size / n_targets.mean()))
    return Windows(windows, targets, owners, codes, size, weights, n_before - len(events))
