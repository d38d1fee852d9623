"""Methods by name, their options as the command line and files give them, and the registration of custom parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
from pydantic import Field, ValidationInfo, field_validator, model_validator

from fairstream.configuration import Configuration
from fairstream.errors import ConfigurationError
from fairstream.evaluation import METRICS, Metric, PeriodTask, resolve_metrics
from fairstream.models import MODELS, Model, ModelConfig, ModelFactory, resolve_model
from fairstream.objectives import FAIRNESS_LOSSES, LOSSES, SURROGATES, FairnessLoss, Loss
from fairstream.objectives.fairness import MIN_TEMPERATURE
from fairstream.recipe import GroupWeight, Recipe
from fairstream.registry import CUSTOM, Registry
from fairstream.strategies import STRATEGIES, FineTune, LeastRegret, MaxGap, RestartOnDegradation, Strategy, Target
from fairstream.training import Training
from fairstream.training.config import defaults_for


@dataclass(frozen=True)
class Method:
    """A strategy and a fairness loss, by their registered names.

    A method that does more has its own kind of `Run` and works in experiments only.
    """

    name: str
    strategy: str
    fairness: str | None = None
    """None: the recommendation loss alone."""
    lever: Literal["training", "lists"] | None = None
    """Where else it acts on groups: in the training of the model, or in the finished lists."""
    options: type[Configuration] | None = None
    """Its own options; a field that `RunConfig` has, too, replaces its default."""
    run: Callable[..., Any] | None = None
    """Its kind of `Run`, with the parameters of `Run`."""


METHODS: Registry[Method] = Registry("method")
"""All methods by the names that the paper gives them."""
for _method in (
    Method("Pretrain", "keep"),
    Method("Pretrain-Fair", "keep", "signed"),
    Method("Retrain", "retrain"),
    Method("Retrain-Fair", "retrain", "signed"),
    Method("Finetune", "fine-tune"),
    Method("FADE-Abs", "fine-tune", "absolute"),
    Method("FADE", "fine-tune", "signed"),
):
    METHODS.register(_method.name, _method)
METHODS.defer("fairstream.paper.run", "Rerank", "Adver")

TARGET_OPTIONS = ("target", "max_gap", "max_group_loss", "target_task", "target_metric")
"""Options of the target; without one they have no effect."""


class MethodConfig(Training):
    """A method and its options, flat: what the command line, `fairstream.toml` and a stored run hold.

    >>> MethodConfig(method="retrain-fair", fairness_weight=2).method
    'Retrain-Fair'
    """

    model: str = "mf"
    """Base recommender: mf (matrix factorisation), ncf (neural collaborative filtering), item-item (regression on \
the user's items in closed form), transitions (which items follow which), gru and sasrec (they read the user's latest \
items in order), blend (sasrec, item-item, transitions and popularity), popularity, recent-popularity, or a registered \
model. Some models have other defaults for the options below."""
    model_settings: dict[str, Any] = Field(default_factory=dict)
    """Hyperparameters of the model: `embedding_dim` of most, `length`, `blocks` and `dropout` of sasrec, `ridge` of \
