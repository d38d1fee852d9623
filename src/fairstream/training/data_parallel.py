"""Data-parallel training of sequence models: torch DDP, with the loss of the global batch.

Every worker has a share of the windows of each batch. The recommendation loss is a mean over interactions, so a
worker contributes its own mean times its share. The fairness loss depends on two sums per group, of the surrogate and
of the number of interactions. The workers add these up, which gives the disparity of the global batch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from fairstream.data import History, Rows
from fairstream.distributed import Cluster, TrainWorker
from fairstream.models import ContextBuilder
from fairstream.objectives import MEAN_LOSSES, Disparity, DisparityLoss, Ranked, fairness_loss
from fairstream.training.batches import Floats, Windows
from fairstream.training.engine import TrainingJob
from fairstream.training.optimizers import load_tensors, named_tensors, state_tensors
from fairstream.training.reference import WindowEngine
from fairstream.training.train import OnEpoch, TrainingReport, train

_TENSORS, _LOSSES = "training.safetensors", "losses.json"


def why_not_divided(job: TrainingJob) -> str | None:
    """Return why workers cannot share a training, or None if they can."""
    objective = job.objective
    reasons = {
        "several workers make models of single interactions, such as mf and ncf, slower (0.57 times as fast with 8)": (
            not isinstance(job.batches, Windows)
        ),
        "the model is on a GPU": job.model.device.type != "cpu",
        "the plan has an extra loss": job.extra_loss is not None,
        "the recommendation loss is custom": objective.loss not in MEAN_LOSSES,
        "the fairness loss is not a function of group sums": (
            objective.is_fair and type(objective.fairness) is not DisparityLoss
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Share(Windows):
    positions: Rows  # (M,) the position of each target in the whole job, which decides its negatives
    shares: Floats  # (batches,) the share of each batch's targets; 0: they are all other workers'
    have_two_groups: np.ndarray[Any, np.dtype[np.bool_]]  # whether each global batch has users of two groups or more

    @classmethod
    def of(cls, windows: Windows, rank: int, size: int) -> _Share:
        """Return the windows rank, rank + size … of each batch."""
        spans = [windows.span(b) for b in range(len(windows))]
        n_targets = (windows.targets >= 0).sum(axis=1)
        parts = [np.arange(at.start + rank, at.stop, size) for at in spans]
        n_share = np.array([n_targets[part].sum() for part in parts])
        # DDP needs a backward pass of every worker. One without a target computes another's window with weight 0.
        others = [np.array([at.start + n_targets[at].argmax()]) for at in spans]
        parts = [part if n else other for part, n, other in zip(parts, n_share, others, strict=True)]
        own = np.concatenate(parts)
        bounds = np.append(0, np.cumsum([len(part) for part in parts]))
        before, before_own = (np.append(0, np.cumsum(n))[:-1] for n in (n_targets, n_targets[own]))
        return cls(
            windows.history[own],
            windows.targets[own],
            windows.users[own],
            windows.codes,
            bounds,
            windows.widths,
            windows.weights[own],
            windows.sequences,
            windows.n_without_negatives,
            None if windows.times is None else windows.times[own],
            None if windows.counts is None else windows.counts[own],
            positions=np.repeat(before[own] - before_own, n_targets[own]) + np.arange(n_targets[own].sum()),
            shares=n_share / np.diff(windows.first_target),
            have_two_groups=windows.have_two_groups,
        )


class _LossModule(nn.Module):
    """The loss of a batch as a module, whose forward pass DDP can wrap."""

    def __init__(self, engine: ShareEngine) -> None:
        super().__init__()
        self.model = engine.job.model
        self._engine = [engine]  # in a list: the engine is not a part of the module

    def forward(self, b: int, key: int) -> Tensor:
        return self._engine[0].local_loss(b, key)


class ShareEngine(WindowEngine):
    """The steps of the reference engine, on one worker's share of every batch."""

    name = "data-parallel"

    def __init__(self, job: TrainingJob) -> None:
        rank, self._n_workers = distributed.get_rank(), distributed.get_world_size()
        assert isinstance(job.batches, Windows)
        self._rank, self._whole = rank, job.batches
        super().__init__(replace(job, batches=_Share.of(job.batches, rank, self._n_workers)))
        self.worker = (rank,) if rank else ()  # the first worker draws what one process would draw
        if job.objective.needs_all_items and job.shared_negatives is None:
            for table in job.model.tables():  # all rows have a gradient, and DDP takes either kind but not their sum
                table.sparse = False
        self._module = DistributedDataParallel(_LossModule(self), find_unused_parameters=True)
        self._reported = torch.zeros(())
        self.losses: list[float] = []  # mean loss of each epoch; a restored checkpoint has those of the earlier ones
        self._n_epochs = 0

    def _load(self, windows: Windows) -> None:
        assert isinstance(windows, _Share)
        self._share = windows
        super()._load(windows)

    def _cut_again(self, key: int) -> None:
        if not self.job.same_batches_every_epoch:
            self._load(_Share.of(self._whole.cut_again(key), self._rank, self._n_workers))

    def epoch(self, order: Rows, key: int) -> float:
        self._n_epochs += 1
        if self._n_epochs > len(self.losses):
            self.losses.append(super().epoch(order, key))
        elif self.job.schedule is not None:
            self.job.schedule.advance(len(order))
        return self.losses[self._n_epochs - 1]

    def _mean_loss(self, losses: Iterable[Tensor]) -> float:
        total = torch.tensor(super()._mean_loss(losses), dtype=torch.float64)
        distributed.all_reduce(total)
        return float(total)

    def _step(self, b: int, key: int) -> Tensor:
        self.job.optimizer.zero_grad(set_to_none=True)
        self._module(b, key).backward()
        self.job.optimizer.step()
        return self._reported

    @property
    def _positions(self) -> Rows:
        return self._share.positions

    def _draw_negatives(self, b: int, key: int) -> Tensor:
        begin, end = self._target_span(b)
        positions, n_drawn = self._share.positions[begin:end], self.job.objective.n_drawn
        return self.job.sampler.draw(self._target_users[begin:end], n_drawn, key, positions=positions)

    def local_loss(self, b: int, key: int) -> Tensor:
        """Return a loss whose gradient, averaged over the workers by DDP, is that of the global batch."""
        objective, share = self.job.objective, float(self._share.shares[b])
        groups, heads = self._heads(b, key)
        loss = torch.stack([share * objective.recommendation(head.scores, head.among_all) for head in heads]).sum()
        self._reported = loss.detach()
        if objective.is_fair_on(has_two_groups=self._have_two_groups[b]):
            if share == 0:
                groups = torch.full_like(groups, -1)
            disparities = [self._fairness(head.scores, groups, head.among_all) for head in heads]
            fairness = objective.lambda_ * torch.stack(disparities).sum()
            loss = loss + fairness
            self._reported = self._reported + fairness.detach() / self._n_workers  # every worker computes all of it
        return self._n_workers * loss

    def _fairness(self, scores: Tensor, groups: Tensor, among_all: Ranked | None) -> Tensor:
        """Return L_fair of the global batch; its gradient flows through this worker's part of the sums."""
        fairness, signs = self.job.objective.fairness, self._signs
        assert isinstance(fairness, DisparityLoss)
        quality = fairness.quality(self.job.objective.fairness_scores(scores, among_all)).double()  # (B,)
        inside = (groups[:, None] == torch.arange(len(signs))).double()  # (B, G)
        local = torch.stack([(quality[:, None] * inside).sum(dim=0), inside.sum(dim=0)])  # (2, G)
        total = local.detach().clone()
        distributed.all_reduce(total)
        total, n = local + (total - local.detach())
        n_outside = n.sum() - n
        dpd = total / n.clamp(min=1) - (total.sum() - total) / n_outside.clamp(min=1)
        return fairness_loss(Disparity(dpd.to(scores.dtype), (n > 0) & (n_outside > 0)), signs, fairness.kind)


