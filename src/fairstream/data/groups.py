"""The groups of the users, and the advantaged one.

Only this module knows the polarity. Everywhere else a group is a code:
0 = advantaged (the paper's a = 0), 1, 2 … = the others, −1 = unknown, and a disparity is the
value of code 0 minus the value of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.data.reading import Columns, column_list, combined, to_arrow
from fairstream.data.vocabulary import Rows, id_column, same_kind
from fairstream.errors import DataError

ADVANTAGED, UNKNOWN = 0, -1
MAX_GROUPS = 100  # a column with more values does not make groups

Codes = np.ndarray[Any, np.dtype[np.int16]]


@dataclass(frozen=True, eq=False)
class Groups:
    """The group of each user row, by one attribute or by several together.

    Examples
    --------
    >>> groups = Groups.from_values("gender", ["M", "F", "M", None], advantaged="M")
    >>> groups.names, groups.codes.tolist()
    (('M', 'F'), [0, 1, 0, -1])
    >>> groups.with_advantaged("F").codes.tolist()
    [1, 0, 1, -1]
    """

    attribute: str
    names: tuple[str, ...]
    """The advantaged group first, then the others in the order of their first users.

    Rows are in order of appearance too, so the groups known at any time are the first names.
    """
    codes: Codes
    """One code per user row."""
    choice: Literal["declared", "larger"] = "declared"
    """How code 0 was chosen: declared by the caller, or the larger group. Among three or more groups the larger one
    means nothing: see `has_advantaged`."""
    n_compared: int | None = None
    """The number of groups with users when the larger one was chosen; None: all of them."""

    @classmethod
    def none(cls, n_users: int) -> Groups:
        """Return no groups: the group of every user is unknown, and nothing is compared.

        >>> Groups.none(2).codes.tolist()
        [-1, -1]
        """
        return cls("", (), np.full(n_users, UNKNOWN, dtype=np.int16))

    @property
    def is_empty(self) -> bool:
        """Whether there are no groups at all."""
        return not self.names

    @property
    def has_advantaged(self) -> bool:
        """Whether the caller named the advantaged group, or there are only two and the larger one counts.

        The largest of three or more groups may well be the worst served, so none is guessed.

        >>> [Groups.from_values("age", ages).has_advantaged for ages in ([18, 18, 30], [18, 18, 30, 65])]
        [True, False]
        """
        n_groups = len(self.names) if self.n_compared is None else self.n_compared
        return bool(self.names) and (self.choice != "larger" or n_groups <= 2)

    @property
    def advantaged(self) -> tuple[str, ...]:
        """The name of the advantaged group, as a tuple; empty if it is unknown."""
        return self.names[:1] if self.has_advantaged else ()

    @classmethod
    def from_values(cls, attribute: str, values: Any, *, possible: Any = None, advantaged: object = None) -> Groups:
        """Make groups from the value of each user row (null: unknown); `possible` values may have no user yet.

        By default the larger of two groups is advantaged, as in the paper, and none of three or more.

        Raises
        ------
        DataError
            If there are fewer than two groups or more than 100, or none has the value `advantaged`.
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
        """Return the same groups with this one in front; None: the larger one."""
        if advantaged is None:
            return replace(self, choice="larger").as_of(len(self.codes))
        label = _labels([advantaged])[0].as_py()
        if label not in self.names:
            raise DataError(f"no user has {self.attribute} = {label!r}; the values are {_shown(self.names)}")
        return replace(self, choice="declared").with_advantaged(label)

    def as_of(self, n_users: int) -> Groups:
        """Return the same groups, with the larger one by the first `n_users` rows only."""
        if self.choice == "declared":
            return self
        codes = self.codes[:n_users]
        sizes = np.bincount(codes[codes >= 0], minlength=len(self.names))
        n_compared = None if len(codes) == len(self.codes) else int(np.count_nonzero(sizes))
        larger = max(sorted(self.names), key=lambda name: sizes[self.names.index(name)])
        if not sizes.any():  # no group is known yet: take the first to appear
            larger = self.names[self._by_appearance()[0]]
        return replace(self.with_advantaged(larger), n_compared=n_compared)

    def with_advantaged(self, name: str) -> Groups:
        """Return the same users with another group in front; of two groups, disparities change their sign."""
        first = self.names.index(name)
        order = [first, *(code for code in self._by_appearance() if code != first)]
        return self._renumbered(order)

    def _renumbered(self, order: Sequence[int]) -> Groups:
        """Return the same groups with the codes `order` as the codes 0, 1, 2 …"""
        place = np.empty(len(order) + 1, dtype=np.int16)
        place[list(order)], place[UNKNOWN] = np.arange(len(order)), UNKNOWN
        return replace(self, names=tuple(self.names[code] for code in order), codes=place[self.codes])

    def _by_appearance(self) -> list[int]:
        """Return the codes in the order of their first users; codes without users come last."""
        seen, at = np.unique(self.codes, return_index=True)
        appearance = {int(code): int(row) for code, row in zip(seen, at, strict=True)}
        return sorted(range(len(self.names)), key=lambda code: appearance.get(code, len(self.codes)))

    def n_groups_among(self, n_users: int) -> int:
        """Return how many of the names occur among the first `n_users` rows (no later name does)."""
        return int(self.codes[:n_users].max(initial=UNKNOWN)) + 1

    def n_occurring(self) -> int:
        """Return how many groups have any users."""
        return len(np.unique(self.codes[self.codes != UNKNOWN]))

    def signs(self, n_groups: int) -> list[float]:
        """Return +1 for the advantaged one of the first `n_groups`, −1 for the others; all 0 where none is known."""
        if not self.has_advantaged:
            return [0.0] * n_groups
        return [1.0 if code == ADVANTAGED else -1.0 for code in range(n_groups)]

    def labels(self) -> np.ndarray[Any, np.dtype[np.object_]]:
        """Return the name of each user's group, None where it is unknown."""
        return np.array([*self.names, None], dtype=object)[self.codes]

    def behind(self) -> list[str]:
        """Return the names of all groups but the advantaged one; none where it is unknown."""
        return list(self.names[1:]) if self.has_advantaged else []

    def weights(self, weights: Mapping[str, float]) -> np.ndarray[Any, np.dtype[np.float64]] | None:
        """Return the weight of each user's group, 1 for users of other groups or none; None where all are 1.

        >>> Groups.from_values("gender", ["M", "F", None], advantaged="M").weights({"F": 2.0}).tolist()
        [1.0, 2.0, 1.0]
        """
        if all(weight == 1 for weight in weights.values()):
            return None
        by_code = np.array([*(weights.get(name, 1.0) for name in self.names), 1.0])  # UNKNOWN is −1
        return by_code[self.codes]

    def hide(self, rows: Rows) -> Groups:
        """Return the same groups with those of some user rows unknown.

        >>> Groups.from_values("gender", ["M", "F", "M"], advantaged="M").hide(np.array([0])).codes.tolist()
        [-1, 1, 0]
        """
        codes = self.codes.copy()
        codes[rows] = UNKNOWN
        return replace(self, codes=codes)

    def without(self, row: int | Rows) -> Groups:
        """Return the groups without these user rows; groups without users come last.

        The advantaged group keeps the code 0 even without users.
        """
        codes = np.delete(self.codes, row)
        if self.is_empty:
            return replace(self, codes=codes)
        occurring = set(np.unique(codes).tolist()) | {ADVANTAGED}
        order = sorted(range(len(self.names)), key=lambda code: (code not in occurring, code))
        return replace(self, codes=codes)._renumbered(order)

    def notes_on_merge(self, rows: np.ndarray[Any, Any], other: Groups | None) -> tuple[str, ...]:
        """Return a sentence if `merge` with the same arguments ignores changed groups or makes new ones."""
        if other is None or self.is_empty:
            return ()
        notes, known = [], rows < len(self.codes)
        before = replace(self, codes=self.codes[rows[known]])  # a few users: the labels of all take long
        pairs = zip(before.labels(), other.labels()[known], strict=True)
        if n := sum(None not in pair and pair[0] != pair[1] for pair in pairs):
            notes.append(f"{n} known user(s) came with another {self.attribute} than before: the earlier one is kept")
        if new := sorted({name for name in other.labels() if name is not None} - set(self.names)):
            notes.append(f"new value(s) of {self.attribute}, each a group from now on: {_shown(new)}")
        return tuple(notes)

    def merge(self, rows: np.ndarray[Any, Any], n_rows: int, other: Groups | None) -> Groups:
        """Return these groups for `n_rows` users; users at `rows` take their group from `other`.

        Users of known group keep it (`notes_on_merge` counts the changed ones); a new value becomes a new group.
        """
        codes = np.full(n_rows, UNKNOWN, dtype=np.int16)
        codes[: len(self.codes)] = self.codes
        if other is None or self.is_empty:
            return replace(self, codes=codes)
        if other.attribute != self.attribute:
            raise DataError(f"groups must stay the same: expected {self.attribute!r}, got {other.attribute!r}")
        names = self.names + tuple(name for name in other.names if name not in self.names)
        _check_few(self.attribute, names)
        place = np.array([*(names.index(name) for name in other.names), UNKNOWN], dtype=np.int16)
        fresh = codes[rows] == UNKNOWN
        rows, brought = rows[fresh], place[other.codes[fresh]]
        # Groups with users keep their codes; only groups that get their first users now need an order.
        n_settled = max(ADVANTAGED + 1, self.n_groups_among(len(self.codes)))
        newcomers = replace(self, names=names, codes=brought[np.argsort(rows)], n_compared=None)
        late = [code for code in newcomers._by_appearance() if code >= n_settled]
        newcomers = replace(newcomers, codes=brought)._renumbered([*range(n_settled), *late])
        codes[rows] = newcomers.codes
        return replace(newcomers, codes=codes)


