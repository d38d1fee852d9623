"""The fused engine for matrix factorisation on a CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import numpy as np
import torch

from fairstream.data import Rows
from fairstream.models import ItemTable, MatrixFactorization, UserTable
from fairstream.models import Table as ModelTable
from fairstream.objectives import DisparityLoss, Objective, bpr_loss
from fairstream.training.batches import Batches
from fairstream.training.cpu.adam import Adam, Table, catch_up
from fairstream.training.cpu.barrier import abort, new_counter
from fairstream.training.cpu.buffers import make_buffers
from fairstream.training.cpu.epoch import Exclusions, Interactions, draw_share, take_steps
from fairstream.training.cpu.row_subset import RowSubset, swap_rows
from fairstream.training.cpu.steps import Buffers, Integers, Loss
from fairstream.training.engine import Engine, TrainingJob
from fairstream.training.optimizers import ensure_state, own_memory
from fairstream.training.row_adam import RowAdam

_BATCHES_AT_ONCE = 4096
_TABLES = (UserTable, ItemTable)
_LEAST_SHARE = 64
_COUNTS = 1 << 15
"""From here on 1 − βⁿ is 1 in float32."""


class FusedEngine(Engine):
    """The reference's step as one compiled pass over the batch, on as many threads as PyTorch may use.

    It works on the very memory of the model and the optimizer, or, where all epochs are alike and
    the optimizer leaves absent rows alone, on a copy of the rows that occur. The result does not
    depend on the number of threads.
    """

    name = "fused"

    @staticmethod
    def unsupported(job: TrainingJob) -> str | None:
        model, objective = job.model, job.objective
        is_float32 = all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())
        tables, surrogate = list(model.tables()), getattr(objective.fairness, "surrogate", "")
        decay = getattr(objective.fairness, "ema_decay", 0)
        reasons = {
            "the fused CPU engine needs os.sched_yield": not hasattr(os, "sched_yield"),
            # A class derived from it, or one with tables of another kind, may score otherwise.
            f"there is none for {type(model).__name__}": type(model) is not MatrixFactorization,
            "its parameters are not float32, or some are frozen": not is_float32,
            "its tables are not the usual ones": not all(type(x) in _TABLES and x.decayed for x in tables),
            "its objective has a formula of its own": type(objective) is not Objective,
            "its loss is not bpr": objective.loss is not bpr_loss,
            "there is an extra loss": job.extra_loss is not None,
            "its learning rate changes from step to step": job.schedule is not None,
            "its fairness weight is computed anew at every step": objective.is_auto,
            "its fairness loss has statistics across batches": objective.is_fair and decay > 0,
            "its fairness loss is not the paper's": objective.is_fair and type(objective.fairness) is not DisparityLoss,
            f"the surrogate {surrogate} is not compiled": objective.is_fair and surrogate not in ("hit", "approx-ndcg"),
        }
        return next((reason for reason, applies in reasons.items() if applies), None)

    @staticmethod
    def works_on_copy(job: TrainingJob) -> bool:
        return job.same_batches_every_epoch and isinstance(job.optimizer, RowAdam)

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(job)
        model, batches, sampler = job.model, job.batches, job.sampler
        assert isinstance(model, MatrixFactorization)
        assert isinstance(batches, Batches)
        ensure_state(job.optimizer)
        self._is_row = isinstance(job.optimizer, RowAdam)
        self._whole = [self._table(table) for table in (model.user, model.item)]
        self._works_on_copy = self.works_on_copy(job)
        self._compact: list[RowSubset] = []
        self._is_written = np.zeros(1, dtype=np.bool_)
        self._p, self._q = self._whole
        self._interactions = Interactions(
            np.asarray(batches.users), np.asarray(batches.items), batches.codes, batches.size
        )
        self._exclusions = Exclusions(
            np.asarray(sampler.place(batches.users)), sampler.bounds, sampler.free_before, sampler.n_items
        )
        objective, group = job.objective, job.optimizer.param_groups[0]
        fairness = objective.fairness if isinstance(objective.fairness, DisparityLoss) else DisparityLoss()
        self._loss = Loss(
            objective.n,
            objective.mu,
            fairness.temperature,
            objective.lambda_,
            fairness.kind == "signed",
            np.array(job.signs, dtype=np.float64),
            fairness.surrogate == "hit",
        )
        self._adam, self._l2 = _adam(group), np.float32(group["weight_decay"])
        # A copy holds all that occurs; otherwise memory stays the same however long the log is.
        self._at_once = len(batches) if self._works_on_copy else min(len(batches), _BATCHES_AT_ONCE)
        n_threads = max(1, min(torch.get_num_threads(), batches.size // _LEAST_SHARE))
        self._n_threads = 1 << (n_threads.bit_length() - 1)  # the rows are dealt out by their bits
        # Of its own: threads that wait for each other must not queue behind those of another training.
        self._others = ThreadPoolExecutor(max(1, self._n_threads - 1))
        self._counter = new_counter()
        self._negatives: Integers = np.empty((self._at_once * batches.size, objective.n_drawn), dtype=np.int32)
        self._rooms: list[Buffers] = []

    def epoch(self, order: Rows, key: int) -> float:
        total = 0.0
        for start in range(0, len(order), self._at_once):
            part = order[start : start + self._at_once]
            if not self._compact:
                self._draw(part, key)
                if self._works_on_copy:
                    self._make_compact()
            total += self._step(part)
        return total / len(order)

    def finish(self, *, in_place: bool) -> None:
        if self._compact and not self._is_written[0]:
            if not in_place:
                own_memory(self.job.optimizer, self.job.model)
                model = self.job.model
                assert isinstance(model, MatrixFactorization)
                self._whole = [self._table(table) for table in (model.user, model.item)]
            self._exchange()

    def undo(self) -> None:
        if self._is_written[0]:
            self._exchange()

    def _exchange(self) -> None:
        swap_rows(self._compact[0], self._whole[0], self._compact[1], self._whole[1], self._is_written)

    def _make_compact(self) -> None:
        """Go on on a copy of the rows that occur."""
        users, items, codes, size = self._interactions
        # The negatives lie in the order of the batches: `same_batches_every_epoch` says which that is.
        users, candidates = users.copy(), np.concatenate([items[:, None], self._negatives[: len(items)]], axis=1)
        self._compact = [RowSubset.of(self._whole[0], users), RowSubset.of(self._whole[1], candidates)]
        items, self._negatives = candidates[:, 0].copy(), candidates[:, 1:].astype(np.int32)
        self._p, self._q = (compact.table for compact in self._compact)
        self._interactions = Interactions(users, items, codes[self._compact[0].rows], size)

    def _draw(self, order: Rows, key: int) -> None:
        """Draw the negatives of these batches."""
        n = self._negatives.shape[1]
        self._together(
            lambda thread: draw_share(
                order,
                self._interactions.size,
                self._exclusions,
                np.uint64(key),
                self._negatives,
                np.empty(n, dtype=np.int64),
                thread,
                self._n_threads,
            ),
        )

    def _step(self, order: Rows) -> float:
        if not self._rooms:
            self._rooms = make_buffers(
                self._n_threads,
                size=self._interactions.size,
                n_drawn=self._negatives.shape[1],
                d=self._p.weight.shape[1],
                n_groups=len(self._loss.signs),
                n_users=len(self._p.weight),
                n_items=len(self._q.weight),
            )
        take = partial(self._take, order)
        self._take(order[:0], 0)  # compiles, should it have to: later a thread that fails to would leave others waiting
        loss = float(self._together(take))  # every thread computes all of it
        if not self._is_row:
            for state in self.job.optimizer.state.values():
                state["step"] += len(order)
            for table in (self._p, self._q):
                catch_up(table, self._adam, self._n_steps)
        return loss

    def _take(self, order: Rows, thread: int) -> Any:
        return take_steps(
            order,
            self._interactions,
            self._negatives,
            self._p,
            self._q,
            self._loss,
            self._adam,
            self._l2,
            -1 if self._is_row else self._n_steps,
            self._rooms[thread],
            thread,
            self._n_threads,
            self._counter,
        )

    def _together(self, work: Callable[[int], Any]) -> Any:
        """Let every thread do its part; this one is one of them, and its result is given."""
        others: list[Future[Any]] = []
        try:
            others.extend(self._others.submit(work, thread) for thread in range(1, self._n_threads))
            result = work(0)
        except BaseException:
            abort(self._counter)  # nobody must wait for this thread
            raise
        finally:
            wait(others)
        for other in others:
            other.result()
        return result

    @property
    def _n_steps(self) -> int:
        return int(next(iter(self.job.optimizer.state.values()))["step"])

    def _table(self, table: ModelTable) -> Table:
        """A table of the model and its optimizer state as arrays over the same memory."""
        weight, state = table.weight, self.job.optimizer.state[table.weight]
        n_rows = len(weight)
        return Table(
            weight.detach().numpy(),
            state["exp_avg"].numpy(),
            state["exp_avg_sq"].numpy(),
            state["n_updates"].flatten().numpy() if self._is_row else np.zeros(n_rows, dtype=np.float32),
            np.zeros(0 if self._is_row else n_rows, dtype=np.int64),
        )


def _adam(group: dict[str, Any]) -> Adam:
    """Adam's constants; the bias corrections 1 / (1 − βⁿ) as tables, so that a row costs no power."""
    beta1, beta2 = group["betas"]
    n = np.arange(1, _COUNTS, dtype=np.float64)
    scale1, scale2 = ((1.0 / (1.0 - np.append(0.0, beta**n))).astype(np.float32) for beta in (beta1, beta2))
    return Adam(
        learning_rate=np.float32(group["lr"]),
        beta1=np.float32(beta1),
        rest1=np.float32(1 - beta1),
        beta2=np.float32(beta2),
        rest2=np.float32(1 - beta2),
        beta2_exact=beta2,
        epsilon=np.float32(group["eps"]),
        mean_scale=scale1,
        square_scale=scale2,
    )
