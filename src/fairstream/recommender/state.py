"""The state of a recommender at one moment, and new events in its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
import torch

from fairstream.data import Columns, EventLog, Groups, History, Rows, SeenItems, Vocabulary
from fairstream.data.features import Codes, notes_on_undescribed, resized
from fairstream.data.groups import UNKNOWN
from fairstream.data.kinds import Marks, Weights
from fairstream.data.log import pair_keys
from fairstream.data.reading import is_text, open_source
from fairstream.errors import ConfigurationError, DataError
from fairstream.models import NO_LEVEL, ContextBuilder, Level, Mask, RecentPopularityScorer, Scorer, Tilt
from fairstream.strategies import Memory

Floats = np.ndarray[Any, np.dtype[np.float64]]
_NOTHING: Rows = np.empty(0, dtype=np.int64)
_EVENTS = "the events"


@dataclass(eq=False)
class MemoryUse:
    """The use of a model's memory. States over the same memory share this object."""

    is_shared: bool = False  # whether a caller may hold one of these states: no later state may reuse the memory


@dataclass(frozen=True, eq=False)
class State:
    """A recommender at one moment: immutable, valid in any thread while later states are trained."""

    model: Scorer
    """In evaluation mode."""
    optimizer: torch.optim.Optimizer | None
    """None for a closed-form model."""
    history: History
    groups: Groups
    user_ids: Vocabulary
    item_ids: Vocabulary
    trained: Mask
    """(n_users,) True for users with trained embeddings; users with too few unseen items for negatives have none."""
    trained_items: Mask
    """(n_items,) True for positives of a training; other items have an untrained row."""
    t: int
    """The period of the last update; events observed since then belong to the next one."""
    started_at: int
    """The period in which the model was trained from scratch."""
    memory: Memory = field(default_factory=dict)
    """What the strategy remembers."""
    pending: Rows = field(default_factory=lambda: _NOTHING)
    """Positions of events that were observed and will be learned with the next update."""
    unlearned: Rows = field(default_factory=lambda: _NOTHING)
    """Positions of all events that the model has not learned, ascending; includes the pending ones."""
    columns: Columns = field(default_factory=Columns)
    """How the events were read."""
    last_time: np.generic | None = None
    """The time of the latest event; its dtype is the kind of time."""
    memory_use: MemoryUse = field(default_factory=MemoryUse)
    """A state over other memory has another one."""
    features: Codes | None = None
    """(at least n_items, F) features of the items; None if the model reads none."""
    event_weights: Mapping[str, float] = field(default_factory=dict)
    """How many times the events of each group count; once if a group is missing."""
    level: Level = NO_LEVEL
    """The level in force."""
    tilt: Tilt | None = None
    """(n_items at the last update,) the tilt of each item at that level; None: no level."""
    replays: Memory = field(default_factory=dict)
    """What the target remembers: how all levels did on past periods, by group."""
    lacks_groups: bool = False
    """Whether events have weights by group and all groups are unknown, as in a checkpoint without groups."""

    @property
    def is_weighted(self) -> bool:
        return self.level != NO_LEVEL or any(weight != 1 for weight in self.event_weights.values())

    @cached_property
    def contexts(self) -> ContextBuilder:
        """Builds what the model may know of each user now; holds the items that it can score."""
        trained = torch.from_numpy(self.trained_items).to(self.model.device)
        can_score = self.model.can_score_items(trained).cpu().numpy()
        items = None if can_score.all() else np.flatnonzero(can_score)
        about = (self.model.history_length, self.history, self.trained, self.model.device, items)
        return ContextBuilder(*about, tilt=self.tilt, reads_times=self.model.reads_times)

    @cached_property
    def fallback(self) -> RecentPopularityScorer:
        """Recommends to users that the model cannot score."""
        return RecentPopularityScorer.of(self.history).eval().to(self.model.device)

    def without_groups(self) -> State:
        groups = replace(self.groups, codes=np.full_like(self.groups.codes, UNKNOWN))
        return replace(self, groups=groups, lacks_groups=self.is_weighted)

    def require_groups(self, task: str) -> None:
        """Raise a `ConfigurationError` if events have weights by group and the groups are unknown."""
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
        """Return the positions of the known events with the user and item of one of `events`."""
        pairs = [SeenItems.from_pairs(_NOTHING, _NOTHING)]
        source = open_source(events, _EVENTS, self.later_columns)
        names = [self.columns.find(role, source.like, what=_EVENTS) for role in ("user", "item")]
        for table in source.tables(names):
            users, items = self.user_ids.lookup(table[names[0]]), self.item_ids.lookup(table[names[1]])
            is_known = (users >= 0) & (items >= 0)
            pairs.append(SeenItems.from_pairs(users[is_known], items[is_known]))
        seen = reduce(SeenItems.union, pairs)
        return np.flatnonzero(seen.has(self.history.users, self.history.items))

    def share(self) -> State:
        """Mark the memory of this state as held by a caller; return the state itself."""
        self.memory_use.is_shared = True
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("contexts", "fallback")}


