"""Any id ↔ dense row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.errors import DataError

Rows = np.ndarray[Any, np.dtype[np.int64]]


class Vocabulary:
    """An append-only dictionary from ids (integers or strings) to dense rows 0, 1, 2 …

    A row, once given, never changes: what was known at some moment is always a prefix of what
    is known later. That is what makes "as of period t" a matter of a single number.

    >>> films = Vocabulary()
    >>> films.extend(["Alien", "Brazil", "Alien"]).tolist()
    [0, 1, 0]
    >>> films.lookup(["Brazil", "Casablanca"]).tolist()
    [1, -1]
    >>> films.extend(["Casablanca", "Alien"]).tolist()
    [2, 0]
    """

    def __init__(self, ids: Any = None) -> None:
        self._ids: pa.Array | None = None
        if ids is not None:
            self.extend(ids)

    def __len__(self) -> int:
        return 0 if self._ids is None else len(self._ids)

    @property
    def ids(self) -> pa.Array:
        """The ids in the order of their rows."""
        return pa.array([], pa.int64()) if self._ids is None else self._ids

    def copy(self) -> Vocabulary:
        """The same rows, to be extended on their own."""
        twin = Vocabulary()
        twin._ids = self._ids
        return twin

    def lookup(self, ids: Any) -> Rows:
        """The row of each id, −1 where the id is not known."""
        return self._lookup(self._same_kind(id_column(ids)))

    def extend(self, ids: Any) -> Rows:
        """The row of each id; ids not seen before get the next free rows, in order."""
        values = self._same_kind(id_column(ids))
        rows = self._lookup(values)
        unknown = rows < 0
        if unknown.any():
            n_known = len(self)
            newcomers = values.filter(pa.array(unknown))
            fresh = pc.unique(newcomers)
            rows[unknown] = n_known + _to_rows(pc.index_in(newcomers, value_set=fresh))
            self._ids = fresh if self._ids is None else pa.concat_arrays([self._ids, fresh])
        return rows

    def _lookup(self, values: pa.Array) -> Rows:
        if self._ids is None:
            return np.full(len(values), -1, dtype=np.int64)
        return _to_rows(pc.fill_null(pc.index_in(values, value_set=self._ids), -1))

    def _same_kind(self, values: pa.Array) -> pa.Array:
        if self._ids is not None and len(values) and values.type != self._ids.type:
            raise DataError(
                f"ids must stay of one kind: this vocabulary holds {_kind(self._ids.type)}, got "
                f"{_kind(values.type)}, {values[0].as_py()!r} for one; convert the column first"
            )
        return values if len(values) or self._ids is None else values.cast(self._ids.type)


def _to_rows(indices: pa.Array) -> Rows:
    return indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _kind(kind: pa.DataType) -> str:
    return "integers" if pa.types.is_integer(kind) else "strings"


def id_column(ids: Any) -> pa.Array:
    """One contiguous Arrow array of int64 or large_string, without nulls."""
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
        raise DataError(f"every event needs an id, but {ids.null_count} of {len(ids)} are missing")
    if pa.types.is_integer(ids.type):
        try:
            return ids.cast(pa.int64())
        except pa.ArrowInvalid:
            raise DataError("ids must be 64-bit integers or strings, got larger integers; use strings") from None
    if pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type) or pa.types.is_string_view(ids.type):
        return ids.cast(pa.large_string())
    raise DataError(f"ids must be integers or strings, got {ids.type}; convert the column first")
