"""Everything that a recommender is at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
import torch

from fairstream.data import Columns, EventLog, Groups, History, Rows, Vocabulary
from fairstream.data.features import Codes, notes_on_undescribed, resized
from fairstream.data.groups import UNKNOWN
from fairstream.data.inputs import parts_of, to_table
from fairstream.data.seen import SeenItems
from fairstream.data.tables import is_text
from fairstream.errors import ConfigurationError, DataError
from fairstream.models import ContextBuilder, Mask, RecentPopularity, Scorer
from fairstream.strategies import Memory

_NOTHING: Rows = np.empty(0, dtype=np.int64)
_EVENTS = "the events"


@dataclass(eq=False)
class MemoryUse:
    """Who uses the memory of a model: states that share memory share this object."""

    is_shared: bool = False
    """Whether somebody else may hold one of these states, so that no later state may reuse their memory."""


@dataclass(frozen=True, eq=False)
class State:
    """A recommender at one moment: never changed, only replaced by the next one.

    Whoever holds a state can go on using it while later ones are made, in any thread.
    """

    model: Scorer
    """In evaluation mode."""
    optimizer: torch.optim.Optimizer | None
    """None for a closed-form model."""
    history: History
    groups: Groups
    user_ids: Vocabulary
    item_ids: Vocabulary
    trained: Mask
    """(n_users,) the users whom the model has been trained on; of the others it has at most made room for a row.

    Users whose events had to be left out, for want of items to draw negatives from, are not among them.
    """
    trained_items: Mask
    """(n_items,) the items that were positives in training; other items have an untrained row."""
    t: int
    """The period of the last update; events observed since then belong to the next one."""
    started_at: int
    """The period in which the model was trained from scratch."""
    memory: Memory = field(default_factory=dict)
    """What the strategy remembers."""
    pending: Rows = field(default_factory=lambda: _NOTHING)
    """Positions of events that were observed and will be learned with the next update."""
    unlearned: Rows = field(default_factory=lambda: _NOTHING)
    """Positions of all events that the model has not learned, ascending; the pending ones are among them."""
    columns: Columns = field(default_factory=Columns)
    """How the events were read."""
    last_time: np.generic | None = None
    """The time of the latest event; its dtype is the kind of time."""
    memory_use: MemoryUse = field(default_factory=MemoryUse)
    """Belongs to the memory of the model; a state over other memory has another one."""
    features: Codes | None = None
    """(at least n_items, F) what describes the items; None where the model reads no features."""
    event_weights: Mapping[str, float] = field(default_factory=dict)
    """How many times the events of each group count; once where a group is not named."""
    control: Memory = field(default_factory=dict)
    """What the controller of the disparity remembers."""
    lacks_groups: bool = False
    """Whether events have weights by group and nobody's group is known, as in a checkpoint without groups."""

    @property
    def is_weighted(self) -> bool:
        """Whether the events of some group count more or less than once."""
        return any(weight != 1 for weight in self.event_weights.values())

    @cached_property
    def contexts(self) -> ContextBuilder:
        """What the model may know of each user now, and which items it can score."""
        trained = torch.from_numpy(self.trained_items).to(self.model.device)
        can_score = self.model.can_score_items(trained).cpu().numpy()
        items = None if can_score.all() else np.flatnonzero(can_score)
        return ContextBuilder(self.model.reads, self.history, self.trained, self.model.device, items)

    @cached_property
    def fallback(self) -> RecentPopularity:
        """What users get whom the model cannot score."""
        return RecentPopularity.of(self.history).eval().to(self.model.device)

    def without_groups(self) -> State:
        """The same state with nobody's group in it."""
        groups = replace(self.groups, codes=np.full_like(self.groups.codes, UNKNOWN))
        return replace(self, groups=groups, lacks_groups=self.is_weighted)

    def require_groups(self, task: str) -> None:
        """Raise a `ConfigurationError` where events have weights and nobody's group is known to compute them from."""
        if self.lacks_groups:
            raise ConfigurationError(
                f"this was saved without groups while events have weights by group, so that {task} needs to know them; "
                f"call set_groups(users) first"
            )

    @property
    def later_columns(self) -> Columns:
        """How to read events that come later: as the first ones, with the same kinds of ids."""
        kinds = {"user": self.user_ids.ids.type, "item": self.item_ids.ids.type}
        return replace(self.columns, text_ids=tuple(role for role, kind in kinds.items() if is_text(kind)))

    def positions_of(self, events: Any) -> Rows:
        """The positions of the known events whose user and item are those of one of `events`."""
        pairs = [SeenItems.from_pairs(_NOTHING, _NOTHING)]
        for part in parts_of(events, _EVENTS):
            table = to_table(part, what=_EVENTS, columns=self.later_columns)
            users = self.user_ids.lookup(table[self.columns.find("user", table, what=_EVENTS)])
            items = self.item_ids.lookup(table[self.columns.find("item", table, what=_EVENTS)])
            is_known = (users >= 0) & (items >= 0)
            pairs.append(SeenItems.from_pairs(users[is_known], items[is_known]))
        seen = reduce(SeenItems.union, pairs)
        return np.flatnonzero(seen.has(self.history.users, self.history.items))

    @property
    def is_shared(self) -> bool:
        """Whether somebody else may hold memory of this state, so that the next one must not reuse it."""
        return self.memory_use.is_shared

    def share(self) -> State:
        """Mark the memory of this state as held by somebody else, too; returns the state itself."""
        self.memory_use.is_shared = True
        return self

    def __getstate__(self) -> dict[str, Any]:
        cached = ("contexts", "fallback")
        return {name: value for name, value in self.__dict__.items() if name not in cached}


