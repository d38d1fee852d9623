"""Rerank: the lists with the highest scores among all that treat two groups equally.

    max Σ_u Σ_i s_ui x_ui   over x_ui ∈ {0, 1}
    with Σ_i x_ui = K for each user u,   and   |F1(G_0) − F1(G_1)| ≤ ε,
    F1(G) = 1/|G| Σ_{u ∈ G} 2 Σ_i x_ui y_ui / (K + n_u),   n_u = Σ_i y_ui

The relevance y is not known when lists are made, so the model's own scores s replace it: scaled to
[0, 1] over the user's candidates, an item counts as relevant above 0.7.

Let u's list hold h relevant items. For each h the best list is u's h best relevant candidates and
its K − h best others. So the program has one variable per user, and only the gap couples them.
Relevant items score highest, so the best K hold as many of them as possible, and only *exchanges* in
the group ahead reduce the gap: the worst relevant item of a list for the best irrelevant one outside.
Each exchange of u closes the gap by the same |w_u| = 2 / (|G| (K + n_u)), and u's first costs least,
its second no less, and so on.

Take exchanges in the order of cost per gap closed, c / |w|, and let p be the one that reaches the
tolerance. The linear relaxation takes a part of p, so with p taken whole **the loss against the
optimum is less than the cost of one exchange**, wherever p does not overshoot −ε: always if no
exchange is larger than 2 ε. With a finer tolerance some gaps cannot be reached at all, and p alone is
not enough. So `_choose_exchanges` tries many ends. It takes the cheapest within the tolerance (never
dearer than p), or else the closest, and the result says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fairstream.data import ADVANTAGED, UNKNOWN, Rows
from fairstream.data.groups import Codes
from fairstream.errors import ConfigurationError

Scores = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

RELEVANT_ABOVE = 0.7
ROUNDING = 1e-12  # the rounding error of sums of fractions; a gap that exceeds the tolerance by less is within it


@dataclass(frozen=True, eq=False)
class Reranking:
    """The chosen lists, and how good they are."""

    columns: Rows  # (U, K) which candidates, best first; behind the end of a short list stand columns without one
    value: float  # Σ_u Σ_i s_ui x_ui
    gap: float  # F1(G_0) − F1(G_1) by the labels; 0 where one of the groups has nobody
    is_within: bool  # whether |gap| ≤ ε; if not, ε is finer than these lists can be told apart, or out of their reach


@dataclass(frozen=True, eq=False)
class Program:
    """The inputs of the choice."""

    scores: Scores  # (U, C), −∞ where a user has no such candidate. Of equal ones the first column is the better.
    relevant: Mask  # (U, C) the labels y
    weights: Scores
    """(U,) the change of the gap per relevant item in the list of u: ± 2 / (|G| (K + n_u)), 0 without a group."""
    k: int
    tolerance: float  # ε

    @classmethod
    def of(cls, scores: Scores, codes: Codes, *, k: int, tolerance: float) -> Program:
        """The program of users with these groups, by the model's own labels.

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
        relevant = relevant_by_score(scores)
        sizes = np.bincount(codes[codes != UNKNOWN], minlength=2)
        signs = np.where(codes == UNKNOWN, 0.0, np.where(codes == ADVANTAGED, 1.0, -1.0))
        if not sizes.all():  # nobody to compare with
            signs[:] = 0.0
        weights = 2.0 * signs / (sizes.clip(1)[codes] * (k + relevant.sum(axis=1)))
        return cls(scores, relevant, weights, k, tolerance)

    @property
    def is_candidate(self) -> Mask:
        """(U, C) which candidates exist."""
        return np.isfinite(self.scores)

    @property
    def lengths(self) -> Rows:
        """(U,) how many items each list gets: K, or all candidates where they are fewer."""
        return np.minimum(self.is_candidate.sum(axis=1), self.k)

    def gap(self, chosen: Mask) -> float:
        """F1(G_0) − F1(G_1) of the lists with these candidates."""
        return float(self.weights @ (chosen & self.relevant).sum(axis=1))

    def reranking(self, chosen: Mask) -> Reranking:
        """The chosen candidates as lists, best first."""
        order = np.argsort(np.where(chosen, -self.scores, np.inf), axis=1, kind="stable")
        gap, value = self.gap(chosen), float(self.scores[chosen].sum())
        return Reranking(order[:, : self.k], value, gap, abs(gap) <= self.tolerance + ROUNDING)


