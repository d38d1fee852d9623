"""Where, and from which seed: what changes a run without changing what it does."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from fairstream.configuration import Configuration
from fairstream.errors import ConfigurationError


class Surroundings(Configuration):
    """The seed and the device."""

    seed: int = Field(0, ge=0)
    """Seed of every random draw of the run."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a CUDA device if there is one."""

    def torch_device(self) -> torch.device:
        """The device that is meant."""
        has_cuda = torch.cuda.is_available()
        if self.device == "cuda" and not has_cuda:
            raise ConfigurationError("device='cuda' was asked for, but PyTorch finds no CUDA device; use auto or cpu")
        return torch.device("cuda" if has_cuda and self.device != "cpu" else "cpu")
