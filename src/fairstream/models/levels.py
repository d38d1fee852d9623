"""Levels: how many times the events of one group count in popularity.

Popularity is part of every recommender here: the blend reads it, and it serves the users that other models cannot
score. At a level where the events of group g count w times, the popularity of item i is multiplied by

    f_i = (1 + (w − 1) s_i) / (1 + (w − 1) s),

where s_i is the share of g among the recent users of item i, and s the share of g among those of all items. So an item
that g uses as much as others do keeps its popularity. The logarithm of f_i is the item's **tilt**. A level needs no
training and is the same for everyone: no list depends on the group of the user who gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np

from fairstream.data import Groups, History
from fairstream.data.history import HALF_LIFE

LADDER: Final = (1.25, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.5, 8.0, 10.0, 13.0, 20.0, 50.0)
COARSE_LADDER: Final = (2.0, 5.0, 13.0)
"""For three groups or more, and for tests with a list for each event."""
ALONE: Final = 1000.0  # see `Level.is_alone`
PRIOR_USERS: Final = 30
"""Users of average groups that are added to those of each item. They keep chance from tilting an item with few recent
users, and bound what one user can change."""
MIN_USERS: Final = 20
"""An item is tilted if at least this many users of known groups have had it. The tilt of an item with few users would
reveal their groups."""
GRAIN: Final = 5
"""The recent users of a group are counted in fives, rounded up or down by a lot that is fixed for each item and that
nobody can predict who does not know the first events. So one user changes the tilt of an item in one case of five at
most."""
_N_OF_LOTS: Final = 1_000  # the first events, which determine the lots
Tilt = np.ndarray[Any, np.dtype[np.float32]]  # (n_items,) log f_i, or (L, n_items) of several levels


class Level(NamedTuple):
    """The events of `group` count `weight` times in popularity."""

    group: str | None = None
    weight: float = 1.0

    @property
    def is_alone(self) -> bool:
        """Whether the events of the other groups hardly count."""
        return self.weight >= ALONE

    def __str__(self) -> str:
        if self.group is None:
            return "no level"
        return f"{self.group} alone" if self.is_alone else f"{self.group} × {self.weight:g}"


NO_LEVEL: Final = Level()


def levels_of(names: Sequence[str], ladder: Sequence[float] | None = None) -> tuple[Level, ...]:
    """Return all levels of these groups, `NO_LEVEL` first; each group can be raised, with the weights of a ladder.

    >>> [str(level) for level in levels_of(["M", "F"], (2.0, 5.0))]
    ['no level', 'M × 2', 'M × 5', 'M alone', 'F × 2', 'F × 5', 'F alone']
    """
    weights = (LADDER if len(names) == 2 else COARSE_LADDER) if ladder is None else ladder
    return (NO_LEVEL, *(Level(name, weight) for name in names for weight in (*weights, ALONE)))


def tilts(history: History, groups: Groups, levels: Sequence[Level]) -> Tilt:
    """(L, n_items) the tilt of each item at each level, from the events of a history.

    >>> users, items = np.arange(6000), np.tile([0, 1], 3000)  # item 0: four users of F in five, item 1: one in five
    >>> groups = Groups.from_values("gender", ["F", "M", "F", "M", "F", "M", "F", "F", "M", "M"] * 600, advantaged="M")
    >>> print(np.exp(tilts(History.of(users, items), groups, [NO_LEVEL, Level("F", 3.0)])).round(2))
    [[1.   1.  ]
     [1.28 0.73]]
    """
    first = history.first_interactions(range(len(history)))  # a user counts once for each item
    users, items, n_items = history.users_at(first), history.items_at(first), history.n_items
    codes, n_groups = groups.codes[users].astype(np.int64), len(groups.names)
    cells, n_cells = np.where(codes < 0, n_groups, codes) * n_items + items, (n_groups + 1) * n_items
    decay = np.exp2((np.asarray(first) + 1.0 - len(history)) / max(1.0, HALF_LIFE * len(history)))
    # (G + 1, n_items) the recent users of each item by group, those without a group last
    recent = np.bincount(cells, decay, minlength=n_cells).reshape(n_groups + 1, n_items)
    is_common = np.bincount(items[codes >= 0], minlength=n_items) >= MIN_USERS
    everyone, seed = recent.sum(axis=0), crc32(items[:_N_OF_LOTS].tobytes())
    tilted = np.zeros((len(levels), n_items), np.float32)
    for code, name in enumerate(groups.names):
        lots = np.random.default_rng([seed, code]).random(n_items)  # an item keeps its lot as the catalogue grows
        own = np.minimum(GRAIN * np.floor(recent[code] / GRAIN + lots), everyone)
        overall = own.sum() / max(everyone.sum(), 1e-12)
        share = (own + PRIOR_USERS * overall) / (everyone + PRIOR_USERS)
        for at, (group, weight) in enumerate(levels):
            if group == name:
                factor = (1 + (weight - 1) * share) / (1 + (weight - 1) * overall)
                tilted[at] = np.where(is_common, np.log(factor), 0.0)
    return tilted