class NewEvents(NamedTuple):
    """Events in the rows of a state, and its vocabularies and groups as they will be with them."""

    users: Rows
    items: Rows
    user_ids: Vocabulary
    item_ids: Vocabulary
    groups: Groups
    last_time: np.generic | None = None
    notes: tuple[str, ...] = ()  # one sentence for each unusual thing about the events
    features: Codes | None = None  # as in a state
    n_items: int = 0  # the minimum number of known items; some may have no events
    times: Floats | None = None  # in seconds since 1970; None: they only order the events
    moments: np.ndarray[Any, Any] | None = None  # the times in any unit; None: they all differ
    marks: Marks | None = None  # what the kinds of events say; None: there are no kinds
    raised: tuple[Rows, Weights] | None = None  # positions of known events that count more since these, and how much

    @property
    def columns(self) -> dict[str, Any]:
        """The optional columns of these events, as `History.of` takes them."""
        columns: dict[str, Any] = {"times": self.times}
        if self.marks is not None:
            weights, returns = self.marks.weights, self.marks.returns
            columns["weights"] = weights if (weights != 1).any() else None
            columns["returns"] = returns if returns.any() else None
        return columns

    def after(self, history: History, *, ends_period: bool = True) -> History:
        """Return the history with these events at its end."""
        about: dict[str, Any] = {**self.columns, "raised": self.raised, "n_items": self.n_items}
        return history.after(self.users, self.items, **about, ends_period=ends_period)

    @classmethod
    def align(cls, log: EventLog, state: State) -> NewEvents:
        """Return the events of a log that the state has not seen; the state does not change."""
        user_ids, item_ids = state.user_ids.copy(), state.item_ids.copy()
        rows = user_ids.extend(log.user_ids.ids)
        item_rows = item_ids.extend(log.item_ids.ids)
        users, items = rows[log.users], item_rows[log.items]
        groups = state.groups.merge(rows, len(user_ids), log.groups)
        keeps_repeats = state.columns.repeats == "all"
        new = np.full(len(users), True) if keeps_repeats else ~state.history.seen.has(users, items)
        times: list[Any] = [time for time in (state.last_time, log.last_time if len(log) else None) if time is not None]
        notes = (*log.notes, *state.groups.notes_on_merge(rows, log.groups))
        features = _merged_features(log, state, item_ids)
        if features is not None:
            notes = (*notes, *notes_on_undescribed(features[item_rows]))
        last_time, n_items = max(times, default=None), 0 if features is None else len(item_ids)
        about = (groups, last_time, notes, features, n_items, None if log.seconds is None else log.seconds[new])
        marks, raised = None, None
        if log.marks is not None:
            marks = log.marks.at(new)
            known = np.flatnonzero(~new)
            raised = None if keeps_repeats else _raised(state.history, users[known], items[known], log.marks.at(known))
        return cls(users[new], items[new], user_ids, item_ids, *about, log.times[new], marks, raised)


def _raised(history: History, users: Rows, items: Rows, marks: Marks) -> tuple[Rows, Weights] | None:
    """Return which known events count more because their pairs come again with a larger weight, and how much."""
    again, owners = pair_keys(users, items), np.unique(users)
    positions = np.sort(history.positions_of(owners)[1])
    columns = history.columns_at(positions)
    keys, weights, returns = (
        pair_keys(history.users_at(positions), history.items_at(positions)),
        columns["weights"],
        columns["returns"],
    )
    weights = np.ones(len(keys), np.float32) if weights is None else weights
    final = np.flatnonzero(np.ones(len(keys), np.bool_) if returns is None else ~returns)
    order = final[np.argsort(keys[final], kind="stable")]
    place = order[np.searchsorted(keys[order], again).clip(max=max(0, len(order) - 1))] if len(order) else order
    largest = weights.copy()
    np.maximum.at(largest, place, marks.weights)
    changed = np.flatnonzero(largest > weights)
    return (positions[changed], largest[changed]) if len(changed) else None


def _merged_features(log: EventLog, state: State, item_ids: Vocabulary) -> Codes | None:
    """The features of the state, replaced by those of the log; described items join the vocabulary."""
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
