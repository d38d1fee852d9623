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
from fairstream.models.scorer import WIDTHS
from fairstream.sampling import NegativeSampler

Floats = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
_INTERACTIONS_AT_ONCE = 1 << 20


@dataclass(frozen=True, eq=False)
class Batches:
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

    def __len__(self) -> int:
        return math.ceil(len(self.users) / self.size)

    def span(self, b: int) -> slice:
        return slice(b * self.size, min((b + 1) * self.size, len(self.users)))

    @cached_property
    def have_two_groups(self) -> Flags:
        """Whether each batch has users of two or more groups; others have no disparity."""
        at_once = max(1, _INTERACTIONS_AT_ONCE // self.size) * self.size
        parts = (self.codes[self.users[first : first + at_once]] for first in range(0, len(self.users), at_once))
        return np.concatenate([_differ(part, np.arange(0, len(part), self.size)) for part in parts])


def cut_batches(
    history: History, events: Positions, codes: Codes, sampler: NegativeSampler, *, n_drawn: int, size: int
) -> Batches:
    """Cut the events into batches, without those whose user has fewer than `n_drawn` items left to draw."""
    n_before, events = len(events), _with_negatives(history, events, sampler, n_drawn)
    users, items = history.users_at(events), history.items_at(events)
    if users.max() >= len(codes) or items.max() >= sampler.n_items:  # compiled code would read past the end
        raise DataError("the events contain users or items that do not exist; was the log edited by hand?")
    return Batches(users, items, codes, min(size, len(users)), events, n_before - len(events))


def _differ(codes: Codes, starts: Rows) -> Flags:
    """Whether there are two or more groups from each start to the next."""
    lowest = np.minimum.reduceat(np.where(codes == UNKNOWN, np.iinfo(codes.dtype).max, codes), starts)
    return lowest < np.maximum.reduceat(codes, starts)


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
    learned: Flags  # (E,) whether each event is to be learned
    user: Rows  # (W,) the number of the window's user
    first: Rows  # (W,) the first event of the user
    last: Rows  # (W,) behind the user's last event to learn
    end: Rows  # (W,) behind the last target of the window, if all slack is in the user's earliest window
    slack: Rows  # (U,) of each user
    length: int
    minutes: Rows | None = None  # (E,) when each event happened; None: the model reads no times
    weights: Floats | None = None  # (E,) how many times each event counts; None: once

    def cut(self, shift: Rows) -> tuple[Rows, Rows, Rows | None, Floats | None]:
        """(W, L) the items and the targets of all windows, (W, L + 1) times, and (W, L) how often each target counts.

        The windows are cut `shift` (U,) ≤ slack events later.

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
        counts = None if self.weights is None else self.weights[events][:, 1:]
        return np.where(is_event, items, -1)[:, :-1], np.where(is_target, items, -1)[:, 1:], times, counts

    @property
    def n_places(self) -> Rows:
        """(W,) the number of places that hold an item or a target in any cut."""
        ends = np.minimum(self.end + self.slack[self.user], self.last)
        return np.minimum(ends - self.first, self.length)

    def at(self, windows: Rows) -> Sequences:
        """Select windows."""
        chosen = {name: getattr(self, name)[windows] for name in ("user", "first", "last", "end")}
        return replace(self, **chosen)

    def random_shift(self, key: int) -> Rows:
        """(U,)"""
        return np.random.default_rng(key).integers(0, self.slack + 1)


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of users' sequences: at each place an item of the user and the item that followed it.

    Short windows and long ones are in different batches, so that little of a batch is padding.
    """

    history: Rows  # (W, L) padded with −1 at the front
    targets: Rows  # (W, L) the item that followed each place; −1 where it is not to be learned
    users: Rows  # (W,)
    codes: Codes  # the group of every user row
    bounds: Rows  # (batches + 1,) where each batch begins
    widths: Rows  # (batches,) the last places of a batch's windows; those before them are padding
    weights: Floats  # (W,) the weight of each target of a window; 1 on average over all targets
    sequences: Sequences
    n_without_negatives: int = 0  # events left out because their user has too few items left to draw negatives from
    times: Rows | None = None
    """(W, L + 1) whole minutes since 1970: of the events at the places, then of the last target; −1 where unknown."""
    counts: Floats | None = None
    """(W, L) how many times the target of each place counts, 1 on average over all targets; None: once."""

    @property
    def target_weights(self) -> Floats:
        """(N,) the weight of each target."""
        is_target = self.targets >= 0
        weights = self.weights.repeat(is_target.sum(axis=1))
        return weights if self.counts is None else weights * self.counts[is_target]

    @property
    def positives(self) -> Rows:
        return self.targets[self.targets >= 0]

    def __len__(self) -> int:
        return len(self.widths)

    def span(self, b: int) -> slice:
        return slice(int(self.bounds[b]), int(self.bounds[b + 1]))

    @cached_property
    def have_two_groups(self) -> Flags:
        """Whether each batch has users of two or more groups; others have no disparity."""
        return _differ(self.codes[self.users], self.bounds[:-1])

    @cached_property
    def first_target(self) -> Rows:
        """(batches + 1,) the number of targets before each batch."""
        return np.append(0, np.cumsum((self.targets >= 0).sum(axis=1)))[self.bounds]

    def cut_again(self, key: int) -> Windows:
        """Return the same windows, cut at random places: an event then has other events before it in its window."""
        history, targets, times, counts = self.sequences.cut(self.sequences.random_shift(key))
        return replace(self, history=history, targets=targets, times=times, counts=counts)


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
    ignores_padding: bool = False,
    activity_exponent: float = 0.0,
    user_weights: Floats | None = None,
) -> Windows:
    """Cut windows of `length` whose targets are the events to learn, about `size` targets in a batch.

    The weight of an event is its own, times (the number of its user's events to learn)^−`activity_exponent`, times the
    user's `user_weights`. A user's first event is predicted from padding alone. If the model `ignores_padding`, short
    windows are in batches of their own, which leave out places that are padding in every window.
    """
    n_before, events = len(events), np.asarray(_with_negatives(history, events, sampler, n_drawn))
    users = np.unique(history.users_at(events))  # (U,)
    bounds, positions = history.positions_of(users)  # (E,) all events of these users
    items = history.items_of_events(positions)
    minutes = history.minutes_of_events(positions) if with_times else None
    own: Floats | None = None
    if history.is_weighted:
        every = history.weights_at(range(len(history)))
        assert every is not None
        own = every[positions].astype(np.float64)
    learned = events[np.searchsorted(events, positions).clip(max=len(events) - 1)] == positions
    places = np.flatnonzero(learned)
    own = None if own is None else own / own[places].mean()
    first, last = (places[np.searchsorted(places, bounds[:-1])], places[np.searchsorted(places, bounds[1:]) - 1] + 1)
    length = min(length, int((last - bounds[:-1]).max())) if ignores_padding else length
    n_windows = -(-(last - first) // length)  # (U,)
    owner = np.repeat(np.arange(len(users)), n_windows)  # (W,)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(n_windows) - n_windows, n_windows)  # of the user's windows
    end, slack = last[owner] - number * length, n_windows * length - (last - first)
    before = np.append(0, np.cumsum(learned))
    reach = np.minimum(end + slack[owner], last[owner]), np.maximum(end - length, first[owner])
    useful = np.flatnonzero(before[reach[0]] > before[reach[1]])  # the others have no event to learn
    owner, end = owner[useful], end[useful]
    sequences = Sequences(items, learned, owner, bounds[owner], last[owner], end, slack, length, minutes, own)
    n_places, n_targets = sequences.n_places, before[end] - before[np.maximum(end - length, first[owner])]
    widths = (*(width for width in WIDTHS if ignores_padding and width < length), length)
    order, starts, width_of = _group(np.searchsorted(widths, n_places), positions[end - 1], n_targets, size)
    sequences, owners = sequences.at(order), users[owner[order]]
    windows, targets, times, counts = sequences.cut(np.zeros_like(slack))
    n_targets = n_targets[order]
    weights: Floats = np.asarray(np.bincount(owners, n_targets)[owners] ** -activity_exponent, np.float64)
    if user_weights is not None:
        weights *= user_weights[owners]
    weights *= n_targets.sum() / (weights * n_targets).sum()  # 1 on average over the targets
    of_batches = starts, np.array(widths)[width_of]
    return Windows(
        windows, targets, owners, codes, *of_batches, weights, sequences, n_before - len(events), times, counts
    )


def _group(kinds: Rows, times: Rows, n_targets: Rows, size: int) -> tuple[Rows, Rows, Rows]:
    """Put windows into batches of one kind and about `size` targets, in chronological order.

    Returns the order of the windows, where each batch begins, and its kind.
    """
    batches: list[Rows] = []
    for kind in range(kinds.max() + 1):
        chosen = np.flatnonzero(kinds == kind)
        if kind < kinds.max() and n_targets[chosen].sum() < size / 2:
            kinds[chosen] += 1  # too few for a step that counts as much as others
            continue
        chosen = chosen[np.argsort(times[chosen], kind="stable")]
        batches += np.array_split(chosen, max(1, min(len(chosen), round(n_targets[chosen].sum() / size))))
    batches.sort(key=lambda batch: times[batch[-1]])
    starts = np.append(0, np.cumsum([len(batch) for batch in batches]))
    return np.concatenate(batches), starts, kinds[[batch[0] for batch in batches]]
