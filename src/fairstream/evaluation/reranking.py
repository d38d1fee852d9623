"""Reranking of lists before they are evaluated: for methods that are fair in their lists, not in their training."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairstream.data import Rows
from fairstream.data.groups import Codes
from fairstream.evaluation.lists import Floats, Lists

N_RERANKED = 100
"""The candidates of each user to choose from, where all items are ranked."""


class Chosen(Protocol):
    """What a `Reranker` returns, at least."""

    @property
    def columns(self) -> Rows:
        """(U, K) which candidates, best first; behind the end of a short list stand columns without one."""

    @property
    def gap(self) -> float:
        """The gap between the groups, by the model's own labels."""

    @property
    def is_within(self) -> bool:
        """Whether that gap is within the tolerance."""


class Reranker(Protocol):
    """Chooses the lists of all users together.

    Takes scores (U, C), best first and −∞ behind the end of a user's candidates, with C ≥ K;
    the users' group codes (U,); and K. It does not see which candidates are hits, and must prefer the
    first of equal candidates: hits come last among them.
    """

    def __call__(self, scores: Floats, codes: Codes, k: int, /) -> Chosen: ...


@dataclass(frozen=True)
class RerankReport:
    """The outcome of a reranking."""

    label_gap: float
    is_within: bool
    seconds: float = field(compare=False)
    """The time of choosing, without that of ranking the candidates."""

    def to_dict(self) -> dict[str, Any]:
        """What is reproducible: all but the seconds."""
        return {"label_gap": self.label_gap, "is_within": self.is_within}


def rerank_hits(reranker: Reranker, ranked: Lists, codes: Codes, k: int) -> tuple[Lists, RerankReport]:
    """The lists that the reranker chooses from longer ones."""
    began = time.perf_counter()
    chosen = reranker(ranked.scores, codes, k)
    seconds = time.perf_counter() - began
    return ranked.at(chosen.columns), RerankReport(chosen.gap, chosen.is_within, seconds)
