"""Sequence models: they read the user's latest items at the moment of the request and have no row per user."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairstream.models.context import Reads
from fairstream.models.scorer import WindowScorer
from fairstream.models.tables import ItemTable

LENGTH = 50
"""How many of the latest items are read."""
_DROPOUT = 0.2
_STD = 0.05
_DEFAULTS = {
    "loss": "softmax",
    "optimizer": "dense",
    "l2": 0.0,
    "batch_size": 512,
    "schedule": "cosine",
    "activity_exponent": 0.5,
    "pretrain_epochs": 15,
    "update_epochs": 3,
}


class GRU4Rec(WindowScorer):
    """s_ui = ⟨GRU(the user's latest items), q_i⟩ + b_i   (Hidasi et al., 2016)."""

    reads: ClassVar[Reads] = Reads(history=LENGTH)
    defaults: ClassVar[Mapping[str, Any]] = {**_DEFAULTS, "learning_rate": 4e-3, "update_learning_rate": 1e-3}

    def __init__(self, n_users: int, n_items: int, *, embedding_dim: int = 64, feature_buckets: int = 0) -> None:
        super().__init__()
        self.item = ItemTable(n_items, embedding_dim, padding=True, std=_STD, feature_buckets=feature_buckets)
        self.bias = ItemTable(n_items, 1, decayed=False, feature_buckets=feature_buckets)
        self.gru = nn.GRU(embedding_dim, embedding_dim, batch_first=True)
        self.dropout = nn.Dropout(_DROPOUT)

    def states(self, history: Tensor) -> Tensor:
        hidden: Tensor = self.gru(self.dropout(self.item(history)))[0]
        dropped: Tensor = self.dropout(hidden)
        return dropped


class SASRec(WindowScorer):
    """s_ui = ⟨self-attention over the user's latest items, q_i⟩ + b_i   (Kang & McAuley, 2018).

    Attention sees how far back an item lies, by a learned bias for each distance, instead of
    where in the window it stands: so it makes no difference where a window was cut.
    """

    reads: ClassVar[Reads] = Reads(history=LENGTH)
    ignores_padding: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {**_DEFAULTS, "learning_rate": 2e-3, "update_learning_rate": 5e-4}

    def __init__(self, n_users: int, n_items: int, *, embedding_dim: int = 64, feature_buckets: int = 0) -> None:
        super().__init__()
        self.item = ItemTable(n_items, embedding_dim, padding=True, std=_STD, feature_buckets=feature_buckets)
        self.bias = ItemTable(n_items, 1, decayed=False, feature_buckets=feature_buckets)
        self.blocks = nn.ModuleList(_Block(embedding_dim, LENGTH) for _ in range(2))
        self.norm = nn.LayerNorm(embedding_dim)
        self.dropout = nn.Dropout(_DROPOUT)

    def states(self, history: Tensor) -> Tensor:
        is_item = history >= 0
        place = torch.arange(history.shape[1], device=history.device)
        distance = place[:, None] - place  # (L, L)
        # Padding sees itself, because attention to nothing is not a number.
        is_visible = ((distance >= 0) & is_item[:, None, :]) | (distance == 0)  # (B, L, L)
        x = self.dropout(self.item(history) * math.sqrt(self.item.embedding_dim))
        for block in self.blocks:
            x = block(x, is_visible)
        normed: Tensor = self.norm(x)
        return normed


class _Block(nn.Module):
    """Self-attention and a feed-forward network, each added to its input after normalising it."""

    def __init__(self, d: int, length: int) -> None:
        super().__init__()
        self.n_heads = 2 if d % 2 == 0 else 1
        self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.query_key_value, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.bias = nn.Parameter(torch.zeros(self.n_heads, length))
        """How much an item counts by its distance."""
        self.inner, self.outer = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor, is_visible: Tensor) -> Tensor:
        b, length, d = x.shape
        parts = self.query_key_value(self.norm_1(x)).view(b, length, 3, self.n_heads, d // self.n_heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # (B, H, L, d / H) each
        lowest = torch.finfo(x.dtype).min
        mask = _by_distance(self.bias[:, :length]).masked_fill(~is_visible[:, None], lowest)  # (B, H, L, L)
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.dropout(self.out(seen.transpose(1, 2).reshape(b, length, d)))
        added: Tensor = x + self.dropout(self.outer(F.gelu(self.inner(self.norm_2(x)))))
        return added


def _by_distance(values: Tensor) -> Tensor:
    """(H, L) a value for each distance → (H, L, L) that of i − j; 0 where j lies behind i.

    The same as an index by i − j, but its gradient needs no sorting.
    """
    length = values.shape[1]
    return F.pad(values.flip(1), (0, length - 1)).unfold(1, length, 1).flip(1)
