"""Ranking in blocks of requests: one after another in this process, or in parallel by the tasks of a cluster.

The last bit of a matrix product depends on the shapes of the matrices. Tasks therefore get whole blocks, the same as a
single process would rank, and the lists are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

from fairstream.cluster import PROCESS_BYTES, Cluster, connect
from fairstream.errors import ConfigurationError
from fairstream.models import Scorer

Rank = Callable[[range], Any]
"""From a block of requests to its ranked lists; for a cluster it is pickled, with all that it refers to."""
Write = Callable[[slice, Any], None]
"""Called with the rows of a block, and its ranked lists."""
_TASKS_PER_CPU = 4


@contextmanager
def connected(address: str | None, device: torch.device, n_workers: int | None = None) -> Iterator[Cluster | None]:
    """Connect to the cluster at an address for the `with` block; yields None where there is no address.

    Raises
    ------
    ConfigurationError
        As `connect`, and where the model is not on a CPU.

    """
    if address is None:
        yield None
        return
    if device.type != "cpu":
        raise ConfigurationError(
            f"a cluster makes lists on CPUs, but this model is on {device.type}; choose device='cpu', or leave out "
            f"cluster"
        )
    with connect(address, n_workers=n_workers) as cluster:
        yield cluster


def rank_blocks(rank: Rank, blocks: Sequence[range], write: Write, model: Scorer, cluster: Cluster | None) -> None:
    """Rank each block, in this process or by tasks of a cluster, each with a copy of the model."""
    if cluster is None or len(blocks) < 2:
        for block in blocks:
            write(slice(block.start, block.stop), rank(block))
        return
    needed = PROCESS_BYTES + 2 * n_bytes(model)
    cluster.check_memory(needed, "a copy of the model")
    parts = split(blocks, _TASKS_PER_CPU * cluster.n_cpus)

    def on_result(number: int, ranked: list[Any]) -> None:
        for block, result in zip(parts[number], ranked, strict=True):
            write(slice(block.start, block.stop), result)

    cluster.run(_rank_part, parts, shared=rank, memory=needed, on_result=on_result)


def n_bytes(model: Scorer) -> int:
    """The size of a model's parameters and buffers."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def split(blocks: Sequence[range], n_parts: int) -> list[Sequence[range]]:
    """Split blocks into at most `n_parts` runs of neighbours, of about equal length and never empty.

    >>> split([range(0, 4), range(4, 8), range(8, 9)], 2)
    [[range(0, 4)], [range(4, 8), range(8, 9)]]
    """
    n_parts = max(1, min(n_parts, len(blocks)))
    ends = [len(blocks) * part // n_parts for part in range(n_parts + 1)]
    return [blocks[begin:end] for begin, end in pairwise(ends)]


def _rank_part(blocks: Sequence[range], rank: Rank, _: object) -> list[Any]:
    return [rank(block) for block in blocks]
