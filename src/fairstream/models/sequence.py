"""Sequence models: they read the user's latest items at the time of the request and have no user table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from fairstream.models.config import FEATURE_BUCKETS, ModelConfig
from fairstream.models.scorer import PeriodHead, Scorer, WindowScorer
from fairstream.models.tables import ItemTable

_STD = 0.05
_ELAPSED = tuple(sorted({math.ceil(math.exp(0.301 * n)) for n in range(49)}))
"""Where ranges of elapsed time begin, in minutes: 1, 2, 3, 4 … and 3.6 years; each is about 1.35 times as long."""
_DEFAULTS = {
    "loss": "softmax",
    "optimizer": "dense",
    "l2": 0.0,
    "batch_size": 512,
    "schedule": "cosine",
    "activity_exponent": 0.5,
    "pretrain_epochs": 12,
    "pretrain_visits": 6_000_000,
    "update_epochs": 3,
}
LARGE_LOG = 200_000
_SIZE = {"embedding_dim": 64, "length": 50, "blocks": 2, "heads": 2, "dropout": 0.2}
_SIZE_OF_LARGE_LOGS = {"length": 100, "blocks": 4}
_WIDTH_ON_CUDA = {"embedding_dim": 128, "heads": 4, "dropout": 0.3}
_TRAINING_ON_CUDA = {"batch_size": 2048, "pretrain_epochs": 60, "pretrain_visits": 30_000_000}


class GRU4RecScorer(WindowScorer):
    """s_ui = ⟨GRU(the user's latest items), q_i⟩ + b_i; see `GRU4Rec`."""

    defaults: ClassVar[Mapping[str, Any]] = {**_DEFAULTS, "learning_rate": 4e-3, "update_learning_rate": 1e-3}

    def __init__(
        self,
        n_users: int,
        n_items: int,
        *,
        embedding_dim: int = 64,
        length: int = 50,
        dropout: float = 0.2,
        feature_buckets: int = 0,
    ) -> None:
        super().__init__()
        self.history_length = length
        self.item = ItemTable(n_items, embedding_dim, padding=True, std=_STD, feature_buckets=feature_buckets)
        self.bias = ItemTable(n_items, 1, weight_decay=False, feature_buckets=feature_buckets)
        self.period_head = PeriodHead(n_items, embedding_dim, std=_STD, feature_buckets=feature_buckets)
        self.gru = nn.GRU(embedding_dim, embedding_dim, batch_first=True)
        self.dropout = nn.Dropout(dropout)

    def states(self, history: Tensor) -> Tensor:
        hidden: Tensor = self.gru(self.dropout(self.item(history)))[0]
        dropped: Tensor = self.dropout(hidden)
        return dropped


class SASRecScorer(WindowScorer):
    """s_ui = ⟨self-attention over the user's latest items, q_i⟩ + b_i; see `SASRec`."""

    ignores_padding: ClassVar[bool] = True
    elapsed: Tensor
    defaults: ClassVar[Mapping[str, Any]] = {**_DEFAULTS, "learning_rate": 2e-3, "update_learning_rate": 5e-4}

    def __init__(
        self,
        n_users: int,
        n_items: int,
        *,
        embedding_dim: int = 64,
        length: int = 50,
        blocks: int = 2,
        heads: int = 2,
        dropout: float = 0.2,
        feature_buckets: int = 0,
        with_times: bool = False,
    ) -> None:
        super().__init__()
        self.history_length, self.reads_times = length, with_times
        self.item = ItemTable(n_items, embedding_dim, padding=True, std=_STD, feature_buckets=feature_buckets)
        self.bias = ItemTable(n_items, 1, weight_decay=False, feature_buckets=feature_buckets)
        self.period_head = PeriodHead(n_items, embedding_dim, std=_STD, feature_buckets=feature_buckets)
        n_elapsed = len(_ELAPSED) if with_times else 0
        self.blocks = nn.ModuleList(
            _GatedBlock(embedding_dim, length, heads, dropout, n_elapsed) for _ in range(blocks)
        )
        if with_times:
            self.since = nn.Parameter(torch.zeros(1 + n_elapsed, embedding_dim))  # row 0, an unknown time, stays 0
            self.register_buffer("elapsed", torch.tensor(_ELAPSED), persistent=False)
        self.norm = nn.LayerNorm(embedding_dim)
        self.dropout = nn.Dropout(dropout)

    def states(self, history: Tensor, times: Tensor | None = None) -> Tensor:
        is_item = history >= 0
        place = torch.arange(history.shape[1], device=history.device)
        distance = place[:, None] - place  # (L, L)
        # Padding attends to itself: a softmax over no place at all would be NaN.
        is_visible = ((distance >= 0) & is_item[:, None, :]) | (distance == 0)  # (B, L, L)
        elapsed = None if times is None else self._elapsed(times)
        x = self.item(history) * math.sqrt(self.item.embedding_dim)
        if elapsed is not None:  # the time from each item to its own request: attention weights alone cannot tell it
            x = x + F.embedding(elapsed.diagonal(dim1=1, dim2=2), self.since, padding_idx=0)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, is_visible, elapsed)
        normed: Tensor = self.norm(x)
        return normed

    def _elapsed(self, times: Tensor) -> Tensor:
        """(B, L + 1) minutes → (B, L, L) the range of the time from event k to the request of place j; 0: unknown.

        The request of place j comes with event j + 1. Times below a minute are one range: they would tell which events
        were entered together.
        """
        requests, events = times[:, 1:, None], times[:, None, :-1]
        minutes = (requests - events).clamp(min=1).masked_fill((requests < 0) | (events < 0), 0)
        return torch.bucketize(minutes, self.elapsed, right=True)


