"""Random draws of PyTorch from a private generator instead of the global one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_DRAWING: Final = {
    *("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson"),
    *("uniform_", "normal_", "bernoulli_", "random_", "exponential_", "cauchy_", "geometric_", "log_normal_"),
    "kaiming_uniform_",
}
"""Functions of PyTorch and of `nn.init` with a parameter `generator`."""


class RedirectedDraws(TorchFunctionMode):
    """Inside the block, this thread draws CPU tensors from a generator."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func.__name__ in _DRAWING and options.get("generator") is None:
            tensors = [value for value in (*args, *options.values()) if isinstance(value, Tensor)]
            device = tensors[0].device if tensors else options.get("device") or torch.get_default_device()
            if torch.device(device).type == "cpu":
                options["generator"] = self._generator
        return func(*args, **options)


@contextmanager
def dropout_from(generator: torch.Generator, parts: Sequence[nn.Dropout]) -> Iterator[None]:
    """Let `nn.Dropout` modules on the CPU draw from a generator inside the block."""
    for part in parts:
        part.forward = partial(_dropout, part, generator)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for part in parts:
            del part.forward


def _dropout(part: nn.Dropout, generator: torch.Generator, x: Tensor) -> Tensor:
    """Draw as `nn.Dropout.forward` does on a CPU, number for number, but from the generator."""
    if not part.training or not 0 < part.p < 1 or not x.numel():
        return nn.Dropout.forward(part, x)
    scale = torch.empty_like(x).bernoulli_(1 - part.p, generator=generator).div_(1 - part.p)
    return x.mul_(scale) if part.inplace else x * scale
