"""Options of commands that compute many runs, and how they report failures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import torch
import typer

from fairstream.errors import ConfigurationError, FairstreamError
from fairstream.experiments import Device

DeviceOption = Annotated[Device, typer.Option(help="Where to compute.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds, starting at --seed.")]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE|FILE.py",
        help="Import this first, for the models, losses, metrics and strategies it registers; repeatable.",
        show_default=False,
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Number of processes.", show_default="one per core, or one per GPU")
]

ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="local|HOST:PORT",
        help="Compute on Ray: on this machine, or on the cluster at this address; needs "
        "`pip install 'fairstream[cluster]'`.",
        show_default=False,
    ),
]


def check_device(device: Device, cluster: str | None = None) -> None:
    """Raise ConfigurationError if the device is not available; a cluster has devices of its own."""
    if cluster is None and device == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("device='cuda' is not available: PyTorch finds no CUDA device; use auto or cpu")


def default_workers(device: str, cluster: str | None = None) -> int | None:
    """One process per GPU, or per core where there is no GPU; None: as many as a cluster has room for."""
    if cluster is not None:
        return None
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.device_count()
    return os.cpu_count() or 1


def print_failures(errors: Sequence[FairstreamError]) -> None:
    """Print to stderr, even if quiet, which runs failed."""
    for error in errors:
        typer.echo(f"fairstream: {error}", err=True)


def exit_on_failures(errors: Sequence[FairstreamError]) -> None:
    """Exit with status 2 if runs failed."""
    if errors:
        raise typer.Exit(2)
