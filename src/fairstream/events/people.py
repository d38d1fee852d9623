"""From the users table, or the events themselves, to the group of each user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.errors import DataError
from fairstream.events.columns import Columns
from fairstream.events.datasets import Dataset
from fairstream.events.groups import Groups, encode_groups, intersection
from fairstream.events.log import EventLog
from fairstream.events.tables import in_one_piece
from fairstream.events.vocabulary import Vocabulary


def read_groups(
    log: EventLog, tables: Dataset, columns: Columns, group: str | Sequence[str] | None, advantaged: object
) -> Groups | None:
    """The groups of the log's users, or None where nothing tells of any."""
    table, what = _people(tables)
    if group is None:
        if tables.users is None:
            if advantaged is not None:
                raise DataError("advantaged says which group is meant, but there are no groups; give group=COLUMN too")
            return None
        group = _only_two_valued(table, skip=columns.find("user", table, what=what))
    parts = _parts(table, group)
    if missing := [name for name in parts if name not in table.column_names]:
        raise DataError(
            f"{what} has no column {missing[0]!r} to group by; its columns are {', '.join(table.column_names)}"
        )
    everyone = intersection([table[name] for name in parts])
    values = _value_of_each_user(log, table, ",".join(parts), everyone, columns)
    return Groups.from_values(",".join(parts), values, possible=everyone, advantaged=advantaged)


def read_more_groups(log: EventLog, tables: Dataset, columns: Columns, groups: Groups) -> Groups | None:
    """The groups of the log's users in the codes of `groups`; None where the tables do not tell."""
    table, _ = _people(tables)
    parts = _parts(table, groups.attribute)
    if not set(parts) <= set(table.column_names):
        return None
    everyone = intersection([table[name] for name in parts])
    values = _value_of_each_user(log, table, groups.attribute, everyone, columns)
    names, codes = encode_groups(values, groups.names)
    return replace(groups, names=names, codes=codes)


def _people(tables: Dataset) -> tuple[pa.Table, str]:
    """The table that holds the groups, and what to call it."""
    return (tables.events, "the events table") if tables.users is None else (tables.users, "the users table")


def _parts(table: pa.Table, group: str | Sequence[str]) -> list[str]:
    """The columns meant by "gender", "gender,age" or ["gender", "age"]."""
    if not isinstance(group, str):
        parts = list(group) if isinstance(group, Sequence) else []
        if not parts or any(not isinstance(name, str) or "," in name for name in parts):
            raise DataError(f"group must be a column or a list of columns without commas in their names, got {group!r}")
        return parts
    return [group] if group in table.column_names else [name.strip() for name in group.split(",")]


def _value_of_each_user(log: EventLog, table: pa.Table, group: str, values: Any, columns: Columns) -> pa.Array:
    """The value of each user row of `log`, null where `table` does not say."""
    user = columns.find("user", table, what="the users table")
    known = Vocabulary()
    if missing := table[user].null_count:
        raise DataError(f"every row of users needs a user, but {missing} of {len(table)} are missing in {user!r}")
    rows = known.extend(in_one_piece(table[user]))
    values = values if isinstance(values, pa.Array) else in_one_piece(values)
    _need_one_value_each(rows, values, group)
    if len(known) and log.user_ids.ids.type != known.ids.type:
        raise DataError(
            f"user ids must be of one kind in both tables: the events have {log.user_ids.ids.type}, "
            f"the users {known.ids.type}; convert one of the columns"
        )
    if not len(known):
        return pa.nulls(log.n_users, values.type)
    first_row = np.zeros(len(known), dtype=np.int64)
    first_row[rows[::-1]] = np.arange(len(rows))[::-1]
    at = known.lookup(log.user_ids.ids)
    return values.take(pa.array(first_row[np.maximum(at, 0)], mask=at < 0))


def _need_one_value_each(rows: np.ndarray[Any, Any], values: pa.Array, group: str) -> None:
    codes = pc.fill_null(values.dictionary_encode().indices, -1).to_numpy(zero_copy_only=False)
    pairs = np.unique(np.stack([rows, codes]), axis=1)
    if pairs.shape[1] > len(np.unique(rows)):
        raise DataError(f"a user has one group, but {group!r} gives some users several values; keep one row a user")


def _only_two_valued(table: pa.Table, *, skip: str) -> str:
    two_valued = [name for name in table.column_names if name != skip and _n_values(table[name]) == 2]
    if len(two_valued) != 1:
        raise DataError(
            f"say which column makes the groups with group=COLUMN (on the command line: --group COLUMN); "
            f"the columns with two values are {', '.join(two_valued) or 'none'}"
        )
    return two_valued[0]


def _n_values(column: pa.ChunkedArray) -> int:
    kind = column.type
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        return 0
    return int(pc.count_distinct(column, mode="only_valid").as_py())
