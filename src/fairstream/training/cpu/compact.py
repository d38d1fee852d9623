"""The rows that a training will touch, side by side in the order in which it comes to them.

An update goes over the same few batches again and again. On a copy of just the rows that occur in
them it runs through memory in order, whatever the size of the catalogue; and until the copy is
written back nothing has happened to the model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairstream.compiled import compiled, share
from fairstream.training.cpu.adam import Table
from fairstream.training.cpu.prefetch import prefetch_row

_AHEAD = 16
"""Rows between asking for memory and needing it."""


class Compact(NamedTuple):
    """Some rows of a table as a table of their own."""

    rows: np.ndarray[Any, np.dtype[np.int64]]
    """The row of the whole table behind each row of this one."""
    table: Table

    @classmethod
    def of(cls, whole: Table, column: np.ndarray[Any, Any]) -> Compact:
        """The rows that occur in `column`, which are renamed in place to those of the new table."""
        rows = np.empty(min(column.size, len(whole.weight)), dtype=np.int64)
        names = np.zeros(len(whole.weight), dtype=np.int32)
        rows = rows[: rename(column.reshape(-1), names, rows)]
        parts = [np.empty((len(rows), part.shape[1]), dtype=np.float32) for part in whole[:3]]

        def copy(begin: int, end: int) -> None:
            for ours, theirs in zip(parts, whole[:3], strict=True):
                gather(theirs, rows[begin:end], ours[begin:end])

        share(len(rows), copy)
        return cls(rows, Table(parts[0], parts[1], parts[2], whole.n_updates[rows], whole.asleep_since))

    def write_back(self, whole: Table) -> None:
        """Put the rows where they came from."""

        def copy(begin: int, end: int) -> None:
            for ours, theirs in zip(self.table[:3], whole[:3], strict=True):
                scatter(ours[begin:end], self.rows[begin:end], theirs)

        share(len(self.rows), copy)
        whole.n_updates[self.rows] = self.table.n_updates


@compiled
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


@compiled
def gather(table: Any, rows: Any, out: Any) -> None:
    """Out = table[rows]"""
    for at in range(len(rows)):
        if at + _AHEAD < len(rows):
            prefetch_row(table, rows[at + _AHEAD])
        for k in range(table.shape[1]):
            out[at, k] = table[rows[at], k]


@compiled
def scatter(values: Any, rows: Any, table: Any) -> None:
    """table[rows] = values"""
    for at in range(len(rows)):
        if at + _AHEAD < len(rows):
            prefetch_row(table, rows[at + _AHEAD])
        for k in range(table.shape[1]):
            table[rows[at], k] = values[at, k]
