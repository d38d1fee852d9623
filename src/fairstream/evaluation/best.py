"""The k best of all known items for each user, on either device, without a user × item table.

Scores are made a block of users × items at a time, and only the best so far outlive their block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairstream.data import Rows, SeenItems
from fairstream.evaluation.blocks import Blocks, Lists, check_shape, chunks
from fairstream.evaluation.top_k import Floats
from fairstream.evaluation.topk_cpu import topk_cpu
from fairstream.evaluation.topk_torch import topk_torch
from fairstream.models import Context, ContextBuilder, Scorer


@dataclass(frozen=True, eq=False)
class Best:
    """The best items of each user asked for, one row each."""

    scores: np.ndarray[Any, np.dtype[np.float64]]
    """(U, k) best first; −∞ behind the end of a short list."""
    items: Rows
    """(U, k); what stands behind the end of a short list means nothing."""
    is_positive: np.ndarray[Any, np.dtype[np.bool_]]
    """(U, k)"""
    n_positives: Rows
    """(U,) what there was to find, whether it can be found or not."""


class TopKBackend(NamedTuple):
    """How a device goes about it."""

    rank: Callable[[Blocks, Lists, Lists, int, int], tuple[Floats, Rows]]
    """Blocks, what was had, positives, n_items, k → (B, k) scores and codes as in `top_k`, best first."""
    items_at_once: int
    scores_at_once: int


@torch.no_grad()
def top_k_of_all(
    model: Scorer,
    users: Rows,
    seen: SeenItems,
    positives: SeenItems,
    *,
    contexts: ContextBuilder,
    n_items: int,
    k: int,
) -> Best:
    """The k best of the first `n_items` items that are not `seen`; among equals the `positives` come last."""
    device = model.device
    way = backend_for(device)
    # Room is made once: small results kept between large and passing ones would hold on to their memory.
    scores, codes = np.empty((len(users), k)), np.empty((len(users), k), np.int64)
    n_positives = np.empty(len(users), np.int64)
    blocks = list(chunks(n_items, at_once=way.items_at_once))
    for chunk in chunks(len(users), width=blocks[0].stop, at_once=way.scores_at_once):
        at = slice(chunk.start, chunk.stop)
        had, wanted = (Lists(*pairs.lists(users[at])) for pairs in (seen, positives))
        rows, context = torch.from_numpy(users[at]).to(device), contexts.at(users[at])
        made = ((block.start, _scores(model, rows, block, context)) for block in blocks)  # when asked for
        scores[at], codes[at] = way.rank(made, had, wanted, n_items, k)
        n_positives[at] = np.diff(wanted.bounds)
    return Best(scores, *decoded(scores, codes, n_items), n_positives)


def _scores(model: Scorer, rows: Tensor, block: range, context: Context) -> Tensor:
    return check_shape(model.score_range(rows, block.start, block.stop, context), (len(rows), len(block)))


def decoded(scores: Floats, codes: Rows, n_items: int) -> tuple[Rows, np.ndarray[Any, np.dtype[np.bool_]]]:
    """The items, and whether each is a positive."""
    return codes % n_items, (codes >= n_items) & np.isfinite(scores)


BACKENDS = {"cpu": TopKBackend(topk_cpu, items_at_once=1 << 12, scores_at_once=1 << 20)}  # a block stays in the cache
DEFAULT_BACKEND = TopKBackend(
    topk_torch, items_at_once=1 << 16, scores_at_once=1 << 26
)  # a block keeps an accelerator busy


def backend_for(device: torch.device) -> TopKBackend:
    """The way of this device."""
    return BACKENDS.get(device.type, DEFAULT_BACKEND)
