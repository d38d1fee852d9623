"""Recording what is launched as a CUDA graph."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def captured(device: torch.device) -> Iterator[torch.cuda.CUDAGraph]:
    """A graph of what the block launches; nothing of it is done until the graph is replayed."""
    graph = torch.cuda.CUDAGraph()
    with aside(device), _no_collection():
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            yield graph
        finally:
            graph.capture_end()


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Launch on a stream of its own, after all that was launched before and before all that will be."""
    current = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from collecting garbage: an older graph among it would be freed, which no capture survives."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
