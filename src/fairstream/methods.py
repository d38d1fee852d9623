"""Methods by name, the paper's among them: a strategy, a fairness loss, and what else there is to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar, get_args

from pydantic import Field, field_validator, model_validator

from fairstream.errors import ConfigurationError
from fairstream.evaluation import Metric, Reranker, resolve_metrics
from fairstream.models import ModelFactory, is_closed_form, model_defaults, model_factory
from fairstream.objectives import FAIRNESS_LOSSES, LOSSES, DisparityLoss, FairnessLoss, Loss, Objective
from fairstream.objectives.fairness import Kind
from fairstream.registry import Registry
from fairstream.strategies import (
    STRATEGIES,
    DisparityController,
    RestartByBound,
    RestartEvery,
    RestartOnDegradation,
    Side,
    Strategy,
)
from fairstream.training import CUSTOM, EngineChoice, Hyperparameters, choose_engine


@dataclass(frozen=True)
class Method:
    """A strategy and a fairness loss, by their registered names, and what else a method changes."""

    name: str
    strategy: str
    fairness: str | None = None
    """None: the recommendation loss alone."""
    wrap_model: Callable[[ModelFactory], ModelFactory] | None = None
    """Changes the model before it is trained."""
    engine: Callable[[MethodConfig], EngineChoice] | None = None
    """Trains with steps of its own."""
    reranker: Callable[[MethodConfig], Reranker] | None = None
    """Chooses the lists of all users together, which only an experiment can do."""


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

CONTROLLER_OPTIONS = (
    "max_disparity",
    "min_quality",
    "max_group_loss",
    "disparity_side",
    "disparity_lever",
    "disparity_task",
    "disparity_metric",
)
"""Options of the controller of the disparity; they have no effect without `max_disparity`."""


class MethodConfig(Hyperparameters):
    """A method and its hyperparameters.

    >>> MethodConfig(method="retrain-fair", fairness_weight=2).method
    'Retrain-Fair'
    """

    method: str = "FADE"
    """Pretrain, Pretrain-Fair, Retrain, Retrain-Fair, Finetune, FADE-Abs, FADE, Rerank, Adver, or a registered \
