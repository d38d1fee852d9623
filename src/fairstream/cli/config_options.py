"""An option for each field of a run's configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from fairstream.cli import options as shared
from fairstream.cli.options import from_names
from fairstream.evaluation import REPAIRS
from fairstream.experiments import RunConfig
from fairstream.methods import METHODS
from fairstream.models import MODELS
from fairstream.objectives import FAIRNESS_LOSSES, LOSSES
from fairstream.registry import Registry
from fairstream.strategies import STRATEGIES

_FIRST = ("method", "model", "protocol")
"""The options that most calls give."""
_REGISTRIES: Mapping[str, Registry[Any]] = {
    "method": METHODS,
    "model": MODELS,
    "loss": LOSSES,
    "fairness": FAIRNESS_LOSSES,
    "strategy": STRATEGIES,
}
PROTOCOLS = ["strict", "paper", *(f"paper+{repair}" for repair in (*REPAIRS, "optimizer"))]


class TaskName(StrEnum):
    """The tasks, for an option that can be repeated."""

    EVENT = "event"
    NEXT = "next"
    REMAIN = "remain"


_SHARED: Mapping[str, Any] = {
    "device": shared.Device,
    "seed": shared.Seed,
    "tasks": shared.Task,
    "metrics": shared.Metric,
    "plugins": shared.Plugins,
    "k": shared.ListLength,
    "min_group_size": shared.MinGroupSize,
}
"""Options that other commands have too: what they say there is said here."""


def with_config_options(
    config: type[RunConfig], only: Collection[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add an option to a command for each field of the configuration, or for some; it gets those given as `options`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [parameter for name, parameter in signature.parameters.items() if name != "options"]
        names = [*_FIRST, *(name for name in config.model_fields if name not in _FIRST)]
        names = [name for name in names if only is None or name in only]
        fields = [_parameter(name, config.model_fields[name]) for name in names]

        def with_options(**values: Any) -> None:
            given = {name: _plain(value) for name in names if (value := values.pop(name)) not in (None, [])}
            command(**values, options=given)

        with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
        with_options.__annotations__ = {}
        with_options.__signature__ = signature.replace(parameters=[*own, *fields])  # type: ignore[attr-defined]
        return with_options

    return decorate


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """An option whose help and default are those of the field; a tuple is an option that can be repeated."""
    kinds = [kind for kind in _alternatives(field.annotation) if kind is not NoneType]
    is_repeated = get_origin(kinds[0]) is tuple
    is_number_or_word = len(kinds) > 1 and get_origin(kinds[-1]) is Literal
    like = _shared_option(name)
    option = typer.Option(
        f"--{(name.removesuffix('s') if is_repeated else name).replace('_', '-')}",
        help=_help(field, like, is_repeated=is_repeated),
        show_default=str(field.default) if field.default not in (None, ()) else False,
        rich_help_panel="Method and protocol",
        parser=_number_or_word if is_number_or_word else None,
        metavar="NUMBER|WORD" if is_number_or_word else None if like is None else like.metavar,
        envvar=None if like is None else like.envvar,
        autocompletion=_completion(name),
        case_sensitive=False,
    )
    kind: Any = kinds[0] if kinds[0] in (int, float, bool) or get_origin(kinds[0]) is Literal else str
    if is_repeated:
        kind = list[TaskName] if name == "tasks" else list[str]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _plain(value: Any) -> Any:
    return [str(each) for each in value] if isinstance(value, list) else value


def _shared_option(name: str) -> Any:
    return get_args(_SHARED[name])[1] if name in _SHARED else None


def _help(field: FieldInfo, like: Any, *, is_repeated: bool) -> str:
    words = str((field.description or "") if like is None else like.help)
    return words if not is_repeated or words.endswith("Repeatable.") else f"{words} Repeatable."


def _completion(name: str) -> Callable[[str], list[str]] | None:
    if name == "protocol":
        return from_names(lambda: PROTOCOLS)
    return from_names(lambda: list(_REGISTRIES[name])) if name in _REGISTRIES else None


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
