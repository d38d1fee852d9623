"""An option for each field of a run's configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from fairstream.cli import options as shared
from fairstream.cli.options import from_names, with_parameters
from fairstream.errors import ConfigurationError
from fairstream.experiments.config import REPAIRS, TASKS, RunConfig, with_model_settings
from fairstream.experiments.sweep import parse_settings, parse_value
from fairstream.methods import METHODS
from fairstream.models import MODELS, SASRecScorer
from fairstream.objectives import FAIRNESS_LOSSES, LOSSES, SURROGATES
from fairstream.strategies import STRATEGIES

_FIRST = ("method", "model", "protocol")  # the options that most calls give
PROTOCOLS = ["strict", "paper", *(f"paper+{repair}" for repair in REPAIRS)]
_NAMES: Mapping[str, Iterable[str]] = {
    "protocol": PROTOCOLS,
    "method": METHODS,
    "model": MODELS,
    "loss": LOSSES,
    "fairness": FAIRNESS_LOSSES,
    "surrogate": SURROGATES,
    "strategy": STRATEGIES,
}
"""The names that complete an option."""

_SHARED: Mapping[str, Any] = {
    "device": shared.Device,
    "seed": shared.Seed,
    "tasks": shared.Task,
    "metrics": shared.Metric,
    "plugins": shared.Plugins,
    "k": shared.ListLength,
    "min_group_size": shared.MinGroupSize,
}
"""Options that other commands share, with one help text."""

_DEFAULTS: Mapping[str, str] = {
    "method": "Finetune; FADE under the paper's protocol, or with another option of the method",
    "target": "least-regret; none if an option names the method",
}
"""Defaults that depend on other options, in words."""


Set = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="An option and its value; a setting of the model, such as `length=200` of sasrec, `ridge=500` of "
        "item-item or `sequence.length=200` of the blend; or an option of one method, such as `adversary-weight=1` "
        "of Adver. Repeatable.",
        rich_help_panel="Method and protocol",
        show_default=False,
    ),
]


def with_config_options(fields: Mapping[str, FieldInfo]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add `--set` and an option for each of these fields of a configuration to a command, which gets those given."""
    names = sorted(fields, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    names.remove("model_settings")  # which `--set` sets

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        added = [_parameter(name, fields[name]) for name in names]
        added.append(inspect.Parameter("set", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Set))

        def call(**values: Any) -> None:
            given = {name: value for name in names if (value := values.pop(name)) not in (None, [])}
            settings = parse_settings(values.pop("set") or ())
            if foreign := sorted((RunConfig.model_fields.keys() - fields.keys()) & settings.keys()):
                raise ConfigurationError(f"--set cannot set {', '.join(foreign)} here: see the options of this command")
            command(**values, options=given | with_model_settings(settings))

        return with_parameters(command, [*(each for name, each in own.items() if name != "options"), *added], call)

    return decorate


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """An option whose help and default are those of the field; a tuple is an option that can be repeated."""
    given = field.annotation
    kinds = get_args(given) if get_origin(given) in (Union, UnionType) else (given,)
    first, *others = (kind for kind in kinds if kind is not NoneType)
    is_repeated = get_origin(first) is tuple
    like = get_args(_SHARED[name])[1] if name in _SHARED else None
    words = str((field.description or "") if like is None else like.help)
    option = typer.Option(
        f"--{(name.removesuffix('s') if is_repeated else name).replace('_', '-')}",
        help=words if not is_repeated or words.endswith("Repeatable.") else f"{words} Repeatable.",
        show_default=_default(name, field.default),
        rich_help_panel="Method and protocol",
        metavar="|".join(TASKS) if name == "tasks" else like and like.metavar,
        envvar=like and like.envvar,
        parser=parse_value if others else None,  # such as `int | Literal["auto"]`
        autocompletion=from_names(lambda: list(_NAMES[name])) if name in _NAMES else None,
        case_sensitive=False,
    )
    kind: Any = first if first in (int, float, bool) or get_origin(first) is Literal else str
    kind = list[str] if is_repeated else kind
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _default(name: str, value: Any) -> str | bool:
    """The default of an option as the help shows it; False: not at all."""
    if value in (None, ()):
        return False
    if name in SASRecScorer.defaults:
        return f"the model's; {value} for mf"
    return _DEFAULTS.get(name, str(value))
