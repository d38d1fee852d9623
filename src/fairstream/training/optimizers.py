"""The two optimizers, whose state is grown and copied with the tables, and the schedule of the learning rate."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch

from fairstream.models import ClosedFormScorer, Scorer
from fairstream.models.tables import grow_rows, keep_capacity
from fairstream.training.row_adam import RowAdam, fresh_state

Tensors = dict[str, torch.Tensor]  # tensors by name, as they are stored
_WARM_UP = 0.05


def make_optimizer(
    kind: Literal["row", "dense"], model: Scorer, *, learning_rate: float, l2: float
) -> torch.optim.Optimizer:
    """Return dense Adam (the paper's: every row moves at every step) or row Adam.

    Both put the L2 term inside the gradient. Row Adam gets the rows of a batch from sparse gradients.
    """
    for table in model.tables():
        table.sparse = kind == "row"
    undecayed = {id(table.weight) for table in model.tables() if not table.weight_decay}
    parts: list[dict[str, Any]] = [{"params": [], "weight_decay": l2}, {"params": [], "weight_decay": 0.0}]
    for parameter in model.parameters():
        parts[id(parameter) in undecayed]["params"].append(parameter)
    groups = [group for group in parts if group["params"]]
    if kind == "dense":
        return torch.optim.Adam(groups, lr=learning_rate, fused=True)
    return RowAdam(groups, lr=learning_rate)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


class Schedule:
    """Linear warm-up over a twentieth of the steps, then a cosine down to 0.

    PyTorch's schedulers replace the `step` of an optimizer, which could then not be pickled.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, learning_rate: float, n_steps: int) -> None:
        self._optimizer, self._learning_rate, self._n_steps, self._at = optimizer, learning_rate, n_steps, -1
        if any(parameter.is_cuda for group in optimizer.param_groups for parameter in group["params"]):
            for group in optimizer.param_groups:  # a recorded step reads the rate from the device
                group["lr"] = torch.tensor(learning_rate, device="cuda")
        self.advance()

    def advance(self, n_steps: int = 1) -> None:
        self._at += n_steps
        rise = min(1.0, (self._at + 1) / max(1.0, _WARM_UP * self._n_steps))
        factor = rise * 0.5 * (1 + math.cos(math.pi * min(1.0, self._at / self._n_steps)))
        rate = self._learning_rate * factor
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def finish(self) -> None:
        set_learning_rate(self._optimizer, self._learning_rate)


def ensure_state(optimizer: torch.optim.Optimizer) -> None:
    """Create the state that the first step would create, for engines that change it directly."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in optimizer.state:
                state = fresh_state(parameter)
                if isinstance(optimizer, torch.optim.Adam):  # it has one count for all rows
                    del state["n_updates"]
                    state = {"step": torch.zeros((), dtype=torch.float32, device=parameter.device), **state}
                optimizer.state[parameter] = state


def grow_state(optimizer: torch.optim.Optimizer) -> None:
    """Append zero rows to every moment whose parameter has grown."""
    for parameter, state in optimizer.state.items():
        for name, value in list(state.items()):
            if value.dim() > 0 and len(value) < len(parameter):
                n_before = len(value)
                state[name] = grow_rows(value, len(parameter))
                state[name][n_before:] = 0


def own_memory(optimizer: torch.optim.Optimizer, model: Scorer) -> None:
    """Move the parameters, their moments and the buffers of a model into new memory.

    Closed forms keep their buffers: they replace them and never change them.
    """
    tables = {id(table.weight) for table in model.tables()}
    for parameter in model.parameters():
        moved = _growable_copy(parameter.data) if id(parameter) in tables else parameter.data.clone()
        parameter.data = moved
        keep_capacity(parameter, getattr(moved, "capacity", None))  # else the next growth would copy the table
        for name, value in optimizer.state.get(parameter, {}).items():
            optimizer.state[parameter][name] = _growable_copy(value)
    copies: dict[int, torch.Tensor] = {}  # modules may share a buffer
    for module in model.modules():
        if not isinstance(module, ClosedFormScorer):
            for name, buffer in module.named_buffers(recurse=False):
                copies.setdefault(id(buffer), buffer.clone())
                module._buffers[name] = copies[id(buffer)]


def state_tensors(optimizer: torch.optim.Optimizer, model: Scorer) -> Tensors:
    """Return the state of the optimizer as named tensors."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{names[id(parameter)]}/{key}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def restore_state(optimizer: torch.optim.Optimizer, model: Scorer, tensors: Tensors) -> None:
    """Restore the state from the tensors of `state_tensors`."""
    for name, parameter in model.named_parameters():
        state: dict[str, Any] = {
            key.rpartition("/")[2]: _growable_copy(value.to(parameter.device))
            for key, value in tensors.items()
            if key.rpartition("/")[0] == name
        }
        if state:
            optimizer.state[parameter] = state


def named_tensors(model: Scorer, optimizer: torch.optim.Optimizer | None) -> Tensors:
    """Return the parameters and buffers of a model and the state of its optimizer by name, without copying them."""
    parts = {"model": model.state_dict(), "optimizer": {} if optimizer is None else state_tensors(optimizer, model)}
    return {f"{prefix}/{name}": value for prefix, part in parts.items() for name, value in part.items()}


def load_tensors(
    model: Scorer, optimizer: torch.optim.Optimizer | None, tensors: Tensors, *, assign: bool = False
) -> None:
    """Copy the tensors of `named_tensors` into a model and its optimizer; `assign` uses the tensors themselves."""

    def part(prefix: str) -> Tensors:
        return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}

    model.load_state_dict(part("model/"), assign=assign)
    if optimizer is not None:
        restore_state(optimizer, model, part("optimizer/"))


def _growable_copy(value: torch.Tensor) -> torch.Tensor:
    if value.dim() == 0:
        return value.clone()
    return grow_rows(value.new_empty(0, *value.shape[1:]), len(value)).copy_(value)
