"""Ranked lists, and the cache of the users' lists."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Source = Literal["model", "popularity"]
MIN_LENGTH = 64  # lists are ranked longer than requested: further items cost little, another ranking much
MAX_LENGTH, ITEMS_PER_PLACE = 512, 2_000  # the more items there are, the more another ranking costs


@dataclass(eq=False, slots=True)
class RankedList:
    """A user's best items, best first, as the model ranks them: withdrawn or filtered items are left out later."""

    rows: np.ndarray[Any, np.dtype[np.int32]]
    scores: np.ndarray[Any, np.dtype[np.float32]]
    source: Source
    is_complete: bool  # no further item could follow the last one
    expires: float = np.inf  # when the time since the user's events has changed too much
    written: tuple[tuple[int, int], bytes] | None = None  # the JSON of a list without filter, with k and shop's serial

    def without(self, rows: list[int]) -> RankedList:
        """Drop items, for a model that reads no histories."""
        stay = ~np.isin(self.rows, rows)
        return RankedList(self.rows[stay], self.scores[stay], self.source, self.is_complete, self.expires)


Key = str | None  # a user; None stands for all strangers, so that they evict no other


class ListCache:
    """The lists of the users seen last; the caller holds a lock.

    The size counts items, so that long lists take the place of several short ones.
    """

    def __init__(self, max_lists: int) -> None:
        self._max_items, self._n_items = max_lists * MIN_LENGTH, 0
        self._lists: OrderedDict[Key, RankedList | object] = OrderedDict()

    def get(self, key: Key) -> RankedList | object | None:
        return self._lists.get(key)

    def touch(self, key: Key) -> None:
        self._lists.move_to_end(key)

    def begin(self, keys: list[Key]) -> object:
        """Mark lists that are being made, and return the mark; `put` needs it."""
        making = object()
        for key in keys:
            self.drop(key)
            self._lists[key] = making
        return making

    def put(self, key: Key, ranked: RankedList, making: object) -> None:
        """Keep a list, unless its user had an event or all lists were dropped since `begin`."""
        if self._lists.get(key) is not making:
            return
        self._lists[key] = ranked
        self._n_items += _size(ranked)
        while self._n_items > self._max_items:
            self._n_items -= _size(self._lists.popitem(last=False)[1])

    def replace(self, key: Key, ranked: RankedList) -> None:
        self._n_items += _size(ranked) - _size(self._lists[key])
        self._lists[key] = ranked

    def drop(self, key: Key) -> None:
        self._n_items -= _size(self._lists.pop(key, None))

    def drop_popular(self) -> None:
        """Drop the lists by popularity."""
        for key in [key for key, each in self._lists.items() if getattr(each, "source", None) != "model"]:
            self.drop(key)

    def clear(self) -> None:
        self._lists.clear()
        self._n_items = 0

    def users(self) -> list[str]:
        """Return the users with a list, the latest first."""
        return [key for key in reversed(self._lists) if key is not None]


def _size(ranked: object) -> int:
    return max(MIN_LENGTH, len(ranked.rows)) if isinstance(ranked, RankedList) else 0
