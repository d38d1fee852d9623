"""The lists that a test requests of a model, one for each user, event or moment, and their ranking in blocks.

The last bit of a matrix product depends on the shapes of the matrices. The tasks of a cluster therefore rank the same
whole blocks as a single process, and the lists are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from fairstream.data import History, Rows, SeenItems
from fairstream.data.kinds import Marks
from fairstream.data.log import first_of_each, pair_keys, tied_events
from fairstream.distributed import PROCESS_BYTES, current_cluster
from fairstream.evaluation.lists import Floats, ItemLists, Mask, TrainingHistory, Truth
from fairstream.models import Context, ContextBuilder, Scorer

Rank = Callable[[range], Any]
"""From a block of requests to its ranked lists; for a cluster it is pickled, with all that it refers to."""
Write = Callable[[slice, Any], None]  # called with the rows of a block, and its ranked lists
Moments = np.ndarray[Any, Any]  # times in any unit
_TASKS_PER_CPU = 4


@dataclass(frozen=True, eq=False)
class Requests:
    """Requested lists, one a row, and what they are tested on."""

    users: Rows  # (R,) user rows, sorted; several lists of one user are in chronological order
    positives: ItemLists  # the items that each list should hold
    history: History  # the users' events; their items are left out of the users' lists
    contexts: ContextBuilder
    before: Rows | None = None
    """(R,) in the tasks `event` and `moment`, the position in `history` of each list; None: all come at its end."""
    n_earlier: Rows | None = None  # (R,) in the same tasks, the number of the user's events before each
    seconds: Floats | None = None  # (R,) in the same tasks, the time of each request; None: unknown

    @classmethod
    def of_period(cls, users: Rows, items: Rows, history: History, contexts: ContextBuilder) -> Requests:
        """Request one list for each user of the events, after `history`, and test it on all of the user's events.

        Items that the user has had are in no list, so they are not tested.
        """
        pairs = SeenItems.from_pairs(users, items).without(history.seen)
        present = pairs.distinct_users()
        return cls(present, ItemLists(*pairs.lists(present)), history, contexts)

    @classmethod
    def of_events(
        cls,
        users: Rows,
        items: Rows,
        history: History,
        contexts: ContextBuilder,
        times: Floats | None = None,
        moments: Moments | None = None,
        marks: Marks | None = None,
    ) -> Requests:
        """Request one list for each event, from everything before it, and test it on the event's item.

        With `moments`, the times of the events, a user's events with the same time share a list, made from everything
        before the first of them.

        The model reads earlier events of the period, but was not trained on them. It has no row for items that are not
        in `history`, so it does not read events with them. It also reads events that repeat an item of the user; they
        are not tested, because no list holds the item. A list is requested at the time of its event. `marks` say which
        events test, and which items may return to a list.
        """
        returns = None if marks is None or not marks.returns.any() else marks.returns
        is_known = items < history.n_items
        known_times, seconds = (None, None) if times is None else (times[is_known], times)
        known_returns = None if returns is None else returns[is_known]
        known: dict[str, Any] = {"times": known_times, "returns": known_returns, "ends_period": False}
        observed = history.after(users[is_known], items[is_known], **known)
        before = len(history) + np.cumsum(is_known) - is_known
        order = np.argsort(users, kind="stable")
        rows = users[order]
        # The user's events in the history, and those before this one in the period: `rows` is sorted.
        n_earlier = history.n_events_of(rows) + np.arange(len(rows)) - np.searchsorted(rows, rows)
        before, tested, seconds = before[order], items[order], None if times is None else times[order]
        is_tied = np.zeros(len(rows), np.bool_) if moments is None else tied_events(rows, moments[order])
        request = np.cumsum(~is_tied) - 1  # of each event
        # Whether the event is the user's first with its item, here and in the history, apart from those that return.
        is_first = np.zeros(len(rows), np.bool_)
        is_first[_not_had(pair_keys(rows, tested), None if returns is None else returns[order])] = True
        is_first &= ~history.seen.has(rows, tested)
        if marks is not None:
            is_first &= marks.judged[order]
        in_order = np.lexsort((tested, request))  # the lists of `ItemLists` are sorted
        tested, begins = tested[in_order[is_first[in_order]]], np.flatnonzero(~is_tied)
        counts = np.bincount(request[is_first], minlength=len(begins))
        begins, counts = begins[counts > 0], counts[counts > 0]
        rows, before, n_earlier = (part[begins] for part in (rows, before, n_earlier))
        seconds = None if seconds is None else seconds[begins]
        positives = ItemLists(np.concatenate([[0], np.cumsum(counts)]), tested)
        return cls(rows, positives, observed, contexts.observing(observed), before, n_earlier, seconds)

    def __len__(self) -> int:
        return len(self.users)

    def where(self, rows: slice | Mask) -> Requests:
        """Select rows."""
        chosen: dict[str, Any] = {name: getattr(self, name) for name in ("before", "n_earlier", "seconds")}
        chosen = {name: None if part is None else part[rows] for name, part in chosen.items()}
        return replace(self, users=self.users[rows], positives=self.positives.where(rows), **chosen)

    def index(self) -> None:
        """Build the indexes of `seen` and `context` now, so that copies of these requests do not have to."""
        self.contexts.index()
        if self.before is not None:
            self.history.index()

    def seen(self) -> ItemLists:
        """The items that each list must not hold: those that the user has already had."""
        return ItemLists(*self.history.items_of(self.users, self.before))

    def context(self) -> Context:
        """What the model may know at the moment of each row."""
        return self.contexts.at(self.users, self.before, self.seconds)

    def can_score(self, model: Scorer) -> Mask:
        """(R,) whether the model ranks the row's list; the fallback ranks the others.

        The fallback ranks the list of each user's very first event, unless the model can serve newcomers.
        """
        mask = self.contexts.can_score(model, self.users, self.before)
        return mask if self.n_earlier is None or model.answers_newcomers else mask & (self.n_earlier > 0)

    def truth(self, learned: History) -> Truth:
        """The truth of these rows, for a model that has learned from the history `learned`."""
        known = TrainingHistory(learned, self.history)
        return Truth(self.users, self.positives, learned.n_items, known, self.before)


def _not_had(keys: Rows, returns: Mask | None) -> Rows:
    """Return the positions of events before which the user had not had the item for good.

    >>> _not_had(np.array([7, 7, 7, 5]), np.array([True, False, True, False])).tolist()
    [0, 1, 3]
    """
    if returns is None:
        return first_of_each(keys)
    final = np.flatnonzero(~returns)
    pairs, first = np.unique(keys[final], return_index=True)
    ends = np.full(len(keys), len(keys))
    place = np.searchsorted(pairs, keys).clip(max=max(0, len(pairs) - 1))
    if len(pairs):
        ends = np.where(pairs[place] == keys, final[first][place], ends)
    return np.flatnonzero(np.arange(len(keys)) <= ends)


def rank_blocks(
    rank: Rank, blocks: Sequence[range], write: Write, model: Scorer, build_index: Callable[[], object]
) -> None:
    """Rank each block, in this process or in tasks of its cluster, each with a copy of the model.

    The tasks share what `build_index` builds. A model on a GPU ranks in this process.
    """
    cluster = current_cluster()
    if cluster is None or len(blocks) < 2 or model.device.type != "cpu":
        for block in blocks:
            write(slice(block.start, block.stop), rank(block))
        return
    build_index()
    memory = PROCESS_BYTES + 2 * n_bytes(model)
    cluster.check_memory(memory, "a copy of the model")
    parts = split(blocks, _TASKS_PER_CPU * cluster.n_cpus)

    def on_result(number: int, ranked: list[Any]) -> None:
        for block, result in zip(parts[number], ranked, strict=True):
            write(slice(block.start, block.stop), result)

    cluster.run(_rank_part, parts, shared=rank, memory=memory, on_result=on_result)


def n_bytes(model: Scorer) -> int:
    """The size of a model's parameters and buffers."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def split(blocks: Sequence[range], n_parts: int) -> list[Sequence[range]]:
    """Split blocks into at most `n_parts` runs of neighbours, of about equal length and never empty.

    >>> split([range(0, 4), range(4, 8), range(8, 9)], 2)
    [[range(0, 4)], [range(4, 8), range(8, 9)]]
    """
    n_parts = max(1, min(n_parts, len(blocks)))
    ends = [len(blocks) * part // n_parts for part in range(n_parts + 1)]
    return [blocks[begin:end] for begin, end in pairwise(ends)]


def _rank_part(blocks: Sequence[range], rank: Rank, _: object) -> list[Any]:
    return [rank(block) for block in blocks]
