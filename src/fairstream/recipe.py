"""The recipe of a recommender, resolved once: model, training, fairness, target and strategy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from fairstream.configuration import check_number
from fairstream.errors import ConfigurationError
from fairstream.models import (
    ClosedFormScorer,
    Model,
    ModelConfig,
    ModelFactory,
    Scorer,
    resolve_model,
    takes_weights,
)
from fairstream.objectives import FAIRNESS_LOSSES, LOSSES, DisparityLoss, FairnessLoss, Objective
from fairstream.registry import CUSTOM
from fairstream.strategies import STRATEGIES, TARGETS, Strategy, Target, target_named
from fairstream.training import EngineChoice, Training, choose_engine

DEFAULT_UPDATE_EPOCHS = 10  # the paper's, if neither the strategy nor the model sets the epochs of an update
AS_SAVED: Any = "as saved"  # the default of an option that stays as in the checkpoint


@dataclass(frozen=True)
class GroupWeight:
    """Count the events of a group `weight` times; `group` is its name, None: every group but the advantaged one.

    It acts on models computed in closed form, on the blend, and on sequence models with the softmax loss. Users that a
    rare item could identify count once.

    Examples
    --------
    >>> GroupWeight(2.0).weight
    2.0
    """

    weight: float = 2.0
    group: str | None = None

    def __post_init__(self) -> None:
        check_number("a group weight", self.weight, above=0)


Fairness = str | FairnessLoss | GroupWeight | tuple[Any, ...] | None
"""A fairness loss, group weights, or both in a tuple."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """All settings of learning, filled in. `resolve` makes it; nothing else interprets options."""

    model: Model
    training: Training  # with every setting filled in
    objective: Objective  # the recommendation loss, the fairness loss and its weight λ
    strategy: Strategy
    update_epochs: int
    update_learning_rate: float
    fairness: FairnessLoss | None = None
    n_fairness_negatives: int = 4  # μ, negative items per interaction in the fairness loss, whenever there is one
    group_weight: float = 1.0
    target: Target | None = None
    weighted_group: str | None = None  # None: every group but the advantaged one
    engine_choice: EngineChoice = choose_engine  # what runs the steps of gradient descent

    @classmethod
    def resolve(
        cls,
        model: str | Model | type[ModelConfig] | ModelFactory = "blend",
        *,
        fairness: Fairness = None,
        target: Target | str | None = None,
        strategy: str | Strategy = "fine-tune",
        training: Training | None = None,
        fairness_weight: float | None = None,
        n_fairness_negatives: int | None = None,
        update_epochs: int | None = None,
        update_learning_rate: float | None = None,
        device: str = "cpu",
    ) -> Recipe:
        """Fill in the options of `FairRecommender`, or raise a ConfigurationError.

        `fairness_weight` and `n_fairness_negatives` are λ and μ; by default the attributes `weight` and `n_negatives`
        of the fairness loss, else 0.5 and 4. `update_epochs` and `update_learning_rate` apply if the strategy has
        none; by default the model's own. `device`, "cpu" or "cuda", decides the model's own settings of training.
        """
        model = resolve_model(model)
        own = model.defaults_on(device)
        settings = _resolve_training(training).over(own)
        target = target_named(target)
        loss, group_weight = _resolve_fairness(fairness)
        plan = _resolve_strategy(strategy)
        if group_weight.weight != 1 and issubclass(model.scorer, ClosedFormScorer) and not takes_weights(model.scorer):
            raise ConfigurationError(
                f"group weights need a model whose learn takes weights, and that of {model.scorer.__name__} does not; "
                f"add `weights` to it (see ClosedFormScorer.learn), or leave them out"
            )
        weight = getattr(loss, "weight", 0.5) if fairness_weight is None else fairness_weight
        check_number("the weight of the fairness loss", weight)
        n_negatives = getattr(loss, "n_negatives", 4) if n_fairness_negatives is None else n_fairness_negatives
        check_number("n_negatives of the fairness loss", n_negatives, least=1, whole=True)
        return cls(
            model,
            settings,
            _objective(settings, loss, 0.0 if loss is None else weight, n_negatives),
            plan,
            getattr(plan, "epochs", None) or update_epochs or own.get("update_epochs", DEFAULT_UPDATE_EPOCHS),
            getattr(plan, "learning_rate", None)
            or update_learning_rate
            or own.get("update_learning_rate")
            or settings.learning_rate,
            loss,
            n_negatives,
            group_weight.weight,
            target,
            group_weight.group,
        )

    @property
    def has_lever(self) -> bool:
        """Whether there is a fairness loss, a group weight or a target."""
        return self.objective.is_fair or self.group_weight != 1 or self.target is not None

    def without_lever(self) -> Recipe:
        """The same recipe without fairness loss, group weight and target."""
        objective = _objective(self.training, None, 0.0, self.training.n_negatives)
        return replace(self, objective=objective, fairness=None, group_weight=1.0, weighted_group=None, target=None)

    @property
    def fairness_name(self) -> str:
        return "none" if self.fairness is None else _name_of_fairness(self.fairness) or type(self.fairness).__name__

    @property
    def calibrates(self) -> bool:
        """Whether an update calibrates the model on new events, as the blend does with its weights."""
        return self.model.scorer.calibrate_from is not Scorer.calibrate_from

    @property
    def fairness_option(self) -> Fairness:
        """The parameter `fairness` of the constructor: the fairness loss, the group weight, or both."""
        weight = None if self.group_weight == 1 else GroupWeight(self.group_weight, self.weighted_group)
        parts = tuple(part for part in (self.fairness, weight) if part is not None)
        return parts if len(parts) > 1 else parts[0] if parts else None

    def to_json(self) -> dict[str, Any]:
        """The recipe as JSON; an object that no registry can make again is "custom"."""
        strategy = STRATEGIES.name_of(self.strategy) or STRATEGIES.name_of(type(self.strategy))
        settings, loss = self.training.model_dump(exclude={"threads", "loss"}), self.training.loss
        try:
            model = {"name": self.model.registered_name or CUSTOM, "settings": _as_json(self.model.settings)}
        except TypeError:
            raise ConfigurationError(
                f"a checkpoint holds numbers, text and lists, and {self.model.name} has the settings "
                f"{self.model.settings}; bind the others to the model with functools.partial"
            ) from None
        return {
            "model": model,
            "training": {**settings, "loss": loss if isinstance(loss, str) else LOSSES.name_of(loss) or CUSTOM},
            "fairness": self.fairness and _stored(self.fairness, _name_of_fairness(self.fairness), _make_fairness),
            "fairness_weight": self.objective.lambda_,
            "n_fairness_negatives": self.n_fairness_negatives,
            "group_weight": self.group_weight,
            "weighted_group": self.weighted_group,
            "target": None if self.target is None else {"name": _name_of(self.target), "options": asdict(self.target)},
            "strategy": _stored(self.strategy, strategy, _resolve_strategy),
            "update_epochs": self.update_epochs,
            "update_learning_rate": self.update_learning_rate,
        }


def saved_options(path: object, saved: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's options from the JSON of a recipe at `path`, with those in `given` that are not `AS_SAVED`.

    Raises a ConfigurationError if a "custom" object is missing, or an option cannot change.
    """
    options = {name: value for name, value in given.items() if value is not AS_SAVED}
    model, fairness, strategy = saved["model"], saved["fairness"], saved["strategy"]
    for name, part in (("model", model), ("fairness", fairness), ("strategy", strategy)):
        if part is not None and part["name"] == CUSTOM and name not in options:
            raise ConfigurationError(f"{path} was saved with a custom {name}; pass it again as {name}=")
    settings = {**saved["training"], **_resolve_training(options.pop("training", None)).given}
    if settings["loss"] == CUSTOM:
        raise ConfigurationError(f"{path} was saved with a custom loss; pass it again as training=Training(loss=…)")
    own = resolve_model(options["model"]) if "model" in options else resolve_model(model["name"], model["settings"])
    if own.name != model["name"] != CUSTOM:
        raise ConfigurationError(f"{path} was saved with the model {model['name']}: do not pass a model")
    if isinstance(own, ModelConfig) and _filled_in(_as_json(own.settings), model["settings"]) == model["settings"]:
        own = own.with_options(**model["settings"])
    if "fairness" not in options:
        losses = () if fairness is None else (_make_fairness(fairness["name"], fairness["options"]),)
        weight = GroupWeight(saved["group_weight"], saved.get("weighted_group"))
        options["fairness"] = losses if weight.weight == 1 else (*losses, weight)
    for what, before, now in (
        ("optimizer", saved["training"]["optimizer"], settings["optimizer"]),
        ("model", model["settings"], _as_json(own.settings)),
        ("group weight", saved["group_weight"], _resolve_fairness(options["fairness"])[1].weight),
        ("weighted group", saved.get("weighted_group"), _resolve_fairness(options["fairness"])[1].group),
    ):
        if before != now:
            raise ConfigurationError(
                f"the {what} of a checkpoint cannot change: {path} was saved with {before!r}, got {now!r}; fit a new "
                f"recommender"
            )
    options |= {"model": own, "training": Training(**settings)}
    if "target" not in options:
        target = saved["target"]
        options["target"] = None if target is None else TARGETS[target["name"]](**target["options"])
    if "strategy" not in options:
        options["strategy"] = _resolve_strategy(strategy["name"], strategy["options"])
    return options


