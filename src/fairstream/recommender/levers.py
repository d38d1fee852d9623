"""The options that trade quality against the gap between groups, and which of them a model has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from fairstream.errors import ConfigurationError
from fairstream.methods import METHODS, MethodConfig
from fairstream.models import ClosedFormScorer, WindowScorer, closed_forms, takes_weights
from fairstream.recommender.learning import Learning
from fairstream.strategies import Keep

LeverName = Literal["group_weight", "fairness_weight"]


class Lever(NamedTuple):
    """An option that trades quality against the gap between groups."""

    none: float
    """The value at which it does nothing."""
    levels: tuple[float, ...]
    """The values that are tried by default."""


LEVERS: Final[Mapping[LeverName, Lever]] = {
    "group_weight": Lever(1.0, (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)),
    "fairness_weight": Lever(0.0, (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)),
}


def check_levels(lever: LeverName, levels: Sequence[float] | None) -> tuple[float, ...]:
    """Return the values of a lever in ascending order, each once.

    Raises
    ------
    ConfigurationError
        If a value is not possible, there is only one, or the one that does nothing is missing.

    Examples
    --------
    >>> check_levels("group_weight", [4, 1, 2])
    (1.0, 2.0, 4.0)

    """
    none, default = LEVERS[lever]
    if levels is None:
        return default
    try:
        values = tuple(sorted({float(level) for level in levels}))
    except (TypeError, ValueError):
        raise ConfigurationError(f"levels must be numbers, got {levels!r}") from None
    impossible = [value for value in values if not np.isfinite(value) or value < 0 or (value == 0 and none == 1)]
    if impossible:
        least = "> 0" if none else ">= 0"
        raise ConfigurationError(f"the levels of {lever} must be {least}, got {impossible[0]:g}")
    if none not in values:
        raise ConfigurationError(
            f"the levels of {lever} must include {none:g}, which does nothing and which the others are compared with, "
            f"got {', '.join(f'{value:g}' for value in values) or 'none at all'}"
        )
    if len(values) < 2:
        raise ConfigurationError(f"the levels of {lever} must include another value than {none:g}, got it alone")
    return values


def choose_lever(learning: Learning, lever: LeverName | None) -> tuple[LeverName, tuple[str, ...]]:
    """Return the lever to vary, by default the weights of events where the model takes them; and notes on it.

    Raises
    ------
    ConfigurationError
        If the method has no such lever, or the model no use for it.

    """
    config, model = learning.config, learning.example
    if METHODS[config.method].engine is not None or isinstance(learning.strategy, Keep):
        raise ConfigurationError(
            f"a frontier varies the weights of events or λ in updates, which {config.method} does not use; "
            f"choose a method such as Finetune or FADE"
        )
    is_closed = isinstance(model, ClosedFormScorer)
    has_weights = any(map(takes_weights, closed_forms(model).values())) or (
        isinstance(model.gradient_part, WindowScorer) and learning.objective.is_weighted
    )
    if is_closed and not has_weights:
        raise ConfigurationError(f"the model {config.model} has neither group weights nor a fairness loss to vary")
    if lever is None:
        lever = "group_weight" if has_weights else "fairness_weight"
    if lever not in LEVERS:
        raise ConfigurationError(f"lever must be one of {', '.join(LEVERS)}, got {lever!r}")
    if lever == "fairness_weight" and is_closed:
        raise ConfigurationError(
            f"the model {config.model} is computed in closed form and has no fairness loss to weigh; "
            f"choose the lever group_weight"
        )
    notes = {
        f"the training of {config.model} knows no weights of events, so that they have no effect; fairness_weight is "
        f"the lever that this model has": lever == "group_weight" and not has_weights,
        f"the method {config.method} has no fairness loss: the signed one is weighed, as with fairness='signed'": (
            lever == "fairness_weight" and config.fairness_name is None
        ),
    }
    return lever, tuple(note for note, is_so in notes.items() if is_so)


def at_level(config: MethodConfig, lever: LeverName, value: float) -> MethodConfig:
    """Return the configuration with one lever at a value and the other off, and without an accepted disparity."""
    options: dict[str, Any] = {lever: value}
    if lever == "fairness_weight" and config.fairness_name is None:
        options["fairness"] = "signed"
    return config.without_lever().with_options(**options)
