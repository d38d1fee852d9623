"""Ranking → metrics → by group → how sure; the protocols `paper` and `strict`."""

from fairstream.evaluation.by_group import Estimate, GroupScores, disaggregate
from fairstream.evaluation.judge import Judge, Judgement
from fairstream.evaluation.protocol import REPAIRS, Protocol
from fairstream.evaluation.ranking import best_items
from fairstream.evaluation.reranking import Reranker, RerankReport
from fairstream.evaluation.resampling import Panel, Statistics
from fairstream.evaluation.slices import Slice
from fairstream.evaluation.tested import Tested, side_by_side

__all__ = [
    "REPAIRS",
    "Estimate",
    "GroupScores",
    "Judge",
    "Judgement",
    "Panel",
    "Protocol",
    "RerankReport",
    "Reranker",
    "Slice",
    "Statistics",
    "Tested",
    "best_items",
    "disaggregate",
    "side_by_side",
]
