"""Requests for lists, ranked lists and their cache, and the answers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Literal, NamedTuple

import numpy as np

Source = Literal["model", "popularity"]
MIN_LENGTH = 64  # lists are ranked longer than requested: further items cost little, another ranking much
MAX_LENGTH, ITEMS_PER_PLACE = 512, 2_000  # the more items there are, the more another ranking costs


class Ask(NamedTuple):
    """A request for a list."""

    k: int
    exclude: Collection[str] = ()
    only: Collection[str] | None = None
    where: str = ""  # a filter of the items
    explain: bool = False  # whether to add the item of the history that is most similar to each


class Answer(NamedTuple):
    """A recommendation list."""

    items: list[str]
    scores: list[float | None]  # None in lists by popularity: they would show how much the level moves an item
    source: Source  # popularity, where the model cannot score the user
    model: str | None  # the model in memory; None: popularity answers everybody
    because: list[str | None] | None = None  # the item of the history that is most similar to each


@dataclass(eq=False, slots=True)
class RankedList:
    """A user's best items, best first, as the model ranks them; answers leave out withdrawn and filtered items."""

    rows: np.ndarray[Any, np.dtype[np.int32]]
    scores: np.ndarray[Any, np.dtype[np.float32]]
    source: Source
    is_complete: bool  # no further item could follow the last one
    expires: float = np.inf  # when too much time has passed since the user's events
    written: tuple[tuple[int, int], bytes] | None = None  # the JSON of a list without filter, with k and shop's serial


Key = str | None  # a user; None stands for all strangers, so that they evict no other


class ListCache:
    """The lists of the latest users; the caller holds a lock.

    The size counts items, so a long list takes the place of several short ones.
    """

    def __init__(self, max_lists: int) -> None:
        self._max_items, self._n_items = max_lists * MIN_LENGTH, 0
        self._lists: OrderedDict[Key, RankedList | object] = OrderedDict()

    def get(self, key: Key) -> RankedList | None:
        """Return a list and make it the latest."""
        ranked = self._lists.get(key)
        if not isinstance(ranked, RankedList):
            return None
        self._lists.move_to_end(key)
        return ranked

    def begin(self, keys: list[Key]) -> object:
        """Mark lists as being computed; return the mark for `put`."""
        making = object()
        for key in keys:
            self.drop(key)
            self._lists[key] = making
        return making

    def put(self, key: Key, ranked: RankedList, making: object) -> None:
        """Keep a list, unless its user had an event, or all lists were cleared, since `begin`."""
        if self._lists.get(key) is not making:
            return
        self._lists[key] = ranked
        self._n_items += _size(ranked)
        while self._n_items > self._max_items:
            self._n_items -= _size(self._lists.popitem(last=False)[1])

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


def written(answer: Answer) -> bytes:
    """The JSON of a list without its user; nine digits distinguish any two scores."""
    scores = ("null" if score is None else f"{score:.9g}" for score in answer.scores)
    parts = [f'"item_id":{quoted(item)},"score":{score}' for item, score in zip(answer.items, scores, strict=True)]
    if answer.because is not None:
        reasons = ("null" if item is None else quoted(item) for item in answer.because)
        parts = [f'{part},"because":{reason}' for part, reason in zip(parts, reasons, strict=True)]
    pairs = ",".join(f"{{{part}}}" for part in parts)
    model = "null" if answer.model is None else quoted(answer.model)
    return f'"model":{model},"source":"{answer.source}","items":[{pairs}]}}'.encode()


def with_user(user_id: str | None, answer: bytes) -> bytes:
    """Return the JSON of a list: the answer, and whom it is for."""
    return b'{"user_id":%b,%b' % (("null" if user_id is None else quoted(user_id)).encode(), answer)