def relevant_by_score(scores: Scores) -> Mask:
    """(s − min s) / (max s − min s) > 0.7 over the user's candidates; nothing is relevant where all scores are equal.

    >>> relevant_by_score(np.array([[4.0, 3.0, 1.0, 0.0], [5.0, 5.0, -np.inf, -np.inf]])).tolist()
    [[True, True, False, False], [False, False, False, False]]
    """
    is_candidate = np.isfinite(scores)
    low = np.where(is_candidate, scores, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    high = np.where(is_candidate, scores, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
    span = np.where(high > low, high - low, np.inf)  # ∞ also where there are no candidates
    above = np.where(is_candidate, scores - np.where(np.isfinite(low), low, 0.0), 0.0)
    return above / span > RELEVANT_ABOVE


def require_two_groups(n_groups: int) -> None:
    """Raise a `ConfigurationError` for more than the paper's two groups."""
    if n_groups > 2:
        raise ConfigurationError(
            f"Rerank compares the advantaged group with one other, got {n_groups} groups; "
            f"choose a group column with two values"
        )


_LOOK_AROUND = 1000  # an end begins at most this many exchanges before or after the one that is enough


@dataclass(frozen=True)
class Rerank:
    """Chooses lists so that by the model's own labels F1 differs between two groups by at most ε.

    >>> scores = np.array([[9.0, 8.0, 1.0], [9.0, 2.0, 1.0]])
    >>> lists = Rerank(tolerance=0.2)(scores, np.array([0, 1]), 2)
    >>> lists.columns.tolist(), lists.value, round(lists.gap, 3), lists.is_within
    ([[0, 2], [0, 1]], 21.0, -0.167, True)
    """

    tolerance: float  # ε

    def __call__(self, scores: Scores, codes: Codes, k: int) -> Reranking:
        """Choose k of each user's candidates by their scores (U, C), −∞ where there is none."""
        return rerank(Program.of(scores, codes, k=k, tolerance=self.tolerance))


def rerank(program: Program) -> Reranking:
    """Choose lists within the tolerance, less than the cost of one exchange below the optimum; see above."""
    lists = _Lists.best(program)
    gap = program.gap(lists.chosen(lists.n_relevant))
    closing, widening = (_Exchanges.of(program, lists, sign * gap) for sign in (1, -1))
    first, then = _choose_exchanges(closing, widening, abs(gap), program.tolerance)
    return program.reranking(lists.chosen(lists.n_relevant - closing.removed(first) - widening.removed(then)))


class _Lists(NamedTuple):
    """A user's best list for any number of relevant items in it."""

    program: Program
    place: Rows  # (U, C) the place of each candidate among those of the user with the same label
    n_relevant: Rows  # (U,) how many of the best K are relevant

    @classmethod
    def best(cls, program: Program) -> _Lists:
        order = np.argsort(-program.scores, axis=1, kind="stable")
        relevant = np.take_along_axis(program.relevant, order, axis=1)
        in_order = np.where(relevant, relevant.cumsum(axis=1), (~relevant).cumsum(axis=1)) - 1
        place = np.empty_like(in_order)
        np.put_along_axis(place, order, in_order, axis=1)
        return cls(program, place, relevant[:, : program.k].sum(axis=1))

    def chosen(self, n_relevant: Rows) -> Mask:
        """(U, C) the best lists with this many relevant items."""
        n_others = self.program.lengths - n_relevant
        n_of_kind = np.where(self.program.relevant, n_relevant[:, None], n_others[:, None])
        return self.program.is_candidate & (self.place < n_of_kind)


class _Exchanges(NamedTuple):
    """All exchanges in the group ahead by this gap, in the order of cost per gap closed."""

    users: Rows
    costs: Scores
    sizes: Scores  # |w|, the gap that each closes
    n_users: int
    closed: Scores  # (1 + N,) the gap that the first j exchanges close, for j = 0, 1 …
    paid: Scores  # (1 + N,) what they cost

    @classmethod
    def of(cls, program: Program, lists: _Lists, gap: float) -> _Exchanges:
        # Each user's relevant and other candidates, best first, then −∞.
        relevant, others = (
            -np.sort(np.where(mask, -program.scores, np.inf), axis=1) for mask in (program.relevant, ~program.relevant)
        )
        n_relevant, step, width = lists.n_relevant[:, None], np.arange(program.k), program.scores.shape[1]
        # The j-th: the j-th relevant one from below, for the j-th other one from above outside the list.
        last, first = n_relevant - 1 - step, program.lengths[:, None] - n_relevant + step
        out = np.take_along_axis(relevant, last.clip(0), axis=1)
        into = np.take_along_axis(others, first.clip(max=width - 1), axis=1)
        is_ahead = (gap * program.weights > 0)[:, None]
        possible = (last >= 0) & (first < width) & np.isfinite(into) & is_ahead
        users = np.nonzero(possible)[0]
        costs, sizes = out[possible] - into[possible], np.abs(program.weights)[users]
        # Within a user the costs rise and the sizes are one, so its exchanges stay in their order.
        order = np.lexsort((sizes, costs / sizes))
        users, costs, sizes = users[order], costs[order], sizes[order]
        return cls(users, costs, sizes, len(program.scores), _cumulative(sizes), _cumulative(costs))

    def removed(self, taken: Rows) -> Rows:
        """(U,) how many relevant items these exchanges take out of each list."""
        return np.bincount(self.users[taken], minlength=self.n_users)


def _choose_exchanges(closing: _Exchanges, widening: _Exchanges, gap: float, tolerance: float) -> tuple[Rows, Rows]:
    """Choose exchanges: the first ones, and then an end, some of one size that close the gap further or widen it again.

    The best end is nearest to the tolerance; the cheapest of those wins. Exchanges of one size are
    sorted by cost, so the first of them are the cheapest of that size.
    """
    none = np.empty(0, np.int64)
    if gap <= tolerance + ROUNDING:
        return none, none
    n_enough = int(np.searchsorted(closing.closed, gap - tolerance - ROUNDING))
    first = np.arange(max(0, n_enough - _LOOK_AROUND), min(n_enough + _LOOK_AROUND, len(closing.sizes)) + 1)
    ends = [(closing, size) for size in np.unique(closing.sizes)]  # a size per group and number of relevant items: few
    ends += [(widening, -size) for size in np.unique(widening.sizes)]
    best: tuple[float, float] = (np.inf, np.inf)
    taken = none, none
    for exchanges, size in ends:
        same = np.flatnonzero(exchanges.sizes == abs(size))
        paid = _cumulative(exchanges.costs[same])
        n_before = np.searchsorted(same, first) if size > 0 else np.zeros_like(first)
        # As many as bring the gap within the tolerance, on the side that they come from; and one less.
        missing = (gap - closing.closed[first]) / size - (tolerance + ROUNDING) / abs(size)
        for more in (np.ceil(missing), np.ceil(missing) - 1):
            n_after = (n_before + more.clip(0).astype(np.int64)).clip(max=len(same))
            beyond = np.abs(gap - closing.closed[first] - (n_after - n_before) * size) - tolerance
            # Rounding makes ends equal that come equally close, so that the cheaper one wins.
            beyond = np.where(beyond <= ROUNDING, 0.0, np.round(beyond / ROUNDING) * ROUNDING)
            cost = closing.paid[first] + paid[n_after] - paid[n_before]
            at = np.lexsort((cost, beyond))[0]
            if (beyond[at], cost[at]) < best:
                best = beyond[at], cost[at]
                end, begin = same[n_before[at] : n_after[at]], np.arange(first[at])
                taken = (np.append(begin, end), none) if size > 0 else (begin, end)
    return taken


def _cumulative(values: Scores) -> Scores:
    """Return the sums of the first 0, 1, 2 … values."""
    return np.append(0.0, np.cumsum(values))