class _GatedBlock(nn.Module):
    """x ← x + σ(W₁ x̄) ⊙ attention(x̄), then x ← x + σ(W₂ x̄) ⊙ SwiGLU(x̄), with x̄ = LayerNorm(x)   (LiGR).

    A gate can close a branch, which keeps deep stacks stable.
    """

    def __init__(self, d: int, length: int, heads: int, dropout: float, n_elapsed: int) -> None:
        super().__init__()
        self.n_heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attend, self.out = nn.Linear(d, 4 * d), nn.Linear(d, d)  # query, key, value and gate in one product
        self.bias = nn.Parameter(torch.zeros(self.n_heads, length))  # the attention bias of each distance
        if n_elapsed:  # … and of each range of elapsed time; that of an unknown one stays 0
            self.elapsed = nn.Parameter(torch.zeros(1 + n_elapsed, self.n_heads))
        self.inner, self.outer = nn.Linear(d, 5 * d), nn.Linear(2 * d, d)  # two factors of width 2 d, and the gate
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, is_visible: Tensor, elapsed: Tensor | None) -> Tensor:
        b, length, d = x.shape
        heads, gate = self.attend(self.norm_1(x)).split([3 * d, d], dim=-1)
        query, key, value = heads.view(b, length, 3, self.n_heads, d // self.n_heads).permute(2, 0, 3, 1, 4)
        lowest = torch.finfo(x.dtype).min
        bias = _by_distance(self.bias[:, :length])  # (H, L, L)
        if elapsed is not None:
            bias = bias + F.embedding(elapsed, self.elapsed, padding_idx=0).permute(0, 3, 1, 2)  # (B, H, L, L)
        mask = bias.masked_fill(~is_visible[:, None], lowest)  # (B, H, L, L)
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)  # (B, H, L, d / H)
        x = x + self.dropout(torch.sigmoid(gate) * self.out(seen.transpose(1, 2).reshape(b, length, d)))
        left, right, gate = self.inner(self.norm_2(x)).split([2 * d, 2 * d, d], dim=-1)
        added: Tensor = x + self.dropout(torch.sigmoid(gate) * self.outer(F.silu(left) * right))
        return added


def _by_distance(values: Tensor) -> Tensor:
    """(H, L) a value for each distance → (H, L, L) the value of the distance i − j; 0 where j > i.

    Indexing by i − j gives the same, but its gradient has to sort.
    """
    length = values.shape[1]
    return F.pad(values.flip(1), (0, length - 1)).unfold(1, length, 1).flip(1)


class GRU4Rec(ModelConfig):
    """A recurrent network over the user's latest items: s_ui = ⟨GRU(items), q_i⟩ + b_i.

    There is no user table: the model serves every user from the first event on. A `PeriodHead` scores lists for a
    period.

    Cost: 4 · embedding_dim bytes per item and head (12 · embedding_dim with the optimizer). Training on a window of L
    items takes O(L · embedding_dim · (embedding_dim + C)) operations for C ranked items (see `SASRec`). The L steps run
    one after another, so it is slower than `SASRec` on a GPU.

    Parameters
    ----------
    embedding_dim
        Length of the item embeddings and of the hidden state.
    length
        How many of the user's latest items the model reads.
    dropout
        Share of the inputs and outputs that training sets to 0.
    feature_buckets
        Rows that the features of items share, by their hash, where items have features.

    References
    ----------
    Hidasi et al., "Session-based Recommendations with Recurrent Neural Networks", 2016.

    Examples
    --------
    >>> model = GRU4Rec(embedding_dim=16, length=100).build(n_users=3, n_items=5)
    >>> model.history_length, sum(parameter.numel() for parameter in model.parameters())
    (100, 2346)

    """

    scorer = GRU4RecScorer
    embedding_dim: int = Field(64, ge=1)
    length: int = Field(50, ge=1)
    dropout: float = Field(0.2, ge=0, lt=1)
    feature_buckets: int = Field(FEATURE_BUCKETS, ge=1)


