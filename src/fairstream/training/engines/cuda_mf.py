"""Matrix factorisation on CUDA by Triton kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
import triton
from torch import Tensor

from fairstream.data import Rows
from fairstream.models import MFScorer
from fairstream.training.batches import Batches
from fairstream.training.engine import Engine, TrainingJob
from fairstream.training.engines import disparity_loss, unsupported_mf
from fairstream.training.engines.cuda_graph import captured
from fairstream.training.engines.cuda_mf_kernels import advance, mf_scores, mf_update
from fairstream.training.optimizers import ensure_state
from fairstream.training.row_adam import RowAdam

_NO_ROW: Final = 2**31 - 1  # fills up the last batch; sorts after every row
_N_STEPS: Final = 8  # steps in a graph: more make a replay cheaper, and the capture, which every training pays, dearer
_N_ELEMENTS: Final = 1024  # numbers that a program holds of one tensor: eight a thread
_N_SLOTS: Final = 4  # occurrences of an item that a program reads at once


class CudaMF(Engine):
    """The reference's step in two kernels, eight steps in a CUDA graph."""

    name = "fused"

    @staticmethod
    def unsupported(job: TrainingJob) -> str | None:
        reason = unsupported_mf(job)
        if reason is not None or not isinstance(job.model, MFScorer):
            return reason
        d = job.model.user.embedding_dim
        # Tiles are powers of two; the widths of embeddings, candidates and groups are held in registers.
        fits = d & (d - 1) == 0 and d <= 128 and job.objective.n_drawn <= 63 and 1 <= len(job.signs) <= 32
        if job.model.device.type != "cuda":
            return "the model is not on a CUDA device"
        return None if fits else "its embeddings, candidates or groups are too many for the kernels"

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(job)
        model, objective = job.model, job.objective
        fairness = disparity_loss(objective)
        assert isinstance(model, MFScorer)
        p, q = model.user.weight, model.item.weight
        d, device = p.shape[1], p.device
        data = self._data = _BatchData(job, device)
        adam = self._adam = _AdamState(job.optimizer, device)
        c = data.n_columns
        self._touched = tuple(torch.empty(len(w), dtype=torch.int32, device=device) for w in (p, q))
        p_old, p_rec, p_fair = torch.empty(3, data.size, d, device=device)
        ds_rec, ddh = torch.empty(2, data.size, c, device=device)
        dh, l_rec = torch.empty(2, data.size, device=device)
        between = (p_old, p_rec, p_fair, ds_rec, ddh, dh, l_rec, *self._touched)

        shape: dict[str, Any] = {"SIZE": data.size, "C": c, "D": d, "DENSE": adam.is_dense}
        shape |= {"N_REC": objective.n, "N_FAIR": objective.mu if objective.is_fair else 0}
        width = triton.next_power_of_2(c)
        n_rows, n_items, n_swept = (max(1, _N_ELEMENTS // n) for n in (width * d, _N_SLOTS * d, d))
        n_tiles = sum(triton.cdiv(len(w), n_swept) for w in (p, q)) if adam.is_dense else 0
        scores_grid = (triton.cdiv(data.size, n_rows),)
        update_grid = (data.size + triton.cdiv(data.size * c, n_items) + n_tiles,)
        moments = (*adam.of(p), *adam.of(q), adam.lr, adam.eps, adam.betas)

        def launch(graph: _StepGraph, i: int) -> None:
            mf_scores[scores_grid](
                graph.batches, graph.step, i, data.n, data.users, data.candidates, p, q, *between,
                fairness.temperature, **shape, ROWS=n_rows, WIDTH=width,
            )  # fmt: skip
            mf_update[update_grid](
                graph.batches, graph.step, i, graph.losses, data.n, len(p), len(q), data.codes, data.signs,
                data.user_rows, data.user_order, data.item_rows, data.item_order, *between, *moments,
                objective.lambda_, **shape, ABSOLUTE=fairness.kind == "absolute", N_GROUPS=len(job.signs),
                GROUPS=triton.next_power_of_2(len(job.signs)), LONG=max(1, 4 * _N_ELEMENTS // d), ROWS=n_items,
                SLOTS=_N_SLOTS, SWEPT=n_swept, CHUNK=256,
            )  # fmt: skip

        self._graph = _StepGraph(launch, len(job.batches), device)

    def epoch(self, order: Rows, key: int) -> float:
        self._data.draw(key)
        if self._adam.is_dense:
            for touched in self._touched:
                touched.fill_(-1)
        loss = self._graph.run(order)
        self._adam.count(len(order))
        return loss


class _BatchData:
    """Users, candidates and occurrences of rows, in tensors that do not move: a graph reads them.

    Sorting finds the occurrences of a row in a batch: `rows` holds the rows of each batch in order, equal ones next to
    each other, and `order` their places in the batch.
    """

    def __init__(self, job: TrainingJob, device: torch.device) -> None:
        batches = job.batches
        assert isinstance(batches, Batches)
        self.n, self.size, n_batches = len(batches.users), batches.size, len(batches)
        self.n_columns = 1 + job.objective.n_drawn
        self._host_users = batches.users
        self.users = torch.as_tensor(batches.users).to(device)  # (N,)
        self.codes = torch.as_tensor(batches.codes[batches.users]).to(device).int()  # (N,)
        self.signs = torch.tensor(job.signs, device=device)  # (G,)

        def filled(n_columns: int) -> Tensor:
            return torch.full((n_batches, self.size * n_columns), _NO_ROW, dtype=torch.int32, device=device)

        user_rows = filled(1)
        user_rows.view(-1)[: self.n] = self.users
        self.user_rows, self.user_order = user_rows.sort(dim=1, stable=True)
        self.candidates = torch.empty(self.n, self.n_columns, dtype=torch.int64, device=device)
        self.candidates[:, 0] = torch.as_tensor(batches.items).to(device)
        self._filled = filled(self.n_columns)
        self.item_rows, self.item_order = torch.empty_like(self._filled), torch.empty_like(self._filled).long()
        self._job, self._key = job, -1

    def draw(self, key: int) -> None:
        """Draw the negatives of `key`, unless they are drawn already."""
        if key == self._key:
            return
        self.candidates[:, 1:] = self._job.sampler.draw(self._host_users, self.n_columns - 1, key)
        self._filled.view(-1)[: self.candidates.numel()] = self.candidates.view(-1)
        torch.sort(self._filled, dim=1, stable=True, out=(self.item_rows, self.item_order))
        self._key = key


class _AdamState:
    """The optimizer's tensors, which the kernels change in place, and its settings."""

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        ensure_state(optimizer)
        self._optimizer = optimizer
        self.is_dense = not isinstance(optimizer, RowAdam)
        group = optimizer.param_groups[0]
        self.lr, self.eps = float(group["lr"]), float(group["eps"])
        betas = torch.tensor(group["betas"], dtype=torch.float64)
        if self.is_dense:  # PyTorch's fused Adam rounds β to float32: 1 − 0.999 then has a relative error of 1.3e-5
            betas = betas.float().double()
        self.betas = torch.cat([1 - betas, betas, betas.log()]).to(device)  # 1 − β₁, 1 − β₂, β₁, β₂, log β₁, log β₂
        self._l2 = {id(p): float(group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}

    def of(self, parameter: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
        """(w, m, v, n, l2) of a parameter; n counts the updates of each row (row Adam) or all steps (dense Adam)."""
        state = self._optimizer.state[parameter]
        n = state["step" if self.is_dense else "n_updates"]
        return parameter.data, state["exp_avg"], state["exp_avg_sq"], n, self._l2[id(parameter)]

    def count(self, n_steps: int) -> None:
        """Count the steps of dense Adam; the kernels count the rows of row Adam."""
        if self.is_dense:
            torch._foreach_add_([state["step"] for state in self._optimizer.state.values()], n_steps)


class _StepGraph:
    """Takes the steps of an epoch by replaying a graph. The device reads which batch is next; the host waits once.

    `launch(self, i)` starts the kernels of step `step + i`, on batch `batches[i]`. Where that is −1 they return at
    once, so a graph of eight steps can take any number of them.
    """

    def __init__(self, launch: Callable[[_StepGraph, int], None], n_batches: int, device: torch.device) -> None:
        capacity = math.ceil(n_batches / _N_STEPS) * _N_STEPS
        self._order = torch.full((capacity,), -1, dtype=torch.int32, device=device)
        self._next = torch.zeros((), dtype=torch.int32, device=device)
        self.batches = torch.full((_N_STEPS,), -1, dtype=torch.int32, device=device)  # the batches of the current steps
        self.step = torch.zeros((), dtype=torch.int32, device=device)  # the first of the current steps in the epoch
        self.losses = torch.zeros(capacity, device=device)
        self._launch = launch  # keeps alive the tensors of the captured kernels
        self._advance()
        launch(self, 0)  # compiles and loads the kernels, which a capture must not do; there is no batch yet
        with captured(device) as self._graph:
            self._advance()
            for i in range(_N_STEPS):
                launch(self, i)

    def _advance(self) -> None:
        advance[1,](self._order, self._next, self.step, self.batches, N=_N_STEPS, num_warps=1)

    def run(self, order: Rows) -> float:
        """Take one step on each batch of `order`; return the mean loss."""
        n = len(order)
        self._order.fill_(-1)
        self._order[:n].copy_(torch.from_numpy(order))
        self._next.zero_()
        for _ in range(math.ceil(n / _N_STEPS)):
            self._graph.replay()
        return float(self.losses[:n].mean())
