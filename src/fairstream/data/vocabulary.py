"""The mapping between ids and dense rows."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.errors import DataError

Rows = np.ndarray[Any, np.dtype[np.int64]]
_Array = np.ndarray[Any, Any]
_Index = dict[int | str, int]

_EXACT = 2.0**53  # below this, floats hold whole numbers exactly
_RECENT_SHARE = 4  # recent ids are merged into the shared index once they exceed its size divided by this


class Vocabulary:
    """An append-only mapping from ids (integers or strings) to dense rows 0, 1, 2 …

    The row of an id never changes, so the ids known at any time are a prefix of those known
    later. Copies share memory: one thread can extend a copy while others read the original.
    Repeated ids count once.

    >>> films = Vocabulary()
    >>> films.extend(["Alien", "Brazil", "Alien"]).tolist()
    [0, 1, 0]
    >>> films.lookup(["Brazil", "Casablanca"]).tolist()
    [1, -1]
    >>> films.extend(["Casablanca", "Alien"]).tolist()
    [2, 0]
    """

    def __init__(self, ids: Any = None) -> None:
        self._parts: tuple[pa.Array, ...] = ()
        self._index: _Index | None = None
        """The row of each id but the recent ones; shared by copies and never changed. None: not built yet."""
        self._recent: _Index = {}  # the rows of ids that came after the index was built; each copy has its own
        if ids is not None:
            self.extend(ids)

    @classmethod
    def of_distinct(cls, ids: pa.Array) -> Vocabulary:
        """Return the vocabulary of distinct `ids`, without a check."""
        vocabulary = cls()
        vocabulary._parts = (ids,) if len(ids) else ()
        return vocabulary

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __getstate__(self) -> dict[str, Any]:
        return {"_parts": (self.ids,) if self._parts else (), "_index": None, "_recent": {}}

    @property
    def ids(self) -> pa.Array:
        """The ids in the order of their rows."""
        if not self._parts:
            return pa.array([], pa.int64())
        if len(self._parts) > 1:
            self._parts = (pa.concat_arrays(self._parts),)
        return self._parts[0]

    def copy(self) -> Vocabulary:
        """Return a copy that can be extended independently."""
        copy = Vocabulary()
        copy._parts, copy._index, copy._recent = self._parts, self._index, dict(self._recent)
        return copy

    def without(self, row: int | Rows) -> Vocabulary:
        """Return the other ids; later rows move up."""
        others = np.delete(np.arange(len(self)), row)
        # Arrow's take copies: the removed ids stay nowhere in the new memory.
        return Vocabulary.of_distinct(self.ids.take(pa.array(others)))

    def indexed(self) -> Vocabulary:
        """Build the index now instead of at the first lookup; return the vocabulary itself."""
        self._built_index()
        return self

    def lookup(self, ids: Any) -> Rows:
        """Return the row of each id, −1 where it is not known; raise DataError for ids of another kind."""
        return self._lookup(self._same_kind(id_column(ids)))

    def row_of(self, value: int | str) -> int:
        """Return the row of one id, −1 where it is not known."""
        row = self._built_index().get(value)
        return self._recent.get(value, -1) if row is None else row

    def extend(self, ids: Any) -> Rows:
        """Return the row of each id, new ones in the next free rows, in order; raise DataError for another kind."""
        encoded = self._same_kind(id_column(ids)).dictionary_encode()
        distinct = encoded.dictionary  # in the order of first appearance; each is looked up once
        rows = self._lookup(distinct) if self._parts else np.full(len(distinct), -1, dtype=np.int64)
        is_new = rows < 0
        if is_new.any():
            newcomers = distinct if is_new.all() else distinct.filter(pa.array(is_new))
            rows[is_new] = np.arange(len(self), len(self) + len(newcomers))
            if self._index is not None:
                self._recent.update(zip(newcomers.to_pylist(), rows[is_new].tolist(), strict=True))
                if _RECENT_SHARE * len(self._recent) > len(self._index):  # bound them: each copy copies them
                    self._index, self._recent = self._index | self._recent, {}
            self._parts = (*self._parts, newcomers)
        return rows[encoded.indices.to_numpy(zero_copy_only=False)]

    def _lookup(self, values: pa.Array) -> Rows:
        ids, index = values.to_pylist(), self._built_index()
        rows = np.fromiter(map(index.get, ids, repeat(-1)), np.int64, len(ids))
        if self._recent:
            missing = np.flatnonzero(rows < 0)
            recent = map(self._recent.get, map(ids.__getitem__, missing.tolist()), repeat(-1))
            rows[missing] = np.fromiter(recent, np.int64, len(missing))
        return rows

    def _built_index(self) -> _Index:
        if self._index is None:
            self._index = dict(zip(self.ids.to_pylist(), range(len(self)), strict=True))
        return self._index

    def _same_kind(self, values: pa.Array) -> pa.Array:
        kind = self._parts[0].type if self._parts else values.type
        if len(values) and values.type != kind:
            known, new = ("integers" if pa.types.is_integer(part) else "strings" for part in (kind, values.type))
            raise DataError(
                f"ids must stay of one kind: this vocabulary holds {known}, got {new}, {values[0].as_py()!r} for one; "
                f"convert the column first"
            )
        return values if len(values) else values.cast(kind)


def id_column(ids: Any) -> pa.Array:
    """Return ids as one contiguous Arrow array of int64 or large_string; raise DataError where one is missing."""
    if isinstance(ids, str | bytes):
        raise DataError(f"ids must be a list or a column, got the single id {ids!r}; put it into a list")
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks()
    if not isinstance(ids, pa.Array):
        try:
            ids = pa.array(ids)
        except (pa.ArrowException, TypeError, OverflowError, UnicodeError) as error:
            raise DataError(f"ids must be all integers or all strings: {error}") from None
    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    if pa.types.is_null(ids.type) and len(ids) == 0:
        return pa.array([], pa.int64())
    if ids.null_count:
        raise DataError(f"ids must not be missing, but {ids.null_count} of {len(ids)} are")
    if pa.types.is_floating(ids.type):
        ids = _whole(ids)
    if pa.types.is_integer(ids.type):
        try:
            return ids.cast(pa.int64())
        except pa.ArrowInvalid:
            raise DataError("ids must be 64-bit integers or strings, got larger integers; use strings") from None
    if pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type) or pa.types.is_string_view(ids.type):
        return ids.cast(pa.large_string())
    raise DataError(f"ids must be integers or strings, got {ids.type}; convert the column first")


def same_kind(ids: pa.Array, others: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return integers as text if the other ids are digits in text; other ids unchanged.

    Two tables of one source can differ in this: the ids of a CSV file are text if one of them is 007.

    >>> [part.to_pylist() for part in same_kind(pa.array([10, 7]), pa.array(["007", "10"], pa.large_string()))]
    [['10', '7'], ['007', '10']]
    """
    for texts, numbers in ((ids, others), (others, ids)):
        is_mixed = pa.types.is_large_string(texts.type) and pa.types.is_integer(numbers.type)
        if is_mixed and pc.all(pc.match_substring_regex(texts, r"^\s*[+-]?\d+\s*$")).as_py():
            return ids.cast(pa.large_string()), others.cast(pa.large_string())
    return ids, others


def _whole(ids: pa.Array) -> pa.Array:
    """Return whole floats as integers: a column of integers with gaps becomes one of floats in pandas."""
    numbers = ids.cast(pa.float64()).to_numpy(zero_copy_only=False)
    if np.isnan(numbers).any():
        raise DataError(f"ids must not be missing, but {int(np.isnan(numbers).sum())} of {len(ids)} are NaN")
    is_whole = (numbers == np.floor(numbers)) & (np.abs(numbers) < _EXACT)
    if not is_whole.all():
        raise DataError(
            f"ids must be integers or strings, got numbers that are not whole or too large to be exact, "
            f"{numbers[np.argmin(is_whole)].item()!r} for one; convert the column first"
        )
    return pa.array(numbers.astype(np.int64))


def utf8(strings: pa.Array) -> tuple[_Array, _Array]:
    """Return the UTF-8 bytes of all strings and the bounds of each, as views of Arrow's memory."""
    _, bounds, letters = strings.buffers()
    if bounds is None or len(strings) == 0:
        return np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    of_these = np.frombuffer(bounds, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    return np.empty(0, dtype=np.uint8) if letters is None else np.frombuffer(letters, np.uint8), of_these
