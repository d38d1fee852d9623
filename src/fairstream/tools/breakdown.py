"""The strata of a test: newcomers and known users, by the length of their history, and what could be recommended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairstream.data import Rows
from fairstream.data.groups import Codes
from fairstream.errors import ConfigurationError
from fairstream.evaluation.resampling import Array
from fairstream.evaluation.results import HISTORY_LENGTHS, EvaluatedLists

N_LENGTHS = len(HISTORY_LENGTHS)
N_STRATA = 2 * N_LENGTHS  # known users by the number of their events so far, then newcomers likewise
WEIGHT, REACHABLE, KNOWN, VALUES = 0, 1, 2, 3  # columns of a breakdown; those of the metrics follow


@dataclass(frozen=True, eq=False)
class Breakdown:
    """Each tested user's share in each stratum, as sums that add up over users.

    A user counts once. In the tasks `event` and `moment` the user's lists share that equally, and can lie in several
    strata. Each user has an entry for each stratum with any of the user's lists.
    """

    users: Rows  # (U,) sorted
    codes: Codes  # (U,) the group of each
    metrics: tuple[str, ...]  # NAME@K of the M metrics
    owner: Rows  # (N,) the place in `users` of each entry's user
    stratum: Rows  # (N,)
    entries: Array
    """(N, 3 + 2 M): the user's weight in the stratum; the part of it in lists with a positive that could be
    recommended; the part of it in positives that could be; then the values of the metrics, and last the same with only
    those positives that could be recommended, over lists that have any."""

    @classmethod
    def of(cls, test: EvaluatedLists | None) -> Breakdown:
        """Break down the `lists` of an evaluation; metrics with one number for all users are left out."""
        if test is None:
            raise ConfigurationError("a breakdown needs the lists of the test; evaluate with keep_lists=True")
        lists, truth, codes = test.lists, test.truth, test.codes
        n_earlier = truth.past.history.latest(truth.users, 1)[1] if test.n_earlier is None else test.n_earlier
        is_known = truth.positives.items < test.n_rankable
        part = truth.only(is_known)
        is_reachable = part.n_positives > 0
        share_known = part.n_positives / np.maximum(truth.n_positives, 1)
        reachable = lists.where(is_reachable), part.where(is_reachable)
        names, values, of_reachable = [], [], []
        for metric in test.metrics:
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
        stratum = np.where(test.is_cold, N_LENGTHS, 0) + length
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

    def cells(self) -> Array:
        """(U, strata, 3 + 2 M) the entries, with zeros elsewhere."""
        table = np.zeros((len(self.users), N_STRATA, self.entries.shape[1]))
        table[self.owner, self.stratum] = self.entries
        return table
