"""What to recommend to someone of whom nothing is known."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fairstream.models.scorer import Scorer


class Popularity(Scorer):
    """Scores items by a popularity that is given, the same for everyone.

    >>> model = Popularity(np.array([0.5, 2.0]), n_items=3)
    >>> model(torch.tensor([7]), torch.tensor([[1, 0, 2]]))
    tensor([[2.0000, 0.5000, 0.0000]], dtype=torch.float64)
    """

    def __init__(self, popularity: np.ndarray[tuple[int], np.dtype[np.float64]], *, n_items: int) -> None:
        super().__init__()
        scores = torch.from_numpy(np.pad(popularity, (0, n_items - len(popularity))))
        self.popularity = nn.Parameter(scores, requires_grad=False)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return self.popularity[items]

    def score_range(self, users: Tensor, start: int, stop: int) -> Tensor:
        return self.popularity[start:stop].expand(len(users), -1)
