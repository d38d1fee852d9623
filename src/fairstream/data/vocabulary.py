"""Any id ↔ dense row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from fairstream.data.id_index import IndexedIds
from fairstream.data.runs import append_run
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
        self._runs: tuple[IndexedIds, ...] = ()
        self._ids: pa.Array | None = None
        """All ids in one piece, once somebody has asked for them."""
        if ids is not None:
            self.extend(ids)

    @classmethod
    def of_distinct(cls, ids: pa.Array) -> Vocabulary:
        """From the `ids` of another one: nothing is looked up and nothing copied."""
        vocabulary = cls()
        vocabulary._runs = (IndexedIds(ids),) if len(ids) else ()
        return vocabulary

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    @property
    def ids(self) -> pa.Array:
        """The ids in the order of their rows."""
        if self._ids is None:
            self._ids = pa.concat_arrays([run.ids for run in self._runs]) if self._runs else pa.array([], pa.int64())
        return self._ids

    def copy(self) -> Vocabulary:
        """The same rows, to be extended on their own."""
        twin = Vocabulary()
        twin._runs, twin._ids = self._runs, self._ids
        return twin

    def without(self, row: int | Rows) -> Vocabulary:
        """The other ids; those of later rows move up."""
        others = np.delete(np.arange(len(self)), row)
        # Arrow's take makes new memory: the old id is not in it.
        return Vocabulary.of_distinct(self.ids.take(pa.array(others)))

    def indexed(self) -> Vocabulary:
        """Make now what lookups need, for which the first one would have to wait; gives the vocabulary itself."""
        for run in self._runs:
            _ = run.slots
        return self

    def lookup(self, ids: Any) -> Rows:
        """The row of each id, −1 where the id is not known."""
        return self._lookup(self._same_kind(id_column(ids)))

    def row_of(self, text: str) -> int:
        """The row of one id of a vocabulary of strings, −1 where it is not known."""
        n_before = 0
        for run in self._runs:
            if (at := run.find_text(text)) >= 0:
                return n_before + at
            n_before += len(run)
        return -1

    def extend(self, ids: Any) -> Rows:
        """The row of each id; ids not seen before get the next free rows, in order."""
        encoded = self._same_kind(id_column(ids)).dictionary_encode()
        distinct = encoded.dictionary  # in the order of first appearance; each is looked up once
        row_of = self._lookup(distinct)
        is_new = row_of < 0
        if is_new.any():
            row_of[is_new] = np.arange(len(self), len(self) + int(is_new.sum()))
            newcomers = distinct if is_new.all() else distinct.filter(pa.array(is_new))
            self._runs, self._ids = append_run(self._runs, IndexedIds(newcomers), IndexedIds.followed_by), None
        return row_of[encoded.indices.to_numpy(zero_copy_only=False)]

    def _lookup(self, values: pa.Array) -> Rows:
        rows = np.full(len(values), -1, dtype=np.int64)
        n_before = 0
        for run in self._runs:
            at = run.find(values)
            np.copyto(rows, at + n_before, where=at >= 0)
            n_before += len(run)
        return rows

    def _same_kind(self, values: pa.Array) -> pa.Array:
        kind = self._runs[0].ids.type if self._runs else values.type
        if len(values) and values.type != kind:
            raise DataError(
                f"ids must stay of one kind: this vocabulary holds {_kind(kind)}, got "
                f"{_kind(values.type)}, {values[0].as_py()!r} for one; convert the column first"
            )
        return values if len(values) else values.cast(kind)


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