class SASRec(ModelConfig):
    """Self-attention over the user's latest items: s_ui = ⟨attention(items), q_i⟩ + b_i.

    Attention has a learned bias for each distance between items instead of one for each place, so it does not matter
    where a window begins. If the events have timestamps, it also has one for each range of the time from an item to
    the request, and an embedding of the time since the last item: 1, 2, 3, 4 … minutes, then ranges that grow by 35 %
    each. There is no user table: the model serves every user from the first event on. A `PeriodHead` scores lists for a
    period.

    Cost: 4 · embedding_dim bytes per item and head (12 · embedding_dim with the optimizer). Training on a window of L
    items takes O(L · embedding_dim · (blocks · (embedding_dim + L) + C)) operations. The softmax loss ranks all C items
    of a catalogue of up to 5,000 (100,000 on a GPU, if items have no features), and a sample of 1,024 of a larger one.

    When `fit` begins, it fills in settings that are None: embedding_dim=64, length=50, blocks=2, heads=2, dropout=0.2.
    From 200,000 events on, length=100 and blocks=4; then on a GPU also embedding_dim=128, heads=4 and dropout=0.3,
    unless embedding_dim or heads is given. Training from scratch takes up to 60 epochs on a GPU and 12 elsewhere,
    depending on the number of events (`Training.pretrain_visits`).

    Parameters
    ----------
    embedding_dim
        Length of the item embeddings; a multiple of `heads`.
    length
        How many of the user's latest items the model reads.
    blocks
        Gated layers of attention, each followed by a gated feed-forward network.
    heads
        Attention heads of each block.
    dropout
        Share of the inputs and of each block's outputs that training sets to 0.
    feature_buckets
        Rows that the features of items share, by their hash, where items have features.

    References
    ----------
    Kang and McAuley, "Self-Attentive Sequential Recommendation", 2018. Borisyuk et al., "LiGR", 2025, for the gates.

    Examples
    --------
    >>> model = SASRec(embedding_dim=16, blocks=4, length=200).build(n_users=3, n_items=5)
    >>> len(model.blocks), model.history_length, sum(parameter.numel() for parameter in model.parameters())
    (4, 200, 15594)

    """

    scorer = SASRecScorer
    embedding_dim: int | None = Field(None, ge=1)
    length: int | None = Field(None, ge=1)
    blocks: int | None = Field(None, ge=1)
    heads: int | None = Field(None, ge=1)
    dropout: float | None = Field(None, ge=0, lt=1)
    feature_buckets: int = Field(FEATURE_BUCKETS, ge=1)

    def sized(self, device: str, n_events: int) -> Self:
        size = _SIZE | (_SIZE_OF_LARGE_LOGS if n_events >= LARGE_LOG else {})
        if n_events >= LARGE_LOG and device == "cuda" and self.embedding_dim is self.heads is None:
            size |= _WIDTH_ON_CUDA
        chosen = {name: value for name, value in size.items() if getattr(self, name) is None}
        return self.with_options(**chosen) if chosen else self

    def defaults_on(self, device: str) -> Mapping[str, Any]:
        return {**self.scorer.defaults, **(_TRAINING_ON_CUDA if device == "cuda" else {})}

    def build(self, n_users: int, n_items: int, **options: bool) -> Scorer:
        sized = self.sized("cpu", 0)
        return super().build(n_users, n_items, **options) if sized is self else sized.build(n_users, n_items, **options)

    @model_validator(mode="after")
    def _heads_divide_the_embedding(self) -> Self:
        # With one of the two given, the other does not depend on the log and the device.
        d, heads = self.embedding_dim or _SIZE["embedding_dim"], self.heads or _SIZE["heads"]
        if d % heads:
            raise ValueError(f"embedding_dim must be a multiple of heads, {heads}, got {d}; change one of them")
        return self
