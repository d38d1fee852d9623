"""The paper's methods are one table, and what does not fit together is said in a sentence."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from fairstream.errors import ConfigurationError
from fairstream.methods import METHODS, MethodConfig, Parts
from fairstream.models import MFScorer, NCFScorer
from fairstream.objectives import (
    DisparityLoss,
    FairnessLoss,
    GroupDROLoss,
    LargestGapLoss,
    bpr_loss,
    sampled_softmax_loss,
)
from fairstream.strategies import (
    STRATEGIES,
    FineTune,
    RestartOnDegradation,
    SlidingWindow,
    Strategy,
)

FINE_TUNING = ["Finetune", "FADE-Abs", "FADE", "Rerank", "Adver"]
OTHERS = ["Pretrain", "Pretrain-Fair", "Retrain", "Retrain-Fair"]


def test_the_table_has_the_methods_of_the_paper() -> None:
    assert {name: (method.strategy, method.fairness) for name, method in METHODS.items()} == {
        "Pretrain": ("keep", None),
        "Pretrain-Fair": ("keep", "signed"),
        "Retrain": ("retrain", None),
        "Retrain-Fair": ("retrain", "signed"),
        "Finetune": ("fine-tune", None),
        "FADE-Abs": ("fine-tune", "absolute"),
        "FADE": ("fine-tune", "signed"),
        "Adver": ("fine-tune", None),
        "Rerank": ("fine-tune", None),
    }
    assert all(name == method.name for name, method in METHODS.items())


@pytest.mark.parametrize("name", METHODS)
def test_names_are_known_in_any_case(name: str) -> None:
    for spelled in (name, name.lower(), name.upper(), name.swapcase()):
        assert MethodConfig(method=spelled).method == name


@pytest.mark.parametrize("name", ["", "FADE ", "fairer", "Retrain_Fair"])
def test_an_unknown_method_is_answered_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        MethodConfig(method=name)
    assert str(caught.value) == f"method must be one of {', '.join(METHODS)}, or your own object, got {name!r}"


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_a_strategy_and_an_objective(name: str) -> None:
    options = {"surrogate": "log-likelihood", "temperature": 2.0, "n_negatives": 3, "n_fairness_negatives": 5}
    config = MethodConfig(method=name, fairness_weight=0.7, **options)
    objective, method = config.recipe().objective, METHODS[name]
    assert type(config.recipe().strategy) is STRATEGIES[method.strategy]
    assert (config.strategy_name, config.fairness_name) == (method.strategy, method.fairness)
    assert objective.is_fair == (method.fairness is not None)
    assert objective.lambda_ == (0.0 if method.fairness is None else 0.7)
    if method.fairness is not None:
        expected = DisparityLoss(method.fairness, "log-likelihood", 2.0, weight=0.7, n_negatives=5)
        assert objective.fairness == expected
    mu = 3 if method.fairness is None else 5  # no more are drawn than are used
    assert (objective.n, objective.mu, objective.loss) == (3, mu, bpr_loss)


@pytest.mark.parametrize("name", FINE_TUNING)
@pytest.mark.parametrize(
    ("options", "strategy"),
    [
        ({}, FineTune),
        ({"restart": "never"}, FineTune),
        ({"restart": "on-degradation"}, RestartOnDegradation),
        ({"restart_every": 3}, FineTune),
    ],
)
def test_fine_tuning_can_restart(name: str, options: dict[str, Any], strategy: type[Strategy]) -> None:
    config = MethodConfig(method=name, **options)
    assert type(config.recipe().strategy) is strategy
    assert config.restarts == (options not in ({}, {"restart": "never"}))
    assert config.strategy_name == ("restart" if config.restarts else "fine-tune")


def test_restart_every_r_means_r() -> None:
    assert MethodConfig(restart_every=3).recipe().strategy == FineTune(epochs=10, restart_every=3)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("options", [{"restart": "on-degradation"}, {"restart_every": 2}])
def test_only_fine_tuning_restarts(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=rf"only fine-tuning methods restart .*, {name} does not"):
        MethodConfig(method=name, **options)


def test_there_is_one_way_to_restart_at_a_time() -> None:
    with pytest.raises(ConfigurationError, match="two ways to restart; give one of them"):
        MethodConfig(restart="on-degradation", restart_every=2)


@pytest.mark.parametrize("options", [{"restart": "sometimes"}, {"restart_every": 0}, {"restart_evry": 2}])
def test_what_is_not_an_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="restart"):
        MethodConfig(**options)


def test_the_defaults_are_the_papers_method() -> None:
    config = MethodConfig()
    assert (config.method, config.model, config.model_settings, config.restarts) == (
        "FADE",
        "mf",
        {"embedding_dim": 64},
        False,
    )
    assert (config.surrogate, config.temperature) == ("hit", 3.0)
    assert (config.n_negatives, config.n_fairness_negatives) == (4, 4)
    assert (config.pretrain_epochs, config.update_epochs, config.batch_size) == (100, 10, 256)
    assert (config.learning_rate, config.l2) == (1e-3, 1e-4)


# ── parts ────────────────────────────────────────────────────────────────────────────────


def total(scores: Tensor) -> Tensor:
    """A recommendation loss of somebody's own."""
    return scores.sum()


