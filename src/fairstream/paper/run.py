"""Runs of the paper: its protocol, and the methods Adver and Rerank. Importing this module registers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import cast

import numpy as np
from pydantic import Field

from fairstream.configuration import Configuration
from fairstream.data import History
from fairstream.evaluation import Metric
from fairstream.experiments import PROTOCOLS, Record, Run, protocol_of
from fairstream.methods import Method, Parts, register_method
from fairstream.models import Model
from fairstream.paper.adver import FilteredModel, choose_adversarial_engine
from fairstream.paper.protocol import PaperEvaluator, PaperProtocol, RerankedEvaluation
from fairstream.paper.recovery import GroupProbe, group_recovery, user_embeddings
from fairstream.paper.rerank import Rerank, require_two_groups
from fairstream.randomness import Randomness
from fairstream.recommender import Trainer
from fairstream.recommender.model_builder import ModelBuilder


class AdverOptions(Configuration):
    """The options of Adver."""

    model: str = "mf"
    """A model with user embeddings."""
    adversary_weight: float = Field(10.0, ge=0)
    """γ, the weight of the adversary; the paper tries 1, 10, 20 and 50."""


class RerankOptions(Configuration):
    """The options of Rerank."""

    rerank_tolerance: float = Field(0.001, ge=0)
    """ε: how far the groups' F1, by the model's own labels, may be apart in the lists chosen."""


@dataclass(frozen=True, eq=False)
class _PaperModels(ModelBuilder):
    """Builds models with rows for the users and items of all events, future ones included."""

    oracle: History | None = None

    def rows(self, history: History) -> History:
        return self.oracle or history


@dataclass(frozen=True, eq=False)
class PaperTrainer(Trainer):
    """Trains with knowledge of the future, as the paper's protocol does, or against an adversary."""

    oracle: History | None = None  # all events; None: those up to now

    @cached_property
    def models(self) -> ModelBuilder:
        return _PaperModels(self.recipe.model, self.recipe.training, self.randomness, self.device, self.oracle)

    def without_lever(self) -> Trainer:
        recipe = self.recipe.without_lever()
        if isinstance(recipe.model, FilteredModel):
            recipe = replace(recipe, engine_choice=partial(choose_adversarial_engine, gamma=0.0))
        return replace(self, recipe=recipe)


class PaperRun(Run):
    """A run of the paper's methods, under its protocol or under strict."""

    @cached_property
    def _protocol(self) -> PaperProtocol:
        protocol = protocol_of(self.config.protocol)
        return protocol if isinstance(protocol, PaperProtocol) else PaperProtocol()

    @cached_property
    def _oracle(self) -> History | None:
        return None if self._protocol.point_in_time else History.of(self.log.users, self.log.items)

    def _make_trainer(self, parts: Parts) -> Trainer:
        config, recipe = self.config, self.config.recipe(parts)
        gamma = config.own_options.get("adversary_weight")
        if gamma is not None:
            model = cast("Model", FilteredModel(recipe.model))
            recipe = replace(recipe, model=model, engine_choice=partial(choose_adversarial_engine, gamma=gamma))
        return PaperTrainer(
            recipe,
            Randomness(config.seed),
            config.torch_device(),
            engine=config.engine,
            metrics=parts.metrics,
            oracle=self._oracle,
        )

    def _make_evaluator(self, metrics: Sequence[str] | Mapping[str, Metric] | None) -> PaperEvaluator:
        config, tolerance = self.config, self.config.own_options.get("rerank_tolerance")
        if tolerance is not None:
            require_two_groups(len(self._names()))
        return PaperEvaluator(
            config.k,
            self.groups,
            Randomness(config.seed),
            config.min_group_size,
            config.n_resamples,
            metrics,
            protocol=self._protocol,
            rerank=None if tolerance is None else Rerank(tolerance),
            n_items=None if self._oracle is None else self._oracle.n_items,
        )

    def group_recovery(self) -> GroupProbe | None:
        """Return how well a fresh classifier recovers the group from the user embeddings of the current model.

        It uses the trained users of known group. None if fewer than two groups have enough of them,
        before the first period, and for a model without user tables.
        """
        if self.pretrained is None:
            return None
        state = self._begun()
        rows = np.flatnonzero(state.trained[: state.model.n_users])
        rng = Randomness(self.config.seed).numpy("group recovery", state.t)
        return group_recovery(user_embeddings(state.model, rows), self.groups.codes[rows], rng=rng)

    def record(self) -> Record:
        """Return the run as it is stored, with the seconds of reranking and the group recovery."""
        record = super().record()
        about = dict(record.about)
        task = "remain" if "remain" in self.config.tasks else self.config.tasks[0]
        if "rerank_tolerance" in self.config.own_options:
            about["timing"] = {**about["timing"], "rerank_s": rerank_seconds(self, task)}
        if self.config.method in ("Adver", "Finetune"):
            probe = self.group_recovery()
            about["group_recovery"] = probe and {**asdict(probe), "interval": list(probe.interval)}
        return replace(record, about=about)


def rerank_seconds(run: Run, task: str = "remain") -> list[float]:
    """Return the seconds of reranking the lists of a task in each period; the paper counts them as running time."""
    evaluations = [result.tasks[task] for result in run.results]
    return [each.reranking.seconds for each in evaluations if isinstance(each, RerankedEvaluation) and each.reranking]


register_method(Method("Adver", "fine-tune", lever="training", options=AdverOptions, run=PaperRun))
register_method(Method("Rerank", "fine-tune", lever="lists", options=RerankOptions, run=PaperRun))
PROTOCOLS.register("paper", partial(PaperProtocol.repaired, run=PaperRun))
