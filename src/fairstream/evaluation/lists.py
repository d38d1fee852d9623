"""The arguments of a metric: the ranked lists of some users, and the events that the lists are tested on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast, get_args

import numpy as np

from fairstream.data import History, Rows
from fairstream.errors import ConfigurationError

Floats = np.ndarray[Any, np.dtype[Any]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
PeriodTask = Literal["event", "moment", "next"]
"""When the lists of a test on one period are made: at each event, at each moment with events, or once."""


def check_period_task(task: str) -> PeriodTask:
    """Return the task; raise a ConfigurationError if it is unknown."""
    if task not in get_args(PeriodTask):
        raise ConfigurationError(f"task must be one of {', '.join(get_args(PeriodTask))}, got {task!r}")
    return cast("PeriodTask", task)


@dataclass(frozen=True, eq=False)
class ItemLists:
    """One sorted list of item rows for each of some users, of any length.

    >>> lists = ItemLists(np.array([0, 2, 2, 3]), np.array([4, 7, 1]))
    >>> len(lists), lists[0], lists.counts
    (3, array([4, 7]), array([2, 0, 1]))
    """

    bounds: Rows
    """(U + 1,) the list of user u is `items[bounds[u] : bounds[u + 1]]`."""
    items: Rows

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, user: int) -> Rows:
        """The items of the user at this position."""
        start, stop = self.bounds[user], self.bounds[user + 1]
        return self.items[start:stop]

    @property
    def counts(self) -> Rows:
        """(U,) the length of each list."""
        return np.diff(self.bounds)

    @property
    def positions(self) -> Rows:
        """For each of `items`, the position of its user."""
        return np.repeat(np.arange(len(self)), self.counts)

    @classmethod
    def from_mask(cls, mask: Mask) -> ItemLists:
        """The columns at which each row is True."""
        position, column = np.nonzero(mask)
        return cls(np.searchsorted(position, np.arange(len(mask) + 1)), column)

    def where(self, users: slice | Mask) -> ItemLists:
        """The lists of some users: of a slice of them, or of those that a mask (U,) selects."""
        if isinstance(users, slice):
            first, last, _ = users.indices(len(self))
            bounds = self.bounds[first : last + 1]
            return ItemLists(bounds - bounds[0], self.items[bounds[0] : bounds[-1]])
        counts = self.counts
        return ItemLists(np.concatenate([[0], np.cumsum(counts[users])]), self.items[np.repeat(users, counts)])

    def only(self, mask: Mask) -> ItemLists:
        """The items that the mask over `items` selects."""
        n_before = np.concatenate([[0], np.cumsum(mask)])
        return ItemLists(n_before[self.bounds], self.items[mask])

    def among(self, allowed: Rows) -> ItemLists:
        """The items that are in `allowed` (sorted item rows), as places in `allowed`."""
        place = np.searchsorted(allowed, self.items).clip(max=len(allowed) - 1)  # an item beyond the last is not equal
        part = self.only(allowed[place] == self.items)
        return ItemLists(part.bounds, np.searchsorted(allowed, part.items))

    def table(self) -> Rows:
        """(U, P) one row a list, padded with −1."""
        table = np.full((len(self), int(self.counts.max(initial=0))), -1, dtype=np.int64)
        table[np.arange(table.shape[1]) < self.counts[:, None]] = self.items
        return table


@dataclass(frozen=True, eq=False)
class Lists:
    """The ranked lists of U users, the best item first."""

    items: Rows
    """(U, k) item rows; −1 after the end of a short list."""
    scores: Floats
    """(U, k) the model's scores; −∞ after the end of a short list."""
    hits: Mask
    """(U, k) whether the item is a positive of the user."""

    @property
    def k(self) -> int:
        """The length of the lists."""
        return self.items.shape[1]

    def cut(self, k: int) -> Lists:
        """The first k items of each list."""
        return self if k >= self.k else Lists(self.items[:, :k], self.scores[:, :k], self.hits[:, :k])

    def where(self, mask: Mask) -> Lists:
        """The lists of the users that the mask (U,) selects."""
        return Lists(self.items[mask], self.scores[mask], self.hits[mask])

    def at(self, columns: Rows) -> Lists:
        """Each list with only the items at these columns (U, K), in this order."""
        return Lists(*(np.take_along_axis(part, columns, axis=1) for part in (self.items, self.scores, self.hits)))

    def merge(self, other: Lists, is_mine: Mask) -> Lists:
        """Join two sets of lists: these in the rows that `is_mine` marks, the others in the rest."""
        order = np.argsort(np.concatenate([np.flatnonzero(is_mine), np.flatnonzero(~is_mine)]))
        pairs = ((self.items, other.items), (self.scores, other.scores), (self.hits, other.hits))
        return Lists(*(np.concatenate(pair)[order] for pair in pairs))


@dataclass(frozen=True, eq=False)
class TrainingHistory:
    """The history that the model was trained on, and the same with the events observed since."""

    history: History
    observed: History

    @cached_property
    def popularity(self) -> Rows:
        return np.bincount(self.history.items, minlength=self.history.n_items)


@dataclass(frozen=True, eq=False)
class Truth:
    """The events that the lists of U users are tested on, and what was known before them.

    In the task `event` each event has a list: U counts the events, and a user with several events occurs several
    times. So does a user with several moments in the task `moment`.
    """

    users: Rows
    """(U,) user rows."""
    positives: ItemLists
    """The items of each user's test events, including those that no list can hold."""
    n_items: int
    """The number of known items."""
    known: TrainingHistory | None = None
    """The events before the test; None for tables of lists, which do not contain them."""
    before: Rows | None = None
    """(U,) in the tasks `event` and `moment`, the position of each list among the events observed so far."""

    @property
    def past(self) -> TrainingHistory:
        """What was known; a ConfigurationError for lists in tables."""
        if self.known is None:
            raise ConfigurationError(
                "the metric reads truth.history or truth.popularity, which a table of lists does not contain; "
                "choose a metric of the lists and the positives alone"
            )
        return self.known

    @property
    def n_positives(self) -> Rows:
        """(U,) the number of each user's positives."""
        return self.positives.counts

    @cached_property
    def history(self) -> ItemLists:
        """The known items that each user had interacted with before the test, or before the tested event."""
        return ItemLists(*self.past.observed.items_of(self.users, self.before))

    @property
    def popularity(self) -> Rows:
        """(n_items,) the number of events of each item before the test."""
        return self.past.popularity

    def where(self, mask: Mask) -> Truth:
        """The truth of the users that the mask (U,) selects."""
        before = None if self.before is None else self.before[mask]
        return Truth(self.users[mask], self.positives.where(mask), self.n_items, self.known, before)

    def only(self, mask: Mask) -> Truth:
        """The truth with only the positives that the mask over `positives.items` selects."""
        return replace(self, positives=self.positives.only(mask))
