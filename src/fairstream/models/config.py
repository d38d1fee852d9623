"""Hyperparameters of models: small frozen objects that build the model and are saved with its checkpoints."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import torch

from fairstream.configuration import Configuration
from fairstream.errors import ConfigurationError
from fairstream.models.scorer import ModelFactory, Scorer, check_kind, make_model
from fairstream.registry import Registry

_TIMES = "with_times"
FEATURE_BUCKETS = 4096  # rows that the features of items share, by their hash, in a custom model that reads features


class ModelConfig(Configuration):
    """Hyperparameters of a model. The built-in ones are in `fairstream.models`.

    A subclass names its fields, with their ranges and defaults, and the `Scorer` class that it builds. The class
    takes (n_users, n_items) and the fields as keywords. A field `feature_buckets` declares that the model reads
    features of items; the class gets it only if items have features. A class that takes `with_times` can read times.

    Examples
    --------
    >>> from fairstream.models import SASRec
    >>> SASRec(length=200, blocks=2).with_options(dropout=0.3)
    SASRec(length=200, blocks=2, dropout=0.3)

    """

    scorer: ClassVar[type[Scorer]]
    """The class of the model."""

    def build(self, n_users: int, n_items: int, *, with_features: bool = False, with_times: bool = False) -> Scorer:
        """Return a freshly initialised model; it reads features of items and timestamps if there are any and it can."""
        unused = () if with_features else ("feature_buckets",)
        settings = {name: getattr(self, name) for name in type(self).model_fields if name not in unused}
        return self.scorer(n_users, n_items, **settings, **_with_times(self.scorer, with_times))

    @property
    def reads_features(self) -> bool:
        """Whether the model reads features of items."""
        return "feature_buckets" in type(self).model_fields

    @property
    def settings(self) -> dict[str, Any]:
        """Every hyperparameter by name, as JSON holds it."""
        return self.model_dump(mode="json")

    @property
    def given(self) -> dict[str, Any]:
        """The hyperparameters that were given, as JSON holds them."""
        return self.model_dump(mode="json", exclude_unset=True)

    @property
    def registered_name(self) -> str | None:
        """The name in the registry; None: it has none."""
        return MODELS.name_of(type(self))

    @property
    def name(self) -> str:
        """The registered name, or that of the class."""
        return self.registered_name or type(self).__name__

    @classmethod
    def _unknown(cls, name: str) -> str:
        return _unknown_setting(name, MODELS.name_of(cls) or cls.__name__, cls.model_fields)

    def defaults_on(self, device: str) -> Mapping[str, Any]:
        """Training settings that suit the model better than the paper's, on a device: "cpu" or "cuda"."""
        return self.scorer.defaults

    def sized(self, device: str, n_events: int) -> Self:
        """Return the model with the settings that are None filled in for a device and a number of events."""
        return self

    def with_options(self, **options: Any) -> Self:
        """Return the same model with some settings changed; those that were not given stay so."""
        return type(self)(**{**self.given, **options})


@dataclass(frozen=True)
class CustomModel:
    """A `Scorer` class, or any function (n_users, n_items) → `Scorer`, with the settings that it takes as keywords."""

    factory: Callable[..., Scorer]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = [keyword.name for keyword in self._keywords]
        if any(keyword.kind is keyword.VAR_KEYWORD for keyword in self._keywords):
            return
        for name in self.settings:
            if name not in known:
                raise ConfigurationError(_unknown_setting(name, self.name, known))

    @cached_property
    def _keywords(self) -> list[inspect.Parameter]:
        """The parameters of the factory after the numbers of users and items."""
        parameters = list(inspect.signature(self.factory).parameters.values())
        keywords = [p for at, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY or at > 1]
        return [p for p in keywords if p.name != _TIMES]

    @property
    def given(self) -> Mapping[str, Any]:
        """The settings that were given."""
        return self.settings

    @property
    def all_settings(self) -> dict[str, Any]:
        """The settings, and the defaults of those that were not given."""
        defaults = {p.name: p.default for p in self._keywords if p.default is not p.empty}
        return {**defaults, **self.settings}

    @property
    def registered_name(self) -> str | None:
        """The name in the registry; None: it has none."""
        return MODELS.name_of(self.factory)

    @property
    def name(self) -> str:
        """The registered name, or that of the class or function."""
        factory = self.factory.func if isinstance(self.factory, partial) else self.factory
        return self.registered_name or str(getattr(factory, "__name__", type(factory).__name__))

    @cached_property
    def scorer(self) -> type[Scorer]:
        """The class of the model: the factory itself, or the class of the model that it makes."""
        kind = self.factory.func if isinstance(self.factory, partial) else self.factory
        if not isinstance(kind, type):
            with torch.random.fork_rng(devices=[]):  # the caller's own draws stay the same
                kind = type(self.factory(1, 1, **self.settings))
        return check_kind(kind)

    def defaults_on(self, device: str) -> Mapping[str, Any]:
        """Training settings that suit the model better than the paper's, on a device: "cpu" or "cuda"."""
        return self.scorer.defaults

    def sized(self, device: str, n_events: int) -> Self:
        """Return the model itself: it has one size."""
        return self

    @property
    def reads_features(self) -> bool:
        """Whether the factory takes `feature_buckets`."""
        return "feature_buckets" in inspect.signature(self.factory).parameters

    def build(self, n_users: int, n_items: int, *, with_features: bool = False, with_times: bool = False) -> Scorer:
        """Return a freshly initialised model; raises ModelError where the factory makes no `Scorer`."""
        settings = {name: value for name, value in self.settings.items() if name != "feature_buckets"}
        bound = self.factory.keywords if isinstance(self.factory, partial) else {}
        if with_features and self.reads_features and "feature_buckets" not in bound:
            settings["feature_buckets"] = self.settings.get("feature_buckets", FEATURE_BUCKETS)
        settings |= _with_times(self.factory, with_times)
        return make_model(partial(self.factory, **settings), n_users, n_items)


