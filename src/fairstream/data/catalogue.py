"""The items of a shop with their properties, for filters and rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairstream.data.filters import MISSING, Column, Filter, Kind, Mask
from fairstream.data.vocabulary import Rows, Vocabulary

_CACHED_MASKS = 64  # at a byte for each item
_NUMBERS: dict[Kind, tuple[type, ...]] = {"number": (int, float), "time": (int, float), "boolean": (bool,)}


@dataclass(frozen=True, eq=False)
class Catalogue:
    """All described items at one moment. A change makes another catalogue, which shares the columns that stay.

    The last row of every column stands for all items that nobody has described: they are available and have no
    properties.

    >>> shop = Catalogue.of({"price": "number", "tags": "texts"})
    >>> shop = shop.updated(["tea", "jam"], [True, True], [{"price": 3, "tags": ["hot"]}, {"price": 5}])
    >>> shop.mask("price < 4").tolist()
    [True, False, False]
    >>> cheaper = shop.updated(["jam"], [True], [{"price": 2}])
    >>> cheaper.mask("price < 4").tolist(), cheaper.columns["tags"] is shop.columns["tags"]
    ([True, True, False], True)
    """

    kinds: Mapping[str, Kind]
    item_ids: Vocabulary
    available: Mask  # (n + 1,)
    columns: Mapping[str, Column]
    _masks: dict[str, tuple[Filter, list[Column], Mask]] = field(default_factory=dict, repr=False)
    """The masks of recent filters, with the columns that they read; shared with later catalogues."""

    @classmethod
    def of(cls, kinds: Mapping[str, Kind]) -> Catalogue:
        """Return a catalogue without items, whose properties have these types."""
        return cls(kinds, Vocabulary(), np.ones(1, np.bool_), {name: _missing(kind, 1) for name, kind in kinds.items()})

    def __len__(self) -> int:
        return len(self.available) - 1

    def updated(
        self, item_ids: Sequence[str], available: Sequence[bool], properties: Sequence[Mapping[str, Any]]
    ) -> Catalogue:
        """Return a catalogue with these items changed or added; a value of another type than declared is missing."""
        known = self.item_ids
        if not len(known) or (rows := known.lookup(item_ids)).min(initial=0) < 0:
            known = known.copy()  # which takes a while for a million items
            rows = known.extend(item_ids)
            known.indexed()  # once, and not again in each copy
        n = len(known)
        is_available = self.available
        if n > len(self) or not np.array_equal(is_available[rows], available):
            is_available = _extended(is_available, n, filler=True)
            is_available[rows] = available
        columns = {}
        for name, kind in self.kinds.items():
            values = [each.get(name) for each in properties]
            columns[name] = _changed(self.columns[name], kind, rows, values, len(self), n)
        return Catalogue(self.kinds, known, is_available, columns, self._masks)

    def mask(self, where: str) -> Mask:
        """(n + 1,) whether each item passes a filter, available or not; the caller must not change it."""
        parsed, used, mask = self._masks.get(where, (None, [], None))
        if parsed is None:
            parsed = Filter.parse(where, self.kinds)
        columns = [self.columns[name] for name in sorted(parsed.names)]
        if mask is None or any(a is not b for a, b in zip(columns, used, strict=True)):
            mask = parsed.mask(self.columns, len(self) + 1)
            if len(self._masks) >= _CACHED_MASKS:
                self._masks.clear()
            self._masks[where] = parsed, columns, mask
        return mask

    def follows(self, other: Catalogue) -> bool:
        """Whether one catalogue was made from the other, so that items of the earlier one keep their rows."""
        return self._masks is other._masks

    def rows_of(self, item_ids: Iterable[str]) -> list[int]:
        """Return the row of each item; an item that nobody has described has the last one."""
        return [row if 0 <= row < len(self) else len(self) for row in map(self.item_ids.row_of, item_ids)]


def _missing(kind: Kind, n: int) -> Column:
    if kind == "texts":
        return Column(np.empty(0, np.int64), np.empty(0, np.int64))
    return Column(np.full(n, MISSING, np.int64) if kind == "text" else np.full(n, np.nan))


def _extended(values: np.ndarray[Any, Any], n: int, filler: Any) -> np.ndarray[Any, Any]:
    """Return a copy for `n` items; its last value stays that of undescribed items."""
    longer = np.full(n + 1, filler, values.dtype)
    longer[: len(values)] = values
    return longer


def _changed(column: Column, kind: Kind, rows: Rows, values: list[Any], n_before: int, n: int) -> Column:
    """Set the values of these rows; return the column itself if that changes nothing."""
    if column.rows is not None:
        lists = [value if isinstance(value, list) else [] for value in values]
        new_rows = np.repeat(rows, [len(each) for each in lists])
        hashes = np.fromiter((hash(text) for each in lists for text in each), np.int64, len(new_rows))
        is_touched = np.zeros(n + 1, np.bool_)
        is_touched[rows] = True
        is_old = is_touched[column.rows]
        if n == n_before and np.array_equal(
            _sorted(column.rows[is_old], column.values[is_old]), _sorted(new_rows, hashes)
        ):
            return column
        return Column(np.append(column.values[~is_old], hashes), np.append(column.rows[~is_old], new_rows))
    filler: Any = MISSING
    if kind == "text":
        new = np.fromiter((hash(v) if isinstance(v, str) else MISSING for v in values), np.int64, len(values))
    else:
        types, filler = _NUMBERS[kind], np.nan
        new = np.fromiter((v if type(v) in types else np.nan for v in values), np.float64, len(values))
    if n == n_before and np.array_equal(column.values[rows], new, equal_nan=kind != "text"):
        return column
    changed = _extended(column.values, n, filler)
    changed[rows] = new
    return Column(changed)


def _sorted(rows: Rows, hashes: Rows) -> Rows:
    order = np.lexsort((hashes, rows))
    return np.stack([rows[order], hashes[order]])
