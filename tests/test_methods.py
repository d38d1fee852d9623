"""The paper's methods are one table, and what does not fit together is said in a sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fairstream.baselines import Rerank
from fairstream.errors import ConfigurationError
from fairstream.methods import METHODS, MethodConfig, make_learner
from fairstream.models import MatrixFactorization, NeuralCollaborativeFiltering
from fairstream.randomness import Randomness
from fairstream.strategies import FineTune, Keep, RestartEvery, RestartOnDegradation, Retrain, Strategy

FINE_TUNING = ["Finetune", "FADE-Abs", "FADE", "Rerank", "Adver"]
OTHERS = ["Pretrain", "Pretrain-Fair", "Retrain", "Retrain-Fair"]


def test_the_table_has_the_methods_of_the_paper() -> None:
    assert {name: (method.strategy, method.fairness) for name, method in METHODS.items()} == {
        "Pretrain": (Keep, None),
        "Pretrain-Fair": (Keep, "signed"),
        "Retrain": (Retrain, None),
        "Retrain-Fair": (Retrain, "signed"),
        "Finetune": (FineTune, None),
        "FADE-Abs": (FineTune, "absolute"),
        "FADE": (FineTune, "signed"),
        "Adver": (FineTune, None),
        "Rerank": (FineTune, None),
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
    assert str(caught.value) == f"method must be one of {', '.join(METHODS)}, got {name!r}"


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_a_strategy_and_an_objective(name: str) -> None:
    options = {"surrogate": "approx-ndcg", "temperature": 2.0, "n_negatives": 3, "n_fairness_negatives": 5}
    config = MethodConfig(method=name, fairness_weight=0.7, **options)
    objective, method = config.objective(), METHODS[name]
    assert type(config.strategy()) is method.strategy
    assert objective.is_fair == (method.fairness is not None)
    assert objective.lambda_ == (0.0 if method.fairness is None else 0.7)
    assert objective.fairness == (method.fairness or "signed")
    mu = 3 if method.fairness is None else 5  # no more are drawn than are used
    assert (objective.surrogate, objective.tau, objective.n, objective.mu) == ("approx-ndcg", 2.0, 3, mu)


@pytest.mark.parametrize("name", METHODS)
def test_only_rerank_chooses_lists_anew(name: str) -> None:
    reranker = MethodConfig(method=name, rerank_tolerance=0.25).reranker()
    assert reranker == (Rerank(0.25) if name == "Rerank" else None)


def test_a_tolerance_is_no_less_than_nothing() -> None:
    assert MethodConfig().rerank_tolerance == 0.001
    with pytest.raises(ConfigurationError, match=r"rerank_tolerance must be >= 0, got -0.1"):
        MethodConfig(rerank_tolerance=-0.1)


@pytest.mark.parametrize("name", FINE_TUNING)
@pytest.mark.parametrize(
    ("options", "strategy"),
    [
        ({}, FineTune),
        ({"restart": "never"}, FineTune),
        ({"restart": "on-degradation"}, RestartOnDegradation),
        ({"restart_every": 3}, RestartEvery),
    ],
)
def test_fine_tuning_can_restart(name: str, options: dict[str, Any], strategy: type[Strategy]) -> None:
    config = MethodConfig(method=name, **options)
    assert type(config.strategy()) is strategy
    assert config.restarts == (strategy is not FineTune)
    assert config.strategy() is not config.strategy()  # a strategy has a memory of its own


def test_restart_every_r_means_r() -> None:
    strategy = MethodConfig(restart_every=3).strategy()
    assert [str(strategy.next_step(None)) for _ in range(6)] == ["fine-tune", "fine-tune", "retrain"] * 2


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
    assert (config.method, config.model, config.embedding_dim, config.restarts) == ("FADE", "mf", 64, False)
    assert (config.surrogate, config.temperature) == ("hit", 3.0)
    assert (config.n_negatives, config.n_fairness_negatives) == (4, 4)
    assert (config.pretrain_epochs, config.update_epochs, config.batch_size) == (100, 10, 256)
    assert (config.learning_rate, config.l2) == (1e-3, 1e-4)


@pytest.mark.parametrize(("name", "kind"), [("mf", MatrixFactorization), ("ncf", NeuralCollaborativeFiltering)])
def test_a_learner_builds_the_model_that_was_asked_for(name: str, kind: type) -> None:
    config = MethodConfig(model=name, embedding_dim=7)
    learner = make_learner(config, factory=None, randomness=Randomness(0), device=torch.device("cpu"))
    model = learner.factory(3, 4)
    assert type(model) is kind
    assert (model.n_users, model.n_items) == (3, 4)
    assert max(table.embedding_dim for table in model.tables()) == 7
    assert learner.hyper is config
    assert learner.objective == config.objective()


def test_a_learner_takes_a_model_of_ones_own() -> None:
    config = MethodConfig(model="custom")
    learner = make_learner(config, factory=MatrixFactorization, randomness=Randomness(0), device=torch.device("cpu"))
    assert learner.factory is MatrixFactorization


def test_a_model_of_ones_own_has_to_be_given() -> None:
    with pytest.raises(ConfigurationError, match="model"):
        make_learner(MethodConfig(model="custom"), factory=None, randomness=Randomness(0), device=torch.device("cpu"))
