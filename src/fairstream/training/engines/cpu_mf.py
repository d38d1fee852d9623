"""The compiled engine for matrix factorisation on a CPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairstream.data import Rows
from fairstream.models import MFScorer
from fairstream.training.batches import Batches
from fairstream.training.engine import Engine, TrainingJob
from fairstream.training.engines import disparity_loss, unsupported_mf
from fairstream.training.engines.cpu_kernels import (
    Adam,
    Buffers,
    Int32s,
    Interactions,
    Loss,
    Table,
    make_buffers,
    rename,
    swap_rows,
    take_steps,
)
from fairstream.training.optimizers import ensure_state, own_memory
from fairstream.training.row_adam import RowAdam

_MAX_BATCHES_DRAWN = 4096  # batches whose negatives are in memory at a time
_MAX_COUNT = 1 << 15  # from here on 1 − βⁿ is 1 in float32


class RowSubset(NamedTuple):
    """The rows of a table that a training touches, copied in the order of their first use.

    An update visits the same few batches in every epoch. On this copy it reads memory in order, whatever the size of
    the catalogue, and the model is unchanged until `swap_rows`.
    """

    rows: Rows  # the row of the whole table behind each row of the subset
    table: Table

    @classmethod
    def copy(cls, whole: Table, column: Rows) -> RowSubset:
        """Copy the rows in `column`, and renumber `column` in place to the rows of the subset."""
        rows = np.empty(min(column.size, len(whole.weight)), dtype=np.int64)
        rows = rows[: rename(column.reshape(-1), np.zeros(len(whole.weight), dtype=np.int32), rows)]
        return cls(rows, Table(*(part[rows] for part in whole)))


class CpuMF(Engine):
    """The reference's step in one compiled pass over the batch.

    It changes the memory of the model and the optimizer in place, or, where every epoch has the same batches and the
    optimizer does not change absent rows, a copy of the rows that occur.
    """

    name = "fused"

    @staticmethod
    def unsupported(job: TrainingJob) -> str | None:
        if not all(table.weight_decay for table in job.model.tables()):
            return "its tables are not the usual ones"
        return unsupported_mf(job)

    @staticmethod
    def works_on_copy(job: TrainingJob) -> bool:
        return job.same_batches_every_epoch and isinstance(job.optimizer, RowAdam)

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(job)
        batches, objective = job.batches, job.objective
        assert isinstance(batches, Batches)
        ensure_state(job.optimizer)
        self._is_row = isinstance(job.optimizer, RowAdam)
        self._whole = self._tables()
        self._p, self._q = self._whole
        self._subsets: list[RowSubset] = []
        self._is_written = np.zeros(1, dtype=np.bool_)
        self._interactions = Interactions(
            np.asarray(batches.users), np.asarray(batches.items), batches.codes, batches.size
        )
        fairness = disparity_loss(objective)
        self._loss = Loss(
            objective.n,
            objective.mu,
            fairness.temperature,
            objective.lambda_,
            fairness.kind == "signed",
            np.array(job.signs, dtype=np.float64),
        )
        self._adam = _adam(job.optimizer.param_groups[0])
        # A copy needs all rows that occur; otherwise memory does not grow with the log.
        self._n_drawn_at_once = len(batches) if self.works_on_copy(job) else min(len(batches), _MAX_BATCHES_DRAWN)
        self._negatives: Int32s = np.empty((self._n_drawn_at_once * batches.size, objective.n_drawn), dtype=np.int32)
        self._buffers: Buffers | None = None

    def epoch(self, order: Rows, key: int) -> float:
        total = 0.0
        for start in range(0, len(order), self._n_drawn_at_once):
            part = order[start : start + self._n_drawn_at_once]
            if not self._subsets:
                self._draw(part, key)
                if self.works_on_copy(self.job):
                    self._copy_rows()
            total += self._take_steps(part)
        return total / len(order)

    def finish(self, *, in_place: bool) -> None:
        if self._subsets and not self._is_written[0]:
            if not in_place:
                own_memory(self.job.optimizer, self.job.model)
                self._whole = self._tables()
            self._swap()

    def undo(self) -> None:
        if self._is_written[0]:
            self._swap()

    def _swap(self) -> None:
        swap_rows(self._subsets[0], self._whole[0], self._subsets[1], self._whole[1], self._is_written)

    def _copy_rows(self) -> None:
        """Continue on a copy of the rows that the batches contain."""
        users, items, codes, size = self._interactions
        # The negatives lie in the order of the batches, which is chronological: `same_batches_every_epoch`.
        users, candidates = users.copy(), np.concatenate([items[:, None], self._negatives[: len(items)]], axis=1)
        self._subsets = [RowSubset.copy(self._whole[0], users), RowSubset.copy(self._whole[1], candidates)]
        items, self._negatives = candidates[:, 0].copy(), candidates[:, 1:].astype(np.int32)
        self._p, self._q = (subset.table for subset in self._subsets)
        self._interactions = Interactions(users, items, codes[self._subsets[0].rows], size)

    def _draw(self, order: Rows, key: int) -> None:
        size, users = self._interactions.size, self._interactions.users
        rows = (order[:, None] * size + np.arange(size)).ravel()  # (batches · size,) interactions in this order
        rows = np.minimum(rows, len(users) - 1)  # the last batch may be short; the steps do not read its rest
        drawn = self.job.sampler.draw(users[rows], self._negatives.shape[1], key, positions=rows)
        self._negatives[: len(rows)] = drawn.numpy()

    def _take_steps(self, order: Rows) -> float:
        if self._buffers is None:
            self._buffers = make_buffers(
                size=self._interactions.size,
                n_drawn=self._negatives.shape[1],
                d=self._p.weight.shape[1],
                n_groups=len(self._loss.signs),
                n_users=len(self._p.weight),
                n_items=len(self._q.weight),
            )
        states = self.job.optimizer.state.values()
        n_before = -1 if self._is_row else int(next(iter(states))["step"])
        arguments = (self._interactions, self._negatives, self._p, self._q, self._loss, self._adam)
        loss = float(take_steps(order, *arguments, n_before, self._buffers))
        if not self._is_row:
            for state in states:
                state["step"] += len(order)
        return loss

    def _tables(self) -> list[Table]:
        """Return the tables of the model and their optimizer state as arrays over the same memory."""
        model, tables = self.job.model, []
        assert isinstance(model, MFScorer)
        for weight in (model.user.weight, model.item.weight):
            state = self.job.optimizer.state[weight]
            counts = state["n_updates"].flatten().numpy() if self._is_row else np.zeros(0, dtype=np.float32)
            tables.append(Table(weight.detach().numpy(), state["exp_avg"].numpy(), state["exp_avg_sq"].numpy(), counts))
        return tables


def _adam(group: dict[str, Any]) -> Adam:
    """Return the constants of Adam; the bias corrections 1 / (1 − βⁿ) are tables, since powers are slow."""
    beta1, beta2 = group["betas"]
    n = np.arange(1, _MAX_COUNT, dtype=np.float64)
    scale1, scale2 = ((1.0 / (1.0 - np.append(0.0, beta**n))).astype(np.float32) for beta in (beta1, beta2))
    constants = (group["lr"], beta1, 1 - beta1, beta2, 1 - beta2, group["eps"], group["weight_decay"])
    return Adam._make([*map(np.float32, constants), scale1, scale2])
