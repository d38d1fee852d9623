"""Events since the model in memory was trained."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from fairstream.data import Rows

Floats = np.ndarray[Any, np.dtype[np.float64]]
MAX_EVENTS = 2_000_000  # that a model reads; beyond them it drops those of the least recently active users
_log = logging.getLogger(__name__)


class UserEvents(NamedTuple):
    """A user's events in order: the items, the times in seconds since 1970, and whether the item may come back."""

    items: Rows
    seconds: Floats
    returns: np.ndarray[Any, np.dtype[np.bool_]]


class _Columns(NamedTuple):
    items: array[int]
    seconds: array[float]
    returns: array[int]

    def events(self) -> UserEvents:
        items, seconds, returns = self
        return UserEvents(np.array(items, np.int64), np.array(seconds, np.float64), np.array(returns, np.bool_))


_NOTHING = _Columns(array("i"), array("d"), array("b")).events()


class RecentEvents:
    """The users' recent events, by last activity; the caller holds a lock."""

    def __init__(self) -> None:
        self._of: dict[str, _Columns] = {}
        self._n = 0
        self.arrived = array("i")  # the items of all events in the order of arrival

    def __contains__(self, user: str) -> bool:
        return user in self._of

    def add(self, users: list[str], items: list[int], seconds: list[float], returns: list[bool]) -> list[str]:
        """Add new events, but not of items that their user has had for good; return the users of the added ones."""
        of_users: dict[str, list[int]] = {}
        for at, user in enumerate(users):
            of_users.setdefault(user, []).append(at)
        added: list[int] = []
        for user, places in of_users.items():
            columns = self._of.pop(user, None) or _Columns(array("i"), array("d"), array("b"))
            self._of[user] = columns
            final = {item for item, comes_back in zip(columns.items, columns.returns, strict=True) if not comes_back}
            known = {*zip(columns.items, columns.seconds, strict=True)}
            for at in places:
                if items[at] not in final and not (returns[at] and (items[at], seconds[at]) in known):
                    columns.items.append(items[at])
                    columns.seconds.append(seconds[at])
                    columns.returns.append(returns[at])
                    added.append(at)
                    known.add((items[at], seconds[at]))
                    if not returns[at]:
                        final.add(items[at])
        self._n += len(added)
        self.arrived.extend(items[at] for at in sorted(added))
        return [*{users[at]: None for at in added}]

    def of(self, users: Iterable[str]) -> list[UserEvents]:
        return [_NOTHING if (columns := self._of.get(user)) is None else columns.events() for user in users]

    def latest(self) -> float:
        """Return the time of the latest event."""
        return float(np.fmax.reduce([max(c.seconds, default=np.nan) for c in self._of.values()], initial=np.nan))

    def users(self) -> list[str]:
        return list(self._of)

    def drop(self, user: str) -> None:
        columns = self._of.pop(user, None)
        self._n -= 0 if columns is None else len(columns.items)

    def evict(self) -> tuple[list[str], bool]:
        """Drop events of the least recently active users where there are too many.

        Return these users, and whether `arrived` lost its beginning.
        """
        dropped = []
        while self._n > MAX_EVENTS:
            dropped.append(next(iter(self._of)))
            self.drop(dropped[-1])
        n_over = len(self.arrived) - MAX_EVENTS
        if n_over > 0:
            del self.arrived[: n_over + MAX_EVENTS // 10]
        if dropped:
            _log.warning(
                "more than %d events since the last update: dropped those of the %d least recently active users "
                "until the next one",
                MAX_EVENTS,
                len(dropped),
            )
        return dropped, n_over > 0
