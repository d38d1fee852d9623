"""The optimizer's own tensors, which the kernels change in place."""

from __future__ import annotations

import torch
from torch import Tensor

from fairstream.models import ItemTable, UserTable
from fairstream.objectives import DisparityLoss, Objective, bpr_loss
from fairstream.training.engine import TrainingJob
from fairstream.training.optimizers import ensure_state
from fairstream.training.row_adam import RowAdam


class AdamState:
    """The optimizer's state by parameter, and the settings that all parameters share."""

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        ensure_state(optimizer)
        self._optimizer = optimizer
        self.is_dense = not isinstance(optimizer, RowAdam)
        group = optimizer.param_groups[0]
        self.lr, self.eps = float(group["lr"]), float(group["eps"])
        betas = torch.tensor(group["betas"], dtype=torch.float64)
        if self.is_dense:  # PyTorch's fused Adam takes β in float32: 1 − 0.999 is then 1.3e-5 away, relatively
            betas = betas.float().double()
        self.betas = torch.cat([1 - betas, betas, betas.log()]).to(device)
        """1 − β₁, 1 − β₂, β₁, β₂, log β₁, log β₂."""
        self._l2 = {id(p): float(group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}
        self._counts: list[Tensor] = []

    def of(self, parameter: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
        """(w, m, v, n, l2): the parameter's value and moments.

        n counts the updates of each row (row Adam), or all steps in one number (dense Adam).
        """
        state = self._optimizer.state[parameter]
        count = "step" if self.is_dense else "n_updates"
        if self.is_dense:
            self._counts.append(state[count])
        return parameter.data, state["exp_avg"], state["exp_avg_sq"], state[count], self._l2[id(parameter)]

    def count(self, n_steps: int) -> None:
        """So many steps have been taken; row Adam has counted for itself."""
        if self._counts:
            torch._foreach_add_(self._counts, n_steps)


def unsupported_by_kernels(job: TrainingJob, d: int, least: int = 1) -> str | None:
    """Why the kernels cannot run a job of a model that they are made for, with embeddings of length d."""
    model, objective, fairness = job.model, job.objective, job.objective.fairness
    is_plain = all(
        p.is_cuda and p.dtype == torch.float32 and p.is_contiguous() and p.requires_grad for p in model.parameters()
    )
    is_other = isinstance(fairness, DisparityLoss) and fairness.surrogate not in ("hit", "approx-ndcg")
    # Tiles are powers of two; the widths of embeddings, candidates and groups are held in registers.
    fits = d & (d - 1) == 0 and least <= d <= 128 and objective.n_drawn <= 63 and 1 <= len(job.signs) <= 32
    reasons = {
        "its parameters are not plain float32": not is_plain,
        "its tables are not the usual ones": not all(type(table) in (UserTable, ItemTable) for table in model.tables()),
        "its objective is not the usual one": type(objective) is not Objective,
        "its loss is not bpr": objective.loss is not bpr_loss,
        "there is an extra loss": job.extra_loss is not None,
        "its learning rate changes from step to step": job.schedule is not None,
        "its fairness weight is computed anew at every step": objective.is_auto,
        "its fairness loss has statistics across batches": objective.is_fair and getattr(fairness, "ema_decay", 0) > 0,
        "its fairness loss is not the paper's": type(fairness) is not DisparityLoss or (objective.is_fair and is_other),
        "its optimizer is not plain Adam": not is_plain_adam(job.optimizer),
        "its embeddings, candidates or groups are too many for the kernels": not fits,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def is_plain_adam(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer does what the kernels do."""
    groups = optimizer.param_groups
    if type(optimizer) not in {RowAdam, torch.optim.Adam}:
        return False
    share_settings = all(group[name] == groups[0][name] for group in groups for name in ("lr", "betas", "eps"))
    # Of PyTorch's, only the fused one keeps its count of steps on the device.
    variants = ("amsgrad", "maximize", "decoupled_weight_decay")
    return share_settings and not any(
        not group.get("fused", True) or any(group.get(variant) for variant in variants) for group in groups
    )