method (in any case)."""
    strategy: str | None = None
    """What each update learns, instead of the method's own strategy: keep, retrain, fine-tune, window, replay, \
restart-on-degradation, restart-by-bound, or a registered strategy."""
    fairness: str | None = None
    """Fairness loss, instead of the method's own: signed or absolute (the paper's), largest (the largest gap of a \
group behind the rest, for any number of groups), group-dro (the likelihood of the worst group), cvar (that of the \
worst interactions; needs no groups), or a registered one."""
    adversary_weight: float = Field(10.0, ge=0)
    """γ, the weight of the adversary in Adver; the paper tries 1, 10, 20 and 50."""
    restart: Literal["never", "on-degradation", "by-bound"] = "never"
    """on-degradation: retrain on all data once a test says that the quality, or a group's gap to the rest, is worse \
than since the last restart; by-bound: once the bounds of Theorems 1 and 2, estimated from the stream, say that \
fine-tuning has cost more than a restart."""
    restart_every: int | None = Field(None, ge=1)
    """Retrain on all data every R-th period, fine-tune in between."""
    max_disparity: float | None = Field(None, gt=0, lt=1)
    """The largest gap between a group and the rest that is accepted: a controller sets how much each group's \
events count, or λ, from the periods so far, instead of fairness_weight. It starts from group_weight."""
    min_quality: float | None = Field(None, gt=0, lt=1)
    """The least quality of everyone that is accepted for it; below, the controller gives way."""
    max_group_loss: float | None = Field(None, gt=0, lt=1)
    """The largest share of its quality that any group may lose to it; beyond, the controller gives way. (Measured \
beside recent popularity, so that a hard period is no loss.)"""
    disparity_side: Side = "behind"
    """behind: no group may be further behind the rest than max_disparity; both: nor ahead of it, with three \
groups or more."""
    disparity_lever: Literal["auto", "event-weights", "fairness-loss"] = "auto"
    """What the controller sets in models trained by gradient descent: event-weights, how much each group's events \
count in the softmax loss; fairness-loss, λ; auto, event-weights where the loss takes them. Closed forms \
have weights of events alone."""
    disparity_task: Literal["event", "next"] = "next"
    """Where that gap is measured: event, at each event of the period just ended; next, one list for it."""
    disparity_metric: str = "ndcg@20"
    """In which metric, as NAME@K."""
    rerank_tolerance: float = Field(0.001, ge=0)
    """ε of Rerank: how far the groups' F1, by the model's own labels, may be apart in the lists chosen."""

    @field_validator("method")
    @classmethod
    def _known_method(cls, name: str) -> str:
        return METHODS.canonical(name)

    @field_validator("strategy")
    @classmethod
    def _known_strategy(cls, name: str | None) -> str | None:
        return name if name in (None, CUSTOM) else STRATEGIES.canonical(name)

    @field_validator("fairness")
    @classmethod
    def _known_fairness(cls, name: str | None) -> str | None:
        return name if name in (None, CUSTOM) else FAIRNESS_LOSSES.canonical(name)

    @model_validator(mode="after")
    def _restart_fits(self) -> Self:
        if self.restart != "never" and self.restart_every is not None:
            raise ValueError("restart and restart_every are two ways to restart; give one of them")
        if self.restarts and self.strategy is not None:
            raise ValueError("a strategy decides itself when to restart; give strategy or restart, not both")
        if self.restarts and METHODS[self.method].strategy != "fine-tune":
            able = ", ".join(name for name, method in METHODS.items() if method.strategy == "fine-tune")
            raise ValueError(f"only fine-tuning methods restart ({able}), {self.method} does not")
        return self

    @model_validator(mode="after")
    def _target_fits(self) -> Self:
        if self.max_disparity is None:
            for name in ("min_quality", "max_group_loss"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} goes with max_disparity, the gap that is accepted; give both")
            return self
        resolve_metrics((self.disparity_metric,), 20, {})
        return self

    @model_validator(mode="after")
    def _fairness_fits(self) -> Self:
        name = self.fairness_name
        if name == "cvar" and self.fairness_ema_decay is not None:
            raise ValueError("cvar has no means of groups to accumulate; leave fairness_ema_decay out")
        if self.fairness_weight != "auto" or name is None:
            return self
        if name not in (*get_args(Kind), CUSTOM):
            raise ValueError(
                f"fairness_weight='auto' goes with the fairness losses {' and '.join(get_args(Kind))}, "
                f"got {name!r}; give a number"
            )
        if self.max_disparity is not None:
            raise ValueError("with max_disparity the weight is found; give it or fairness_weight='auto', not both")
        return self

    @property
    def restarts(self) -> bool:
        """Whether there is any restart at all."""
        return self.restart != "never" or self.restart_every is not None

    @property
    def has_lever(self) -> bool:
        """Whether anything is done for fairness: a fairness loss, weights of groups, a controller, or by the method."""
        method = METHODS[self.method]
        by_loss = self.fairness_name is not None and self.fairness_weight != 0
        by_adversary = method.engine is not None and self.adversary_weight > 0
        by_weight = self.max_disparity is not None or self.group_weight != 1
        return by_loss or by_weight or by_adversary or method.reranker is not None

    def without_lever(self) -> Self:
        """The same with nothing done for fairness in training; a reranker works on finished lists."""
        return self.with_options(
            fairness_weight=0.0,
            group_weight=1.0,
            adversary_weight=0.0,
            max_disparity=None,
            min_quality=None,
            max_group_loss=None,
        )

    @property
    def strategy_name(self) -> str:
        """The strategy in force."""
        if self.restarts:
            return "restart"
        return self.strategy or METHODS[self.method].strategy

    @property
    def fairness_name(self) -> str | None:
        """The fairness loss in force."""
        return self.fairness or METHODS[self.method].fairness


def note_without_groups(config: MethodConfig) -> str:
    """What it means that there are no groups, for a configuration of `Parts.without_groups`."""
    if config.has_lever:
        return f"there are no groups: {config.fairness_name} is the fairness loss, and no disparity is measured"
    return "there are no groups: nothing is done for fairness, and no disparity is measured"


ConfigT = TypeVar("ConfigT", bound=MethodConfig)