def encode_groups(values: Any, names: Sequence[str]) -> tuple[tuple[str, ...], Codes]:
    """Return the names with the new ones at the end, and the code of each value (null is UNKNOWN)."""
    labels = _labels(values)
    extended = (*names, *(name for name in _distinct(labels) if name not in names))
    return extended, _encoded(labels, extended)


def intersection(columns: Sequence[Any]) -> Any:
    """Return one value for each combination of several columns' values; null where any of them is null.

    >>> intersection([["F", "M", None], [18, 25, 25]]).to_pylist()
    ['F,18', 'M,25', None]
    """
    labels = [_labels(column) for column in columns]
    if len(labels) == 1:
        return labels[0]
    # Values with a comma or a quotation mark are quoted, as in CSV: no two combinations look equal.
    in_marks = (pc.binary_join_element_wise('"', pc.replace_substring(part, '"', '""'), '"', "") for part in labels)
    quoted = map(pc.if_else, (pc.match_substring_regex(part, '[,"]') for part in labels), in_marks, labels)
    return pc.binary_join_element_wise(*quoted, ",", null_handling="emit_null")


@dataclass(frozen=True, eq=False)
class GroupValues:
    """The group value of each user that a table names.

    >>> table = pa.table({"user": [1, 2, 3], "sex": ["F", "M", None]})
    >>> GroupValues.from_table(table, "sex", Columns(), what="the users table").of(pa.array([2, 4, 3, 1])).to_pylist()
    ['M', None, None, 'F']
    """

    attribute: str
    users: pa.Array  # ids, each once
    values: pa.Array  # strings, null where the table has no value

    @classmethod
    def from_table(cls, table: pa.Table, group: str | Sequence[str], columns: Columns, *, what: str) -> GroupValues:
        """Read the values from the column or columns `group`; raise DataError where a user has several."""
        parts = group_parts(table, group, what=what)
        user = columns.find("user", table, what=what)
        check_users(table[user].null_count, len(table), user)
        return cls.from_pairs(",".join(parts), combined(table[user]), intersection([table[name] for name in parts]))

    @classmethod
    def from_pairs(cls, attribute: str, users: pa.Array, values: pa.Array | pa.ChunkedArray) -> GroupValues:
        """Make one value a user from pairs that may repeat; raise DataError where a user has several."""
        users = id_column(users)
        if len(pc.unique(users)) < len(users):
            pairs = pa.table({"user": users, "value": values}).group_by(["user", "value"], use_threads=False)
            distinct = pairs.aggregate([]).combine_chunks()
            users, values = combined(distinct["user"]), distinct["value"]
            if len(pc.unique(users)) < len(users):
                raise DataError(
                    f"a user has one group, but {attribute!r} gives some users several values; keep one row a user"
                )
        values = combined(values) if isinstance(values, pa.ChunkedArray) else values
        return cls(attribute, users, values.cast(pa.string()))

    def of(self, user_ids: pa.Array) -> pa.Array:
        """Return the value of each user, null where the table has none."""
        return self.values.take(self._places(user_ids))

    def n_unmatched(self, user_ids: pa.Array) -> int:
        """Return how many of the users are missing in the table."""
        return int(self._places(user_ids).null_count)

    def _places(self, user_ids: pa.Array) -> pa.Array:
        """Return the position of each user in the table, null where it is missing."""
        user_ids, users = same_kind(user_ids, self.users)
        if user_ids.type != users.type and len(users):
            raise DataError(
                f"user ids must be of one kind in both tables: the events have {user_ids.type}, "
                f"the users {users.type}; convert one of the columns"
            )
        return pc.index_in(user_ids, value_set=users) if len(users) else pa.nulls(len(user_ids), pa.int32())

    def groups(self, user_ids: pa.Array, advantaged: object) -> Groups:
        """Return the groups of the users; values of users without events are possible groups too."""
        if len(user_ids) and self.n_unmatched(user_ids) == len(user_ids):
            named = f"ids such as {self.users[0].as_py()!r}" if len(self.users) else "no ids"
            raise DataError(
                f"none of the {len(user_ids)} users with events is in the users table: the events have ids such as "
                f"{user_ids[0].as_py()!r}, the users table has {named}; check that both mean the same users"
            )
        return Groups.from_values(self.attribute, self.of(user_ids), possible=self.values, advantaged=advantaged)


