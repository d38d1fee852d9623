"""From the users table, or the events themselves, to the group of each user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.data.columns import Columns
from fairstream.data.groups import Groups, encode_groups, intersection
from fairstream.data.tables import in_one_piece
from fairstream.data.vocabulary import Vocabulary
from fairstream.errors import DataError

_UNHEARD_OF, _NO_VALUE = -2, -1


class GroupCollector:
    """The group value of each user, gathered a table at a time.

    >>> people = GroupCollector(pa.table({"user": [1, 2], "sex": ["F", "M"]}), "sex", Columns(), what="the users table")
    >>> people.add(pa.table({"user": [1, 2, 3], "sex": ["F", "M", None]}))
    >>> people.values(pa.array([2, 4, 3, 1])).to_pylist()
    ['M', None, None, 'F']
    """

    def __init__(self, like: pa.Table, group: str | Sequence[str], columns: Columns, *, what: str) -> None:
        """`like` is a table, maybe without rows, whose columns are those of all that will come."""
        self.parts = _parts(like, group)
        if missing := [name for name in self.parts if name not in like.column_names]:
            raise DataError(
                f"{what} has no column {missing[0]!r} to group by; its columns are {', '.join(like.column_names)}"
            )
        self.user = columns.find("user", like, what=what)
        self.attribute = ",".join(self.parts)
        self._ids, self._labels = Vocabulary(), Vocabulary()
        self._label_of = np.empty(0, dtype=np.int64)
        self._n_rows = self._n_missing = 0

    def add(self, table: pa.Table) -> None:
        """What these rows say of their users; each user must have one value."""
        self._n_rows, self._n_missing = self._n_rows + len(table), self._n_missing + table[self.user].null_count
        values = intersection([table[name] for name in self.parts])
        if self._n_missing:
            return  # there will be no groups; go on counting
        rows = self._ids.extend(in_one_piece(table[self.user]))
        there = pc.is_valid(values).to_numpy(zero_copy_only=False) if len(values) else np.empty(0, dtype=np.bool_)
        labels = np.full(len(rows), _NO_VALUE, dtype=np.int64)
        labels[there] = self._labels.extend(values.drop_null())
        new = np.full(len(self._ids) - len(self._label_of), _UNHEARD_OF, dtype=np.int64)
        self._label_of = np.concatenate([self._label_of, new])
        fresh = self._label_of[rows] == _UNHEARD_OF
        self._label_of[rows[fresh]] = labels[fresh]
        if (self._label_of[rows] != labels).any():
            raise DataError(
                f"a user has one group, but {self.attribute!r} gives some users several values; keep one row a user"
            )

    def values(self, user_ids: pa.Array) -> pa.Array:
        """The value of each of the users, null where no table has told."""
        if self._n_missing:
            raise DataError(
                f"every row of users needs a user, but {self._n_missing} of {self._n_rows} are missing in {self.user!r}"
            )
        if not len(self._ids):
            return pa.nulls(len(user_ids), pa.large_string())
        if user_ids.type != self._ids.ids.type:
            raise DataError(
                f"user ids must be of one kind in both tables: the events have {user_ids.type}, "
                f"the users {self._ids.ids.type}; convert one of the columns"
            )
        at = self._ids.lookup(user_ids)
        label = np.where(at >= 0, self._label_of[at], _NO_VALUE)
        return self._labels.ids.cast(pa.large_string()).take(pa.array(label, mask=label < 0))

    def groups(self, user_ids: pa.Array, advantaged: object) -> Groups:
        """The groups of the users; values that only others have are possible too."""
        return Groups.from_values(
            self.attribute, self.values(user_ids), possible=self._labels.ids, advantaged=advantaged
        )


def only_two_valued(table: pa.Table, columns: Columns, *, what: str) -> str:
    """The column that makes the groups where none was named."""
    skip = columns.find("user", table, what=what)
    two_valued = [name for name in table.column_names if name != skip and n_values(table[name]) == 2]
    if len(two_valued) != 1:
        raise DataError(
            f"say which column makes the groups with group=COLUMN (on the command line: --group COLUMN); "
            f"the columns with two values are {', '.join(two_valued) or 'none'}"
        )
    return two_valued[0]


def read_more_groups(user_ids: pa.Array, table: pa.Table, columns: Columns, groups: Groups) -> Groups | None:
    """The groups of the users in the codes of `groups`; None where the table does not tell."""
    if not set(_parts(table, groups.attribute)) <= set(table.column_names):
        return None
    people = GroupCollector(table, groups.attribute, columns, what="the users table")
    people.add(table)
    names, codes = encode_groups(people.values(user_ids), groups.names)
    return replace(groups, names=names, codes=codes)


def _parts(table: pa.Table, group: str | Sequence[str]) -> list[str]:
    """The columns meant by "gender", "gender,age" or ["gender", "age"]."""
    if not isinstance(group, str):
        parts = list(group) if isinstance(group, Sequence) else []
        if not parts or any(not isinstance(name, str) or "," in name for name in parts):
            raise DataError(f"group must be a column or a list of columns without commas in their names, got {group!r}")
        return parts
    return [group] if group in table.column_names else [name.strip() for name in group.split(",")]


def n_values(column: pa.ChunkedArray) -> int:
    """How many different values the column takes; none of a kind that cannot make groups."""
    kind = column.type
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        return 0
    return int(pc.count_distinct(column, mode="only_valid").as_py())
