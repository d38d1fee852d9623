"""Neural collaborative filtering."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairstream.models.context import NO_CONTEXT, Context
from fairstream.models.scorer import Scorer
from fairstream.models.tables import ItemTable, UserTable

_N_LAYERS = 4


class NeuralCollaborativeFiltering(Scorer):
    """s_ui = w · [p_u ⊙ q_i ; MLP(p'_u ; q'_i)] + b_u + b_i.

    An element-wise product branch beside a ReLU perceptron (2d → d → d → d → d) with embeddings
    of its own, joined by one linear output. No layer has a bias; the user and item biases carry
    no L2. All weights start from N(0, 0.01²).

    >>> NeuralCollaborativeFiltering(10, 20, embedding_dim=8).n_users
    10
    """

    def __init__(self, n_users: int, n_items: int, *, embedding_dim: int = 64) -> None:
        super().__init__()
        d = embedding_dim
        self.user_product, self.item_product = UserTable(n_users, d), ItemTable(n_items, d)
        self.user_mlp, self.item_mlp = UserTable(n_users, d), ItemTable(n_items, d)
        self.user_bias = UserTable(n_users, 1, decayed=False)
        self.item_bias = ItemTable(n_items, 1, decayed=False)
        self.layers = nn.ModuleList(nn.Linear(2 * d if depth == 0 else d, d, bias=False) for depth in range(_N_LAYERS))
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
