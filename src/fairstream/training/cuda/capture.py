"""Recording what is launched as a CUDA graph."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch


class CaptureError(Exception):
    """What was launched cannot be recorded; nothing of it has been done."""


@contextmanager
def captured(device: torch.device, pool: Any = None) -> Iterator[torch.cuda.CUDAGraph]:
    """A graph of what the block launches; nothing of it is done until the graph is replayed.

    `pool` names memory that several graphs share; they must not run at the same time.
    """
    graph = torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    random = generator.clone_state()
    with aside(device), _no_collection():
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            yield graph
            graph.capture_end()
        except BaseException as error:
            _abandon(graph, index, pool)
            generator.graphsafe_set_state(random)  # the old one waits for a capture that never ends
            if isinstance(error, Exception):
                raise CaptureError(_first_line(error)) from error
            raise


def _abandon(graph: torch.cuda.CUDAGraph, device: int, pool: Any) -> None:
    """End a capture that has failed, and let memory be allocated as usual again."""
    try:
        graph.capture_end()
    except RuntimeError:  # PyTorch stops at the error and leaves the rest undone
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            with suppress(AttributeError, RuntimeError):
                getattr(torch._C, name)(device, pool)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].removeprefix("CUDA error: ")


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Launch on a stream of its own, after all that was launched before and before all that will be."""
    if device.type != "cuda":
        yield
        return
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
