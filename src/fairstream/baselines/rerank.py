"""Rerank in a moment: the same program, solved by what it is made of.

Let u's list hold h relevant items. For each h the best list is plain: u's h best relevant
candidates and its K − h best others. So the program has one number per user, and only the gap
ties them together. From the best K of everyone, the way to a smaller gap are *exchanges*: in the
group ahead, the worst relevant item of a list for the best irrelevant one outside; in the group
behind, the reverse. (Labels that rise with the score, as the model's own do, leave nothing to
exchange in the group behind: its best K hold all the relevant items they can. Other labels may.)
Each exchange of u closes the gap by the same |w_u| = 2 / (|G| (K + n_u)), and u's first costs
least, its second no less, and so on.

Take exchanges in the order of cost per gap closed, c / |w|. What the first j of them cost, drawn
against the gap that they close and joined by straight lines, is the linear relaxation: closing
r costs at least what the curve shows at r. For any price λ ≥ 0, whatever closes r or more costs

    Σ c ≥ λ r + Σ (c − λ |w|) ≥ λ r + Σ_all min(0, c − λ |w|),

and with λ = c / |w| of the exchange at r the right-hand side is the curve. Hence the certificate,
`Reranking.upper_bound`: the value of the best K of everyone, less the curve at D − ε, D being their gap.

Let p be the exchange that reaches D − ε, and θ the part of it that is needed. With p taken whole, the
lists cost (1 − θ) c_p more than the curve: **the loss against the optimum is less than the cost of
one exchange**. That holds wherever p does not overshoot −ε, so always if no exchange is larger than
2 ε. With a finer tolerance it is a matter of number theory which gaps can be had at all, and p alone
will not do; `_taken` therefore tries many ends: it takes the cheapest within the tolerance (never
dearer than p), or else the one that comes closest, and the result says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairstream.baselines.rerank_program import ROUNDING, Mask, Program, Reranking, Scores
from fairstream.data import Rows
from fairstream.data.groups import Codes

_LOOK_AROUND = 1000
"""How many exchanges before and behind the one that is enough an end may begin."""


@dataclass(frozen=True)
class Rerank:
    """Chooses lists so that by the model's own labels F1 differs between two groups by at most ε.

    >>> scores = np.array([[9.0, 8.0, 1.0], [9.0, 2.0, 1.0]])
    >>> found = Rerank(tolerance=0.2)(scores, np.array([0, 1]), 2)
    >>> found.columns.tolist(), found.value, round(found.gap, 3), found.is_within
    ([[0, 2], [0, 1]], 21.0, -0.167, True)
    """

    tolerance: float
    """ε"""

    def __call__(self, scores: Scores, codes: Codes, k: int) -> Reranking:
        """Of each user's candidates (U, C), −∞ where there is none, the k that are listed."""
        return rerank(Program.of(scores, codes, k=k, tolerance=self.tolerance))


def rerank(program: Program) -> Reranking:
    """Lists within the tolerance whose value is less than the cost of one exchange below the best; see above."""
    lists = _Lists.best(program)
    gap = program.gap(lists.chosen(lists.n_relevant))
    closing, widening = (_Exchanges.of(program, lists, sign * gap) for sign in (1, -1))
    first, then = _taken(closing, widening, abs(gap), program.tolerance)
    chosen = lists.chosen(lists.n_relevant + closing.added(first) + widening.added(then))
    # Lists with a gap this small close at least so much of it, and that costs at least what the curve shows.
    closed = abs(gap) - max(program.tolerance, abs(program.gap(chosen)))
    bound = program.value(lists.chosen(lists.n_relevant)) - float(np.interp(closed, closing.closed, closing.paid))
    return program.reranking(chosen, bound)


class _Lists(NamedTuple):
    """A user's best list for any number of relevant items in it."""

    program: Program
    place: Rows
    """(U, C) the place of each candidate among those of the user with the same label."""
    n_relevant: Rows
    """(U,) how many of the best K are relevant."""

    @classmethod
    def best(cls, program: Program) -> _Lists:
        order = np.argsort(-program.scores, axis=1, kind="stable")
        relevant = np.take_along_axis(program.relevant, order, axis=1)
        in_order = np.where(relevant, relevant.cumsum(axis=1), (~relevant).cumsum(axis=1)) - 1
        place = np.empty_like(in_order)
        np.put_along_axis(place, order, in_order, axis=1)
        return cls(program, place, relevant[:, : program.k].sum(axis=1))

    def chosen(self, n_relevant: Rows) -> Mask:
        """(U, C) the best lists with so many relevant items."""
        n_others = self.program.lengths - n_relevant
        n_of_kind = np.where(self.program.relevant, n_relevant[:, None], n_others[:, None])
        return self.program.there & (self.place < n_of_kind)


