"""Adver's steps on CUDA, those of the discriminator by Triton kernels."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import torch
import triton
from torch import Tensor, nn

from fairstream.data import Rows
from fairstream.models import Context
from fairstream.paper.adver import (
    N_DISCRIMINATOR_STEPS,
    SLOPE,
    CapturedAdversarialEngine,
    Discriminator,
)
from fairstream.paper.adver_kernels import discriminator_pass, discriminator_update
from fairstream.training.engine import TrainingJob
from fairstream.training.optimizers import ensure_state
from fairstream.training.row_adam import RowAdam

_ROWS: Final = 16  # rows that a program carries through the layers; `tl.dot` takes no fewer
_PASS: Final = {"TILE": 64, "num_warps": 8}
_UPDATE: Final = {"TILE": 32, "num_warps": 4}


class FusedAdversarialEngine(CapturedAdversarialEngine):
    """The eleven steps of a batch in one graph; the discriminator's ten are twenty kernels."""

    def __init__(self, job: TrainingJob, *, gamma: float) -> None:
        super().__init__(job, gamma=gamma)
        if self._have_known.any():
            self._steps = _DiscriminatorSteps(self._discriminator, job.optimizer)

    @staticmethod
    def unsupported(job: TrainingJob) -> str | None:
        if any(p.dtype != torch.float32 or not p.requires_grad for p in job.model.parameters()):
            return "its parameters are not plain float32, or some are frozen"
        return CapturedAdversarialEngine.unsupported(job)

    def epoch(self, order: Rows, key: int) -> float:
        if not self._have_known.any():
            return super().epoch(order, key)
        self._steps.load()
        loss = super().epoch(order, key)
        self._steps.store()
        return loss

    def _learn(
        self,
        users: Tensor,
        candidates: Tensor,
        groups: Tensor,
        context: Context,
        *,
        has_known: bool = True,
        **conditions: bool,
    ) -> Tensor:
        loss, rows = self._loss_and_rows(users, candidates, groups, context, **conditions)
        if not has_known:
            self._descend(loss, self._for)
            return loss.detach()
        l_d, slope = self._steps.take(rows.detach(), groups.repeat(len(rows) // len(groups)))
        self.job.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward((loss, rows), (None, -self._gamma * slope), inputs=self._for)
        self.job.optimizer.step()
        return loss.detach() - self._gamma * l_d


class _DiscriminatorSteps:
    """The discriminator and its moments, one behind another in tensors that do not move."""

    def __init__(self, discriminator: Discriminator, optimizer: torch.optim.Optimizer) -> None:
        layers = [part for part in discriminator.modules() if isinstance(part, nn.Linear)]
        self._parameters = [(layer.weight, layer.bias) for layer in layers]
        self._p = next(part.p for part in discriminator.modules() if isinstance(part, nn.Dropout))
        ensure_state(optimizer)
        self._optimizer = optimizer
        group = next(g for g in optimizer.param_groups if any(p is layers[0].weight for p in g["params"]))
        device = layers[0].weight.device
        self._lr = group["lr"] if isinstance(group["lr"], Tensor) else torch.tensor(group["lr"], device=device)
        betas = torch.tensor(group["betas"], dtype=torch.float64)
        self._adam = (group["weight_decay"], group["eps"], torch.cat([1 - betas, betas, betas.log()]).to(device))

        self._n_groups = layers[-1].out_features
        widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
        self._n_columns, c, at = sum(widths), 0, 0
        shapes, tiles, tile = [], [], _UPDATE["TILE"]
        for n_in, n_out in pairwise(widths):
            shapes.append([n_in, n_out, c, c + n_in, at, at + n_in * n_out, 0, 0])
            tiles += [[*shapes[-1][:6], out, k] for out in range(0, n_out, tile) for k in range(0, n_in, tile)]
            c, at = c + n_in, at + (n_in + 1) * n_out
        self._layers, self._tiles = (torch.tensor(part, dtype=torch.int32, device=device) for part in (shapes, tiles))
        self._packed = torch.zeros(4, at, device=device)  # w, m, v, and n at the places of the biases
        self._shapes = shapes
        self._scratch: dict[int, tuple[Tensor, ...]] = {}

    def _views(self) -> list[tuple[Tensor, Tensor]]:
        """Return each tensor of the parameters and of the optimizer with its place in the packed ones."""
        views = []
        for (weight, bias), (n_in, n_out, _, _, w_0, b_0, *_) in zip(self._parameters, self._shapes, strict=True):
            own, names = self._packed[:, b_0 : b_0 + n_out], ("exp_avg", "exp_avg_sq")
            for parameter, part in ((bias, own), (weight, self._packed[:, w_0:b_0].view(4, n_out, n_in))):
                state = self._optimizer.state[parameter]
                views += [(parameter.data, part[0]), *((state[name], part[1 + i]) for i, name in enumerate(names))]
                if isinstance(self._optimizer, RowAdam):
                    views.append((state["n_updates"], own[3].view_as(state["n_updates"])))
                else:
                    views.append((state["step"], own[3]))
        return views

    def load(self) -> None:
        """Read the model and the optimizer."""
        for theirs, packed in self._views():
            packed.copy_(theirs)

    def store(self) -> None:
        """Write them."""
        for theirs, packed in self._views():
            theirs.copy_(packed if packed.shape == theirs.shape else packed[0])

    def take(self, rows: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Take ten steps on rows (R, d) with their groups (R,); return L_D and its gradient by the rows after them."""
        n, device = len(rows), rows.device
        if n not in self._scratch:  # graphs read these tensors
            h, delta = torch.zeros(2, self._n_columns * n, device=device)
            self._scratch[n] = h, delta, torch.zeros(n, device=device)
        h, delta, losses = self._scratch[n]
        h[: rows.numel()].copy_(rows.reshape(-1))
        shape = (N_DISCRIMINATOR_STEPS + 1, self._n_columns * n)
        keep = torch.empty(shape, dtype=torch.uint8, device=device).bernoulli_(1 - self._p)
        n_known = (codes >= 0).sum()
        w, m, v, n_updates = self._packed
        sizes: dict[str, Any] = {"LAYERS": len(self._shapes), "ROWS": _ROWS, "N_GROUPS": self._n_groups}
        sizes |= {"GROUPS": triton.next_power_of_2(self._n_groups), **_PASS}
        for i in range(N_DISCRIMINATOR_STEPS + 1):
            is_last = i == N_DISCRIMINATOR_STEPS
            discriminator_pass[triton.cdiv(n, _ROWS),](
                self._layers, h, delta, keep, codes, n_known, losses, w, i, n, self._n_columns, 1 / (1 - self._p),
                SLOPE, **sizes, WITH_INPUT=is_last,
            )  # fmt: skip
            if not is_last:
                discriminator_update[len(self._tiles),](
                    self._tiles, h, delta, w, m, v, n_updates, self._lr, *self._adam, i, n, **_UPDATE
                )
        n_updates += N_DISCRIMINATOR_STEPS
        return losses.sum(), delta[: rows.numel()].view_as(rows)
