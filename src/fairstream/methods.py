"""The paper's methods in one table: name → strategy × objective."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

import torch
from pydantic import Field, field_validator, model_validator

from fairstream.baselines import Rerank, filtered, make_adversarial_engine
from fairstream.data import History
from fairstream.errors import ConfigurationError
from fairstream.evaluation import Reranker
from fairstream.models import ScorerFactory, built_in_model
from fairstream.objectives import FairnessLoss, Objective
from fairstream.randomness import Randomness
from fairstream.strategies import (
    FineTune,
    Keep,
    Learner,
    RestartEvery,
    RestartOnDegradation,
    Retrain,
    Strategy,
)
from fairstream.training import EngineMaker, EngineName, Hyperparameters, make_engine


@dataclass(frozen=True)
class Method:
    """A strategy and a fairness loss (None: recommendation loss alone), and what else there is to it."""

    name: str
    strategy: type[Strategy]
    fairness: FairnessLoss | None
    reranks: bool = False
    """Whether lists are chosen anew for all users together, which only an experiment can do."""
    is_adversarial: bool = False
    """Whether a filter on the user embeddings is trained against a discriminator of the groups."""


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("Pretrain", Keep, None),
        Method("Pretrain-Fair", Keep, "signed"),
        Method("Retrain", Retrain, None),
        Method("Retrain-Fair", Retrain, "signed"),
        Method("Finetune", FineTune, None),
        Method("FADE-Abs", FineTune, "absolute"),
        Method("FADE", FineTune, "signed"),
        Method("Rerank", FineTune, None, reranks=True),
        Method("Adver", FineTune, None, is_adversarial=True),
    )
}
"""All methods by the names that the paper gives them."""


class MethodConfig(Hyperparameters):
    """A method and its hyperparameters.

    >>> MethodConfig(method="retrain-fair", fairness_weight=2).method
    'Retrain-Fair'
    >>> MethodConfig(method="Finetune", fairness_weight=2).objective().lambda_
    0.0
    """

    method: str = "FADE"
    """Pretrain, Pretrain-Fair, Retrain, Retrain-Fair, Finetune, FADE-Abs, FADE, Rerank or Adver (in any case)."""
    adversary_weight: float = Field(10.0, ge=0)
    """γ, the weight of the adversary in Adver; the paper tries 1, 10, 20 and 50."""
    restart: Literal["never", "on-degradation"] = "never"
    """on-degradation: retrain on all data once the model in service does worse, two periods running, \
than after its last restart."""
    restart_every: int | None = Field(None, ge=1)
    """Retrain on all data every R-th period, fine-tune in between."""
    rerank_tolerance: float = Field(0.001, ge=0)
    """ε of Rerank: how far the groups' F1, by the model's own labels, may be apart in the lists chosen."""

    @field_validator("method")
    @classmethod
    def _known_method(cls, name: str) -> str:
        by_lower_case = {known.lower(): known for known in METHODS}
        if name.lower() not in by_lower_case:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {name!r}")
        return by_lower_case[name.lower()]

    @model_validator(mode="after")
    def _restart_fits(self) -> Self:
        if self.restart != "never" and self.restart_every is not None:
            raise ValueError("restart and restart_every are two ways to restart; give one of them")
        if self.restarts and METHODS[self.method].strategy is not FineTune:
            able = ", ".join(name for name, method in METHODS.items() if method.strategy is FineTune)
            raise ValueError(f"only fine-tuning methods restart ({able}), {self.method} does not")
        return self

    @property
    def restarts(self) -> bool:
        """Whether there is any restart at all."""
        return self.restart != "never" or self.restart_every is not None

    def objective(self) -> Objective:
        """The loss to train on."""
        fairness = METHODS[self.method].fairness
        lambda_ = 0.0 if fairness is None else self.fairness_weight
        return Objective(
            lambda_=lambda_,
            tau=self.temperature,
            n=self.n_negatives,
            mu=self.n_fairness_negatives if lambda_ > 0 else self.n_negatives,  # no more are drawn than are used
            fairness=fairness or "signed",
            surrogate=self.surrogate,
        )

    def strategy(self) -> Strategy:
        """How to go from period to period."""
        if self.restart_every is not None:
            return RestartEvery(self.restart_every)
        if self.restart == "on-degradation":
            return RestartOnDegradation()
        return METHODS[self.method].strategy()

    def reranker(self) -> Reranker | None:
        """What chooses the lists anew before they are judged, if anything."""
        return Rerank(self.rerank_tolerance) if METHODS[self.method].reranks else None


def make_learner(
    config: MethodConfig,
    *,
    factory: ScorerFactory | None,
    randomness: Randomness,
    device: torch.device,
    engine: EngineName = "auto",
    foresight: History | None = None,
) -> Learner:
    """The learner of a method; `factory` is the caller's own model where config.model is "custom"."""
    if config.model == "custom" and factory is None:
        raise ConfigurationError("model must be mf, ncf, or a function (n_users, n_items) -> Scorer of your own")
    factory = factory or built_in_model(config.model, config.embedding_dim)
    engine_maker: EngineMaker = make_engine
    if METHODS[config.method].is_adversarial:
        factory, engine_maker = filtered(factory), partial(make_adversarial_engine, gamma=config.adversary_weight)
    return Learner(
        factory,
        config,
        config.objective(),
        config.strategy(),
        randomness=randomness,
        device=device,
        engine=engine,
        engine_maker=engine_maker,
        foresight=foresight,
    )
