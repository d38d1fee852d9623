"""Kinds of events: how much each event counts, which may return to a list, and which are tested."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.data.reading import Columns, combined
from fairstream.data.vocabulary import Rows
from fairstream.errors import DataError

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Weights = np.ndarray[Any, np.dtype[np.float32]]


class Marks(NamedTuple):
    """What the kinds say of some events."""

    weights: Weights  # how many times each counts in learning
    returns: Mask  # whether its item may be recommended to the user again
    judged: Mask  # whether evaluations test it

    @classmethod
    def of(cls, kinds: pa.ChunkedArray, columns: Columns) -> Marks:
        """Look up the kinds; raise DataError if one is unknown or missing."""
        names = pa.array(columns.kinds, pa.string())
        codes = pc.index_in(combined(kinds).cast(pa.string()), value_set=names)
        if codes.null_count:
            raise DataError(f"the kind of every event must be one of {', '.join(columns.kinds)}")
        at = codes.to_numpy()
        returns = np.isin(list(columns.kinds), columns.returning)
        judged = np.isin(list(columns.kinds), columns.judge_by or list(columns.kinds))
        return cls(np.array(list(columns.kinds.values()), np.float32)[at], returns[at], judged[at])

    def at(self, places: Any) -> Marks:
        return Marks(*(column[places] for column in self))


def first_choices(keys: Rows, marks: Marks) -> tuple[Rows, Marks]:
    """Return the positions of the events that count, and their marks; `keys` are the (user, item) pairs in order.

    The first event of a pair counts, with the largest weight of all its events: a view that ended in a purchase counts
    as one. It is tested if any of them is. Events whose items may return count one by one, until the pair has another.

    >>> marks = Marks(np.float32([1, 4, 1]), np.zeros(3, bool), np.array([False, True, False]))
    >>> kept, marks = first_choices(np.array([7, 7, 5]), marks)
    >>> kept.tolist(), marks.weights.tolist(), marks.judged.tolist()
    ([0, 2], [4.0, 1.0], [True, False])
    """
    final, returning = np.flatnonzero(~marks.returns), np.flatnonzero(marks.returns)
    pairs, first, pair = np.unique(keys[final], return_index=True, return_inverse=True)
    first = final[first]
    weights, judged = marks.weights.copy(), marks.judged.copy()
    np.maximum.at(weights, first[pair], marks.weights[final])
    np.logical_or.at(judged, first[pair], marks.judged[final])
    if len(returning) and len(pairs):
        place = np.searchsorted(pairs, keys[returning]).clip(max=len(pairs) - 1)
        returning = returning[(pairs[place] != keys[returning]) | (returning < first[place])]
    kept = np.sort(np.concatenate([first, returning]))
    return kept, Marks(weights, marks.returns, judged).at(kept)
