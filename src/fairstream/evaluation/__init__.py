"""Ranking metrics → by group → disparity, under the protocols `paper` and `strict`."""

from fairstream.evaluation.by_group import GroupScores, disaggregate
from fairstream.evaluation.protocol import Judge, Judgement, Protocol
from fairstream.evaluation.ranking import all_scores, evaluating, user_chunks

__all__ = ["GroupScores", "Judge", "Judgement", "Protocol", "all_scores", "disaggregate", "evaluating", "user_chunks"]
