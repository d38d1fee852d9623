"""Features of items: categories, and the words of texts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.data.reading import Columns, combined, is_text, to_table
from fairstream.data.vocabulary import Rows, Vocabulary
from fairstream.errors import DataError

MAX_FEATURES = 32  # of one item; those of the first columns count
Codes = Rows  # (n_items, F) the hashes ≥ 0 of each item's features, padded with −1 at the end
_TABLE = "the items table"
_ADVICE = "features are strings, lists of strings, integers or booleans (make classes of other numbers and of times)"
_BETWEEN_WORDS = r"[^\p{L}\p{M}\p{N}]+"


@dataclass(frozen=True, eq=False)
class ItemFeatures:
    """The features of items, by their ids.

    A feature is a column and a value: each word of a string, each element of a list of strings, an
    integer or a boolean. Its hash depends on nothing else, so that checkpoints can store it.

    >>> films = pa.table({"item": [5, 9], "title": ["Alien", "Alien 3"], "genres": [["Horror"], None]})
    >>> features = ItemFeatures.read(films, Columns())
    >>> (features.of(Vocabulary([9, 7, 5])) >= 0).sum(axis=1).tolist()
    [2, 0, 2]
    """

    ids: Vocabulary
    codes: Codes  # (n, F) in the order of the ids
    notes: tuple[str, ...] = ()  # what was left out

    @classmethod
    def read(cls, source: Any, columns: Columns) -> ItemFeatures:
        """Read a table or file with an item column; every other column describes the items."""
        table = to_table(source, what="the items", columns=columns)
        name = columns.find("item", table, what=_TABLE)
        if missing := table[name].null_count:
            raise DataError(
                f"every row of {_TABLE} needs an item, but {missing} of {len(table)} are missing in {name!r}"
            )
        features = {n: _hash_features(combined(table[n]), n) for n in table.column_names if n != name}
        if not features:
            raise DataError(f"{_TABLE} has no column but {name!r}; add columns that describe the items")
        ignored = [f"{other!r} ({table[other].type})" for other, part in features.items() if part is None]
        notes = [f"columns of the items that are not used: {', '.join(ignored)}: {_ADVICE}"] if ignored else []
        if len(ignored) == len(features):
            raise DataError(f"{_TABLE} has no column that describes items: {', '.join(ignored)}; {_ADVICE}")
        codes, n_cut = _codes([part for part in features.values() if part is not None], len(table))
        ids = Vocabulary()
        rows = ids.extend(combined(table[name]))
        first = np.unique(rows, return_index=True)[1]  # rows are numbered in the order of first appearance
        if len(different := np.flatnonzero((codes != codes[first[rows]]).any(axis=1))):
            raise DataError(
                f"{_TABLE} has several rows with different values for the item "
                f"{ids.ids[int(rows[different[0]])].as_py()!r}; keep one row for each item"
            )
        if n_cut:
            notes.append(f"{n_cut} items have more than {MAX_FEATURES} features: the first {MAX_FEATURES} count")
        return cls(ids, codes[first], tuple(notes))

    def of(self, item_ids: Vocabulary) -> Codes:
        """Return the features of the items of a vocabulary; an item that is not described has none."""
        codes = self.replacing(np.empty((0, 0), np.int64), item_ids.lookup(self.ids.ids), len(item_ids))
        return codes[:, (codes >= 0).any(axis=0)]

    def replacing(self, before: Codes, rows: Rows, n_items: int) -> Codes:
        """Return `before` for `n_items` items, with these features in the `rows` of their items (−1: unknown)."""
        codes = resized(before, n_items, self.codes.shape[1])
        codes[rows[rows >= 0]] = -1
        codes[rows[rows >= 0], : self.codes.shape[1]] = self.codes[rows >= 0]
        return codes


def resized(codes: Codes, n_items: int, n_features: int = 0) -> Codes:
    """Return a copy with `n_items` rows and at least `n_features` columns."""
    larger = np.full((n_items, max(n_features, codes.shape[1])), -1, dtype=np.int64)
    larger[: len(codes), : codes.shape[1]] = codes
    return larger


def notes_on_undescribed(codes: Codes) -> tuple[str, ...]:
    """Return how many of these items have no features, if any."""
    n = int((codes < 0).all(axis=1).sum())
    return (f"{n} of {len(codes)} items have no features: they are known by their events alone",) if n else ()


def _hash_features(values: pa.Array, name: str) -> tuple[Rows, Rows] | None:
    """Return the row and the hash of each feature of a column; None for a type without features, such as floats."""
    if pa.types.is_integer(values.type) or pa.types.is_boolean(values.type) or pa.types.is_null(values.type):
        rows, texts = np.arange(len(values)), values.cast(pa.large_string())
    else:
        lists = pc.split_pattern_regex(values, pattern=_BETWEEN_WORDS) if is_text(values.type) else values
        if not is_text(getattr(lists.type, "value_type", lists.type)):
            return None
        lengths = pc.fill_null(pc.list_value_length(lists), 0)
        rows, texts = np.repeat(np.arange(len(lists)), lengths), pc.utf8_lower(pc.list_flatten(lists))
    is_value = pc.fill_null(pc.not_equal(texts, ""), False)
    encoded = texts.filter(is_value).dictionary_encode()
    hashes = np.array([_hash(name, value) for value in encoded.dictionary.to_pylist()], dtype=np.int64)
    return rows[is_value.to_numpy(zero_copy_only=False)], hashes[encoded.indices.to_numpy(zero_copy_only=False)]


def _hash(column: str, value: str) -> int:
    """62 bits that depend on nothing but the feature."""
    digest = hashlib.blake2b(f"{column}\0{value}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def _codes(columns: list[tuple[Rows, Rows]], n_rows: int) -> tuple[Codes, int]:
    """Return the features of each row, each feature once, and how many rows have more than fit."""
    rows, hashes = (np.concatenate(parts).astype(np.int64) for parts in zip(*columns, strict=True))
    # Drop repeated features of a row, then restore the order of the columns, because only the first features fit.
    order = np.lexsort((hashes, rows))  # stable: the first of equal features stays first
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (np.diff(rows[order]) != 0) | (np.diff(hashes[order]) != 0)
    chosen = np.sort(order[is_first])
    chosen = chosen[np.argsort(rows[chosen], kind="stable")]
    rows, hashes = rows[chosen], hashes[chosen]
    place = np.arange(len(rows)) - np.searchsorted(rows, rows)  # of each feature in its row
    counts = np.bincount(rows, minlength=n_rows)
    fits = place < MAX_FEATURES
    codes = np.full((n_rows, min(MAX_FEATURES, int(counts.max(initial=0)))), -1, dtype=np.int64)
    codes[rows[fits], place[fits]] = hashes[fits]
    return codes, int((counts > MAX_FEATURES).sum())
