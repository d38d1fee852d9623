"""Where, and from which seed: what changes a run without changing what it does."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from fairstream.configuration import Configuration
from fairstream.errors import ConfigurationError

EngineName = Literal["auto", "reference", "fused"]


class RuntimeConfig(Configuration):
    """The seed, the device and the engine."""

    seed: int = Field(0, ge=0)
    """Seed of every random draw of the run."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a CUDA device if there is one."""

    engine: EngineName = "auto"
    """How to compute: reference is plain PyTorch, fused does the same much faster where it can, auto \
takes fused there."""

    def torch_device(self) -> torch.device:
        """The device that is meant."""
        has_cuda = torch.cuda.is_available()
        if self.device == "cuda" and not has_cuda:
            raise ConfigurationError("device='cuda' was asked for, but PyTorch finds no CUDA device; use auto or cpu")
        return torch.device("cuda" if has_cuda and self.device != "cpu" else "cpu")
