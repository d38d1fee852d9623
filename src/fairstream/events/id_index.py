"""Where an id is among many: sorted 64-bit keys, each with its place.

The key of an integer is the integer itself, that of a string a hash of its UTF-8 bytes. Strings
with equal keys are told apart by their bytes, so a hash decides how fast an id is found, never
which.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit

_Array = np.ndarray[Any, Any]


class IndexedIds:
    """Distinct ids of one kind, and an index of them that is made when it is first needed.

    `key_bits` narrows the hash of strings; only tests have a reason to.
    """

    def __init__(self, ids: pa.Array, *, key_bits: int = 64) -> None:
        self.ids, self._key_bits = ids, key_bits

    def __len__(self) -> int:
        return len(self.ids)

    def find(self, asked: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The place of each asked id, −1 where it is not there."""
        found = np.full(len(asked), -1, dtype=np.int64)
        index, keys = self.index, _keys(asked, self._key_bits)
        if pa.types.is_integer(asked.type):
            _find_integers(*index, keys, found)
        else:
            _find_strings(*index, *utf8(self.ids), keys, *utf8(asked), found)
        return found

    def followed_by(self, other: IndexedIds) -> IndexedIds:
        """These ids and behind them the others; indices that are there already are merged."""
        both = IndexedIds(pa.concat_arrays([self.ids, other.ids]), key_bits=self._key_bits)
        if "index" in self.__dict__ and "index" in other.__dict__:
            merged = Index(np.empty(len(both), dtype=np.int64), np.empty(len(both), dtype=np.int32))
            _merge(*self.index, *other.index, len(self), *merged)
            both.__dict__["index"] = merged  # where cached_property keeps it
        return both

    @cached_property
    def index(self) -> Index:
        keys = _keys(self.ids, self._key_bits)
        places = np.argsort(keys)
        return Index(keys[places], places.astype(np.int32))


class Index(NamedTuple):
    """The keys in order, and the place of the id that each belongs to."""

    keys: np.ndarray[Any, np.dtype[np.int64]]
    places: np.ndarray[Any, np.dtype[np.int32]]


def _keys(ids: pa.Array, bits: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    if pa.types.is_integer(ids.type):
        integers: np.ndarray[Any, np.dtype[np.int64]] = ids.to_numpy(zero_copy_only=False)
        return integers
    keys = np.empty(len(ids), dtype=np.uint64)
    _hash(*utf8(ids), 64 - bits, keys)
    return keys.view(np.int64)


def utf8(strings: pa.Array) -> tuple[_Array, _Array]:
    """The UTF-8 bytes of all strings, and the bounds of each: views of what Arrow holds."""
    _, bounds, letters = strings.buffers()
    if bounds is None or len(strings) == 0:
        return np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    of_these = np.frombuffer(bounds, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    return np.empty(0, dtype=np.uint8) if letters is None else np.frombuffer(letters, np.uint8), of_these


@njit(cache=True, nogil=True)
def _hash(letters: Any, bounds: Any, dropped_bits: int, keys: Any) -> None:
    """FNV-1a, and the finaliser of MurmurHash3 so that short strings spread too."""
    for n in range(len(keys)):
        key = np.uint64(14695981039346656037)
        for at in range(bounds[n], bounds[n + 1]):
            key = (key ^ np.uint64(letters[at])) * np.uint64(1099511628211)
        key = (key ^ (key >> np.uint64(33))) * np.uint64(18397679294719823053)
        key = (key ^ (key >> np.uint64(33))) * np.uint64(14181476777654086739)
        keys[n] = (key ^ (key >> np.uint64(33))) >> np.uint64(dropped_bits)


@njit(cache=True, nogil=True)
def _find_integers(keys: Any, places: Any, asked: Any, found: Any) -> None:
    for n in range(len(asked)):
        at = np.searchsorted(keys, asked[n])
        if at < len(keys) and keys[at] == asked[n]:
            found[n] = places[at]


@njit(cache=True, nogil=True)
def _find_strings(
    keys: Any, places: Any, letters: Any, bounds: Any, asked: Any, asked_letters: Any, asked_bounds: Any, found: Any
) -> None:
    for n in range(len(asked)):
        at = np.searchsorted(keys, asked[n])
        length = asked_bounds[n + 1] - asked_bounds[n]
        while at < len(keys) and keys[at] == asked[n]:  # all strings with this key
            start = bounds[places[at]]
            same = 0 if bounds[places[at] + 1] - start == length else -1
            while 0 <= same < length and letters[start + same] == asked_letters[asked_bounds[n] + same]:
                same += 1
            if same == length:
                found[n] = places[at]
                break
            at += 1


@njit(cache=True, nogil=True)
def _merge(
    first: Any, first_places: Any, second: Any, second_places: Any, n_before: int, keys: Any, places: Any
) -> None:
    i = j = 0
    for at in range(len(keys)):
        if j == len(second) or (i < len(first) and first[i] <= second[j]):
            keys[at], places[at] = first[i], first_places[i]
            i += 1
        else:
            keys[at], places[at] = second[j], second_places[j] + n_before
            j += 1
