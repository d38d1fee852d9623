"""The items that may be in a list: the catalogue, filters and rules, by the rows of one model's items."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from fairstream.data import Rows, Vocabulary
from fairstream.data.catalogue import Catalogue
from fairstream.data.filters import MISSING, Mask
from fairstream.service.lists import Answer, Ask
from fairstream.service.rules import NO_RULES, Rules

_CACHED_MASKS = 64  # of filters, at a byte for each item


@dataclass(frozen=True, eq=False)
class Allowed:
    """The items that may be in one list: those of the mask, of which there are n, but for `left_out`."""

    mask: Mask  # (n_items,)
    n: int
    left_out: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    similar: dict[tuple[str, int], Answer] = field(default_factory=dict)  # cached lists of similar items among them

    @classmethod
    def of(cls, mask: Mask) -> Self:
        return cls(mask, int(np.count_nonzero(mask)))

    def rows(self) -> Rows:
        """Return their rows."""
        rows = np.flatnonzero(self.mask)
        return rows[~np.isin(rows, self.left_out)] if len(self.left_out) else rows

    @cached_property
    def among(self) -> Rows | None:
        """The rows of the mask, None if it has all."""
        return None if self.n == len(self.mask) else np.flatnonzero(self.mask)


@dataclass(frozen=True, eq=False)
class Shop:
    """The catalogue and the rules at one moment."""

    item_ids: Vocabulary
    catalogue: Catalogue
    rules: Rules
    rows: Rows  # (n_items,) each item's row in the catalogue, −1 for one that nobody has described
    available: Allowed
    serial: int = 0  # changes with whatever may change a list without a filter
    _passing: dict[str, tuple[Mask, Mask, Allowed]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, item_ids: Vocabulary, n_items: int) -> Self:
        """Return a shop in which nobody has described any item."""
        everything = Allowed.of(np.ones(n_items, np.bool_))
        return cls(item_ids, Catalogue.of({}), NO_RULES, np.full(n_items, -1), everything)

    def using(self, catalogue: Catalogue, rules: Rules) -> Self:
        """Return the shop with another catalogue and other rules."""
        follows, n_before, rows = catalogue.follows(self.catalogue), len(self.catalogue), self.rows
        if not follows:
            n_before, rows = 0, np.full(len(rows), -1)
        if len(catalogue) > n_before:
            known = self.item_ids.lookup(catalogue.item_ids.ids[n_before:])
            rows = rows.copy()
            rows[known[known >= 0]] = n_before + np.flatnonzero(known >= 0)
        available = self.available
        if not follows or len(catalogue) > n_before or catalogue.available is not self.catalogue.available:
            mask = catalogue.available[rows]
            if not np.array_equal(mask, available.mask):
                available = Allowed.of(mask)
        is_other = available is not self.available or rules is not self.rules or not rules.is_empty
        serial = self.serial + is_other
        return replace(self, catalogue=catalogue, rules=rules, rows=rows, available=available, serial=serial)

    def passing(self, where: str) -> Allowed:
        """Return the available items that pass a filter; raise `FilterError` if it cannot be read."""
        if not where:
            return self.available
        of_catalogue, available = self.catalogue.mask(where), self.available.mask
        *masks, allowed = self._passing.get(where, (None, None, None))
        if allowed is None or masks[0] is not of_catalogue or masks[1] is not available:
            allowed = Allowed.of(of_catalogue[self.rows] & available)
            if len(self._passing) >= _CACHED_MASKS:
                self._passing.clear()
            self._passing[where] = of_catalogue, available, allowed
        return allowed

    def has_cached(self, where: str) -> bool:
        """Whether `passing` takes no time."""
        return not where or where in self._passing

    def allowed(self, ask: Ask, left_out: Collection[str]) -> Allowed:
        """Return the items that may be in the requested list."""
        allowed = self.passing(ask.where)
        if ask.only is not None:
            rows = self.rows_of(ask.only)
            mask = np.zeros(len(self.rows), np.bool_)
            mask[rows] = allowed.mask[rows]
            allowed = Allowed.of(mask)
        return replace(allowed, left_out=self.rows_of(left_out)) if left_out else allowed

    def rows_of(self, items: Iterable[str]) -> Rows:
        """Return the rows of the items that the model knows."""
        return np.array([row for row in map(self.item_ids.row_of, items) if row >= 0], np.int64)

    def permits(self, item: str, where: str) -> bool:
        """Whether an item, known to the model or not, is available and passes a filter."""
        [row] = self.catalogue.rows_of([item])
        return bool(self.catalogue.available[row]) and (not where or bool(self.catalogue.mask(where)[row]))

    def choose(self, ranked: Any, k: int, allowed: Allowed, *, is_complete: bool) -> Rows | None:
        """Return the positions of the k items to show, in order; None if that takes a longer ranking.

        The rules apply to the allowed items in their order: an item of rank r is moved to rank r / factor, and of each
        property value the first n stay.
        """
        is_allowed = allowed.mask[ranked]
        if len(allowed.left_out):
            is_allowed &= ~np.isin(ranked, allowed.left_out)
        places = np.flatnonzero(is_allowed)
        rules = self.rules
        if not (rules.boosts or rules.limits):
            return places[:k] if is_complete or len(places) >= k else None
        ranks = np.arange(1.0, len(places) + 1)
        of_catalogue = self.rows[ranked[places]]
        for boost in rules.boosts:
            ranks[self.catalogue.mask(boost.filter)[of_catalogue]] /= boost.factor
        order = np.argsort(ranks, kind="stable")
        order = order[self._within_limits(of_catalogue[order], k)]
        # An item after the end of the ranking could be moved to this rank at most.
        ahead = (len(places) + 1) / rules.largest_boost
        if not is_complete and (len(order) < k or ranks[order[-1]] > ahead):
            return None
        return places[order]

    def _within_limits(self, of_catalogue: Rows, k: int) -> list[int]:
        """Return the positions of the first k items that no `at_most` leaves out."""
        if not self.rules.limits:
            return list(range(min(k, len(of_catalogue))))
        values = [self.catalogue.columns[limit.per].values[of_catalogue].tolist() for limit in self.rules.limits]
        counts: list[dict[float, int]] = [{} for _ in values]
        chosen: list[int] = []
        for at, of_item in enumerate(zip(*values, strict=True)):
            if len(chosen) == k:
                break
            full = (
                value in count and count[value] >= limit.n
                for value, count, limit in zip(of_item, counts, self.rules.limits, strict=True)
            )
            if any(full):
                continue
            chosen.append(at)
            for value, count in zip(of_item, counts, strict=True):
                if value != MISSING and value == value:  # noqa: PLR0124 (not NaN): what is missing has no limit
                    count[value] = count.get(value, 0) + 1
        return chosen
