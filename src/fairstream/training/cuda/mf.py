"""Matrix factorisation on CUDA."""

from __future__ import annotations

from typing import Any, Final

import torch
import triton

from fairstream.events import Rows
from fairstream.models import MatrixFactorization
from fairstream.training.cuda.adam_state import AdamState
from fairstream.training.cuda.batch_data import BatchData
from fairstream.training.cuda.graph import StepGraph
from fairstream.training.cuda.kernels.mf import mf_scores, mf_update
from fairstream.training.engine import Engine, Training

_ELEMENTS: Final = 1024
"""Numbers that a program holds of one tensor: eight a thread."""
_SLOTS: Final = 4
"""Occurrences of an item that are taken at once."""


class CudaMF(Engine):
    """The reference's step in two kernels."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        model, objective = training.model, training.objective
        assert isinstance(model, MatrixFactorization)
        p, q = model.user.weight, model.item.weight
        d, device = p.shape[1], p.device
        data = self._data = BatchData(training, device)
        adam = self._adam = AdamState(training.optimizer, device)
        c = data.n_columns
        self._touched = tuple(torch.empty(len(w), dtype=torch.int32, device=device) for w in (p, q))
        p_old, p_rec, p_fair = torch.empty(3, data.size, d, device=device)
        ds_rec, ddh = torch.empty(2, data.size, c, device=device)
        dh, l_rec = torch.empty(2, data.size, device=device)
        between = (p_old, p_rec, p_fair, ds_rec, ddh, dh, l_rec, *self._touched)

        width = triton.next_power_of_2(c)
        shape: dict[str, Any] = {"SIZE": data.size, "C": c, "D": d, "DENSE": adam.is_dense}
        shape |= {"N_REC": objective.n, "N_FAIR": objective.mu if objective.is_fair else 0}
        groups = {"N_GROUPS": len(training.signs), "GROUPS": triton.next_power_of_2(len(training.signs))}
        rows, n_items_at_once, swept = (max(1, _ELEMENTS // n) for n in (width * d, _SLOTS * d, d))
        n_tiles = sum(triton.cdiv(len(w), swept) for w in (p, q)) if adam.is_dense else 0
        score_grid = (triton.cdiv(data.size, rows),)
        update_grid = (data.size + triton.cdiv(data.size * c, n_items_at_once) + n_tiles,)
        scored = (data.n, data.users, data.candidates, p, q, *between, objective.tau)
        updated = (data.n, len(p), len(q), data.codes, data.signs)
        updated += (data.user_rows, data.user_order, data.item_rows, data.item_order, *between)
        changed = (*adam.of(p), *adam.of(q), adam.lr, adam.eps, adam.betas, objective.lambda_)

        def launch(graph: StepGraph, i: int) -> None:
            mf_scores[score_grid](graph.batches, graph.step, i, *scored, **shape, ROWS=rows, WIDTH=width)
            mf_update[update_grid](
                graph.batches, graph.step, i, *updated, graph.losses, *changed, **shape, **groups,
                ABSOLUTE=objective.fairness == "absolute", LONG=max(1, 4 * _ELEMENTS // d), ROWS=n_items_at_once,
                SLOTS=_SLOTS, SWEPT=swept, CHUNK=256,
            )  # fmt: skip

        self._graph = StepGraph(launch, data.n_batches, device)

    def epoch(self, order: Rows, key: int) -> float:
        self._data.use(key)
        for touched in self._touched:
            touched.fill_(-1)
        loss = self._graph.run(order)
        self._adam.count(len(order))
        return loss
