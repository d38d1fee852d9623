"""What the workers of one training tell each other, over Gloo."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

_SECONDS = 300.0


class Exchange:
    """Sums and concatenations over `size` workers, the same on all of them; one worker alone needs no others.

    Parameters
    ----------
    rank, size
        The number of this worker, and how many there are.
    store
        Where the workers find each other (`torch.distributed.TCPStore`, `HashStore`); None for one alone.
    seconds
        How long to wait for the others; then somebody has died.

    """

    def __init__(self, rank: int, size: int, store: Any = None, *, seconds: float = _SECONDS) -> None:
        self.rank, self.size = rank, size
        self._group: Any = None
        if size > 1:
            from torch.distributed import ProcessGroupGloo  # noqa: PLC0415 (not in every build of PyTorch)

            self._group = ProcessGroupGloo(store, rank, size, timedelta(seconds=seconds))
        self.n_bytes = 0
        """What this worker has given to the others so far."""

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the workers."""
        if self._group is not None:
            self._group.allreduce([tensor]).wait()
            self.n_bytes += tensor.nbytes

    def concatenated(self, part: Tensor, counts: Sequence[int]) -> Tensor:
        """The parts of all workers behind each other, given how many rows each has."""
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