item-item, `half_life` of recent-popularity; those of a part of the blend as sequence.length or item_item.ridge."""
    loss: str = "bpr"
    """Recommendation loss: bpr (the paper's), sampled-softmax, softmax (over all items), or a registered one."""
    method: str = "FADE"
    """Pretrain, Pretrain-Fair, Retrain, Retrain-Fair, Finetune, FADE-Abs, FADE, Rerank, Adver, or a registered \
method (in any case)."""
    strategy: str | None = None
    """What each update learns, instead of the method's own strategy: keep, retrain, fine-tune, window, replay, \
restart-on-degradation, or a registered strategy."""
    update_epochs: int = Field(10, ge=1)
    """Epochs of fine-tuning per period."""
    update_learning_rate: float | None = Field(None, gt=0)
    """Adam's learning rate in fine-tuning; by default that of the model, else learning_rate."""
    restart: Literal["never", "on-degradation"] = "never"
    """on-degradation: retrain on all data once a test says that the quality, or a group's gap to the rest, is worse \
than since the last restart."""
    restart_every: int | None = Field(None, ge=1)
    """Retrain on all data every R-th period, fine-tune in between."""
    fairness: str | None = None
    """Fairness loss, instead of the method's own: signed or absolute (the paper's), largest (the largest gap of a \
group behind the rest, for any number of groups), group-dro (the likelihood of the worst group), or a registered one."""
    fairness_weight: float = Field(0.5, ge=0)
    """λ, the weight of the fairness loss; 0 switches it off."""
    surrogate: str = "hit"
    """What stands for the quality of a user's ranking in the fairness loss: hit (the paper's Differentiable Hit), \
neural-ndcg or approx-ndcg, which the paper compares with it; log-likelihood of the item among all items."""
    temperature: float = Field(3.0, ge=MIN_TEMPERATURE)
    """τ, how soft the relaxed ranking is; towards 0 it becomes the exact one."""
    n_fairness_negatives: int = Field(4, ge=1)
    """μ, negative items per interaction in the fairness loss."""
    group_weight: float = Field(1.0, gt=0)
    """How many times an event of weighted_group counts: in models computed in closed form and in the softmax loss. \
Users whom a rare item could identify count once."""
    weighted_group: str | None = None
    """The group that group_weight is for; by default every group but the advantaged one."""
    target: Literal["least-regret", "none"] = "none"
    """What each update does for groups: least-regret serves, of all levels tried on the periods so far, the one with \
the smallest largest regret; none."""
    max_gap: float | None = Field(None, gt=0, lt=1)
    """The largest accepted gap between a group and the rest; instead of target, each update serves the level that \
holds it at the lowest cost, and says so if none does."""
    max_group_loss: float = Field(0.02, ge=0, lt=1)
    """The largest share of its quality that least-regret may cost any group."""
    target_task: PeriodTask = "next"
    """The lists by which the target judges: event, at each event of the period just ended; moment, the same with one \
list for a user's simultaneous events; next, one list for it."""
    target_metric: str = "ndcg@20"
    """The metric by which the target judges, as NAME@K."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, given: Any) -> Any:
        """Take options that are not given from the model."""
        if not isinstance(given, dict):
            return given
        name = given.get("model", cls.model_fields["model"].default)
        if not (isinstance(name, str) and name != CUSTOM and name in MODELS):
            return given
        default = cls.model_fields["device"].default if "device" in cls.model_fields else "cpu"
        device = kind_of(given.get("device", default))
        return _with_defaults(resolve_model(name, given.get("model_settings")), given, device)

    @field_validator("model", "method", "strategy", "surrogate", "fairness")
    @classmethod
    def _known_name(cls, name: str | None, info: ValidationInfo) -> str | None:
        field = str(info.field_name)
        return name if name is None or (name == CUSTOM and field in _OBJECTS) else _REGISTRIES[field].canonical(name)

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if self.restart != "never" and self.restart_every is not None:
            raise ValueError("restart and restart_every are two ways to restart; give one of them")
        if self.restarts and self.strategy is not None:
            raise ValueError("a strategy decides itself when to restart; give strategy or restart, not both")
        if self.restarts and METHODS[self.method].strategy != "fine-tune":
            able = ", ".join(name for name, method in METHODS.items() if method.strategy == "fine-tune")
            raise ValueError(f"only fine-tuning methods restart ({able}), {self.method} does not")
        if self.has_target:
            resolve_metrics((self.target_metric,), 20, {})
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def restarts(self) -> bool:
        return self.restart != "never" or self.restart_every is not None

    @property
    def has_target(self) -> bool:
        return self.max_gap is not None or self.target != "none"

    @property
    def strategy_name(self) -> str:
        if self.restarts:
            return "restart"
        return self.strategy or METHODS[self.method].strategy

    @property
    def fairness_name(self) -> str | None:
        return self.fairness or METHODS[self.method].fairness

    def with_options(self, **options: Any) -> Self:
        """The same options with some changed, checked again; another model brings its own settings."""
        if "model" in options and options["model"] != self.model:
            return type(self)(**{**self.chosen, "model_settings": {}, **options})
        return super().with_options(**{**self.model_dump(), **options})

    @property
    def chosen(self) -> dict[str, Any]:
        """The model, and the options that differ from what it brings.

        >>> MethodConfig(model="blend", loss="softmax", n_negatives=2).chosen
        {'model': 'blend', 'n_negatives': 2}
        """
        about = {name: value for name, value in self.model_dump().items() if name in ("model", "device")}
        brought, own = type(self)(**about).model_dump(), self.model_dump()  # a method may add options
        return about | {name: own[name] for name in own if name not in brought or own[name] != brought[name]}

    def without_lever(self) -> Self:
        """The same without fairness loss, group weights and target."""
        off = {"fairness_weight": 0.0, "group_weight": 1.0, "weighted_group": None, "target": "none", "max_gap": None}
        return self.with_options(**off)

    def recipe(self, parts: Parts | None = None) -> Recipe:
        """The recipe of these options; `parts` must hold the objects that are named "custom"."""
        parts = parts or Parts()
        for name in _OBJECTS:
            if getattr(self, name) == CUSTOM and getattr(parts, name) is None:
                raise ConfigurationError(f"this was set up with a custom {name}; pass it again as {name}=")
        settings = {name: getattr(self, name) for name in Training.model_fields}
        fairness = parts.fairness
        if fairness is None and self.fairness_name is not None:
            fairness = _make_loss(self.fairness_name, self.model_dump())
        return Recipe.resolve(
            parts.model or resolve_model(self.model, self.model_settings),
            training=Training(**settings | ({} if parts.loss is None else {"loss": parts.loss})),
            strategy=parts.strategy or self._strategy(),
            fairness=(*(() if fairness is None else (fairness,)), GroupWeight(self.group_weight, self.weighted_group)),
            fairness_weight=self.fairness_weight,
            n_fairness_negatives=self.n_fairness_negatives,
            target=self._target(),
            update_epochs=self.update_epochs,
            update_learning_rate=self.update_learning_rate,
        )

    def _target(self) -> Target | None:
        if not self.has_target:
            return None
        judged = self.target_task, self.target_metric
        return LeastRegret(self.max_group_loss, *judged) if self.max_gap is None else MaxGap(self.max_gap, *judged)

    def _strategy(self) -> Strategy:
        updates: dict[str, Any] = {"epochs": self.update_epochs, "learning_rate": self.update_learning_rate}
        if self.restart == "on-degradation":
            return RestartOnDegradation(**updates)
        if self.restart_every is not None:
            return FineTune(restart_every=self.restart_every, **updates)
        part = STRATEGIES[self.strategy or METHODS[self.method].strategy]
        return part(**_accepted(part, updates)) if isinstance(part, type) else part


_REGISTRIES: dict[str, Registry[Any]] = {
    "model": MODELS,
    "method": METHODS,
    "strategy": STRATEGIES,
    "surrogate": SURROGATES,
    "fairness": FAIRNESS_LOSSES,
}
_OBJECTS = ("model", "loss", "fairness", "strategy")
"""Options that can be objects; a flat configuration names them "custom"."""
_OF_A_LOSS = {
    "fairness": "name",
    "fairness_weight": "weight",
    "n_fairness_negatives": "n_negatives",
    "temperature": "temperature",
    "surrogate": "surrogate",
}
"""Flat options, and their names in a fairness loss."""


def _with_defaults(model: Model, given: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The options given over the defaults of the model."""
    defaults = model.defaults_on(device)
    updates = {name: defaults[name] for name in ("update_epochs", "update_learning_rate") if name in defaults}
    own = {**defaults_for(defaults, given, given.get("loss")), **updates}
    return {**own, **given, "model_settings": dict(model.settings)}


def kind_of(device: Any) -> str:
    """The kind of a device that an option names: "cpu" or "cuda"."""
    return "cuda" if device == "cuda" or (device == "auto" and torch.cuda.is_available()) else "cpu"


def _make_loss(name: str, options: Mapping[str, Any]) -> FairnessLoss:
    """The fairness loss of this name with the flat options that it takes."""
    make = FAIRNESS_LOSSES[name]
    own = {field: options[option] for option, field in _OF_A_LOSS.items() if option in options and field != "name"}
    return make(**_accepted(make, own))


def _accepted(part: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a class or function takes."""
    known = inspect.signature(part).parameters
    return {name: value for name, value in options.items() if name in known}


NO_GROUPS = "there are no groups: nothing is done for fairness, and no disparity is measured"


@dataclass(frozen=True)
class Parts:
    """Objects in place of registered names."""

    model: Any = None
    loss: Loss | None = None
    fairness: FairnessLoss | None = None
    strategy: Strategy | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)

    @classmethod
    def split(
        cls, *, metrics: Sequence[str] | Mapping[str, Metric] | None = None, **options: Any
    ) -> tuple[dict[str, Any], Parts]:
        """Return the options for a flat configuration, with "custom" in place of objects, and the objects."""
        options = {name: value for name, value in options.items() if value is not None}
        objects: dict[str, Any] = {}
        for name in _OBJECTS:
            part = options.get(name)
            if part is None or isinstance(part, str):
                continue
            if name == "strategy" and not isinstance(part, Strategy):
                raise ConfigurationError(f"strategy must be a name or a Strategy, got {part!r}")
            if name in ("loss", "fairness") and not callable(part):
                weight = "; the weight of the fairness loss is fairness_weight" if name == "fairness" else ""
                raise ConfigurationError(f"{name} must be a name or a function or class, got {part!r}{weight}")
            if name == "fairness" and getattr(part, "name", None) in FAIRNESS_LOSSES:
                options |= {option: getattr(part, own) for option, own in _OF_A_LOSS.items() if hasattr(part, own)}
                if _make_loss(part.name, options) == part:
                    continue  # the flat options say it all
            if name == "model":
                part = resolve_model(part)
                if part.registered_name is not None:
                    options |= {"model": part.registered_name, "model_settings": dict(part.given)}
                    continue
                options = _with_defaults(part, options, kind_of(options.get("device", "auto")))
            objects[name], options[name] = part, CUSTOM
        if metrics is not None:
            options["metrics"] = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        return options, cls(**objects, metrics=dict(metrics) if isinstance(metrics, Mapping) else {})


def register_model(name: str, model: type[ModelConfig] | ModelFactory) -> None:
    """Make a model available by name: a `ModelConfig` class, a `Scorer` class or a function that makes a `Scorer`.

    Keyword parameters of a `Scorer` class or function are its settings (`--set NAME=VALUE`).
    """
    MODELS.register(name, model)


def register_loss(name: str, loss: Loss) -> None:
    """Make a recommendation loss available by name: scores (B, 1 + n), positive in column 0 → scalar."""
    LOSSES.register(name, loss)


def register_fairness(name: str, fairness: FairnessLoss) -> None:
    """Make a fairness loss available by name: (scores (B, 1 + μ), groups (B,), signs (G,)) → scalar."""
    FAIRNESS_LOSSES.register(name, _Constant(fairness))


def register_metric(name: str, metric: Metric) -> None:
    """Make a metric available by name: (lists, truth) → one value a user, or one for all."""
    METRICS.register(name, metric)


def register_strategy(name: str, strategy: Strategy | type[Strategy]) -> None:
    """Make a strategy available by name: an object, or a class that needs no arguments."""
    STRATEGIES.register(name, strategy)


def register_method(method: Method) -> None:
    """Make a method (a strategy with a fairness loss) available by its name."""
    METHODS.register(method.name, method)


@dataclass(frozen=True)
class _Constant:
    """Gives the same loss whatever the options."""

    loss: FairnessLoss

    def __call__(self, **options: Any) -> FairnessLoss:
        return self.loss
