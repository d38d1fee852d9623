"""Scores for users × items."""

from __future__ import annotations

from functools import partial

from fairstream.models.mf import MatrixFactorization
from fairstream.models.ncf import NeuralCollaborativeFiltering
from fairstream.models.popularity import Popularity
from fairstream.models.scorer import Scorer, ScorerFactory
from fairstream.models.tables import ItemTable, Table, UserTable

_BUILT_IN = {"mf": MatrixFactorization, "ncf": NeuralCollaborativeFiltering}


def built_in_model(name: str, embedding_dim: int) -> ScorerFactory:
    """The factory of "mf" or "ncf"."""
    return partial(_BUILT_IN[name], embedding_dim=embedding_dim)


__all__ = [
    "ItemTable",
    "MatrixFactorization",
    "NeuralCollaborativeFiltering",
    "Popularity",
    "Scorer",
    "ScorerFactory",
    "Table",
    "UserTable",
    "built_in_model",
]
