"""What is known of items beside their events: categories, and the words of texts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.data.inputs import to_table
from fairstream.data.tables import Columns, combined
from fairstream.data.vocabulary import Rows, Vocabulary
from fairstream.errors import DataError

MOST_FEATURES = 32
"""An item has at most so many features; those of the first columns count."""
Codes = Rows
"""(n_items, F) the hashes ≥ 0 of each item's features, padded with −1 behind them."""
_NOTHING: Codes = np.empty((0, 0), dtype=np.int64)
_TABLE = "the items table"
_BETWEEN_WORDS = r"[^\p{L}\p{M}\p{N}]+"


@dataclass(frozen=True, eq=False)
class ItemFeatures:
    """The features of items, by their ids.

    A feature is a column and a value: each word of a string, each element of a list of strings, an
    integer or a boolean. It is known by a hash that is the same everywhere and always.

    >>> films = pa.table({"item": [5, 9], "title": ["Alien", "Alien 3"], "genres": [["Horror"], None]})
    >>> features = ItemFeatures.read(films, Columns())
    >>> (features.of(Vocabulary([9, 7, 5])) >= 0).sum(axis=1).tolist()
    [2, 0, 2]
    """

    ids: Vocabulary
    codes: Codes
    """(n, F) in the order of the ids."""
    notes: tuple[str, ...] = ()
    """What was left out."""

    @classmethod
    def read(cls, source: Any, columns: Columns) -> ItemFeatures:
        """Read a table or file with an item column; every other column describes the items.

        Raises
        ------
        DataError
            If the source cannot be read, an id is missing, a column holds something else than strings, lists of
            strings, integers or booleans, or an item has several rows that differ.
        """
        table = to_table(source, what="the items", columns=columns)
        name = columns.find("item", table, what=_TABLE)
        if missing := table[name].null_count:
            raise DataError(
                f"every row of {_TABLE} needs an item, but {missing} of {len(table)} are missing in {name!r}"
            )
        others = [other for other in table.column_names if other != name]
        if not others:
            raise DataError(f"{_TABLE} has no column beside {name!r}; add columns that describe the items")
        codes, n_cut = _codes([_hashed(table[other], other) for other in others], len(table))
        ids = Vocabulary()
        rows = ids.extend(combined(table[name]))
        first = np.unique(rows, return_index=True)[1]  # rows are numbered in the order of first appearance
        if len(different := np.flatnonzero((codes != codes[first[rows]]).any(axis=1))):
            raise DataError(
                f"{_TABLE} has several rows with different values for the item "
                f"{ids.ids[int(rows[different[0]])].as_py()!r}; keep one row for each item"
            )
        cut = (f"{n_cut} items have more than {MOST_FEATURES} features: the first {MOST_FEATURES} count",)
        return cls(ids, codes[first], cut if n_cut else ())

    def of(self, item_ids: Vocabulary) -> Codes:
        """The features of the items of a vocabulary; an item that is not described has none."""
        codes = self.replacing(_NOTHING, item_ids.lookup(self.ids.ids), len(item_ids))
        return codes[:, (codes >= 0).any(axis=0)]

    def replacing(self, before: Codes, rows: Rows, n_items: int) -> Codes:
        """The features of `n_items` items: those before, replaced by these for `rows` (−1: none of the items)."""
        codes = resized(before, n_items, self.codes.shape[1])
        codes[rows[rows >= 0]] = -1
        codes[rows[rows >= 0], : self.codes.shape[1]] = self.codes[rows >= 0]
        return codes


def resized(codes: Codes, n_items: int, n_features: int = 0) -> Codes:
    """A copy with room for more items and for at least so many features."""
    larger = np.full((n_items, max(n_features, codes.shape[1])), -1, dtype=np.int64)
    larger[: len(codes), : codes.shape[1]] = codes
    return larger


def notes_on_undescribed(codes: Codes) -> tuple[str, ...]:
    """Return how many of these items have no features, if any."""
    n = int((codes < 0).all(axis=1).sum())
    return (f"{n} of {len(codes)} items have no features: they are known by their events alone",) if n else ()


def _hashed(column: pa.ChunkedArray, name: str) -> tuple[Rows, Rows]:
    """Return the features of one column: the row of the table and the hash of each, row by row."""
    values = _listed(combined(column), name)
    rows, flat = pc.list_parent_indices(values), pc.list_flatten(values)
    is_value = pc.fill_null(pc.not_equal(flat, ""), False)
    encoded = flat.filter(is_value).dictionary_encode()
    hashes = np.array([_hash(name, value) for value in encoded.dictionary.to_pylist()], dtype=np.int64)
    return rows.filter(is_value).to_numpy(), hashes[encoded.indices.to_numpy(zero_copy_only=False)]


def _listed(values: pa.Array, name: str) -> pa.Array:
    """Return the features of each row as a list of strings."""
    kind, strings = values.type, pa.large_list(pa.large_string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pc.split_pattern_regex(pc.utf8_lower(values), pattern=_BETWEEN_WORDS).cast(strings)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return pa.LargeListArray.from_arrays(np.arange(len(values) + 1), values.cast(pa.large_string()))
    try:
        if pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type):
            lists = values.cast(strings)
            lower = pc.utf8_lower(pc.list_flatten(lists))
            counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
            return pa.LargeListArray.from_arrays(np.append(0, np.cumsum(counts)), lower)
    except AttributeError:  # no list
        pass
    raise DataError(
        f"features of items are strings, lists of strings, integers or booleans, but {name!r} of {_TABLE} holds "
        f"{kind}; make categories of it, or leave the column out"
    )


def _hash(column: str, value: str) -> int:
    """62 bits that depend on nothing but the feature."""
    digest = hashlib.blake2b(f"{column}\0{value}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def _codes(columns: list[tuple[Rows, Rows]], n_rows: int) -> tuple[Codes, int]:
    """Return the features of each row, each feature once, and how many rows have more than fit."""
    rows, hashes = (np.concatenate(parts).astype(np.int64) for parts in zip(*columns, strict=True))
    order = np.lexsort((hashes, rows))  # stable: of equal features the first comes first
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (np.diff(rows[order]) != 0) | (np.diff(hashes[order]) != 0)
    kept = np.sort(order[is_first])
    kept = kept[np.argsort(rows[kept], kind="stable")]
    rows, hashes = rows[kept], hashes[kept]
    place = np.arange(len(rows)) - np.searchsorted(rows, rows)
    counts = np.bincount(rows, minlength=n_rows)
    fits = place < MOST_FEATURES
    codes = np.full((n_rows, min(MOST_FEATURES, int(counts.max(initial=0)))), -1, dtype=np.int64)
    codes[rows[fits], place[fits]] = hashes[fits]
    return codes, int((counts > MOST_FEATURES).sum())
