"""Scores for users × items."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

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


_HANDED_ON = ("embedding_dim", "feature_buckets")
"""Options of training that are arguments of a model's constructor."""


def model_class(model: str | ModelFactory) -> type[Scorer] | None:
    """The class of the models that a factory makes; None: no model has this name.

    A class stands for itself, in a `partial` too; any other factory makes a model for one user and one item.

    >>> model_class(partial(SASRec, embedding_dim=128)) is model_class("sasrec") is SASRec
    True
    """
    factory = MODELS.get(model) if isinstance(model, str) else model
    kind = factory.func if isinstance(factory, partial) else factory
    if kind is None or isinstance(kind, type):
        return kind
    with torch.random.fork_rng(devices=[]):  # the caller's own draws stay the same
        return type(factory(1, 1))


def model_defaults(model: str | ModelFactory, loss: object = None) -> dict[str, Any]:
    """Options of training that a model wants otherwise than the paper: its attribute `defaults`.

    What a `partial` hands on to the constructor comes first. The weights of events go with the model's own `loss`.

    >>> model_defaults(partial(SASRec, embedding_dim=128))["embedding_dim"]
    128
    """
    factory = MODELS.get(model) if isinstance(model, str) else model
    wanted = dict(getattr(model_class(model), "defaults", {}))
    if isinstance(factory, partial):
        wanted |= {name: value for name in _HANDED_ON if (value := factory.keywords.get(name))}
    if loss is not None and loss != wanted.get("loss"):
        wanted.pop("activity_exponent", None)
    return wanted


def model_factory(name: str, embedding_dim: int) -> ModelFactory:
    """The factory of a registered model; `embedding_dim` is passed on to models that take it."""
    model: Callable[..., Scorer] = MODELS[name]
    if "embedding_dim" in inspect.signature(model).parameters:
        return partial(model, embedding_dim=embedding_dim)
    return model


def may_inherit(model: str | ModelFactory) -> bool:
    """Whether a model takes over something from the one before it (`Scorer.inherit`); True of an unknown name.

    >>> may_inherit("blend"), may_inherit("mf")
    (True, False)
    """
    return getattr(model_class(model), "inherit", None) is not Scorer.inherit


def is_closed_form(model: str | ModelFactory) -> bool:
    """Whether a model is computed in closed form as a whole.

    >>> is_closed_form(partial(ItemItem, ridge=5.0)), is_closed_form("blend")
    (True, False)
    """
    kind = model_class(model)
    return kind is not None and issubclass(kind, ClosedFormScorer)


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
    "may_inherit",
    "model_class",
    "model_defaults",
    "model_factory",
    "takes_weights",
]
