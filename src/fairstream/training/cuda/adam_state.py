"""The optimizer's own tensors, which the kernels change in place."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fairstream.training.row_adam import RowAdam


class AdamState:
    """The optimizer's state by parameter, and the settings that all parameters share."""

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._optimizer = optimizer
        self.is_dense = not isinstance(optimizer, RowAdam)
        group = optimizer.param_groups[0]
        self.lr, self.eps = float(group["lr"]), float(group["eps"])
        beta_1, beta_2 = group["betas"]
        # PyTorch's fused Adam takes 1 − β in float32, 1.3e-5 away from what row Adam multiplies by for β₂ = 0.999.
        one = torch.ones((), dtype=torch.float32 if self.is_dense else torch.float64)
        kept = [float(one - torch.tensor(beta, dtype=one.dtype)) for beta in (beta_1, beta_2)]
        self.betas = torch.tensor(
            [kept[0], beta_2, kept[1], math.log(beta_1), math.log(beta_2)], dtype=torch.float64, device=device
        )
        """1 − β₁, β₂, 1 − β₂, log β₁, log β₂."""
        self._l2 = {id(p): float(group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}
        self._counts: list[Tensor] = []

    def of(self, parameter: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
        """(w, m, v, n, l2): the parameter's value and moments, made as the optimizer makes them where there are none.

        n counts the updates of each row (row Adam), or all steps in one number (dense Adam).
        """
        state = self._optimizer.state[parameter]
        count = "step" if self.is_dense else "n_updates"
        if not state:
            shape = () if self.is_dense else parameter.shape[:1] + (1,) * (parameter.dim() - 1)
            state[count] = torch.zeros(shape, dtype=torch.float32, device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        if self.is_dense:
            self._counts.append(state[count])
        return parameter.data, state["exp_avg"], state["exp_avg_sq"], state[count], self._l2[id(parameter)]

    def count(self, n_steps: int) -> None:
        """So many steps have been taken; row Adam has counted for itself."""
        if self._counts:
            torch._foreach_add_(self._counts, n_steps)