class _Exchanges(NamedTuple):
    """All exchanges that make one gap smaller, in the order of cost per gap closed."""

    users: Rows
    costs: Scores
    sizes: Scores
    """|w|, the gap that each closes."""
    direction: Rows
    """(U,) 1 where exchanges take a relevant item out of the list, −1 where they put one in."""
    closed: Scores
    """(1 + N,) the gap that the first j exchanges close, for j = 0, 1 …"""
    paid: Scores
    """(1 + N,) what they cost."""

    @classmethod
    def of(cls, program: Program, lists: _Lists, gap: float) -> _Exchanges:
        direction = np.sign(gap * program.weights).astype(np.int64)
        takes_out = direction[:, None] > 0
        # Each user's relevant and other candidates, best first, then −∞.
        relevant, others = (
            -np.sort(np.where(mask, -program.scores, np.inf), axis=1) for mask in (program.relevant, ~program.relevant)
        )
        leaving, coming = np.where(takes_out, relevant, others), np.where(takes_out, others, relevant)
        n_leaving = np.where(direction > 0, lists.n_relevant, program.lengths - lists.n_relevant)[:, None]
        step = np.arange(program.k)
        # The j-th: the j-th from below of those in the list, for the j-th from above of those outside.
        first_outside = program.lengths[:, None] - n_leaving
        width = program.scores.shape[1]
        out = np.take_along_axis(leaving, (n_leaving - 1 - step).clip(0), axis=1)
        into = np.take_along_axis(coming, (first_outside + step).clip(max=width - 1), axis=1)
        possible = (step < n_leaving) & (first_outside + step < width) & np.isfinite(into) & (direction != 0)[:, None]
        users = np.nonzero(possible)[0]
        costs, sizes = out[possible] - into[possible], np.abs(program.weights)[users]
        # Within a user the costs rise and the sizes are one, so its exchanges stay in their order.
        order = np.lexsort((sizes, costs / sizes))
        users, costs, sizes = users[order], costs[order], sizes[order]
        return cls(users, costs, sizes, direction, _running(sizes), _running(costs))

    def added(self, taken: Rows) -> Rows:
        """(U,) how many relevant items these exchanges add to each list, below 0 where they take them out."""
        return -self.direction * np.bincount(self.users[taken], minlength=len(self.direction))


def _taken(closing: _Exchanges, widening: _Exchanges, gap: float, tolerance: float) -> tuple[Rows, Rows]:
    """Which exchanges to take: the first ones, and then some of one size that close the gap further, or widen it again.

    Of all such ends, first those nearest to the tolerance, then the cheapest. Exchanges of one
    size come in the order of their costs, so that any number of them are the cheapest of that size.
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
        paid = _running(exchanges.costs[same])
        n_before = np.searchsorted(same, first) if size > 0 else np.zeros_like(first)
        # As many as bring the gap within the tolerance, on the side that they come from; and one less.
        missing = (gap - closing.closed[first]) / size - (tolerance + ROUNDING) / abs(size)
        for more in (np.ceil(missing), np.ceil(missing) - 1):
            n_after = (n_before + more.clip(0).astype(np.int64)).clip(max=len(same))
            beyond = np.abs(gap - closing.closed[first] - (n_after - n_before) * size) - tolerance
            # Ends that come equally close are equal, however their sums were rounded: the cheaper one is taken.
            beyond = np.where(beyond <= ROUNDING, 0.0, np.round(beyond / ROUNDING) * ROUNDING)
            cost = closing.paid[first] + paid[n_after] - paid[n_before]
            at = np.lexsort((cost, beyond))[0]
            if (beyond[at], cost[at]) < best:
                best = beyond[at], cost[at]
                end, begin = same[n_before[at] : n_after[at]], np.arange(first[at])
                taken = (np.append(begin, end), none) if size > 0 else (begin, end)
    return taken


def _running(values: Scores) -> Scores:
    """The sums of the first 0, 1, 2 … values."""
    return np.append(0.0, np.cumsum(values))