def group_parts(table: pa.Table, group: str | Sequence[str], *, what: str) -> list[str]:
    """Return the columns meant by "gender", "gender,age" or ["gender", "age"]; raise DataError where one is missing."""
    if not isinstance(group, str):
        parts = list(group) if isinstance(group, Sequence) else []
        if not parts or any(not isinstance(name, str) or "," in name for name in parts):
            raise DataError(f"group must be a column or a list of columns without commas in their names, got {group!r}")
    else:
        parts = [group] if group in table.column_names else [name.strip() for name in group.split(",")]
    if missing := [name for name in parts if name not in table.column_names]:
        raise DataError(f"{what} has no column {missing[0]!r} to group by; its columns are {column_list(table)}")
    return parts


def only_two_valued(table: pa.Table, columns: Columns, *, what: str) -> str:
    """Return the only column with two values; raise DataError if there is not exactly one."""
    user = columns.find("user", table, what=what)
    two_valued = [name for name in table.column_names if name != user and n_values(table[name]) == 2]
    if len(two_valued) != 1:
        raise DataError(
            f"say which column makes the groups with group=COLUMN (on the command line: --group COLUMN); "
            f"the columns with two values are {', '.join(two_valued) or 'none'}"
        )
    return two_valued[0]


def n_values(column: pa.ChunkedArray) -> int:
    """Return the number of distinct values; 0 for a type that must be named to make groups."""
    if pa.types.is_nested(column.type) or pa.types.is_null(column.type):
        return 0
    if isinstance(column.type, pa.BaseExtensionType):
        column = _labels(column)
    return int(pc.count_distinct(column, mode="only_valid").as_py())


