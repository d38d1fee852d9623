"""Several steps as one CUDA graph, replayed until the epoch is over."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

from fairstream.data import Rows
from fairstream.training.cuda.capture import captured
from fairstream.training.cuda.kernels.advance import advance

STEPS_AT_ONCE: Final = 8
"""More make a replay cheaper and its capture dearer; a capture is paid for at every training."""


class StepGraph:
    """Takes the steps of an epoch. Which batch is next is read on the device: the host waits once, for the loss.

    `launch(self, i)` starts the kernels of step `step + i`, on batch `batches[i]`. Where that is −1
    they have nothing to do, so a graph of eight steps can take any number of them.
    """

    def __init__(self, launch: Callable[[StepGraph, int], None], n_batches: int, device: torch.device) -> None:
        capacity = math.ceil(n_batches / STEPS_AT_ONCE) * STEPS_AT_ONCE
        self._order = torch.full((capacity,), -1, dtype=torch.int32, device=device)
        self._next = torch.zeros((), dtype=torch.int32, device=device)
        self.batches = torch.full((STEPS_AT_ONCE,), -1, dtype=torch.int32, device=device)
        """The batches of the steps under way."""
        self.step = torch.zeros((), dtype=torch.int32, device=device)
        """The first of them, counted from the beginning of the epoch."""
        self.losses = torch.zeros(capacity, device=device)
        self._launch = launch  # keeps alive what the captured kernels work on
        self._advance()
        launch(self, 0)  # compiles and loads the kernels, which a capture must not; there is no batch to work on yet
        with captured(device) as self._graph:
            self._advance()
            for i in range(STEPS_AT_ONCE):
                launch(self, i)

    def _advance(self) -> None:
        advance[1,](self._order, self._next, self.step, self.batches, N=STEPS_AT_ONCE, num_warps=1)

    def run(self, order: Rows) -> float:
        """One step on each batch of `order`; gives the mean loss."""
        n = len(order)
        self._order.fill_(-1)
        self._order[:n].copy_(torch.from_numpy(order))
        self._next.zero_()
        for _ in range(math.ceil(n / STEPS_AT_ONCE)):
            self._graph.replay()
        return float(self.losses[:n].mean())


class Kernel:
    """A kernel of a step with everything bound but the step: `kernel(graph, i)`.

    The first call compiles it; later ones launch what was compiled, which spares the host the
    looking through some fifty arguments at each of a capture's launches.
    """

    def __init__(
        self, function: Any, grid: tuple[int, ...], *arguments: Any, num_warps: int = 4, **constants: Any
    ) -> None:
        self._function, self._grid, self._num_warps = function, (*grid, 1, 1)[:3], num_warps
        self._arguments, self._constants = arguments, constants
        self._gives_loss = "losses_at" in function.arg_names
        self._run: Callable[..., None] | None = None

    def __call__(self, graph: StepGraph, i: int) -> None:
        now = (graph.batches, graph.step, i, *([graph.losses] if self._gives_loss else []))
        if self._run is None:
            launch = self._function[self._grid]
            compiled = launch(*now, *self._arguments, **self._constants, num_warps=self._num_warps)
            in_order = [self._constants[name] for name in self._function.arg_names if name in self._constants]
            self._arguments = (*self._arguments, *in_order)
            self._run = compiled[self._grid]
        else:
            self._run(*now, *self._arguments)
