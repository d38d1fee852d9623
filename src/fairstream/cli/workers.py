"""How commands that compute many runs use processes and devices, and how they report failures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from fairstream.cli.console import print_error
from fairstream.errors import ConfigurationError, FairstreamError
from fairstream.threads import available_cores


def check_device(device: str, cluster: str | None = None) -> None:
    """Raise ConfigurationError if the device is not available; a cluster has devices of its own."""
    import torch  # noqa: PLC0415 (the help does not wait for it)

    if cluster is None and device == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("device='cuda' is not available: PyTorch finds no CUDA device; use auto or cpu")


def default_workers(device: str, cluster: str | None = None) -> int | None:
    """One process per GPU, or per core where there is no GPU; None: as many as a cluster has room for."""
    if cluster is not None:
        return None
    import torch  # noqa: PLC0415 (the help does not wait for it)

    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.device_count()
    return available_cores()


def print_failures(errors: Sequence[FairstreamError]) -> None:
    """Print to stderr, even if quiet, which runs failed."""
    for error in errors:
        print_error(str(error))


def exit_on_failures(errors: Sequence[FairstreamError]) -> None:
    """Exit with status 2 if runs failed."""
    if errors:
        raise typer.Exit(2)


def finished_runs(store: Path) -> str:
    """What an interrupted command leaves in a store."""
    from fairstream.experiments import Store  # noqa: PLC0415 (the help does not wait for it)

    n = len(list(Store(store).ids()))
    return (
        f"{n} finished run{'' if n == 1 else 's'} in {store} {'is' if n == 1 else 'are'} kept; the same command resumes"
    )
