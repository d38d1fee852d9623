"""Training jobs: from a plan to a trained model, by gradient descent and in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from fairstream.data import Groups, History, Rows
from fairstream.data.groups import UNKNOWN
from fairstream.data.history import Positions
from fairstream.distributed import Cluster, current_cluster
from fairstream.errors import ConfigurationError
from fairstream.models import ContextBuilder, Mask, Scorer, UserWeights, WindowScorer, closed_forms, takes_weights
from fairstream.objectives import Objective
from fairstream.randomness import Randomness
from fairstream.recipe import Recipe
from fairstream.recommender.model_builder import ModelBuilder, Trained
from fairstream.recommender.state import NewEvents
from fairstream.sampling import EveryItem, NegativeSampler, SharedNegatives
from fairstream.strategies import Plan
from fairstream.threads import limit_threads, training_threads
from fairstream.training import (
    Batches,
    Engine,
    EngineName,
    OnEpoch,
    Schedule,
    TrainingJob,
    TrainingReport,
    Windows,
    choose_engine,
    cut_batches,
    cut_windows,
)
from fairstream.training import train as run_epochs
from fairstream.training.data_parallel import train_on_cluster, why_not_divided
from fairstream.training.optimizers import own_memory, set_learning_rate

MIN_BATCH, BATCHES_OF_A_LOG = 512, 200  # a batch of windows holds a 200th of the log at most, or 512 events
MAX_RANKED_ITEMS = {"cpu": 5_000, "cuda": 100_000}  # sequence models rank each positive among all items up to here …
N_SHARED = 1_024  # … and among a sample of this size, drawn for each batch, in a larger one
MAX_MATCHED_REQUESTS = 2_500  # of a period, to which an update matches the biases of a sequence model …
MAX_MATCHED_SCORES = 1 << 27  # … fewer where they would have more scores than this
MIN_USERS_OF_AN_ITEM = 10  # fewer users of known groups could be identified by the item: their events count once


@dataclass(frozen=True, eq=False)
class TrainingRequest:
    """The events that a model learns, and how."""

    plan: Plan
    history: History
    new_events: NewEvents  # for the groups of the users and the features of the items
    t: int
    unlearned: Rows  # positions of the events that the model has not learned
    event_weights: Mapping[str, float]  # how many times the events of each group count
    was_weighted: bool = False  # whether the model has learned events with other weights
    trained_items: Mask | None = None  # of the model that an update starts from

    @property
    def events(self) -> Positions:
        assert self.plan.events is not None
        return self.plan.events

    @cached_property
    def groups(self) -> Groups:
        """The groups that training may use; with group weights, without users that a rare item identifies."""
        groups = self.new_events.groups
        if all(weight == 1 for weight in self.event_weights.values()):
            return groups
        return hide_identifiable(groups, self.history, subtract(self.unlearned, self.events))

    @cached_property
    def user_weights(self) -> UserWeights | None:
        return self.groups.weights(self.event_weights)


class TrainingResult(NamedTuple):
    """A trained model."""

    model: Scorer
    optimizer: torch.optim.Optimizer | None
    report: TrainingReport | None
    engine: Engine | None  # it holds the result until `finish`, if it works on its own copy
    users: Rows  # of the training events
    items: Rows  # the positives
    notes: tuple[str, ...] = ()  # one sentence for each thing worth knowing


@dataclass(frozen=True, eq=False)
class JobRunner:
    """Trains models by a recipe."""

    recipe: Recipe
    randomness: Randomness
    device: torch.device
    engine: EngineName = "auto"

    @cached_property
    def models(self) -> ModelBuilder:
        return ModelBuilder(self.recipe.model, self.recipe.training, self.randomness, self.device)

    def train(self, request: TrainingRequest, start: Trained | None, on_epoch: OnEpoch | None) -> TrainingResult:
        """Train a fresh model, or `start`, which shares its memory with the previous state."""
        history, events, t = request.history, request.events, request.t
        is_shared = start is not None
        if start is None:
            model = self.models.new(history, t, request.new_events.features)
            start = model, self.models.optimizer(model)
        result = self._descend(request, *start, on_epoch, is_shared=is_shared)
        # Events of a weight may count more than when they were learned.
        restart, weights = request.was_weighted or history.is_weighted, request.user_weights
        self.update_closed_forms(result.model, history, events, request.unlearned, weights, t, restart=restart)
        return result

    def _descend(
        self,
        request: TrainingRequest,
        model: Scorer,
        optimizer: torch.optim.Optimizer | None,
        on_epoch: OnEpoch | None,
        *,
        is_shared: bool,
    ) -> TrainingResult:
        """Train the gradient part of a model, if there is one.

        Engines that work on a copy leave shared memory untouched until they finish. For all others the model gets its
        own memory first, so that the previous state never changes.
        """
        history, events = request.history, request.events
        if optimizer is None:
            return TrainingResult(model, None, None, None, history.users_at(events), history.items_at(events))
        is_fresh, recipe, training = request.plan.start == "fresh", self.recipe, self.recipe.training
        rate = training.learning_rate if is_fresh else recipe.update_learning_rate
        epochs = request.plan.epochs or (training.epochs_on(len(events)) if is_fresh else recipe.update_epochs)
        job = self._job(request, model.gradient_part.train(), optimizer)
        make_engine: Any = recipe.engine_choice(self.engine, job)
        cluster, notes = self._cluster_for(job)
        # A recipe may choose a function that makes any engine.
        is_engine = isinstance(make_engine, type) and issubclass(make_engine, Engine)
        matches = not is_fresh and self._matches_shares(job)
        works_on_copy = is_shared and cluster is None and is_engine and make_engine.works_on_copy(job) and not matches
        if is_shared and not works_on_copy:
            own_memory(optimizer, model)
        if matches:
            self._match_shares(request, job)
        set_learning_rate(optimizer, rate)
        if is_fresh and training.schedule == "cosine":
            job = replace(job, schedule=Schedule(optimizer, rate, epochs * len(job.batches)))
        options: dict[str, Any] = {"t": request.t, "epochs": epochs, "learning_rate": rate, "on_epoch": on_epoch}
        options |= {"n_interactions": len(events), "randomness": self.randomness}
        engine = None
        with limit_threads(training_threads(training.threads)):
            if cluster is not None:
                report = train_on_cluster(cluster, job, **options)
            else:
                engine = make_engine(job)
                report = run_epochs(job, engine, **options)
        if job.schedule is not None:
            job.schedule.finish()
        if engine is not None and not works_on_copy:
            engine.finish(in_place=True)  # no other state shares the memory
            engine = None
        return TrainingResult(model, optimizer, report, engine, job.batches.users, job.batches.positives, notes)

    @staticmethod
    def _matches_shares(job: TrainingJob) -> bool:
        """Return whether the softmax over all items of the catalogue gives their shares."""
        is_window, n_items = isinstance(job.model, WindowScorer), job.sampler.n_items
        return is_window and job.objective.needs_all_items and n_items <= MAX_RANKED_ITEMS[job.model.device.type]

    def _match_shares(self, request: TrainingRequest, job: TrainingJob) -> None:
        """Let the biases of a sequence model follow the period: its few steps of training cannot."""
        model, history, events = job.model, request.history, np.asarray(request.events)
        assert isinstance(model, WindowScorer)
        users, items = history.users_at(events), history.items_at(events)
        weights = np.ones(len(events)) if request.user_weights is None else request.user_weights[users]
        if (own := history.weights_at(events)) is not None:
            weights = weights * own
        weights = weights / (np.square(weights).sum() / weights.sum())  # so that counts vary by chance as Poisson's do
        is_trained = np.zeros(model.n_items, np.bool_)
        if request.trained_items is not None:
            is_trained[: len(request.trained_items)] = request.trained_items
        n_chosen = min(len(events), MAX_MATCHED_REQUESTS, MAX_MATCHED_SCORES // model.n_items)
        chosen = np.linspace(0, len(events) - 1, n_chosen).astype(np.int64)
        context = job.contexts.at(users[chosen], events[chosen])
        # Trained items are counted in the compared requests alone; new items are rare, so all their events count.
        share = weights[chosen].sum() / weights.sum()
        counts = np.bincount(items[chosen], weights[chosen], minlength=model.n_items)
        counts = np.where(is_trained, counts, share * np.bincount(items, weights, minlength=model.n_items))
        scaled = weights[chosen] * (counts.sum() / weights[chosen].sum())
        each, total = (torch.from_numpy(part).float().to(self.device) for part in (scaled, counts))
        with limit_threads(training_threads(self.recipe.training.threads)), torch.no_grad():
            for head, states in model.eval().heads_at(context):
                head.match_shares(states, each, total, torch.from_numpy(is_trained).to(self.device))
        model.train()

    def update_closed_forms(
        self,
        model: Scorer,
        history: History,
        events: Positions,
        unlearned: Rows,
        user_weights: UserWeights | None,
        t: int,
        *,
        restart: bool = False,
    ) -> None:
        """Let the closed-form parts of a model learn `events`; with `restart`, all learned events again."""
        parts = closed_forms(model)
        if not parts:
            return
        learned = subtract(np.arange(len(history)), unlearned)
        new = subtract(np.asarray(events, np.int64), learned)
        counted = np.union1d(learned, new)
        if user_weights is not None or restart:  # the weights may have changed, so all events count again
            fresh, new = closed_forms(self.models.new(history, t)), counted
            for name, part in parts.items():
                for key, value in fresh[name].named_buffers(recurse=False):
                    setattr(part, key, value)
        subset, positions = history.subset(counted), np.searchsorted(counted, new)
        weights = {} if user_weights is None else {"weights": user_weights}
        for part in parts.values():  # each replaces its tensors, so older states keep theirs
            part.learn(subset, positions, **(weights if takes_weights(part) else {}))

    @property
    def takes_event_weights(self) -> bool:
        """Whether some part of the model lets the events of a group count more."""
        return self._descent_takes_event_weights or any(map(takes_weights, closed_forms(self.models.example).values()))

    @property
    def _descent_takes_event_weights(self) -> bool:
        is_window = isinstance(self.models.example.gradient_part, WindowScorer)
        return is_window and self.recipe.objective.is_weighted

    def is_undirected(self, groups: Groups) -> bool:
        """Return whether the fairness loss needs to know the advantaged group and none is declared."""
        return getattr(self.recipe.objective.fairness, "needs_advantaged", False) and not groups.has_advantaged

    def _objective(self, request: TrainingRequest) -> Objective:
        """The training objective; λ = 0 if the fairness loss is undirected."""
        objective = self.recipe.objective
        if self.is_undirected(request.new_events.groups):
            return replace(objective, lambda_=0.0, mu=self.recipe.training.n_negatives)
        return objective

    def _cluster_for(self, job: TrainingJob) -> tuple[Cluster | None, tuple[str, ...]]:
        """The cluster whose workers share a job, or None; and a note if they do not."""
        if (cluster := current_cluster()) is None:
            return None, ()
        custom = "the method has its own engine" if self.recipe.engine_choice is not choose_engine else None
        reason = custom or why_not_divided(job)
        return (cluster, ()) if reason is None else (None, (f"this process trains, not the cluster: {reason}",))

    def _job(self, request: TrainingRequest, model: Scorer, optimizer: torch.optim.Optimizer) -> TrainingJob:
        plan, history, events, groups = request.plan, request.history, request.events, request.groups
        rows, training, is_window = self.models.rows(history), self.recipe.training, isinstance(model, WindowScorer)
        objective, user_weights = self._objective(request), request.user_weights
        signs = groups.signs(groups.n_groups_among(rows.n_users))
        if training.activity_exponent and not (is_window and self.recipe.objective.is_weighted):
            raise ConfigurationError(
                "activity_exponent weighs the events of sequence models (gru, sasrec, blend) in the softmax loss; "
                "choose both, or leave it at 0"
            )
        among = None
        if request.new_events.features is not None and is_window:
            # No user has passed over an item without events, so it is not a negative: only its features score it.
            has_events = np.bincount(rows.items, minlength=rows.n_items) > 0
            among = None if has_events.all() else np.flatnonzero(has_events)
        sampler = NegativeSampler(
            rows.pairs, history.users_at(events), n_items=rows.n_items, among=among, device=self.device
        )
        batches: Batches | Windows
        if isinstance(model, WindowScorer):
            batches = cut_windows(
                history,
                events,
                groups.codes,
                sampler,
                n_drawn=objective.n_drawn,
                length=model.history_length,
                with_times=model.reads_times,
                ignores_padding=model.ignores_padding,
                size=min(training.batch_size, max(MIN_BATCH, len(history) // BATCHES_OF_A_LOG)),
                activity_exponent=training.activity_exponent,
                user_weights=user_weights,
            )
        else:
            batches = cut_batches(
                history, events, groups.codes, sampler, n_drawn=objective.n_drawn, size=training.batch_size
            )
        shared = None
        if is_window and objective.needs_all_items:
            shared = self._shared_negatives(history, rows.n_items, among)
        shuffle = plan.start == "fresh" if plan.shuffle is None else plan.shuffle
        return TrainingJob(
            model,
            optimizer,
            objective,
            batches,
            sampler,
            tuple(signs),
            ContextBuilder(model.history_length, history, None, self.device, reads_times=model.reads_times),
            same_batches_every_epoch=not shuffle,
            extra_loss=plan.extra_loss,
            shared_negatives=shared,
        )

    def _shared_negatives(self, history: History, n_items: int, among: Rows | None) -> SharedNegatives | None:
        """A sample of the items if they are too many to score, or the items with events; None: all items."""
        # The scores of described items are kept (`EveryItem`), so that fewer of them fit.
        limit = MAX_RANKED_ITEMS[self.device.type if among is None else "cpu"]
        if (n_items if among is None else len(among)) <= limit:
            return None if among is None else EveryItem(among, self.device)
        counts = np.bincount(history.items, minlength=n_items)
        return SharedNegatives(counts if among is None else counts[among], N_SHARED, self.device, rows=among)


def hide_identifiable(groups: Groups, history: History, unlearned: Rows) -> Groups:
    """Hide the groups of users with a rare item among the learned events.

    Training for a group changes the scores of its users' items. The scores of an item with few users reveal their
    groups.
    """
    learned = history.subset(subtract(np.arange(len(history)), unlearned))
    return groups.hide(learned.users_with_rare_items(groups.codes != UNKNOWN, MIN_USERS_OF_AN_ITEM))


def subtract(positions: Rows, others: Positions) -> Rows:
    """The positions that are not among `others`."""
    if isinstance(others, range):
        return positions[(positions < others.start) | (positions >= others.stop)]
    return np.setdiff1d(positions, others, assume_unique=True)
