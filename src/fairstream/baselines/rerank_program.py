"""The program behind Rerank: the lists that score best of all that treat two groups alike.

    max Σ_u Σ_i s_ui x_ui   over x_ui ∈ {0, 1}
    with Σ_i x_ui = K for each user u,   and   |F1(G_0) − F1(G_1)| ≤ ε,
    F1(G) = 1/|G| Σ_{u ∈ G} 2 Σ_i x_ui y_ui / (K + n_u),   n_u = Σ_i y_ui

What a user will like (y) is not known when lists are made, so the model's own scores s stand in:
scaled to [0, 1] over the user's candidates, an item counts as relevant above 0.7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairstream.data import ADVANTAGED, UNKNOWN, Rows
from fairstream.data.groups import Codes
from fairstream.errors import ConfigurationError

Scores = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

RELEVANT_ABOVE = 0.7
ROUNDING = 1e-12
"""What sums of fractions may be off by; a gap that exceeds the tolerance by less is within it."""


@dataclass(frozen=True, eq=False)
class Reranking:
    """The lists that were chosen, and how good they are."""

    columns: Rows
    """(U, K) which candidates, best first; behind the end of a short list stand columns without one."""
    value: float
    """Σ_u Σ_i s_ui x_ui"""
    gap: float
    """F1(G_0) − F1(G_1) by the labels; 0 where one of the groups has nobody."""
    is_within: bool
    """Whether |gap| ≤ ε; if not, ε is finer than these lists can be told apart, or out of their reach."""
    upper_bound: float
    """No lists with a gap of at most ε (or, where that was not reached, of at most this one) have a higher value."""

    @property
    def shortfall(self) -> float:
        """The most that the best lists can be better by: a certificate of what was chosen."""
        return self.upper_bound - self.value


@dataclass(frozen=True, eq=False)
class Program:
    """Everything that the choice depends on."""

    scores: Scores
    """(U, C), −∞ where a user has no such candidate. Of equal ones the first column is the better."""
    relevant: Mask
    """(U, C) the labels y."""
    weights: Scores
    """(U,) what one more relevant item in the list of u adds to the gap: ± 2 / (|G| (K + n_u)), 0 without a group."""
    k: int
    tolerance: float
    """ε"""

    @classmethod
    def of(cls, scores: Scores, codes: Codes, *, k: int, tolerance: float, relevant: Mask | None = None) -> Program:
        """The program of users with these groups; without `relevant`, the labels are read off the scores.

        The groups are two, the advantaged (code 0) and the other (code 1), as in the paper. Users
        whose group is not known have no part in the gap and so get their best K.

        >>> program = Program.of(np.array([[9.0, 8.0, 1.0], [9.0, 2.0, 1.0]]), np.array([0, 1]), k=2, tolerance=0.1)
        >>> program.relevant.tolist(), program.weights.tolist()
        ([[True, True, False], [True, False, False]], [0.5, -0.6666666666666666])
        """
        require_two_groups(int(codes.max(initial=UNKNOWN)) + 1)
        if scores.shape[1] < k:
            raise ConfigurationError(
                f"a list of {k} needs at least {k} columns of candidates, got {scores.shape[1]}; fill up with -inf"
            )
        scores = scores.astype(np.float64)
        there = np.isfinite(scores)
        relevant = relevant_by_score(scores) if relevant is None else relevant & there
        sizes = np.bincount(codes[codes != UNKNOWN], minlength=2)
        signs = np.where(codes == UNKNOWN, 0.0, np.where(codes == ADVANTAGED, 1.0, -1.0))
        if not sizes.all():  # nobody to compare with
            signs[:] = 0.0
        weights = 2.0 * signs / (sizes.clip(1)[codes] * (k + relevant.sum(axis=1)))
        return cls(scores, relevant, weights, k, tolerance)

    @property
    def there(self) -> Mask:
        """(U, C) where there is a candidate."""
        return np.isfinite(self.scores)

    @property
    def lengths(self) -> Rows:
        """(U,) how many items each list gets: K, or all candidates where they are fewer."""
        return np.minimum(self.there.sum(axis=1), self.k)

    def gap(self, chosen: Mask) -> float:
        """F1(G_0) − F1(G_1) of the lists with these candidates."""
        return float(self.weights @ (chosen & self.relevant).sum(axis=1))

    def value(self, chosen: Mask) -> float:
        """Σ_u Σ_i s_ui x_ui"""
        return float(self.scores[chosen].sum())

    def reranking(self, chosen: Mask, upper_bound: float) -> Reranking:
        """The chosen candidates as lists, best first."""
        order = np.argsort(np.where(chosen, -self.scores, np.inf), axis=1, kind="stable")
        gap = self.gap(chosen)
        return Reranking(order[:, : self.k], self.value(chosen), gap, self.holds(gap), upper_bound)

    def holds(self, gap: float) -> bool:
        """Whether this gap is within the tolerance."""
        return abs(gap) <= self.tolerance + ROUNDING


def relevant_by_score(scores: Scores) -> Mask:
    """(s − min s) / (max s − min s) > 0.7 over the user's candidates; nothing is relevant where they all score alike.

    >>> relevant_by_score(np.array([[4.0, 3.0, 1.0, 0.0], [5.0, 5.0, -np.inf, -np.inf]])).tolist()
    [[True, True, False, False], [False, False, False, False]]
    """
    there = np.isfinite(scores)
    low = np.where(there, scores, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    high = np.where(there, scores, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
    span = np.where(high > low, high - low, np.inf)  # ∞ also where there are no candidates
    above = np.where(there, scores - np.where(np.isfinite(low), low, 0.0), 0.0)
    return above / span > RELEVANT_ABOVE


def require_two_groups(n_groups: int) -> None:
    """More than the paper's two are refused."""
    if n_groups > 2:
        raise ConfigurationError(
            f"Rerank compares the advantaged group with one other, got {n_groups} groups; "
            f"choose a group column with two values"
        )
