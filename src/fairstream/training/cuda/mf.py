"""Matrix factorisation on CUDA."""

from __future__ import annotations

from typing import Any, Final

import torch
import triton

from fairstream.data import Rows
from fairstream.models import MatrixFactorization
from fairstream.objectives import DisparityLoss
from fairstream.training.cuda.adam_state import AdamState, unsupported_by_kernels
from fairstream.training.cuda.batch_data import BatchData
from fairstream.training.cuda.graph import Kernel, StepGraph
from fairstream.training.cuda.kernels.mf import mf_scores, mf_update
from fairstream.training.engine import Engine, TrainingJob

_ELEMENTS: Final = 1024
"""Numbers that a program holds of one tensor: eight a thread."""
_SLOTS: Final = 4
"""Occurrences of an item that are taken at once."""


class CudaMF(Engine):
    """The reference's step in two kernels."""

    name = "fused"

    @staticmethod
    def unsupported(job: TrainingJob) -> str | None:
        if type(job.model) is not MatrixFactorization:
            return f"there are no kernels for {type(job.model).__name__}"
        return unsupported_by_kernels(job, job.model.user.embedding_dim)

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(job)
        model, objective = job.model, job.objective
        fairness = objective.fairness
        assert isinstance(fairness, DisparityLoss)
        assert isinstance(model, MatrixFactorization)
        p, q = model.user.weight, model.item.weight
        d, device = p.shape[1], p.device
        data = self._data = BatchData(job, device)
        adam = self._adam = AdamState(job.optimizer, device)
        c = data.n_columns
        self._touched = tuple(torch.empty(len(w), dtype=torch.int32, device=device) for w in (p, q))
        p_old, p_rec, p_fair = torch.empty(3, data.size, d, device=device)
        ds_rec, ddh = torch.empty(2, data.size, c, device=device)
        dh, l_rec = torch.empty(2, data.size, device=device)
        between = (p_old, p_rec, p_fair, ds_rec, ddh, dh, l_rec, *self._touched)

        shape: dict[str, Any] = {"SIZE": data.size, "C": c, "D": d, "DENSE": adam.is_dense}
        shape |= {"N_REC": objective.n, "N_FAIR": objective.mu if objective.is_fair else 0}
        width = triton.next_power_of_2(c)
        n_rows, n_items, n_swept = (max(1, _ELEMENTS // n) for n in (width * d, _SLOTS * d, d))
        n_tiles = sum(triton.cdiv(len(w), n_swept) for w in (p, q)) if adam.is_dense else 0
        scores = Kernel(
            mf_scores, (triton.cdiv(data.size, n_rows),), data.n, data.users, data.candidates, p, q, *between,
            fairness.temperature, **shape, SURROGATE=fairness.surrogate, ROWS=n_rows, WIDTH=width,
        )  # fmt: skip
        update = Kernel(
            mf_update, (data.size + triton.cdiv(data.size * c, n_items) + n_tiles,), data.n, len(p), len(q),
            data.codes, data.signs, data.user_rows, data.user_order, data.item_rows, data.item_order, *between,
            *adam.of(p), *adam.of(q), adam.lr, adam.eps, adam.betas, objective.lambda_, **shape,
            ABSOLUTE=fairness.kind == "absolute", N_GROUPS=len(job.signs),
            GROUPS=triton.next_power_of_2(len(job.signs)), LONG=max(1, 4 * _ELEMENTS // d), ROWS=n_items,
            SLOTS=_SLOTS, SWEPT=n_swept, CHUNK=256,
        )  # fmt: skip

        def launch(graph: StepGraph, i: int) -> None:
            scores(graph, i)
            update(graph, i)

        self._graph = StepGraph(launch, len(job.batches), device)

    def epoch(self, order: Rows, key: int) -> float:
        self._data.use(key)
        if self._adam.is_dense:
            for touched in self._touched:
                touched.fill_(-1)
        loss = self._graph.run(order)
        self._adam.count(len(order))
        return loss