def _filled_in(settings: Any, saved: Any) -> Any:
    """Settings with the saved values in place of None, which stands for a value that depends on the machine."""
    if isinstance(settings, Mapping) and isinstance(saved, Mapping):
        return {name: _filled_in(value, saved.get(name)) for name, value in settings.items()}
    return saved if settings is None else settings


def _objective(settings: Training, fairness: FairnessLoss | None, weight: float, n_negatives: int) -> Objective:
    loss = LOSSES[settings.loss] if isinstance(settings.loss, str) else settings.loss
    return Objective(
        lambda_=weight,
        n=settings.n_negatives,
        mu=n_negatives if weight != 0 else settings.n_negatives,  # draw no more than are used
        loss=loss,
        fairness=fairness or DisparityLoss(),
    )


def _resolve_fairness(fairness: Any) -> tuple[FairnessLoss | None, GroupWeight]:
    """The fairness loss and the group weight."""
    parts = fairness if isinstance(fairness, tuple) else () if fairness is None else (fairness,)
    weights = [part for part in parts if isinstance(part, GroupWeight)]
    losses = [part for part in parts if not isinstance(part, GroupWeight)]
    is_loss = (isinstance(loss, str) or (callable(loss) and not isinstance(loss, type)) for loss in losses)
    if len(weights) > 1 or len(losses) > 1 or not all(is_loss):
        raise ConfigurationError(
            f"fairness must be a name, fairstream.DisparityLoss(…), fairstream.GroupWeight(…), a function of (scores, "
            f"groups, signs), or a tuple of one loss and one GroupWeight, got {fairness!r}"
        )
    loss = losses[0] if losses else None
    weight = next((part for part in weights if part.weight != 1), GroupWeight(1.0))
    return _make_fairness(loss) if isinstance(loss, str) else loss, weight


