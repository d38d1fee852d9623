"""Where an id is among many: a hash table over the ids as Arrow holds them.

Each slot holds the place of one id and half of its 64-bit key, the hash of the integer or of the
string's UTF-8 bytes. Ids with equal keys are told apart by what they are, so a hash decides how
fast an id is found, never which.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from fairstream.compiled import njit

_Array = np.ndarray[Any, Any]


class IndexedIds:
    """Distinct ids of one kind, and an index of them that is made when it is first needed.

    `key_bits` narrows the keys; only tests have a reason to.
    """

    def __init__(self, ids: pa.Array, *, key_bits: int = 64) -> None:
        self.ids, self._key_bits = ids, key_bits

    def __len__(self) -> int:
        return len(self.ids)

    def find(self, asked: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The place of each asked id, −1 where it is not there."""
        found = np.full(len(asked), -1, dtype=np.int64)
        keys = _keys(asked, self._key_bits)
        if pa.types.is_integer(asked.type):
            _find_integers(self.slots, keys, _integers(self.ids), _integers(asked), found)
        else:
            _find_strings(self.slots, keys, *utf8(self.ids), *utf8(asked), found)
        return found

    def find_text(self, asked: str) -> int:
        """The place of one string, −1 where it is not there: what `find` gives, at a tenth of the price."""
        letters = np.frombuffer(asked.encode(), np.uint8)
        bounds, keys, found = np.array([0, len(letters)]), np.empty(1, np.uint64), np.empty(1, np.int64)
        _hash_strings(letters, bounds, 64 - self._key_bits, keys)
        _find_strings(self.slots, keys, *self._utf8, letters, bounds, found)
        return int(found[0])

    def followed_by(self, other: IndexedIds) -> IndexedIds:
        """These ids and behind them the others."""
        return IndexedIds(pa.concat_arrays([self.ids, other.ids]), key_bits=self._key_bits)

    @cached_property
    def _utf8(self) -> tuple[_Array, _Array]:
        return utf8(self.ids)

    @cached_property
    def slots(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """At least half of them stay empty, so that the way to an id is short."""
        slots = np.zeros(1 << (2 * len(self.ids)).bit_length(), dtype=np.uint64)
        _insert(_keys(self.ids, self._key_bits), slots)
        return slots


def _keys(ids: pa.Array, bits: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    keys = np.empty(len(ids), dtype=np.uint64)
    if pa.types.is_integer(ids.type):
        _hash_integers(_integers(ids).view(np.uint64), 64 - bits, keys)
    else:
        _hash_strings(*utf8(ids), 64 - bits, keys)
    return keys


def _integers(ids: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    integers: np.ndarray[Any, np.dtype[np.int64]] = ids.to_numpy(zero_copy_only=False)
    return integers


def utf8(strings: pa.Array) -> tuple[_Array, _Array]:
    """The UTF-8 bytes of all strings, and the bounds of each: views of what Arrow holds."""
    _, bounds, letters = strings.buffers()
    if bounds is None or len(strings) == 0:
        return np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    of_these = np.frombuffer(bounds, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    return np.empty(0, dtype=np.uint8) if letters is None else np.frombuffer(letters, np.uint8), of_these


@njit
def _mixed(key: Any, dropped_bits: int) -> Any:
    """The finaliser of MurmurHash3: every bit of the key comes to depend on every other."""
    key = (key ^ (key >> np.uint64(33))) * np.uint64(18397679294719823053)
    key = (key ^ (key >> np.uint64(33))) * np.uint64(14181476777654086739)
    return (key ^ (key >> np.uint64(33))) >> np.uint64(dropped_bits)


@njit
def _hash_integers(integers: Any, dropped_bits: int, keys: Any) -> None:
    for n in range(len(keys)):
        keys[n] = _mixed(integers[n], dropped_bits)


@njit
def _hash_strings(letters: Any, bounds: Any, dropped_bits: int, keys: Any) -> None:
    for n in range(len(keys)):
        key = np.uint64(14695981039346656037)  # FNV-1a
        for at in range(bounds[n], bounds[n + 1]):
            key = (key ^ np.uint64(letters[at])) * np.uint64(1099511628211)
        keys[n] = _mixed(key, dropped_bits)


_PLACE = 0xFFFF_FFFF
"""The lower half of a slot holds place + 1, the upper half that of the key; 0 is an empty slot."""


@njit
def _insert(keys: Any, slots: Any) -> None:
    mask = np.uint64(len(slots) - 1)
    for place in range(len(keys)):
        at = keys[place] & mask
        while slots[at] != 0:
            at = (at + np.uint64(1)) & mask
        slots[at] = (keys[place] & ~np.uint64(_PLACE)) | np.uint64(place + 1)


@njit
def _candidate(slots: Any, at: Any, key: Any) -> tuple[Any, Any]:
    """The next slot from `at` on that may hold the key, and the place in it; −1 at the end of the way."""
    mask = np.uint64(len(slots) - 1)
    while slots[at] != 0 and (slots[at] ^ key) > np.uint64(_PLACE):
        at = (at + np.uint64(1)) & mask
    return at, np.int64(slots[at] & np.uint64(_PLACE)) - 1


@njit
def _find_integers(slots: Any, keys: Any, ids: Any, asked: Any, found: Any) -> None:
    mask = np.uint64(len(slots) - 1)
    for n in range(len(keys)):
        at, place = _candidate(slots, keys[n] & mask, keys[n])
        while place >= 0 and ids[place] != asked[n]:
            at, place = _candidate(slots, (at + np.uint64(1)) & mask, keys[n])
        found[n] = place


@njit
def _find_strings(
    slots: Any, keys: Any, letters: Any, bounds: Any, asked_letters: Any, asked_bounds: Any, found: Any
) -> None:
    mask = np.uint64(len(slots) - 1)
    for n in range(len(keys)):
        asked = asked_letters[asked_bounds[n] : asked_bounds[n + 1]]
        at, place = _candidate(slots, keys[n] & mask, keys[n])
        while place >= 0 and not _same(letters[bounds[place] : bounds[place + 1]], asked):
            at, place = _candidate(slots, (at + np.uint64(1)) & mask, keys[n])
        found[n] = place


@njit
def _same(one: Any, other: Any) -> bool:
    same = 0 if len(one) == len(other) else -1
    while 0 <= same < len(one) and one[same] == other[same]:
        same += 1
    return same == len(one)
