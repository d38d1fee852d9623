"""Several steps as one CUDA graph, replayed until the epoch is over."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from fairstream.events import Rows

STEPS_AT_ONCE = 10
"""More make a replay cheaper and its capture dearer; a capture is paid for at every training."""


class StepGraph:
    """Takes the steps of an epoch. Which batch is next is read on the device: the host waits once, for the loss.

    `launch(i)` starts the kernels of step `step + i`. A kernel whose place in `order` is −1 has
    nothing to do, so a graph of ten steps can take any number of them.
    """

    def __init__(self, launch: Callable[[StepGraph, int], None], n_batches: int, device: torch.device) -> None:
        capacity = math.ceil(n_batches / STEPS_AT_ONCE) * STEPS_AT_ONCE
        self.order = torch.full((capacity,), -1, dtype=torch.int32, device=device)
        self.step = torch.zeros((), dtype=torch.int32, device=device)
        self.losses = torch.zeros(capacity, device=device)
        launch(self, 0)  # compiles and loads the kernels, which a capture must not; there is no batch, so nothing is done
        self._graph = torch.cuda.CUDAGraph()
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            self._graph.capture_begin(capture_error_mode="thread_local")
            for i in range(STEPS_AT_ONCE):
                launch(self, i)
            self.step.add_(STEPS_AT_ONCE)
            self._graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(aside)

    def run(self, order: Rows) -> float:
        """One step on each batch of `order`; gives the mean loss."""
        n = len(order)
        self.order.fill_(-1)
        self.order[:n].copy_(torch.from_numpy(order))
        self.step.zero_()
        for _ in range(math.ceil(n / STEPS_AT_ONCE)):
            self._graph.replay()
        return float(self.losses[:n].mean())