class NewEvents(NamedTuple):
    """Events in the rows of a state, and its vocabularies and groups as they will be with them."""

    users: Rows
    items: Rows
    user_ids: Vocabulary
    item_ids: Vocabulary
    groups: Groups
    last_time: np.generic | None = None
    notes: tuple[str, ...] = ()
    """One sentence for each unusual thing about the events."""
    features: Codes | None = None
    """As in a state."""
    n_items: int = 0
    """At least so many items are known, some of them without events."""

    @classmethod
    def align(cls, log: EventLog, state: State) -> NewEvents:
        """The events of a log that the state has not seen; the state stays as it is."""
        user_ids, item_ids = state.user_ids.copy(), state.item_ids.copy()
        rows = user_ids.extend(log.user_ids.ids)
        item_rows = item_ids.extend(log.item_ids.ids)
        users, items = rows[log.users], item_rows[log.items]
        groups = state.groups.merge(rows, len(user_ids), log.groups)
        is_kept = state.columns.repeats == "all"
        new = np.full(len(users), True) if is_kept else ~state.history.seen.has(users, items)
        times: list[Any] = [time for time in (state.last_time, log.last_time if len(log) else None) if time is not None]
        notes = (*log.notes, *state.groups.notes_on_merge(rows, log.groups))
        features = _merged_features(log, state, item_ids)
        if features is not None:
            notes = (*notes, *notes_on_undescribed(features[item_rows]))
        last_time, n_items = max(times, default=None), 0 if features is None else len(item_ids)
        return cls(users[new], items[new], user_ids, item_ids, groups, last_time, notes, features, n_items)


def _merged_features(log: EventLog, state: State, item_ids: Vocabulary) -> Codes | None:
    """Those of the state, replaced by those of the log; items that are described join the vocabulary."""
    if log.features is None:
        before = state.features
        return before if before is None or len(before) == len(item_ids) else resized(before, len(item_ids))
    if state.features is None:
        raise DataError(
            "this recommender was fitted without features of items and cannot learn to read them; "
            "fit a new one with items="
        )
    rows = item_ids.extend(log.features.ids.ids)
    return log.features.replacing(state.features, rows, len(item_ids))
