"""The paper's competitors: what else can be done about a disparity between groups of users."""

from fairstream.baselines.rerank import Rerank
from fairstream.baselines.rerank_program import Program, Reranking, need_two_groups

# `rerank_exact` is imported from its own file: SciPy's optimizers take most of a second to import.
__all__ = ["Program", "Rerank", "Reranking", "need_two_groups"]
