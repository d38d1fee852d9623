"""Neural collaborative filtering on CUDA."""

from __future__ import annotations

from typing import Any, Final

import torch
import triton

from fairstream.events import Rows
from fairstream.models import NeuralCollaborativeFiltering
from fairstream.training.cuda.adam_state import AdamState
from fairstream.training.cuda.batch_data import BatchData
from fairstream.training.cuda.graph import StepGraph
from fairstream.training.cuda.kernels.ncf import ncf_back, ncf_loss, ncf_scores
from fairstream.training.cuda.kernels.ncf_update import ncf_layers, ncf_rows
from fairstream.training.engine import Engine, Training

_TILE: Final = 16
"""Candidates of a program: the fewest that a matrix product takes, for the most programs."""
_SWEPT: Final = 16


class CudaNCF(Engine):
    """The reference's step in six kernels: scores, losses, gradients; users' rows, items' rows, layers."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        model, objective = training.model, training.objective
        assert isinstance(model, NeuralCollaborativeFiltering)
        users = [table.weight for table in (model.user_product, model.user_mlp, model.user_bias)]
        items = [table.weight for table in (model.item_product, model.item_mlp, model.item_bias)]
        layers = [layer.weight for layer in (*model.layers, model.output)]
        embeddings = (users[0], items[0], users[1], items[1])
        d, device = users[0].shape[1], users[0].device
        data = self._data = BatchData(training, device)
        adam = self._adam = AdamState(training.optimizer, device)
        c = data.n_columns
        n_e = data.size * c
        n_tiles = triton.cdiv(n_e, _TILE)
        self._touched = tuple(torch.empty(len(w), dtype=torch.int32, device=device) for w in (users[0], items[0]))
        s, ds, ds_rec, ddh = torch.empty(4, n_e, device=device)
        dh, l_rec = torch.empty(2, data.size, device=device)
        h = torch.empty(4, n_e, d, device=device)
        dp, dq, dp_mlp, dq_mlp = torch.empty(4, n_e, d, device=device)
        dw = torch.empty(n_tiles, 5 * d * d + 2 * d, device=device)

        batch = {"SIZE": data.size, "C": c}
        losses: dict[str, Any] = {"N_REC": objective.n, "N_FAIR": objective.mu if objective.is_fair else 0}
        width = triton.next_power_of_2(c)
        rows = max(1, 256 // width)
        groups = {"N_GROUPS": len(training.signs), "GROUPS": triton.next_power_of_2(len(training.signs))}
        settings = (adam.lr, adam.eps, adam.betas)
        scored = (data.n, data.users, data.candidates, *embeddings, users[2], items[2], *layers, s, h, *self._touched)
        lost = (data.n, s, ds_rec, ddh, dh, l_rec, objective.tau)
        back = (data.n, data.users, data.candidates, data.codes, data.signs, *embeddings, *layers)
        back += (h, ds_rec, ddh, dh, l_rec, ds, dp, dq, dp_mlp, dq_mlp, dw)
        user_rows = (data.n, len(users[0]), data.user_rows, data.user_order, self._touched[0], ds, dp, dp_mlp)
        item_rows = (data.n, len(items[0]), data.item_rows, data.item_order, self._touched[1], ds, dq, dq_mlp)
        user_tables, item_tables = ([value for w in side for value in adam.of(w)] for side in (users, items))
        layer_rows = (data.n, dw, *(value for w in layers for value in adam.of(w)))
        user_grid, item_grid = (
            (n + (triton.cdiv(len(w), _SWEPT) if adam.is_dense else 0), 2)
            for n, w in ((data.size, users[0]), (n_e, items[0]))
        )

        def launch(graph: StepGraph, i: int) -> None:
            now = (graph.batches, graph.step, i)
            shape: dict[str, Any] = {**batch, "D": d, "DENSE": adam.is_dense}
            ncf_scores[n_tiles,](*now, *scored, **shape, TILE=_TILE, num_warps=8)
            ncf_loss[triton.cdiv(data.size, rows),](graph.batches, i, *lost, **batch, **losses, ROWS=rows, WIDTH=width)
            ncf_back[n_tiles,](
                *now, *back, graph.losses, objective.lambda_, **batch, D=d, **losses, **groups,
                ABSOLUTE=objective.fairness == "absolute", TILE=_TILE, CHUNK=256, num_warps=8,
            )  # fmt: skip
            ncf_rows[user_grid](*now, *user_rows, *user_tables, *settings, **shape, EACH=c, LONG=64, SWEPT=_SWEPT)
            ncf_rows[item_grid](
                *now, *item_rows, *item_tables, *settings, **shape, EACH=1, LONG=8, SWEPT=_SWEPT, num_warps=1
            )
            ncf_layers[5 * d // 2 + 1,](*now, *layer_rows, *settings, **shape, TILE=_TILE, MANY=64, num_warps=8)

        self._graph = StepGraph(launch, data.n_batches, device)

    def epoch(self, order: Rows, key: int) -> float:
        self._data.use(key)
        for touched in self._touched:
            touched.fill_(-1)
        loss = self._graph.run(order)
        self._adam.count(len(order))
        return loss
