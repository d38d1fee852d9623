"""What a test leaves behind of each user: enough to compute any metric again, and to pair methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fairstream.data import Rows
from fairstream.data.groups import Codes
from fairstream.evaluation.metrics import Metric
from fairstream.evaluation.resampling import Array


@dataclass(frozen=True, eq=False)
class UserResults:
    """The tested users, and where among their top k the hits are."""

    users: Rows
    codes: Codes
    """The group of each."""
    is_cold: np.ndarray[Any, np.dtype[np.bool_]]
    """Whether nothing had been seen of the user before."""
    hits: torch.Tensor
    """(U, k) of 0 and 1 in ranked order."""
    n_positives: torch.Tensor
    """(U,) what there was to find."""

    def values(self, metrics: Sequence[Metric]) -> Array:
        """(U, M)"""
        columns = [metric(self.hits, self.n_positives).numpy() for metric in metrics]
        return np.stack(columns, axis=1) if columns else np.empty((len(self.users), 0))

    def where(self, chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> UserResults:
        """Only the chosen users."""
        mask = torch.from_numpy(chosen)
        return UserResults(
            self.users[chosen], self.codes[chosen], self.is_cold[chosen], self.hits[mask], self.n_positives[mask]
        )

    def to_dict(self) -> dict[str, Any]:
        row, place = np.nonzero(self.hits.numpy())
        ends = np.cumsum(np.bincount(row, minlength=len(self.users)))
        return {
            "k": self.hits.shape[1],
            "users": self.users.tolist(),
            "groups": self.codes.tolist(),
            "cold": np.flatnonzero(self.is_cold).tolist(),
            "n_positives": self.n_positives.int().tolist(),
            "hit_ranks": [ranks.tolist() for ranks in np.split(place + 1, ends[:-1])] if len(ends) else [],
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> UserResults:
        """What `to_dict` gave."""
        users = np.array(stored["users"], dtype=np.int64)
        is_cold = np.zeros(len(users), dtype=np.bool_)
        is_cold[np.array(stored["cold"], dtype=np.int64)] = True
        hits = torch.zeros(len(users), stored["k"], dtype=torch.float64)
        row = np.repeat(np.arange(len(users)), [len(ranks) for ranks in stored["hit_ranks"]])
        place = np.array([rank - 1 for ranks in stored["hit_ranks"] for rank in ranks], dtype=np.int64)
        hits[row, place] = 1.0
        n_positives = torch.tensor(stored["n_positives"], dtype=torch.float64)
        return cls(users, np.array(stored["groups"], dtype=np.int16), is_cold, hits, n_positives)


def stack_periods(tested: Sequence[UserResults], metrics: Sequence[Metric]) -> tuple[Array, Codes]:
    """(U, P, M) the values of all users tested in any of P periods, NaN where they were not; and their groups."""
    users = tested[0].users if len(tested) == 1 else np.unique(np.concatenate([part.users for part in tested]))
    values = np.full((len(users), len(tested), len(metrics)), np.nan)
    codes = np.empty(len(users), dtype=np.int16)
    for p, part in enumerate(tested):
        at = np.searchsorted(users, part.users)
        values[at, p], codes[at] = part.values(metrics), part.codes
    return values, codes
