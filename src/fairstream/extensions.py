"""Entering models, losses, metrics and strategies of one's own under a name."""

from __future__ import annotations

from collections.abc import Callable

from fairstream import baselines as _baselines  # noqa: F401 (their names are taken)
from fairstream.evaluation.metrics import METRICS, Metric
from fairstream.methods import METHODS, Method
from fairstream.models import MODELS, ModelFactory
from fairstream.objectives import FAIRNESS_LOSSES, LOSSES, FairnessLoss, Loss
from fairstream.strategies import STRATEGIES, Strategy


def register_model(name: str, model: ModelFactory) -> None:
    """Make a `Scorer` class, or a function (n_users, n_items) → `Scorer`, available by name.

    A constructor with a parameter `embedding_dim` is given that option.
    """
    MODELS.register(name, model)


def register_loss(name: str, loss: Loss) -> None:
    """Make a recommendation loss available by name: scores (B, 1 + n), positive in column 0 → scalar."""
    LOSSES.register(name, loss)


def register_fairness(name: str, fairness: FairnessLoss) -> None:
    """Make a fairness loss available by name: (scores (B, 1 + μ), groups (B,), signs (G,)) → scalar."""
    FAIRNESS_LOSSES.register(name, _constant(fairness))


def register_metric(name: str, metric: Metric) -> None:
    """Make a metric available by name: (lists, truth) → one value a user, or one for all."""
    METRICS.register(name, metric)


def register_strategy(name: str, strategy: Strategy | type[Strategy]) -> None:
    """Make a strategy available by name: an object, or a class that needs no arguments."""
    STRATEGIES.register(name, strategy)


def register_method(method: Method) -> None:
    """Make a method (a strategy with a fairness loss) available by its name."""
    METHODS.register(method.name, method)


def _constant(fairness: FairnessLoss) -> Callable[..., FairnessLoss]:
    return lambda **_options: fairness
