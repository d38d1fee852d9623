"""The batches of one training on the device: who and what is in them, and where each row occurs."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
import triton
from torch import Tensor

from fairstream.randomness import GOLDEN, MIX_1, MIX_2
from fairstream.training.batches import Batches
from fairstream.training.cuda.kernels.drawing import draw
from fairstream.training.engine import TrainingJob

NO_ROW: Final = 2**31 - 1
"""Fills up the last batch; sorts behind every row."""


class BatchData:
    """Columns, candidates and occurrences, in tensors that stay where they are: a captured graph reads them.

    The occurrences of a row in a batch are found by sorting: `rows` holds each batch's rows in
    order, equal ones beside each other, and `order` where in the batch each of them stood.
    """

    def __init__(self, job: TrainingJob, device: torch.device) -> None:
        batches, sampler = job.batches, job.sampler
        assert isinstance(batches, Batches)
        self.n, self.size, n_batches = len(batches.users), batches.size, len(batches)
        self.n_columns = 1 + job.objective.n_drawn
        self.users = torch.as_tensor(batches.users).to(device)  # (N,)
        self._items = torch.as_tensor(batches.items).to(device)  # (N,)
        self.codes = torch.as_tensor(batches.codes[batches.users]).to(device).int()  # (N,)
        self.signs = torch.tensor(job.signs, device=device)  # (G,)
        self._bounds, self._free_before, self._place = (
            torch.as_tensor(column).to(device)
            for column in (sampler.bounds, sampler.free_before, sampler.place(batches.users))
        )
        self._n_items = sampler.n_items
        self._n_halvings = int(np.diff(sampler.bounds).max(initial=0)).bit_length()

        def filled(n_columns: int) -> Tensor:
            return torch.full((n_batches, self.size * n_columns), NO_ROW, dtype=torch.int32, device=device)

        of_users = filled(1)
        of_users.view(-1)[: self.n] = self.users
        self.user_rows, self.user_order = of_users.sort(dim=1, stable=True)
        self.candidates = torch.empty(self.n, self.n_columns, dtype=torch.int64, device=device)
        self._filled = filled(self.n_columns)
        self.item_rows, self.item_order = torch.empty_like(self._filled), torch.empty_like(self._filled).long()
        self._key = torch.full((), -1, dtype=torch.int64, device=device)
        self._current: int | None = None

    def use(self, key: int) -> None:
        """Let the negatives be those of `key`."""
        if key == self._current:
            return
        n = self.n_columns - 1
        width = triton.next_power_of_2(n)
        rows = max(1, 512 // width**2)
        draw[triton.cdiv(self.n, rows),](
            self._key.fill_(key), self.n, self._n_items, self._n_halvings, self._place, self._bounds, self._free_before,
            self._items, self.candidates, self._filled, N=n, WIDTH=width, ROWS=rows,
            GOLDEN=GOLDEN, MIX_1=MIX_1, MIX_2=MIX_2, num_warps=max(1, width**2 // 1024),
        )  # fmt: skip
        torch.sort(self._filled, dim=1, stable=True, out=(self.item_rows, self.item_order))
        self._current = key