def check_users(n_missing: int, n_rows: int, column: str) -> None:
    """Raise DataError where a row with a group has no user."""
    if n_missing:
        raise DataError(f"every row of users needs a user, but {n_missing} of {n_rows} are missing in {column!r}")


def read_more_groups(user_ids: pa.Array, table: pa.Table, columns: Columns, groups: Groups) -> Groups | None:
    """Return the groups of the users in the codes of `groups`; None where the table has no such column."""
    parts = [groups.attribute] if groups.attribute in table.column_names else groups.attribute.split(",")
    if not set(parts) <= set(table.column_names):
        return None
    values = GroupValues.from_table(table, groups.attribute, columns, what="the users table")
    names, codes = encode_groups(values.of(user_ids), groups.names)
    return replace(groups, names=names, codes=codes)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)[:8]) or "none"


def _check_few(attribute: str, names: Sequence[str]) -> None:
    if len(names) > MAX_GROUPS:
        raise DataError(
            f"at most {MAX_GROUPS} groups can be compared, but {attribute!r} takes {len(names)} values "
            f"({_shown(names)} …); choose a coarser column, or make classes of its values"
        )


def _distinct(labels: pa.Array) -> list[str]:
    """Return the values that occur, in the order of first appearance."""
    return list(pc.unique(labels.drop_null()).to_pylist())


def _encoded(labels: pa.Array, names: Sequence[str]) -> Codes:
    codes = pc.index_in(labels, value_set=pa.array(names, pa.string()))
    encoded: Codes = pc.fill_null(codes, UNKNOWN).to_numpy(zero_copy_only=False).astype(np.int16)
    return encoded


def _written_out(value: Any) -> str | None:
    """Write a tuple as its values with commas between them; None where any of them is missing."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return None if any(part is None for part in value) else ",".join(map(str, value))
    return None if value is None else str(value)


def _labels(values: Any) -> pa.Array:
    """Return the values as strings, null where unknown; tuples and intervals are written out."""
    try:
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else to_arrow(values, "groups")
        if isinstance(array.type, pa.BaseExtensionType) or pa.types.is_nested(array.type):
            array = pa.array([_written_out(value) for value in array.to_pylist()], pa.string())
        if pa.types.is_floating(array.type):
            array = pc.if_else(pc.is_nan(array), None, array)
        return pc.cast(array, pa.string())
    except (pa.ArrowException, TypeError, ValueError):
        raise DataError(
            "the values of a group must be strings, numbers, booleans, tuples or intervals; convert the column first"
        ) from None
