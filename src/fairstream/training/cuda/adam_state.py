"""The optimizer's own tensors, which the kernels change in place."""

from __future__ import annotations

import torch
from torch import Tensor

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