def train_on_cluster(
    cluster: Cluster, job: TrainingJob, *, on_epoch: OnEpoch | None = None, **options: Any
) -> TrainingReport:
    """Train on the workers of a cluster as `train` does in one process; write the result into the job."""
    assert isinstance(job.batches, Windows)
    nothing = np.empty(0, np.int64)
    contexts = ContextBuilder(job.model.history_length, History.of(nothing, nothing))  # models read windows alone
    report, tensors = cluster.train(
        _train_share,
        (replace(job, contexts=contexts), options),
        name=training_name(job, options),
        max_workers=int(np.diff(job.batches.bounds).max()),  # a window for each worker
        on_epoch=on_epoch,
    )
    load_tensors(job.model, job.optimizer, {name: torch.tensor(value) for name, value in tensors.items()})
    trained: TrainingReport = report
    return trained


def _train_share(
    payload: tuple[TrainingJob, dict[str, Any]], worker: TrainWorker
) -> tuple[TrainingReport, dict[str, np.ndarray[Any, Any]]]:
    # Ray Train does not return tensors.
    job, options = payload
    engine = ShareEngine(job)

    def read(folder: Path) -> None:
        engine.losses = json.loads((folder / _LOSSES).read_text())
        load_tensors(job.model, job.optimizer, safetensors.torch.load_file(folder / _TENSORS))

    def write(folder: Path) -> None:
        tensors = named_tensors(job.model, job.optimizer)
        safetensors.torch.save_file({name: value.contiguous() for name, value in tensors.items()}, folder / _TENSORS)
        (folder / _LOSSES).write_text(json.dumps(engine.losses))

    worker.restore(read)
    n_restored = len(engine.losses)

    def on_epoch(n_done: int, n_epochs: int) -> None:
        if n_done > n_restored:
            if worker.saves:
                worker.save(write)
            worker.report_epoch(n_done, n_epochs)

    report = train(job, engine, on_epoch=on_epoch, **options)
    return report, {name: value.numpy() for name, value in named_tensors(job.model, job.optimizer).items()}


def training_name(job: TrainingJob, options: Mapping[str, Any]) -> str:
    """Hash a training before its first step: weights, optimizer state, windows, objective and the options of `train`.

    A checkpoint of another training must not be resumed, such as one of more epochs.
    """
    windows, digest = job.batches, hashlib.blake2b(digest_size=16)
    assert isinstance(windows, Windows)
    names = "users", "codes", "history", "targets", "weights", "bounds"
    columns: list[Any] = [getattr(windows, name) for name in names]
    tensors = (*job.model.parameters(), *state_tensors(job.optimizer, job.model).values())
    columns += [] if windows.times is None else [windows.times]
    for column in (*columns, np.asarray(job.signs), *(value.detach().numpy() for value in tensors)):
        digest.update(f"{column.dtype}{column.shape}".encode())
        digest.update(np.ascontiguousarray(column).data)
    rates = [(group["lr"], group["weight_decay"]) for group in job.optimizer.param_groups]
    kinds = (type(job.model).__qualname__, type(job.optimizer).__qualname__)
    rest = (*kinds, rates, job.objective, sorted(options.items()))
    digest.update(re.sub(r" at 0x[0-9a-f]+", "", repr(rest)).encode())  # a function is known by its name
    return digest.hexdigest()
