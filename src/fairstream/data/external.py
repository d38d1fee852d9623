"""Ordering and thinning out more events than fit into memory, by way of files.

Events go to and fro in pieces of `at_once`: those of a stretch of time, to be sorted, and those
of a range of users, to find the pairs that they repeat, fit into memory together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairstream.compiled import njit
from fairstream.data.log import first_of_each, pair_keys
from fairstream.data.vocabulary import Rows

_Array = np.ndarray[Any, Any]
_SAMPLES_PER_PART = 64


class ColumnFiles:
    """Columns of equal length, each appended to a file of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._types: list[np.dtype[Any]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, *columns: _Array) -> None:
        if len(columns[0]) == 0:
            return
        self._types = [column.dtype for column in columns]
        self._length += len(columns[0])
        for n, column in enumerate(columns):
            with self._file(n).open("ab") as file:
                np.ascontiguousarray(column).tofile(file)

    def read(self, start: int = 0, count: int = -1) -> list[_Array]:
        """The columns from row `start` on, in memory."""
        return [
            np.fromfile(self._file(n), kind, count, offset=start * kind.itemsize) for n, kind in enumerate(self._types)
        ]

    def pieces(self, at_once: int) -> Iterator[list[_Array]]:
        """The columns in memory, so many rows at a time."""
        return (self.read(start, at_once) for start in range(0, len(self), at_once))

    def mapped(self) -> list[_Array]:
        """The columns as arrays over their files."""
        return [np.asarray(np.memmap(self._file(n), kind, "r")) for n, kind in enumerate(self._types)]

    def remove(self) -> None:
        for n in range(len(self._types)):
            self._file(n).unlink()
        self.folder.rmdir()

    def _file(self, n: int) -> Path:
        return self.folder / str(n)


def in_order_of_time(events: ColumnFiles, emit: Callable[..., None], at_once: int) -> None:
    """Give all events to `emit` in the order of their last column, ties as they stand; uses up the files."""
    if len(events) <= at_once:
        columns = events.read()
        events.remove()
        order = np.argsort(columns[-1], kind="stable")
        return emit(*(column[order] for column in columns))
    borders = _borders(events, at_once)
    if len(borders) == 0:  # all at one time: in order already
        for columns in events.pieces(at_once):
            emit(*columns)
        return events.remove()
    parts = _spread(events.pieces(at_once), -1, borders, events.folder)
    events.remove()
    for part in parts:
        in_order_of_time(part, emit, at_once)
    return None


def _borders(events: ColumnFiles, at_once: int) -> _Array:
    """Times that part the events into stretches of about half of `at_once`; none where all times are equal."""
    n_parts = 2 * len(events) // at_once + 1
    step = max(1, len(events) // (n_parts * _SAMPLES_PER_PART))
    samples, ends = [], []
    for *_, times in events.pieces(at_once):
        samples.append(times[::step])
        ends += [times.min(), times.max()]
    sample = np.sort(np.concatenate(samples))
    borders = np.unique(sample[np.arange(1, n_parts) * len(sample) // n_parts])
    lowest, highest = min(ends), max(ends)
    borders = borders[borders > lowest]
    return borders if len(borders) or lowest == highest else np.array([highest])


def _spread(pieces: Iterable[Sequence[_Array]], by: int, borders: _Array, beside: Path) -> list[ColumnFiles]:
    """The rows parted at the borders by the column `by`, those of a part in the order in which they stand."""
    last = len(borders)
    parts = [ColumnFiles(beside.with_name(f"{beside.name}-{n}")) for n in range(last + 1)]
    for columns in pieces:
        part = np.searchsorted(borders, columns[by], side="right").astype(np.min_scalar_type(last))
        order = np.argsort(part, kind="stable")
        bounds = np.searchsorted(part[order], np.arange(last + 2))
        for n in range(last + 1):
            parts[n].append(*(column[order[bounds[n] : bounds[n + 1]]] for column in columns))
    return parts


def repeated_pairs(events: ColumnFiles, n_users: int, at_once: int) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Whether each event repeats an earlier one's user and item, as an array over a file; None where none does."""
    per_user = np.zeros(n_users, dtype=np.int64)
    for users, *_ in events.pieces(at_once):
        per_user += np.bincount(users, minlength=n_users)
    borders = (_range_ends(per_user, at_once)[:-1] + 1) << 32  # the first key of each range of users but one
    parts = _spread(_keys_and_positions(events, at_once), 0, borders, events.folder)
    repeats = np.memmap(events.folder.with_name("repeats"), np.bool_, "w+", shape=(len(events),))
    for part in parts:
        keys, positions = part.read()
        part.remove()
        is_repeat = np.ones(len(keys), dtype=np.bool_)
        is_repeat[first_of_each(keys)] = False
        repeats[positions[is_repeat]] = True
    return np.asarray(repeats) if repeats.any() else None


def _keys_and_positions(events: ColumnFiles, at_once: int) -> Iterator[tuple[_Array, _Array]]:
    start = 0
    for users, items, *_ in events.pieces(at_once):
        yield pair_keys(users, items), np.arange(start, start + len(users))
        start += len(users)


@njit
def _range_ends(per_user: Any, at_once: int) -> Any:
    """The last user of each range of users whose events are at most `at_once`, or those of one user."""
    ends = []
    inside = 0
    for user in range(len(per_user)):
        if inside and inside + per_user[user] > at_once:
            ends.append(user - 1)
            inside = 0
        inside += per_user[user]
    ends.append(len(per_user) - 1)
    return np.array(ends)


class InOrderOfAppearance:
    """Gives rows new numbers 0, 1, 2 … in the order in which they are first seen."""

    def __init__(self, n_rows: int) -> None:
        self._number_of = np.full(n_rows, -1, dtype=np.int64)
        self._n_seen = 0

    def renumbered(self, rows: Rows) -> Rows:
        numbers = np.empty_like(rows)
        self._n_seen = _renumber(rows, self._number_of, self._n_seen, numbers)
        return numbers

    def order(self) -> Rows:
        """The rows in the order of their new numbers; all have been seen."""
        order = np.empty_like(self._number_of)
        order[self._number_of] = np.arange(len(order))
        return order


@njit
def _renumber(rows: Any, number_of: Any, n_seen: int, numbers: Any) -> int:
    for at in range(len(rows)):
        if number_of[rows[at]] < 0:
            number_of[rows[at]] = n_seen
            n_seen += 1
        numbers[at] = number_of[rows[at]]
    return n_seen
