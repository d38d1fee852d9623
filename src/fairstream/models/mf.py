"""Matrix factorisation."""

from __future__ import annotations

from torch import Tensor

from fairstream.models.context import NO_CONTEXT, Context
from fairstream.models.scorer import Scorer
from fairstream.models.tables import ItemTable, UserTable


class MatrixFactorization(Scorer):
    """s_ui = ⟨p_u, q_i⟩, without biases.

    >>> MatrixFactorization(10, 20, embedding_dim=8).n_items
    20
    """

    def __init__(self, n_users: int, n_items: int, *, embedding_dim: int = 64) -> None:
        super().__init__()
        self.user = UserTable(n_users, embedding_dim)
        self.item = ItemTable(n_items, embedding_dim)

    def forward(self, users: Tensor, items: Tensor, context: Context = NO_CONTEXT) -> Tensor:
        p, q = self.user(users), self.item(items)  # (B, d), (B, C, d)
        return (q @ p.unsqueeze(-1)).squeeze(-1)

    def vectors(self, users: Tensor, context: Context = NO_CONTEXT) -> tuple[Tensor, Tensor]:
        return self.user(users), self.item.embeddings()

    def score_range(self, users: Tensor, start: int, stop: int, context: Context = NO_CONTEXT) -> Tensor:
        return self.user(users) @ self.item.weight[start:stop].T
