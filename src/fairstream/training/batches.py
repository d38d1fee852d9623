"""The events of one training in batches: of interactions, or of windows of users' sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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


class _Cut:
    """The common part of `Batches` and `Windows`: rows of `users`, `size` of them in a batch."""

    users: Rows
    codes: Codes
    size: int

    def __len__(self) -> int:
        return math.ceil(len(self.users) / self.size)

    def span(self, b: int) -> slice:
        return slice(b * self.size, min((b + 1) * self.size, len(self.users)))

    @cached_property
    def have_two_groups(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each batch has users of two or more groups; others have no disparity."""
        mask = np.empty(len(self), dtype=np.bool_)
        at_once = max(1, _INTERACTIONS_AT_ONCE // self.size)
        for first in range(0, len(self), at_once):
            part = self.codes[self.users[first * self.size : (first + at_once) * self.size]]
            starts = np.arange(0, len(part), self.size)
            highest = np.maximum.reduceat(part, starts)
            lowest = np.minimum.reduceat(np.where(part == UNKNOWN, np.iinfo(part.dtype).max, part), starts)
            mask[first : first + at_once] = lowest < highest
        return mask


@dataclass(frozen=True, eq=False)
class Batches(_Cut):
    """Interactions in chronological order; the columns may be views of a memory-mapped log."""

    users: Rows
    items: Rows
    codes: Codes  # the group of every user row (not of every interaction)
    size: int
    positions: Positions  # the position of each interaction in the history
    n_without_negatives: int = 0  # events left out because their user has too few items left to draw negatives from

    @property
    def positives(self) -> Rows:
        return self.items


def cut_batches(
    history: History, events: Positions, codes: Codes, sampler: NegativeSampler, *, n_drawn: int, size: int
) -> Batches:
    """Cut the events into batches, without those whose user has fewer than `n_drawn` items left to draw."""
    n_before, events = len(events), _with_negatives(history, events, sampler, n_drawn)
    users, items = history.users_at(events), history.items_at(events)
    if users.max() >= len(codes) or items.max() >= sampler.n_items:  # compiled code would read past the end
        raise DataError("the events contain users or items that do not exist; was the log edited by hand?")
    return Batches(users, items, codes, min(size, len(users)), events, n_before - len(events))


def _with_negatives(history: History, events: Positions, sampler: NegativeSampler, n_drawn: int) -> Positions:
    """Return the events whose user has `n_drawn` items left to draw; raise DataError if there are none."""
    if len(events) == 0:
        raise DataError("there are no events to learn")
    has_enough = sampler.n_items - np.diff(sampler.bounds) >= n_drawn
    if not has_enough.all():
        events = np.asarray(events)[has_enough[sampler.place(history.users_at(events))]]
    if len(events) == 0:
        raise DataError(
            f"{n_drawn} distinct negatives per interaction (the larger of n_negatives and n_fairness_negatives) are "
            f"more than any user has items left; choose fewer"
        )
    return events


@dataclass(frozen=True, eq=False)
class Sequences:
    """The events of some users, one user after another, and where their windows end.

    A user with n events between the first and the last to learn has ⌈n / L⌉ windows of L places. The targets leave
    some of these places free, the user's slack. So the windows can be cut at slack + 1 places.
    """

    items: Rows  # (E,)
    learned: np.ndarray[Any, np.dtype[np.bool_]]  # (E,) whether each event is to be learned
    user: Rows  # (W,) the number of the window's user
    first: Rows  # (W,) the first event of the user
    last: Rows  # (W,) behind the user's last event to learn
    end: Rows  # (W,) behind the last target of the window, if all slack is in the user's earliest window
    slack: Rows  # (U,) of each user
    length: int
    minutes: Rows | None = None  # (E,) when each event happened; None: the model reads no times

    def cut(self, shift: Rows) -> tuple[Rows, Rows, Rows | None]:
        """(W, L) the items and the targets of all windows, and (W, L + 1) times, cut `shift` (U,) ≤ slack events later.

        Each event to learn is a target of one window. A window with fewer targets than places reads earlier items.
        """
        ends = self.end + shift[self.user]
        begin = ends - self.length  # (W,) the first possible target
        # (W, L + 1) the events of each window, the last of them a target only
        events = np.minimum(ends, self.last)[:, None] + np.arange(-self.length - 1, 0)
        is_event, events = events >= self.first[:, None], events.clip(0)
        is_target = is_event & self.learned[events] & (events >= begin[:, None])
        items = self.items[events]
        times = None if self.minutes is None else np.where(is_event, self.minutes[events], -1)
        return np.where(is_event, items, -1)[:, :-1], np.where(is_target, items, -1)[:, 1:], times

    def random_shift(self, key: int) -> Rows:
        """(U,)"""
        return np.random.default_rng(key).integers(0, self.slack + 1)


@dataclass(frozen=True, eq=False)
class Windows(_Cut):
    """Windows of users' sequences: at each place an item of the user and the item that followed it."""

    history: Rows  # (W, L) padded with −1 at the front
    targets: Rows  # (W, L) the item that followed each place; −1 where it is not to be learned
    users: Rows  # (W,)
    codes: Codes  # the group of every user row
    size: int  # windows per batch
    weights: Floats  # (W,) the weight of each target of a window; 1 on average over all targets
    sequences: Sequences
    n_without_negatives: int = 0  # events left out because their user has too few items left to draw negatives from
    times: Rows | None = None
    """(W, L + 1) whole minutes since 1970: of the events at the places, then of the last target; −1 where unknown."""

    @property
    def positives(self) -> Rows:
        return self.targets[self.targets >= 0]

    @cached_property
    def first_target(self) -> Rows:
        """(batches + 1,) the number of targets before each batch."""
        counts = (self.targets >= 0).sum(axis=1)
        before = np.append(0, np.cumsum(counts))
        return before[[*(self.span(b).start for b in range(len(self))), len(self.users)]]

    def cut_again(self, key: int) -> Windows:
        """Return the same windows, cut at random places: an event then has other events before it in its window."""
        history, targets, times = self.sequences.cut(self.sequences.random_shift(key))
        return replace(self, history=history, targets=targets, times=times)


def cut_windows(
    history: History,
    events: Positions,
    codes: Codes,
    sampler: NegativeSampler,
    *,
    n_drawn: int,
    length: int,
    size: int,
    with_times: bool = False,
    trim: bool = False,
    activity_exponent: float = 0.0,
    user_weights: Floats | None = None,
) -> Windows:
    """Cut windows of `length` whose targets are the events to learn, about `size` targets in a batch.

    The weight of an event is (the number of its user's events to learn)^−`activity_exponent`, times the user's
    `user_weights`. A user's first event is predicted from padding alone. `trim` leaves out places that are padding in
    every window.
    """
    n_before, events = len(events), np.asarray(_with_negatives(history, events, sampler, n_drawn))
    users = np.unique(history.users_at(events))  # (U,)
    bounds, positions = history.positions_of(users)  # (E,) all events of these users
    items = history.items_of_events(positions)
    minutes = history.minutes_of_events(positions) if with_times else None
    learned = events[np.searchsorted(events, positions).clip(max=len(events) - 1)] == positions
    places = np.flatnonzero(learned)
    first, last = (places[np.searchsorted(places, bounds[:-1])], places[np.searchsorted(places, bounds[1:]) - 1] + 1)
    length = min(length, int((last - bounds[:-1]).max())) if trim else length
    n_windows = -(-(last - first) // length)  # (U,)
    owner = np.repeat(np.arange(len(users)), n_windows)  # (W,)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(n_windows) - n_windows, n_windows)  # of the user's windows
    end, slack = last[owner] - number * length, n_windows * length - (last - first)
    before = np.append(0, np.cumsum(learned))
    reach = np.minimum(end + slack[owner], last[owner]), np.maximum(end - length, first[owner])
    useful = np.flatnonzero(before[reach[0]] > before[reach[1]])  # the others have no event to learn
    useful = useful[np.argsort(positions[end[useful] - 1], kind="stable")]
    owner, end = owner[useful], end[useful]
    sequences = Sequences(items, learned, owner, bounds[owner], last[owner], end, slack, length, minutes)
    windows, targets, times = sequences.cut(np.zeros_like(slack))
    n_targets, owners = (targets >= 0).sum(axis=1), users[owner]
    weights: Floats = np.asarray(np.bincount(owners, n_targets)[owners] ** -activity_exponent, np.float64)
    if user_weights is not None:
        weights *= user_weights[owners]
    weights *= n_targets.sum() / (weights * n_targets).sum()  # 1 on average over the targets
    size = max(1, round(size / n_targets.mean()))
    return Windows(windows, targets, owners, codes, size, weights, sequences, n_before - len(events), times)
