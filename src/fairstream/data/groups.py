"""Who belongs to which group, and which groups are the advantaged ones.

This is the only place that knows the polarity. Everywhere else a group is a code:
0 = advantaged (the paper's a = 0), 1, 2 … = the others, −1 = not known, and a disparity is the
value of code 0 minus the value of the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.errors import DataError

ADVANTAGED, UNKNOWN = 0, -1
AUTO = "auto"
MOST_GROUPS = 100
"""More values than these are no groups to compare."""

Codes = np.ndarray[Any, np.dtype[np.int16]]


@dataclass(frozen=True, eq=False)
class Groups:
    """The group of each user row, by one attribute or by several together.

    >>> groups = Groups.from_values("gender", ["M", "F", "M", None], advantaged="M")
    >>> groups.names, groups.codes.tolist()
    (('M', 'F'), [0, 1, 0, -1])
    >>> groups.with_advantaged("F").codes.tolist()
    [1, 0, 1, -1]
    """

    attribute: str
    names: tuple[str, ...]
    """The advantaged group first, then the others in the order in which users of them appear.

    With rows in the order of appearance too, the groups known at any time are the first names.
    """
    codes: Codes
    """One code per user row."""
    choice: Literal["declared", "larger", "auto"] = "declared"
    """How the advantaged group came to be so: named by the caller, the larger one for want of a
    name, or found anew before each update from the period that has just ended."""
    ahead: tuple[int, ...] = (ADVANTAGED,)
    """The codes that the fairness loss takes to be ahead of the rest; more than one only by `auto`."""

    @classmethod
    def from_values(cls, attribute: str, values: Any, *, possible: Any = None, advantaged: object = None) -> Groups:
        """Read the groups off the attribute's value of each user row (null: not known).

        `possible` may hold values that no user has yet. Without `advantaged`, or with "auto", the
        larger group is taken, as the paper does for both of its data sets.
        """
        labels = _labels(values)
        names = tuple(_distinct(labels))
        names += tuple(sorted(set(_distinct(_labels(possible))) - set(names))) if possible is not None else ()
        if len(names) < 2:
            raise DataError(
                f"groups are compared, but {attribute!r} takes {len(names)} value(s) ({_shown(names)}); "
                f"choose a column with more values"
            )
        _check_few(attribute, names)
        return cls(attribute, names, _encoded(labels, names)).declared(advantaged)

    def declared(self, advantaged: object) -> Groups:
        """The same groups with this one in front; without one, or with "auto", the larger."""
        if advantaged is None or advantaged == AUTO:
            choice: Literal["auto", "larger"] = "auto" if advantaged == AUTO else "larger"
            return replace(self, choice=choice).as_of(len(self.codes))
        declared = _labels([advantaged])[0].as_py()
        if declared not in self.names:
            raise DataError(
                f"no user has {self.attribute} = {declared!r}; the values that occur are {_shown(self.names)}"
            )
        return replace(self, choice="declared").with_advantaged(declared)

    def as_of(self, n_users: int) -> Groups:
        """The same groups, with the larger one decided on the first `n_users` rows alone."""
        if self.choice == "declared":
            return self
        codes = self.codes[:n_users]
        sizes = np.bincount(codes[codes >= 0], minlength=len(self.names))
        if not sizes.any():  # nobody's group is known yet: the first that will be
            return self.with_advantaged(self.names[self._by_appearance()[0]])
        return self.with_advantaged(max(sorted(self.names), key=lambda name: sizes[self.names.index(name)]))

    def with_advantaged(self, name: str) -> Groups:
        """The same users with another group in front, and it alone ahead; of two, every disparity changes its sign."""
        first = self.names.index(name)
        order = [first, *(code for code in self._by_appearance() if code != first)]
        return replace(self._renumbered(order), ahead=(ADVANTAGED,))

    def _renumbered(self, order: Sequence[int]) -> Groups:
        """The same groups with the codes `order` as the codes 0, 1, 2 …"""
        place = np.empty(len(order) + 1, dtype=np.int16)
        place[list(order)], place[UNKNOWN] = np.arange(len(order)), UNKNOWN
        return replace(
            self,
            names=tuple(self.names[code] for code in order),
            codes=place[self.codes],
            ahead=tuple(sorted(int(place[code]) for code in self.ahead)),
        )

    def _by_appearance(self) -> list[int]:
        """The codes in the order in which their first users appear; those without users come last."""
        seen, at = np.unique(self.codes, return_index=True)
        appearance = {int(code): int(row) for code, row in zip(seen, at, strict=True)}
        return sorted(range(len(self.names)), key=lambda code: appearance.get(code, len(self.codes)))

    def n_groups_among(self, n_users: int) -> int:
        """How many of the names the first `n_users` rows have shown (no later name is among them)."""
        return int(self.codes[:n_users].max(initial=UNKNOWN)) + 1

    def n_occurring(self) -> int:
        """How many groups have any users."""
        return len(np.unique(self.codes[self.codes != UNKNOWN]))

    def signs(self, n_groups: int) -> list[float]:
        """+1 for each of the first `n_groups` that counts as ahead of the rest, −1 for the others."""
        return [1.0 if code in self.ahead else -1.0 for code in range(n_groups)]

    def with_ahead(self, names: Iterable[str], judged: Iterable[str] | None = None) -> Groups:
        """The same groups with `names` found ahead of the rest; nothing changes where none is.

        Of groups that were not judged nothing is known, and they stay what they were.
        """
        unjudged = set() if judged is None else set(self.names) - set(judged)
        found = {self.names.index(name) for name in names}
        kept = {code for code in self.ahead if self.names[code] in unjudged}
        ahead = tuple(sorted(found | kept)) if found else ()
        return replace(self, ahead=ahead) if 0 < len(ahead) < len(self.names) else self

    def merge(self, rows: np.ndarray[Any, Any], n_rows: int, other: Groups | None) -> Groups:
        """These groups for `n_rows` users, of whom `rows` may bring their group from `other`.

        Known users keep theirs; a value that nobody had before becomes a new group.
        """
        codes = np.full(n_rows, UNKNOWN, dtype=np.int16)
        codes[: len(self.codes)] = self.codes
        if other is None:
            return replace(self, codes=codes)
        if other.attribute != self.attribute:
            raise DataError(f"groups must stay the same: expected {self.attribute!r}, got {other.attribute!r}")
        names = self.names + tuple(name for name in other.names if name not in self.names)
        _check_few(self.attribute, names)
        place = np.array([*(names.index(name) for name in other.names), UNKNOWN], dtype=np.int16)
        fresh = codes[rows] == UNKNOWN
        rows, brought = rows[fresh], place[other.codes[fresh]]
        # Groups that have users keep their codes; only those that get their first ones now are put in order.
        n_settled = max(ADVANTAGED + 1, self.n_groups_among(len(self.codes)))
        late, at = np.unique(brought[np.argsort(rows)], return_index=True)
        appearing = [int(code) for code in late[np.argsort(at)] if code >= n_settled]
        order = [*range(n_settled), *appearing, *(n for n in range(n_settled, len(names)) if n not in appearing)]
        newcomers = replace(self, names=names, codes=brought)._renumbered(order)
        codes[rows] = newcomers.codes
        return replace(newcomers, codes=codes)


def encode_groups(values: Any, names: Sequence[str]) -> tuple[tuple[str, ...], Codes]:
    """The code of each value (null is UNKNOWN), and the names with the new ones at the end."""
    labels = _labels(values)
    extended = (*names, *(name for name in _distinct(labels) if name not in names))
    return extended, _encoded(labels, extended)


def intersection(columns: Sequence[Any]) -> Any:
    """One value for each combination of several columns' values; null where any of them is null.

    >>> intersection([["F", "M", None], [18, 25, 25]]).to_pylist()
    ['F,18', 'M,25', None]
    """
    labels = [_labels(column) for column in columns]
    if len(labels) > 1 and any(pc.any(pc.match_substring(label, ",")).as_py() for label in labels):
        raise DataError("columns can be combined into groups only if none of their values contains a comma")
    return pc.binary_join_element_wise(*labels, ",", null_handling="emit_null") if len(labels) > 1 else labels[0]


def _shown(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)[:8]) or "none"


def _check_few(attribute: str, names: Sequence[str]) -> None:
    if len(names) > MOST_GROUPS:
        raise DataError(
            f"at most {MOST_GROUPS} groups can be compared, but {attribute!r} takes {len(names)} values "
            f"({_shown(names)} …); choose a coarser column, or make classes of its values"
        )


def _distinct(labels: pa.Array) -> list[str]:
    """The values that occur, in the order in which they do."""
    return [name for name in pc.unique(labels).to_pylist() if name is not None]


def _encoded(labels: pa.Array, names: Sequence[str]) -> Codes:
    codes = pc.index_in(labels, value_set=pa.array(names, pa.string()))
    encoded: Codes = pc.fill_null(codes, UNKNOWN).to_numpy(zero_copy_only=False).astype(np.int16)
    return encoded


def _labels(values: Any) -> pa.Array:
    """The values as strings, null where nothing is known."""
    try:
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        if pa.types.is_floating(array.type):
            array = pc.if_else(pc.is_nan(array), None, array)
        return pc.cast(array, pa.string())
    except (pa.ArrowException, TypeError):
        raise DataError(
            "the values of a group must be strings, numbers or booleans; convert the column first"
        ) from None