def _make_fairness(name: str, options: Mapping[str, Any] | None = None) -> FairnessLoss:
    return FAIRNESS_LOSSES[name](**options or {})


def _name_of(target: Target) -> str:
    return next(name for name, kind in TARGETS.items() if isinstance(target, kind))


def _resolve_training(training: Any) -> Training:
    training = Training() if training is None else training
    if not isinstance(training, Training):
        raise ConfigurationError(f"training must be fairstream.Training(…), got {training!r}")
    return training


def _resolve_strategy(strategy: Any, options: Mapping[str, Any] | None = None) -> Strategy:
    part = STRATEGIES[strategy] if isinstance(strategy, str) else strategy
    part = part(**options or {}) if isinstance(part, type) else part
    if not isinstance(part, Strategy):
        raise ConfigurationError(
            f"strategy must be a name, fairstream.FineTune(…) or another Strategy, got {strategy!r}"
        )
    return part


def _name_of_fairness(fairness: FairnessLoss) -> str | None:
    registered = (name for name, make in FAIRNESS_LOSSES.items() if getattr(make, "loss", None) is fairness)
    return next(registered, None) or getattr(fairness, "name", None)


def _stored(part: Any, name: str | None, make: Callable[..., Any]) -> dict[str, Any]:
    """The registered name of a part and its options as JSON holds them; "custom" if they do not make it again."""
    try:
        options = _as_json(_options(part))
        again = None if name is None else make(name, options)
        if again == part or (type(again) is type(part) and vars(again) == vars(part)):
            return {"name": name, "options": options}
    except (TypeError, ValueError):
        pass  # JSON cannot hold an option, nothing has this name, or arrays cannot be compared
    return {"name": CUSTOM, "options": {}}


def _options(part: Any) -> dict[str, Any]:
    """The fields of a dataclass that its constructor takes; defaults only if they are numbers or text."""
    options = {field: getattr(part, field.name) for field in (fields(part) if is_dataclass(part) else ()) if field.init}
    return {
        field.name: value
        for field, value in options.items()
        if isinstance(value, str | float | int) or value != field.default
    }


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=np.generic.item))  # numbers of NumPy are numbers
