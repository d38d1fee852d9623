"""The memory that the threads work in: made once, so that no step allocates."""

from __future__ import annotations

import numpy as np

from fairstream.training.cpu.adam import Floats
from fairstream.training.cpu.steps import Buffers, Chains


def make_buffers(
    n_threads: int, *, size: int, n_drawn: int, d: int, n_groups: int, n_users: int, n_items: int
) -> list[Buffers]:
    """A room for each thread; they share what goes from one to another."""
    width = 1 + n_drawn
    scores, old, user_grads = _floats(width, size), _floats(size, d), _floats(size, d)
    user_heads, item_heads = np.zeros(n_users, dtype=np.int32), np.zeros(n_items, dtype=np.int32)
    return [
        Buffers(
            scores=scores,
            old=old,
            user_grads=user_grads,
            score_grads=_floats(width, size),
            hits=_floats(size),
            hit_slopes=_floats(width, size),
            scratch=_floats(1 + width, size),
            product=np.zeros(size),
            codes=np.zeros(size, dtype=np.int16),
            sums=np.zeros((2, n_groups)),
            group_slopes=_floats(n_groups),
            gradient=_floats(d),
            nothing=_floats(d),
            users=_chains(user_heads, size),
            items=_chains(item_heads, size * width),
        )
        for _ in range(n_threads)
    ]


def _chains(heads: np.ndarray[tuple[int], np.dtype[np.int32]], n_occurrences: int) -> Chains:
    # One place more than there can be distinct rows: a row is written down before it is known to be new.
    return Chains(np.zeros(n_occurrences + 1, np.int32), heads, np.zeros(n_occurrences, np.int32))


def _floats(*shape: int) -> Floats:
    return np.zeros(shape, dtype=np.float32)
