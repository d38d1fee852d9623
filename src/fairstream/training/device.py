"""Where the numbers live."""

from __future__ import annotations

import torch

from fairstream.errors import ConfigurationError


def resolve_device(name: str) -> torch.device:
    """auto: a CUDA device where there is one, else the CPU."""
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise ConfigurationError("device='cuda' was asked for, but PyTorch finds no CUDA device; use auto or cpu")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and has_cuda) else "cpu")
