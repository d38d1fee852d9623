"""The two optimizers, and how their state grows and is copied with the tables."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from fairstream.models import Scorer
from fairstream.models.tables import grow_rows, keep_capacity, without_rows
from fairstream.training.row_adam import RowAdam, fresh_state

Tensors = dict[str, torch.Tensor]
"""Tensors by name, as they are stored."""


def make_optimizer(
    kind: Literal["row", "dense"], model: Scorer, *, learning_rate: float, l2: float
) -> torch.optim.Optimizer:
    """Dense Adam (the paper's: every row moves at every step) or row Adam.

    Both put the L2 term inside the gradient. Row Adam needs to know which rows a batch touched,
    which sparse gradients tell.
    """
    for table in model.tables():
        table.sparse = kind == "row"
    groups = [
        {"params": [p for p, decayed in _parameters(model) if decayed], "weight_decay": l2},
        {"params": [p for p, decayed in _parameters(model) if not decayed], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if kind == "dense":
        return torch.optim.Adam(groups, lr=learning_rate, fused=True)
    return RowAdam(groups, lr=learning_rate)


def _parameters(model: Scorer) -> list[tuple[nn.Parameter, bool]]:
    undecayed = {id(table.weight) for table in model.tables() if not table.decayed}
    return [(p, id(p) not in undecayed) for p in model.parameters()]


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Let all parameters be learned at this rate from now on."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def ensure_state(optimizer: torch.optim.Optimizer) -> None:
    """Make the state that the first step would make, for those who work on it themselves."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in optimizer.state:
                state = fresh_state(parameter)
                if isinstance(optimizer, torch.optim.Adam):  # it counts all rows by one number
                    del state["n_updates"]
                    state = {"step": torch.zeros((), dtype=torch.float32, device=parameter.device), **state}
                optimizer.state[parameter] = state


def grow_state(optimizer: torch.optim.Optimizer) -> None:
    """Append zero rows to every moment whose parameter has grown: a new row has no past."""
    for parameter, state in optimizer.state.items():
        for name, value in list(state.items()):
            if value.dim() > 0 and len(value) < len(parameter):
                n_before = len(value)
                state[name] = grow_rows(value, len(parameter))
                state[name][n_before:] = 0


def drop_state_rows(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, rows: torch.Tensor) -> None:
    """Remove rows from every moment of a parameter."""
    state = optimizer.state.get(parameter, {})
    for name, value in state.items():
        if value.dim() > 0:
            state[name] = without_rows(value, rows)


def copy_state(source: torch.optim.Optimizer, of: Scorer, target: torch.optim.Optimizer, to: Scorer) -> None:
    """Copy the state of one model's optimizer to that of its copy."""
    twins = dict(to.named_parameters())
    for name, parameter in of.named_parameters():
        if parameter in source.state:
            target.state[twins[name]] = {key: _with_room(value) for key, value in source.state[parameter].items()}


def share_state(source: torch.optim.Optimizer, of: Scorer, target: torch.optim.Optimizer, to: Scorer) -> None:
    """Let the optimizer of a model that shares memory work on the same moments."""
    for parameter, twin in zip(of.parameters(), to.parameters(), strict=True):
        if parameter in source.state:
            target.state[twin] = dict(source.state[parameter])


def own_memory(optimizer: torch.optim.Optimizer, model: Scorer) -> None:
    """Move a model's tables and their moments into memory of their own."""
    for table in model.tables():
        weight = table.weight
        moved = _with_room(weight.data)
        weight.data = moved
        keep_capacity(weight, getattr(moved, "capacity", None))  # else the next growth would copy the table
        for name, value in optimizer.state.get(weight, {}).items():
            optimizer.state[weight][name] = _with_room(value)


def state_tensors(optimizer: torch.optim.Optimizer, model: Scorer) -> Tensors:
    """The optimizer's whole state as named tensors."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{names[id(parameter)]}/{key}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def restore_state(optimizer: torch.optim.Optimizer, model: Scorer, tensors: Tensors) -> None:
    """Put back what `state_tensors` gave."""
    for name, parameter in model.named_parameters():
        state: dict[str, Any] = {
            key.rpartition("/")[2]: _with_room(value.to(parameter.device))
            for key, value in tensors.items()
            if key.rpartition("/")[0] == name
        }
        if state:
            optimizer.state[parameter] = state


def _with_room(value: torch.Tensor) -> torch.Tensor:
    """A copy that can grow."""
    if value.dim() == 0:
        return value.clone()
    return grow_rows(value.new_empty(0, *value.shape[1:]), len(value)).copy_(value)
