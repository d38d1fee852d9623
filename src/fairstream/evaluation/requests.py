"""What a model is asked for in a test: one list a user for a whole period, or one at each event."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fairstream.data import History, Rows, SeenItems
from fairstream.data.log import first_of_each, pair_keys
from fairstream.evaluation.lists import ItemLists, Mask, Truth
from fairstream.models import Context, ContextBuilder, Scorer


@dataclass(frozen=True, eq=False)
class Requests:
    """Lists to be made, one a row, and what they are tested on."""

    users: Rows
    """(R,) user rows, sorted; in the task `event` a user's events follow each other in chronological order."""
    positives: ItemLists
    """What each list should hold."""
    history: History
    """What the users have had, which is left out of their lists."""
    contexts: ContextBuilder
    before: Rows | None = None
    """(R,) in the task `event`, the position in `history` at which each list is made; None: all at its end."""
    n_earlier: Rows | None = None
    """(R,) in the task `event`, how many events the user had before each."""

    @classmethod
    def of_period(cls, users: Rows, items: Rows, history: History, contexts: ContextBuilder) -> Requests:
        """One list for each user of the events, made after `history` and tested on all of the user's events.

        Items that the user has had are in no list, so they are not tested.
        """
        pairs = SeenItems.from_pairs(users, items).without(history.seen)
        present = pairs.distinct_users()
        return cls(present, ItemLists(*pairs.lists(present)), history, contexts)

    @classmethod
    def of_events(cls, users: Rows, items: Rows, history: History, contexts: ContextBuilder) -> Requests:
        """One list for each event, made from everything before it and tested on its item.

        Earlier events of the period are known and not learned; a model has no row for items that
        are not in `history`, so it does not read events with them. An event with an item that the user has had is
        known like the others, and not tested: no list holds the item.
        """
        is_known = items < history.n_items
        observed = history.after(users[is_known], items[is_known], ends_period=False)
        before = len(history) + np.cumsum(is_known) - is_known
        order = np.argsort(users, kind="stable")
        rows = users[order]
        n_earlier = history.latest(rows, 1)[1] + np.arange(len(rows)) - np.searchsorted(rows, rows)
        before, tested = before[order], items[order]
        is_first = _is_first(rows, tested, history)
        if not is_first.all():
            rows, tested, before, n_earlier = (part[is_first] for part in (rows, tested, before, n_earlier))
        positives = ItemLists(np.arange(len(rows) + 1), tested)
        return cls(rows, positives, observed, contexts.observing(observed), before, n_earlier)

    def __len__(self) -> int:
        return len(self.users)

    def where(self, rows: slice | Mask) -> Requests:
        """Some of the rows."""
        before, n_earlier = (None if part is None else part[rows] for part in (self.before, self.n_earlier))
        return replace(
            self, users=self.users[rows], positives=self.positives.where(rows), before=before, n_earlier=n_earlier
        )

    def index(self) -> None:
        """Sort now what `seen` and `context` look up, so that copies of these requests need not."""
        self.contexts.index()
        if self.before is not None:
            self.history.index()

    def seen(self) -> ItemLists:
        """What each list must not hold: the items that the user has had by then."""
        return ItemLists(*self.history.items_of(self.users, self.before))

    def context(self) -> Context:
        """What the model may know at the moment of each row."""
        return self.contexts.at(self.users, self.before)

    def can_score(self, model: Scorer) -> Mask:
        """Which rows the model answers; the fallback answers the others.

        Each user's very first event is the fallback's, unless the model is made to answer newcomers.
        """
        mask = self.contexts.can_score(model, self.users, self.before)
        return mask if self.n_earlier is None or model.answers_newcomers else mask & (self.n_earlier > 0)

    def truth(self, learned: History) -> Truth:
        """What metrics see of these rows, for a model that has learned from the history `learned`."""
        return Truth.of(self.users, self.positives, learned, observed=self.history, before=self.before)


def _is_first(users: Rows, items: Rows, history: History) -> Mask:
    """Whether each event is the user's first with its item, here and in the history."""
    mask: Mask = ~history.seen.has(users, items)
    first = first_of_each(pair_keys(users, items))
    if len(first) < len(users):
        is_first = np.zeros_like(mask)
        is_first[first] = True
        mask &= is_first
    return mask