@dataclass(frozen=True)
class Parts:
    """Objects of the caller's own, in place of registered names."""

    model: ModelFactory | None = None
    loss: Loss | None = None
    fairness: FairnessLoss | None = None
    strategy: Strategy | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)

    @classmethod
    def split(
        cls,
        *,
        model: str | ModelFactory | None,
        loss: str | Loss | None,
        fairness: str | FairnessLoss | None,
        strategy: str | Strategy | None,
        metrics: Sequence[str] | Mapping[str, Metric] | None = None,
        **options: Any,
    ) -> tuple[dict[str, Any], Parts]:
        """Tell names, which a configuration can hold, from objects of the caller's own.

        Returns
        -------
        options
            What is given of a configuration, or wanted by a model of the caller's own; "custom" stands
            for an object.
        parts
            The objects.

        """
        given: dict[str, Any] = {"model": model, "loss": loss, "fairness": fairness, "strategy": strategy}
        for name, part in given.items():
            _check_part(name, part)
        objects = {name: None if isinstance(part, str) else part for name, part in given.items()}
        options |= {name: part if part is None or isinstance(part, str) else CUSTOM for name, part in given.items()}
        if metrics is not None:
            options["metrics"] = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        wanted = {} if model is None or isinstance(model, str) else model_defaults(model, loss)
        options = {**wanted, **{name: value for name, value in options.items() if value is not None}}
        return options, cls(**objects, metrics=dict(metrics) if isinstance(metrics, Mapping) else {})

    def check(self, config: MethodConfig) -> None:
        """Raise a `ConfigurationError` where the configuration needs an object that is not here."""
        for name in ("model", "loss", "fairness", "strategy"):
            if getattr(config, name) == CUSTOM and getattr(self, name) is None:
                raise ConfigurationError(f"this was set up with a {name} of your own; pass it again as {name}=")

    def make_model_factory(self, config: MethodConfig) -> ModelFactory:
        """(n_users, n_items) → the model of a method."""
        factory = self.model or model_factory(config.model, config.embedding_dim)
        wrap = METHODS[config.method].wrap_model
        return factory if wrap is None else wrap(factory)

    def make_objective(self, config: MethodConfig) -> Objective:
        """The loss of a method."""
        name = config.fairness_name
        weight = 0.0 if name is None or config.max_disparity is not None else config.fairness_weight
        if weight == "auto" and is_closed_form(self.model or config.model):
            raise ConfigurationError(
                f"fairness_weight='auto' is computed from gradients, and the model {config.model} is computed in "
                f"closed form; give a number, or another model"
            )
        return Objective(
            lambda_=0.0 if weight == "auto" else weight,
            n=config.n_negatives,
            mu=config.n_fairness_negatives if weight != 0 else config.n_negatives,  # no more are drawn than are used
            loss=self.loss or LOSSES[config.loss],
            fairness=self._fairness_loss(config),
            is_auto=weight == "auto",
        )

    def _fairness_loss(self, config: MethodConfig) -> FairnessLoss:
        """The fairness loss in force, whatever its weight."""
        if self.fairness is not None:
            return self.fairness
        name, decay = config.fairness_name, config.fairness_ema_decay
        if name is None:
            return DisparityLoss("signed", config.surrogate, config.temperature)
        return FAIRNESS_LOSSES[name](
            temperature=config.temperature,
            surrogate=config.surrogate,
            step_size=config.dro_step_size,
            share=config.cvar_share,
            **({} if decay is None else {"ema_decay": decay}),
        )

    def without_groups(self, config: ConfigT) -> ConfigT:
        """The configuration where there are no groups: only a fairness loss that needs none stays on."""
        without = config.without_lever()
        is_missing = self.fairness is None and config.fairness == CUSTOM  # a stored run does not hold the object
        if is_missing or getattr(self._fairness_loss(config), "needs_groups", True):
            return without
        return without.with_options(fairness_weight=config.fairness_weight)

    def make_controller(self, config: MethodConfig) -> DisparityController | None:
        """What holds the disparity, where one is accepted."""
        if config.max_disparity is None:
            return None
        return DisparityController(
            config.max_disparity, config.min_quality, config.max_group_loss, config.disparity_side
        )

    def make_strategy(self, config: MethodConfig) -> Strategy:
        """How a method goes from period to period."""
        if self.strategy is not None:
            return self.strategy
        if config.restart_every is not None:
            return RestartEvery(config.restart_every)
        if config.restart != "never":
            return RestartOnDegradation() if config.restart == "on-degradation" else RestartByBound()
        strategy = STRATEGIES[config.strategy or METHODS[config.method].strategy]
        return strategy() if isinstance(strategy, type) else strategy

    def engine_choice(self, config: MethodConfig) -> EngineChoice:
        """What runs the steps of a method."""
        engine = METHODS[config.method].engine
        return choose_engine if engine is None else engine(config)


def _check_part(name: str, part: Any) -> None:
    """Raise a `ConfigurationError` where a part is neither a name nor an object that can stand for one."""
    if name == "strategy":
        is_possible, own = isinstance(part, Strategy), "a Strategy"
    else:
        is_possible, own = callable(part), "a function or class"
    if not (part is None or isinstance(part, str) or is_possible):
        weight = "; the weight of the fairness loss is fairness_weight" if name == "fairness" else ""
        raise ConfigurationError(f"{name} must be a name or {own} of your own, got {part!r}{weight}")
