"""Processes and devices of commands that compute many runs, and their failures."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import typer

from fairstream.cli.console import print_error
from fairstream.distributed import cluster as connect
from fairstream.errors import ConfigurationError, FairstreamError
from fairstream.experiments import Store
from fairstream.threads import available_cores


def on_cluster(address: str | None, n_workers: int | None = None) -> AbstractContextManager[object]:
    """Enter `fairstream.cluster` if there is an address."""
    return nullcontext() if address is None else connect(address, n_workers=n_workers)


def choose_workers(
    n_workers: int | None, device: str, cluster: str | None, max_workers: int | None = None
) -> int | None:
    """Return the number of processes: by default one per GPU, or per core where there is no GPU.

    None lets the cluster decide. Raises ConfigurationError if the device is not available.
    """
    has_gpu = torch.cuda.is_available()
    if cluster is None and device == "cuda" and not has_gpu:
        raise ConfigurationError("device='cuda' is not available: PyTorch finds no CUDA device; use auto or cpu")
    if n_workers is not None or cluster is not None:
        return n_workers
    n_workers = torch.cuda.device_count() if has_gpu and device != "cpu" else available_cores()
    return min(n_workers, max_workers or n_workers)


def exit_on_failures(errors: Sequence[FairstreamError]) -> None:
    """Print to stderr, even if quiet, which runs failed; if any, exit with status 2."""
    for error in errors:
        print_error(str(error))
    if errors:
        raise typer.Exit(2)


def finished_runs(store: Path) -> str:
    """Say what an interrupted command leaves in a store."""
    n = len(Store(store).ids())
    runs = "1 finished run is" if n == 1 else f"{n} finished runs are"
    return f"{runs} kept in {store}; the same command resumes"
