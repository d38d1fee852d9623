"""What the tests of more than one room use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from fairstream.models import MatrixFactorization

EXTREME = st.sampled_from([1e4, -1e4, 9_999.0, 1e-30, -1e-6, 0.0]) | st.floats(-1e4, 1e4, width=32)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@st.composite
def ranked_lists(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Distinct scores up to ±1e4, and what is relevant."""
    scores = draw(st.lists(st.integers(-10_000, 10_000), min_size=1, max_size=8, unique=True))
    relevance = draw(st.lists(st.integers(0, 1), min_size=len(scores), max_size=len(scores)))
    return scores, relevance


class Recorder(MatrixFactorization):
    """Matrix factorisation that writes down what it was asked."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items, embedding_dim=4)
        self.asked: list[tuple[Tensor, Tensor]] = []

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        self.asked.append((users.clone(), items.clone()))
        return super().forward(users, items)

    def told(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The users (N,) and candidates (N, 1 + n) asked for since the last time."""
        users, items = (torch.cat(column).numpy() for column in zip(*self.asked, strict=True))
        self.asked.clear()
        return users, items
