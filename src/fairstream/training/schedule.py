"""How the learning rate changes while a model is trained from scratch."""

from __future__ import annotations

import math
from typing import Literal

import torch

ScheduleName = Literal["constant", "cosine"]
_WARM_UP = 0.05


class Schedule:
    """Up in a straight line for a twentieth of the steps, then down to 0 along a cosine.

    PyTorch's own schedulers replace the `step` of an optimizer, which could not be pickled then.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, learning_rate: float, n_steps: int) -> None:
        self._optimizer, self._learning_rate, self._n_steps, self._at = optimizer, learning_rate, n_steps, -1
        if any(parameter.is_cuda for group in optimizer.param_groups for parameter in group["params"]):
            for group in optimizer.param_groups:  # a recorded step reads the rate from the device
                group["lr"] = torch.tensor(learning_rate, device="cuda")
        self.advance()

    def factor(self, step: int) -> float:
        """What the learning rate is multiplied by at a step."""
        rise = min(1.0, (step + 1) / max(1.0, _WARM_UP * self._n_steps))
        return rise * 0.5 * (1 + math.cos(math.pi * min(1.0, step / self._n_steps)))

    @property
    def step(self) -> int:
        """The step that it is at."""
        return self._at

    def advance(self, n_steps: int = 1) -> None:
        """Go to the next step, or over several."""
        self._at += n_steps
        self._set(self._learning_rate * self.factor(self._at))

    def _set(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def finish(self) -> None:
        """Give the optimizer its plain learning rate back."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate
