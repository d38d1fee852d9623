"""Collective communication between the workers of one training, over Gloo."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

_SECONDS = 300.0


class Exchange:
    """All-reduce and all-gather over `size` workers, with the same result on all; a single worker communicates nothing.

    Parameters
    ----------
    rank, size
        The number of this worker, and the number of workers.
    store
        The rendezvous of the workers (`torch.distributed.TCPStore`, `HashStore`); None for a single one.
    seconds
        Timeout of waiting for the others; after it one of them is taken for dead.

    """

    def __init__(self, rank: int, size: int, store: Any = None, *, seconds: float = _SECONDS) -> None:
        self.rank, self.size = rank, size
        self._group: Any = None
        if size > 1:
            from torch.distributed import ProcessGroupGloo  # noqa: PLC0415 (not in every build of PyTorch)

            self._group = ProcessGroupGloo(store, rank, size, timedelta(seconds=seconds))
        self.n_bytes = 0
        """Bytes that this worker has sent so far."""

    def add_up(self, tensor: Tensor) -> None:
        """All-reduce: replace a tensor by its sum over the workers."""
        if self._group is not None:
            self._group.allreduce([tensor]).wait()
            self.n_bytes += tensor.nbytes

    def concatenated(self, part: Tensor, counts: Sequence[int]) -> Tensor:
        """All-gather: concatenate the parts of all workers, given how many rows each has."""
        if self._group is None:
            return part
        width = max(counts)
        padded = part.new_zeros(width, *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in counts]
        self._group.allgather([parts], [padded]).wait()
        self.n_bytes += padded.nbytes
        return torch.cat([received[:n] for received, n in zip(parts, counts, strict=True)])

    def numbers(self, own: Sequence[int]) -> Tensor:
        """(size, n) a row of integers from each worker."""
        return self.concatenated(torch.tensor([own], dtype=torch.int64), [1] * self.size)
