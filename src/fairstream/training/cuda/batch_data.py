"""The batches of one training on the device: who and what is in them, and where each row occurs."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from fairstream.training.engine import Training

NO_ROW: Final = 2**31 - 1
"""Fills up the last batch; sorts behind every row."""


class BatchData:
    """Columns, candidates and occurrences, in tensors that stay where they are: a captured graph reads them.

    The occurrences of a row in a batch are found by sorting: `rows` holds each batch's rows in
    order, equal ones beside each other, and `order` where in the batch each of them stood.
    """

    def __init__(self, training: Training, device: torch.device) -> None:
        batches = training.batches
        self._training, self._key = training, -1
        self.n, self.size, self.n_batches = len(batches.users), batches.size, len(batches)
        self.n_columns = 1 + training.objective.n_drawn
        self.users = torch.as_tensor(batches.users).to(device)  # (N,)
        self._items = torch.as_tensor(batches.items).to(device)  # (N,)
        self.codes = torch.as_tensor(batches.codes[batches.users]).to(device).int()  # (N,)
        self.signs = torch.tensor(training.signs, device=device)  # (G,)
        self.user_rows, self.user_order = self._occurrences(self.users[:, None])
        self.candidates = self.users.new_empty(self.n, self.n_columns)
        self.item_rows, self.item_order = (
            torch.empty(self.n_batches, self.size * self.n_columns, dtype=torch.int32, device=device) for _ in range(2)
        )

    def use(self, key: int) -> None:
        """Let the negatives be those of `key`."""
        if key != self._key:
            training = self._training
            negatives = training.sampler.draw(training.batches.users, training.objective.n_drawn, key)
            torch.cat([self._items[:, None], negatives], dim=1, out=self.candidates)
            rows, order = self._occurrences(self.candidates)
            self.item_rows.copy_(rows)
            self.item_order.copy_(order)
            self._key = key

    def _occurrences(self, members: Tensor) -> tuple[Tensor, Tensor]:
        """(N, c) rows → each batch's rows sorted (n_batches, size · c), and where they stood in it."""
        filled = members.new_full((self.n_batches * self.size, members.shape[1]), NO_ROW, dtype=torch.int32)
        filled[: self.n] = members
        rows, order = filled.view(self.n_batches, -1).sort(dim=1, stable=True)
        return rows, order.int()
