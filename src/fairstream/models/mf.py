"""Matrix factorisation."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from fairstream.models.config import ModelConfig
from fairstream.models.context import NO_CONTEXT, Context
from fairstream.models.scorer import Scorer
from fairstream.models.tables import ItemTable, UserTable


class MFScorer(Scorer):
    """s_ui = ⟨p_u, q_i⟩; see `MF`."""

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


class MF(ModelConfig):
    """Matrix factorisation: s_ui = ⟨p_u, q_i⟩, without biases.

    Every user has a vector p_u and every item a vector q_i, learned by gradient descent. New users get the
    popularity fallback until an update has trained their vectors.

    Cost: 4 · embedding_dim bytes per user and item (12 · embedding_dim with the optimizer), and O(embedding_dim)
    operations per event and negative. Compiled engines train it on CPUs and on GPUs.

    Parameters
    ----------
    embedding_dim
        Length of the vectors.

    References
    ----------
    Rendle et al., "BPR: Bayesian Personalized Ranking from Implicit Feedback", 2009, for the loss `bpr`.

    Examples
    --------
    >>> import torch
    >>> model = MF(embedding_dim=8).build(n_users=10, n_items=20)
    >>> with torch.no_grad():
    ...     _ = model.user.weight.fill_(0.5), model.item.weight.fill_(0.5)
    >>> model(torch.tensor([3]), torch.tensor([[0, 19]])).tolist()
    [[2.0, 2.0]]

    """

    scorer = MFScorer
    embedding_dim: int = Field(64, ge=1)
