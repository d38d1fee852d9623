"""Which device, how many processes, and what became of their work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast, get_args

import torch
import typer

from fairstream.errors import ConfigurationError
from fairstream.experiments.pool import Device


def as_device(name: str) -> Device:
    """The device of this name, if there is one here."""
    if name not in get_args(Device):
        raise ConfigurationError(f"the device must be one of {', '.join(get_args(Device))}, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("device='cuda' was asked for, but PyTorch finds no CUDA device; use auto or cpu")
    return cast("Device", name)


def tell_failures(sentences: Sequence[str]) -> None:
    """Say on the way out, whatever is quiet, which runs could not be finished; the others are in the store."""
    for sentence in sentences:
        typer.echo(f"fairstream: {sentence}", err=True)
    if sentences:
        raise typer.Exit(1)


def default_workers(device: Device) -> int:
    """One process for each GPU, or for each core where there is none."""
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.device_count()
    return os.cpu_count() or 1
