"""Embedding tables whose rows are users or items, and which grow."""

from __future__ import annotations

import torch
from torch import nn


class Table(nn.Embedding):
    """One row of numbers per user or per item, started from N(0, 0.01²).

    `decayed=False` keeps L2 off the table (the biases of NCF).
    """

    def __init__(self, n_rows: int, n_columns: int, *, decayed: bool = True) -> None:
        super().__init__(n_rows, n_columns)
        self.decayed = decayed

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.01)

    def grow(self, n_rows: int) -> None:
        """Append freshly started rows; the rows that are there keep their values.

        The parameter stays the same object, so an optimizer that holds it goes on holding it.
        """
        n_new = n_rows - self.num_embeddings
        if n_new > 0:
            fresh = torch.empty(n_new, self.embedding_dim, dtype=self.weight.dtype)
            nn.init.normal_(fresh, std=0.01)
            self.weight.data = torch.cat([self.weight.data, fresh.to(self.weight.device)])
            self.num_embeddings = n_rows


class UserTable(Table):
    """A table with one row per user.

    >>> table = UserTable(2, 3)
    >>> table.grow(5)
    >>> tuple(table.weight.shape)
    (5, 3)
    """


class ItemTable(Table):
    """A table with one row per item."""
