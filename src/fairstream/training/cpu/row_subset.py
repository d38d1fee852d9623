"""The rows that a training will touch, side by side in the order in which it comes to them.

An update goes over the same few batches again and again. On a copy of just the rows that occur in
them it runs through memory in order, whatever the size of the catalogue; and until copy and
original are exchanged nothing has happened to the model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairstream.compiled import njit, parallel_ranges
from fairstream.training.cpu.adam import Table
from fairstream.training.cpu.prefetch import prefetch_row, prefetch_row_to_write

_AHEAD = 16
"""Rows between asking for memory and needing it."""


class RowSubset(NamedTuple):
    """Some rows of a table as a table of their own."""

    rows: np.ndarray[Any, np.dtype[np.int64]]
    """The row of the whole table behind each row of this one."""
    table: Table

    @classmethod
    def of(cls, whole: Table, column: np.ndarray[Any, Any]) -> RowSubset:
        """The rows that occur in `column`, which are renamed in place to those of the new table."""
        rows = np.empty(min(column.size, len(whole.weight)), dtype=np.int64)
        names = np.zeros(len(whole.weight), dtype=np.int32)
        rows = rows[: rename(column.reshape(-1), names, rows)]
        parts = [np.empty((len(rows), part.shape[1]), dtype=np.float32) for part in whole[:3]]

        def copy(begin: int, end: int) -> None:
            for ours, theirs in zip(parts, whole[:3], strict=True):
                gather(theirs, rows[begin:end], ours[begin:end])

        parallel_ranges(len(rows), copy)
        return cls(rows, Table(parts[0], parts[1], parts[2], whole.n_updates[rows], whole.frozen_since))


@njit
def rename(column: Any, names: Any, rows: Any) -> Any:
    """Name rows 0, 1, 2 … in the order of their first occurrence; gives how many there are.

    `names[row]` is 1 + the name of a row, 0 where it has none yet.
    """
    n = 0
    for at in range(len(column)):
        row = column[at]
        if names[row] == 0:
            rows[n] = row
            n += 1
            names[row] = n
        column[at] = names[row] - 1
    return n


@njit
def gather(table: Any, rows: Any, out: Any) -> None:
    """Out = table[rows]"""
    for at in range(len(rows)):
        if at + _AHEAD < len(rows):
            prefetch_row(table, rows[at + _AHEAD])
        for k in range(table.shape[1]):
            out[at, k] = table[rows[at], k]


@njit
def swap_rows(users: Any, all_users: Any, items: Any, all_items: Any, is_written: Any) -> None:
    """Swap the rows of two compact tables with those they were copied from; doing it again takes it back.

    One call, which nothing can interrupt: afterwards either all has happened, and `is_written`
    says so, or nothing.
    """
    _swap(users, all_users)
    _swap(items, all_items)
    is_written[0] = not is_written[0]


@njit
def _swap(compact: Any, whole: Any) -> None:
    rows, ours = compact.rows, compact.table
    _swap_rows(ours.weight, rows, whole.weight)
    _swap_rows(ours.mean, rows, whole.mean)
    _swap_rows(ours.square, rows, whole.square)
    for at in range(len(rows)):
        count = whole.n_updates[rows[at]]
        whole.n_updates[rows[at]] = ours.n_updates[at]
        ours.n_updates[at] = count


@njit
def _swap_rows(values: Any, rows: Any, table: Any) -> None:
    for at in range(len(rows)):
        if at + _AHEAD < len(rows):
            prefetch_row_to_write(table, rows[at + _AHEAD])
        for k in range(table.shape[1]):
            value = table[rows[at], k]
            table[rows[at], k] = values[at, k]
            values[at, k] = value