def spread(scores: Tensor, groups: Tensor, signs: Tensor) -> Tensor:
    """A fairness loss of somebody's own."""
    return scores.var()


@pytest.mark.parametrize(("name", "kind"), [("mf", MFScorer), ("ncf", NCFScorer)])
def test_the_model_is_the_one_that_was_asked_for(name: str, kind: type) -> None:
    model = MethodConfig(model=name, model_settings={"embedding_dim": 7}).recipe().model.build(3, 4)
    assert type(model) is kind
    assert (model.n_users, model.n_items) == (3, 4)
    assert max(table.embedding_dim for table in model.tables()) == 7


def test_names_of_parts_replace_those_of_the_method() -> None:
    config = MethodConfig(method="FADE", loss="Sampled-Softmax", fairness="absolute", strategy="window")
    objective = config.recipe().objective
    assert (config.loss, config.fairness_name, config.strategy_name) == ("sampled-softmax", "absolute", "window")
    assert objective.loss is sampled_softmax_loss
    assert objective.fairness == DisparityLoss("absolute")
    assert isinstance(config.recipe().strategy, SlidingWindow)


def test_a_fairness_loss_switches_fairness_on_whatever_the_method() -> None:
    config = MethodConfig(method="Finetune", fairness="signed", fairness_weight=0.7)
    assert config.recipe().objective.lambda_ == 0.7


LOSSES_BY_NAME: list[tuple[dict[str, Any], FairnessLoss]] = [
    ({"fairness": "Absolute"}, DisparityLoss("absolute")),
    ({"fairness": "largest", "surrogate": "log-likelihood"}, LargestGapLoss("log-likelihood")),
    ({"fairness": "group-dro"}, GroupDROLoss()),
]


@pytest.mark.parametrize(("options", "expected"), LOSSES_BY_NAME)
def test_a_named_fairness_loss_has_its_options(options: dict[str, Any], expected: FairnessLoss) -> None:
    assert MethodConfig(**options).recipe().objective.fairness == expected


def test_objects_of_ones_own_are_used_as_they_are() -> None:
    config = MethodConfig(model="custom", loss="custom", fairness="custom", strategy="custom", method="Finetune")
    window = SlidingWindow(5)
    parts = Parts(MFScorer, total, spread, window)
    recipe = config.recipe(parts)
    objective = recipe.objective
    assert recipe.model.scorer is MFScorer
    assert (objective.loss, objective.fairness, objective.is_fair) == (total, spread, True)
    assert recipe.strategy is window


@pytest.mark.parametrize(
    "loss",
    [DisparityLoss("absolute", weight=3.0), LargestGapLoss(softness=0.3, weight=3.0), GroupDROLoss(step_size=0.5)],
)
def test_a_loss_keeps_the_fields_that_flat_options_do_not_have(loss: FairnessLoss) -> None:
    options, parts = Parts.split(fairness=loss)
    recipe = MethodConfig(**options).recipe(parts)
    assert recipe.fairness == loss
    assert recipe.objective.lambda_ == getattr(loss, "weight", None)


@pytest.mark.parametrize("name", ["model", "loss", "fairness", "strategy"])
def test_an_object_of_ones_own_has_to_be_given(name: str) -> None:
    config = MethodConfig(**{name: "custom"})
    with pytest.raises(ConfigurationError, match=f"set up with a custom {name}; pass it again as {name}="):
        config.recipe()


@pytest.mark.parametrize("options", [{"restart": "on-degradation"}, {"restart_every": 2}])
def test_a_strategy_decides_itself_when_to_restart(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="give strategy or restart, not both"):
        MethodConfig(strategy="window", **options)
