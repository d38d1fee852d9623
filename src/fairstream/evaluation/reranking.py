"""Choosing lists anew before they are judged: for methods that are fair in what they list, not in what they learn."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairstream.data import Rows
from fairstream.data.groups import Codes
from fairstream.evaluation.ranking import RankedHits
from fairstream.evaluation.top_k import Floats

N_RERANKED = 100
"""Where all items are ranked, so many of a user's best are the candidates to choose from."""


class Chosen(Protocol):
    """What a `Reranker` returns; it may hold more."""

    @property
    def columns(self) -> Rows:
        """(U, K) which candidates, best first; behind the end of a short list stand columns without one."""

    @property
    def gap(self) -> float:
        """The gap between the groups by the labels that it chose by."""

    @property
    def is_within(self) -> bool:
        """Whether that is as small as was asked for."""


class Reranker(Protocol):
    """Chooses the lists of all users together.

    It is given scores (U, C), best first and −∞ behind the end of a user's candidates, with C ≥ K;
    the users' group codes (U,); and K. It is not told which candidates are hits, and keeps to the
    first of equal ones: the hits come last among them.
    """

    def __call__(self, scores: Floats, codes: Codes, k: int, /) -> Chosen: ...


@dataclass(frozen=True)
class RerankReport:
    """What became of a reranking."""

    label_gap: float
    is_within: bool
    seconds: float = field(compare=False)
    """What choosing took; ranking the candidates is not in it."""

    def to_dict(self) -> dict[str, Any]:
        """What the model and the data decide; the seconds are none of it."""
        return {"label_gap": self.label_gap, "is_within": self.is_within}


def rerank_hits(reranker: Reranker, ranked: RankedHits, codes: Codes, k: int) -> tuple[RankedHits, RerankReport]:
    """The lists that the reranker chooses from longer ones."""
    began = time.perf_counter()
    chosen = reranker(ranked.scores, codes, k)
    seconds = time.perf_counter() - began
    return ranked.at(chosen.columns), RerankReport(chosen.gap, chosen.is_within, seconds)
