"""The k best on the CPU: a compiled pass reads each block while it is in the cache."""

from __future__ import annotations

from functools import partial

import numpy as np
from torch import Tensor

from fairstream.compiled import parallel_ranges
from fairstream.data import Rows
from fairstream.evaluation.blocks import Blocks, Lists, check_finite, floats
from fairstream.evaluation.top_k import Floats, scan, settle


def topk_cpu(blocks: Blocks, had: Lists, wanted: Lists, n_items: int, k: int) -> tuple[Floats, Rows]:
    """(B, k) scores and codes as in `top_k`, best first."""
    n_users = len(had.bounds) - 1
    found, codes = np.empty((n_users, k)), np.full((n_users, k), 2 * n_items)
    for first, scores in blocks:
        flat, stride = _flat(floats(scores))
        if first == 0:
            found = np.full((n_users, k), -np.inf, flat.dtype)
        take = partial(scan, (flat, stride, scores.shape[1], first), had, wanted, n_items, (found, codes))
        check_finite(all(parallel_ranges(n_users, take)))
    parallel_ranges(n_users, partial(settle, (found, codes)))
    return found, codes


def _flat(scores: Tensor) -> tuple[Floats, int]:
    """The scores as one array in which row u begins at u times the number that comes with it; seldom a copy."""
    scores = scores if scores.stride(1) == 1 else scores.contiguous()
    stride = scores.stride(0)
    return scores.as_strided(((len(scores) - 1) * stride + scores.shape[1],), (1,)).numpy(), stride
