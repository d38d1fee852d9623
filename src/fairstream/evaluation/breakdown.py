"""What a test consisted of: newcomers and known users, how much was known of them, and what could be recommended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairstream.data import Rows
from fairstream.data.groups import Codes
from fairstream.evaluation.lists import Lists, Mask, Truth
from fairstream.evaluation.metrics import MetricAtK
from fairstream.evaluation.resampling import Array
from fairstream.evaluation.user_results import HISTORY_LENGTHS

N_LENGTHS = len(HISTORY_LENGTHS)
N_STRATA = 2 * N_LENGTHS
"""Known users by the number of their events so far, then newcomers by the same."""
WEIGHT, REACHABLE, KNOWN, VALUES = 0, 1, 2, 3
"""Columns of a breakdown; those of the metrics follow."""


@dataclass(frozen=True, eq=False)
class Breakdown:
    """Each tested user's share in each stratum, as sums that can be added up over users.

    A user counts once. In the task `event` a user's events share that equally, and can lie in several strata.
    There is an entry for each user and stratum that has anything.
    """

    users: Rows
    """(U,) sorted."""
    codes: Codes
    """(U,) the group of each."""
    metrics: tuple[str, ...]
    """NAME@K of the M metrics."""
    owner: Rows
    """(N,) the place in `users` of each entry's user."""
    stratum: Rows
    """(N,)"""
    entries: Array
    """(N, 3 + 2 M): the user's weight in the stratum; the part of it in lists with a positive that could be
    recommended; the part of it in positives that could be; then the values of the metrics, and last the same with only
    those positives that could be recommended, over lists that have any."""

    @classmethod
    def of(
        cls,
        lists: Lists,
        truth: Truth,
        metrics: Sequence[MetricAtK],
        codes: Codes,
        is_newcomer: Mask,
        n_earlier: Rows,
        n_rankable: int,
    ) -> Breakdown:
        """From the lists of a test, one a row.

        Parameters
        ----------
        lists, truth
            The ranked lists, and what they were tested on.
        metrics
            Metrics that are one number for all users are left out.
        codes
            (R,) the group of each list's user.
        is_newcomer
            (R,) whether the user had no event before the period.
        n_earlier
            (R,) how many events the user had before the list was made.
        n_rankable
            Items from this row on could not be recommended.

        """
        is_known = truth.positives.items < n_rankable
        part = truth.only(is_known)
        is_reachable = part.n_positives > 0
        share_known = part.n_positives / np.maximum(truth.n_positives, 1)
        reachable = lists.where(is_reachable), part.where(is_reachable)
        names, values, of_reachable = [], [], []
        for metric in metrics:
            value = metric(lists, truth)
            if value.ndim == 0:
                continue
            alone = np.zeros(len(value))
            if is_reachable.any():
                alone[is_reachable] = metric(*reachable)
            names.append(metric.name)
            values.append(value)
            of_reachable.append(alone)
        columns = np.stack([np.ones(len(codes)), is_reachable, share_known, *values, *of_reachable], axis=1)
        users, first, owner, n_lists = np.unique(
            truth.users, return_index=True, return_inverse=True, return_counts=True
        )
        starts = [start for start, _ in HISTORY_LENGTHS.values()]
        length = np.searchsorted(starts, n_earlier, side="right") - 1
        stratum = np.where(is_newcomer, N_LENGTHS, 0) + length
        places, place = np.unique(owner * N_STRATA + stratum, return_inverse=True)
        entries = np.zeros((len(places), columns.shape[1]))
        np.add.at(entries, place, columns / n_lists[owner, None])
        return cls(users, codes[first], tuple(names), *np.divmod(places, N_STRATA), entries)

    @property
    def values(self) -> Array:
        """(U, M) each user's value."""
        totals = np.zeros((len(self.users), len(self.metrics)))
        np.add.at(totals, self.owner, self.entries[:, VALUES : VALUES + len(self.metrics)])
        return totals

    @property
    def is_newcomer(self) -> Mask:
        """(U,) whether the user had no event before the period."""
        mask = np.zeros(len(self.users), np.bool_)
        mask[self.owner] = self.stratum >= N_LENGTHS
        return mask

    def cells(self) -> Array:
        """(U, strata, 3 + 2 M) the entries, with zeros for what is not there."""
        table = np.zeros((len(self.users), N_STRATA, self.entries.shape[1]))
        table[self.owner, self.stratum] = self.entries
        return table

    def sums(self, chosen: Mask) -> Array:
        """(strata, 3 + 2 M) the sums over the chosen users."""
        table, mine = np.zeros((N_STRATA, self.entries.shape[1])), chosen[self.owner]
        np.add.at(table, self.stratum[mine], self.entries[mine])
        return table