def _with_times(factory: Callable[..., Scorer], with_times: bool) -> dict[str, bool]:
    """The keyword that tells a model to read times, if there are times and it can."""
    return {_TIMES: True} if with_times and _TIMES in inspect.signature(factory).parameters else {}


Model = ModelConfig | CustomModel
MODELS: Registry[type[ModelConfig] | Callable[..., Scorer]] = Registry("model")
"""Models by name: `ModelConfig` classes, `Scorer` classes, or functions (n_users, n_items) → `Scorer`."""


def resolve_model(
    model: str | Model | type[ModelConfig] | ModelFactory, settings: Mapping[str, Any] | None = None
) -> Model:
    """Return the object behind a name, a class or a function.

    Parameters
    ----------
    model
        A registered name, a model's configuration, its class, a `Scorer` class or a function that makes one.
    settings
        Hyperparameters by name; those of a part after a dot (`sequence.length`).

    Raises
    ------
    ConfigurationError
        If the model or a setting is unknown, or a setting is out of range.

    Examples
    --------
    >>> resolve_model("item-item", {"ridge": 500})
    ItemItem(ridge=500.0)
    >>> resolve_model("blend", {"sequence.length": 200}).sequence.length
    200

    """
    if not isinstance(settings, Mapping | None):
        raise ConfigurationError(
            f"the settings of a model are values by name, such as {{'embedding_dim': 8}} (--set embedding_dim=8 on the "
            f"command line), got {settings!r}"
        )
    given = _nested(settings or {})
    if isinstance(model, ModelConfig):
        return model.with_options(**_merged(model.given, given)) if given else model
    if isinstance(model, CustomModel):
        return CustomModel(model.factory, {**model.settings, **given}) if given else model
    part = MODELS[model] if isinstance(model, str) else model
    if isinstance(part, type) and issubclass(part, ModelConfig):
        return part(**given)
    if not callable(part):
        raise ConfigurationError(
            f"model must be a name, one of fairstream.models, or a Scorer class or function, got {part!r}"
        )
    factory: Callable[..., Any] = part
    return CustomModel(factory, given)


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """{"sequence.length": 3} → {"sequence": {"length": 3}}."""
    nested: dict[str, Any] = {}
    for name, value in sorted(settings.items()):  # a part comes before its settings
        first, _, rest = name.partition(".")
        if rest:
            part = nested.get(first, {})
            part = part.given if isinstance(part, ModelConfig) else part
            if not isinstance(part, Mapping):
                raise ConfigurationError(f"{first} is a part of the model and {name} its setting; give one of them")
            nested[first] = _merged(part, _nested({rest: value}))
        else:
            nested[first] = value
    return nested


def _unknown_setting(name: str, model: str, known: Iterable[str]) -> str:
    settings = ", ".join(sorted(known))
    return f"{name} is not a setting of {model}; " + (f"its settings are {settings}" if settings else "it has none")


def _merged(known: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """`known` with `changed` over it, also inside of their common dictionaries."""
    both = {
        name: _merged(known[name], new)
        for name, new in changed.items()
        if isinstance(new, dict) and isinstance(known.get(name), dict)
    }
    return {**known, **changed, **both}
