"""Models whose user embeddings go through a filter before anything is scored with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from fairstream.baselines.networks import Discriminator, Filter
from fairstream.errors import ModelError
from fairstream.models import ModelFactory, Scorer, UserTable

_FILTER, _DISCRIMINATOR = "user_filter", "group_discriminator"


class FilteredUserTable(UserTable):
    """f(p_u) in the place of p_u, over the rows of a table that is there already.

    The filter belongs to the model, which may have several tables for it, and is saved with it
    once; a table only knows it.
    """

    def __init__(self, table: UserTable, shared: Filter) -> None:
        super().__init__(0, table.embedding_dim, decayed=table.decayed)
        self.weight, self.num_embeddings = table.weight, table.num_embeddings
        self._shared = (shared,)  # in a tuple, where PyTorch does not take it for a part of the table

    def forward(self, users: Tensor) -> Tensor:
        """Users (B,) → filtered embeddings (B, d)."""
        return self._shared[0](super().forward(users))


def filtered(factory: ModelFactory) -> ModelFactory:
    """The same model with one filter on all of its user embeddings, and a discriminator to train it against.

    >>> from fairstream.models import MatrixFactorization
    >>> model = filtered(MatrixFactorization)(10, 20)
    >>> type(model).__name__, type(model.user).__name__
    ('MatrixFactorization', 'FilteredUserTable')
    """
    return partial(_make_filtered, factory)


def _make_filtered(factory: ModelFactory, n_users: int, n_items: int) -> Scorer:
    model = factory(n_users, n_items)
    if isinstance(model, Scorer):  # whoever asked for the model says what is wrong with any other
        _add_filter(model)
    return model


def _add_filter(model: Scorer) -> None:
    tables = user_embedding_tables(model)
    widths = {table.embedding_dim for table in tables}
    if len(widths) != 1 or any(type(table) is not UserTable for table in tables):
        found = ", ".join(f"{type(table).__name__} of {table.embedding_dim}" for table in tables) or "none"
        raise ModelError(
            f"Adver filters user embeddings: expected UserTables of one width of 2 or more, found {found}; "
            f"use a model that has them, or another method"
        )
    d = widths.pop()
    shared = Filter(d)
    instead = {table: FilteredUserTable(table, shared) for table in tables}
    for name, part in list(model.named_modules(remove_duplicate=False)):
        if isinstance(part, UserTable) and part in instead:
            owner, _, own = name.rpartition(".")
            setattr(model.get_submodule(owner), own, instead[part])
    model.add_module(_FILTER, shared)
    model.add_module(_DISCRIMINATOR, Discriminator(d))


def user_embedding_tables(model: Scorer) -> list[UserTable]:
    """The tables that describe a user; one of a single column is a bias."""
    return [table for table in model.tables() if isinstance(table, UserTable) and table.embedding_dim > 1]


def discriminator_of(model: Scorer) -> Discriminator:
    """The discriminator of a filtered model."""
    found = model.get_submodule(_DISCRIMINATOR)
    assert isinstance(found, Discriminator)
    return found


@contextmanager
def capture_outputs(model: Scorer) -> Iterator[list[Tensor]]:
    """What the filter gives inside the block, (B, d) for each time that it is asked."""
    heard: list[Tensor] = []

    def listen(table: object, asked: object, rows: Tensor) -> None:
        heard.append(rows)

    tables = [table for table in model.tables() if isinstance(table, FilteredUserTable)]
    hooks = [table.register_forward_hook(listen) for table in tables]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()
