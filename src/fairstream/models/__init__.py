"""Scores for users × items."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fairstream.models.blend import Blend
from fairstream.models.context import NO_CONTEXT, TASKS, Context, ContextBuilder, Graph, Mask, Reads, Task
from fairstream.models.item_item import ItemItem
from fairstream.models.mf import MatrixFactorization
from fairstream.models.ncf import NeuralCollaborativeFiltering
from fairstream.models.popularity import Popularity, RecentPopularity
from fairstream.models.scorer import (
    ClosedFormScorer,
    ModelFactory,
    Scorer,
    UserWeights,
    WindowScorer,
    closed_forms,
    copy_model,
    make_model,
    takes_weights,
)
from fairstream.models.sequence import GRU4Rec, SASRec
from fairstream.models.tables import ItemTable, Table, UserTable
from fairstream.registry import Registry

MODELS: Registry[type[Scorer] | ModelFactory] = Registry("model")
"""Models by name: classes, or functions (n_users, n_items) → Scorer."""
for _name, _model in {
    "mf": MatrixFactorization,
    "ncf": NeuralCollaborativeFiltering,
    "gru": GRU4Rec,
    "sasrec": SASRec,
    "popularity": Popularity,
    "recent-popularity": RecentPopularity,
    "item-item": ItemItem,
    "blend": Blend,
}.items():
    MODELS.register(_name, _model)


def model_defaults(model: str | ModelFactory) -> Mapping[str, Any]:
    """Options of training that a model wants otherwise than the paper: its attribute `defaults`."""
    found: Mapping[str, Any] = getattr(MODELS.get(model) if isinstance(model, str) else model, "defaults", {})
    return found


def model_factory(name: str, embedding_dim: int) -> ModelFactory:
    """The factory of a registered model; `embedding_dim` is passed on to models that take it."""
    model: Callable[..., Scorer] = MODELS[name]
    if "embedding_dim" in inspect.signature(model).parameters:
        return partial(model, embedding_dim=embedding_dim)
    return model


def may_inherit(name: str) -> bool:
    """Whether a model takes over something from the one before it (`Scorer.inherit`), as far as its name tells.

    >>> may_inherit("blend"), may_inherit("mf")
    (True, False)
    """
    model = MODELS.get(name)
    return not isinstance(model, type) or getattr(model, "inherit", None) is not Scorer.inherit


def is_closed_form(model: str | ModelFactory) -> bool:
    """Whether a model is computed in closed form as a whole, as far as its name or class tells.

    >>> is_closed_form("item-item"), is_closed_form("blend")
    (True, False)
    """
    kind = MODELS.get(model) if isinstance(model, str) else model
    return isinstance(kind, type) and issubclass(kind, ClosedFormScorer)


def may_be_closed_form(name: str) -> bool:
    """Whether something of a model is computed in closed form, as far as its name tells.

    >>> may_be_closed_form("item-item"), may_be_closed_form("mf")
    (True, False)
    """
    model = MODELS.get(name)
    return not isinstance(model, type) or issubclass(model, ClosedFormScorer | Blend)


__all__ = [
    "MODELS",
    "NO_CONTEXT",
    "TASKS",
    "Blend",
    "ClosedFormScorer",
    "Context",
    "ContextBuilder",
    "GRU4Rec",
    "Graph",
    "ItemItem",
    "ItemTable",
    "Mask",
    "MatrixFactorization",
    "ModelFactory",
    "NeuralCollaborativeFiltering",
    "Popularity",
    "Reads",
    "RecentPopularity",
    "SASRec",
    "Scorer",
    "Table",
    "Task",
    "UserTable",
    "UserWeights",
    "WindowScorer",
    "closed_forms",
    "copy_model",
    "is_closed_form",
    "make_model",
    "may_be_closed_form",
    "may_inherit",
    "model_defaults",
    "model_factory",
    "takes_weights",
]
