"""The protocol by which a model takes part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from fairstream.models.tables import ItemTable, Table, UserTable

_SCORES_AT_ONCE = 1 << 18


class Scorer(nn.Module, ABC):
    """A module that scores items for users. A model knows no loss and no data.

    To bring a model of one's own, subclass this, hold what belongs to a user in `UserTable`s and
    what belongs to an item in `ItemTable`s, and define `forward`; growth, training, evaluation
    and checkpoints then work as for the built-in models. The constructor takes (n_users, n_items).
    A checkpoint holds parameters and persistent buffers; what a model keeps elsewhere is made anew.

    >>> class Popularity(Scorer):
    ...     def __init__(self, n_users, n_items):
    ...         super().__init__()
    ...         self.user, self.item = UserTable(n_users, 1), ItemTable(n_items, 1)
    ...     def forward(self, users, items):
    ...         return self.item(items).squeeze(-1) + 0 * self.user(users)
    >>> model = Popularity(3, 5)
    >>> model.grow(4, 7)
    >>> model.n_users, model.n_items, tuple(model(torch.tensor([0, 3]), torch.tensor([[1], [6]])).shape)
    (4, 7, (2, 1))
    """

    @abstractmethod
    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Users (B,), items (B, C) → scores (B, C)."""

    def score_range(self, users: Tensor, start: int, stop: int) -> Tensor:
        """Users (B,) → scores of the items from `start` to `stop` (B, stop − start), in bounded memory."""
        width = max(1, _SCORES_AT_ONCE // max(1, len(users)))
        parts = torch.split(torch.arange(start, stop, device=users.device), width)
        return torch.cat([self(users, part.expand(len(users), -1)) for part in parts], dim=1)

    @property
    def n_users(self) -> int:
        """Users that there is room for (0 in a model without user tables)."""
        return max((table.num_embeddings for table in self.tables() if isinstance(table, UserTable)), default=0)

    @property
    def n_items(self) -> int:
        """Items that there is room for (0 in a model without item tables)."""
        return max((table.num_embeddings for table in self.tables() if isinstance(table, ItemTable)), default=0)

    def grow(self, n_users: int, n_items: int) -> None:
        """Make room for users and items that have newly appeared."""
        for table in self.tables():
            table.grow(n_users if isinstance(table, UserTable) else n_items)

    def tables(self) -> Iterator[Table]:
        """All user and item tables of the model."""
        return (module for module in self.modules() if isinstance(module, Table))


ScorerFactory = Callable[[int, int], Scorer]
"""(n_users, n_items) → a freshly started model."""
