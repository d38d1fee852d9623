"""Neural collaborative filtering on CUDA."""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
from torch import Tensor

from fairstream.data import Rows
from fairstream.models import NeuralCollaborativeFiltering
from fairstream.objectives import DisparityLoss
from fairstream.training.cuda.adam_state import AdamState, unsupported_by_kernels
from fairstream.training.cuda.batch_data import BatchData
from fairstream.training.cuda.graph import Kernel, StepGraph
from fairstream.training.cuda.kernels.ncf import ncf_back, ncf_loss, ncf_scores
from fairstream.training.cuda.kernels.ncf_update import ncf_layers, ncf_rows
from fairstream.training.engine import Engine, TrainingJob

_TILE: Final = 16
"""Candidates of a program: the fewest that a matrix product takes, for the most programs."""
_SWEPT: Final = 16


class CudaNCF(Engine):
    """The reference's step in six kernels: scores, losses, gradients; then users' rows, items' rows and layers."""

    name = "fused"

    @staticmethod
    def unsupported(job: TrainingJob) -> str | None:
        if type(job.model) is not NeuralCollaborativeFiltering:
            return f"there are no kernels for {type(job.model).__name__}"
        return unsupported_by_kernels(job, job.model.user_mlp.embedding_dim, least=16)

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(job)
        model, objective = job.model, job.objective
        fairness = objective.fairness
        assert isinstance(fairness, DisparityLoss)
        assert isinstance(model, NeuralCollaborativeFiltering)
        users = [table.weight for table in (model.user_product, model.user_mlp, model.user_bias)]
        items = [table.weight for table in (model.item_product, model.item_mlp, model.item_bias)]
        layers: list[Tensor] = [layer.weight for layer in (*model.layers, model.output)]
        embeddings = (users[0], items[0], users[1], items[1])
        d, device = users[0].shape[1], users[0].device
        data = self._data = BatchData(job, device)
        adam = self._adam = AdamState(job.optimizer, device)
        c = data.n_columns
        n_e = data.size * c
        n_tiles = triton.cdiv(n_e, _TILE)
        touched = self._touched = tuple(
            torch.empty(len(w), dtype=torch.int32, device=device) for w in (users[0], items[0])
        )
        s, ds, ds_rec, ddh = torch.empty(4, n_e, device=device)
        dh, l_rec = torch.empty(2, data.size, device=device)
        h = torch.empty(4, n_e, d, device=device)
        dp, dq, dp_mlp, dq_mlp = torch.empty(4, n_e, d, device=device)
        dw = torch.empty(n_tiles, 5 * d * d + 2 * d, device=device)
        # The way there multiplies by W_lᵀ: kept beside W_l, it is read row by row.
        transposed = torch.empty(5 * d * d, device=device)
        parts = torch.split(transposed, [2 * d * d, d * d, d * d, d * d])
        self._transposed = [
            (part.view(w.shape[1], d), w.data.T) for part, w in zip(parts, layers[:-1], strict=True)
        ]  # fmt: skip

        batch: dict[str, Any] = {"SIZE": data.size, "C": c}
        shape = {**batch, "D": d, "DENSE": adam.is_dense}
        losses = {"N_REC": objective.n, "N_FAIR": objective.mu if objective.is_fair else 0}
        width = triton.next_power_of_2(c)
        # Comparing candidates with each other makes width² numbers a row, NeuralNDCG's tangents width³.
        n_rows = max(1, 2048 // width**2)
        settings = (adam.lr, adam.eps, adam.betas)
        scores = Kernel(
            ncf_scores, (n_tiles,), data.n, data.users, data.candidates, *embeddings, users[2], items[2],
            transposed, layers[-1], s, h, *touched, **shape, TILE=_TILE, num_warps=8,
        )  # fmt: skip
        loss = Kernel(
            ncf_loss, (triton.cdiv(data.size, n_rows),), data.n, s, ds_rec, ddh, dh, l_rec, fairness.temperature,
            **batch, **losses, SURROGATE=fairness.surrogate, ROWS=n_rows, WIDTH=width,
        )  # fmt: skip
        back = Kernel(
            ncf_back, (n_tiles,), data.n, data.users, data.candidates, data.codes, data.signs, *embeddings, *layers,
            h, ds_rec, ddh, dh, l_rec, ds, dp, dq, dp_mlp, dq_mlp, dw, objective.lambda_,
            **batch, D=d, **losses, ABSOLUTE=fairness.kind == "absolute", N_GROUPS=len(job.signs),
            GROUPS=triton.next_power_of_2(len(job.signs)), TILE=_TILE, CHUNK=256, num_warps=8,
        )  # fmt: skip
        n_swept = [triton.cdiv(len(w), _SWEPT) if adam.is_dense else 0 for w in (users[0], items[0])]
        user_rows = Kernel(
            ncf_rows, (data.size + n_swept[0], 2), data.n, len(users[0]), data.user_rows, data.user_order, touched[0],
            ds, dp, dp_mlp, *(value for w in users for value in adam.of(w)), *settings,
            **shape, EACH=c, LONG=64, SWEPT=_SWEPT,
        )  # fmt: skip
        item_rows = Kernel(
            ncf_rows, (n_e + n_swept[1], 2), data.n, len(items[0]), data.item_rows, data.item_order, touched[1],
            ds, dq, dq_mlp, *(value for w in items for value in adam.of(w)), *settings,
            **shape, EACH=1, LONG=8, SWEPT=_SWEPT, num_warps=1,
        )  # fmt: skip
        layer_rows = Kernel(
            ncf_layers, (5 * d // 2 + 1,), data.n, dw, transposed,
            *(value for w in layers for value in adam.of(w)), *settings,
            **shape, TILE=_TILE, MANY=64, num_warps=8,
        )  # fmt: skip
        sides = [torch.cuda.Stream(device) for _ in range(2)]  # type: ignore[no-untyped-call]

        def launch(graph: StepGraph, i: int) -> None:
            scores(graph, i)
            loss(graph, i)
            back(graph, i)
            main = torch.cuda.current_stream(device)
            for side, kernel in zip(sides, (item_rows, layer_rows), strict=True):  # all three at the same time
                side.wait_stream(main)
                with torch.cuda.stream(side):
                    kernel(graph, i)
            user_rows(graph, i)
            for side in sides:
                main.wait_stream(side)

        self._graph = StepGraph(launch, len(job.batches), device)

    def epoch(self, order: Rows, key: int) -> float:
        self._data.use(key)
        if self._adam.is_dense:
            for touched in self._touched:
                touched.fill_(-1)
        for copy, original in self._transposed:
            copy.copy_(original)
        loss = self._graph.run(order)
        self._adam.count(len(order))
        return loss
