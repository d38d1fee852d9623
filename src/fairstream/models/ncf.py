"""Neural collaborative filtering."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from fairstream.models.config import ModelConfig
from fairstream.models.context import NO_CONTEXT, Context
from fairstream.models.scorer import Scorer
from fairstream.models.tables import ItemTable, UserTable


class NCFScorer(Scorer):
    """s_ui = w · [p_u ⊙ q_i ; MLP(p'_u ; q'_i)] + b_u + b_i; see `NCF`."""

    def __init__(self, n_users: int, n_items: int, *, embedding_dim: int = 64, layers: int = 4) -> None:
        super().__init__()
        d = embedding_dim
        self.user_product, self.item_product = UserTable(n_users, d), ItemTable(n_items, d)
        self.user_mlp, self.item_mlp = UserTable(n_users, d), ItemTable(n_items, d)
        self.user_bias = UserTable(n_users, 1, weight_decay=False)
        self.item_bias = ItemTable(n_items, 1, weight_decay=False)
        self.layers = nn.ModuleList(nn.Linear(2 * d if depth == 0 else d, d, bias=False) for depth in range(layers))
        self.output = nn.Linear(2 * d, 1, bias=False)
        for linear in (*self.layers, self.output):
            nn.init.normal_(linear.weight, std=0.01)

    def forward(self, users: Tensor, items: Tensor, context: Context = NO_CONTEXT) -> Tensor:
        product = self.user_product(users).unsqueeze(1) * self.item_product(items)  # (B, C, d)
        hidden = torch.cat(
            [self.user_mlp(users).unsqueeze(1).expand_as(product), self.item_mlp(items)], dim=-1
        )  # (B, C, 2d)
        for layer in self.layers:
            hidden = torch.relu(layer(hidden))
        joined = self.output(torch.cat([product, hidden], dim=-1)).squeeze(-1)  # (B, C)
        return joined + self.user_bias(users) + self.item_bias(items).squeeze(-1)


class NCF(ModelConfig):
    """Neural collaborative filtering: s_ui = w · [p_u ⊙ q_i ; MLP(p'_u ; q'_i)] + b_u + b_i.

    One linear output joins an element-wise product and a ReLU perceptron (2d → d → … → d) with separate embeddings.
    No layer has a bias; L2 leaves out the user and item biases. All weights start from N(0, 0.01²). It loses to every
    other model here on the paper's data and is here to reproduce the paper.

    Cost: twice the memory of `MF`, and O(layers · embedding_dim²) operations per event and negative.

    Parameters
    ----------
    embedding_dim
        d, the length of the vectors.
    layers
        Layers of the perceptron.

    References
    ----------
    He et al., "Neural Collaborative Filtering", 2017.

    Examples
    --------
    >>> model = NCF(embedding_dim=8).build(n_users=10, n_items=20)
    >>> sum(parameter.numel() for parameter in model.parameters())
    846

    """

    scorer = NCFScorer
    embedding_dim: int = Field(64, ge=1)
    layers: int = Field(4, ge=1)
