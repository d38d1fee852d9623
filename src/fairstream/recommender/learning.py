"""From one state to the next: pre-training, updates, observed events, forgetting."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fairstream.data import EventLog, Groups, History, Rows
from fairstream.data.groups import UNKNOWN
from fairstream.data.history import Positions
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import Evaluation, Evaluator, UserResults, resolve_metrics
from fairstream.methods import METHODS, Method, MethodConfig, Parts
from fairstream.models import (
    ClosedFormScorer,
    ContextBuilder,
    Mask,
    ModelFactory,
    Reads,
    RecentPopularity,
    Scorer,
    UserWeights,
    WindowScorer,
    closed_forms,
    make_model,
    takes_weights,
)
from fairstream.objectives import Objective
from fairstream.randomness import Randomness
from fairstream.recommender.model_builder import ModelBuilder, Trained
from fairstream.recommender.state import MemoryUse, NewEvents, State
from fairstream.sampling import EveryItem, NegativeSampler, SharedNegatives
from fairstream.strategies import (
    Control,
    DisparityController,
    FineTune,
    Keep,
    Measured,
    MeasureGroups,
    Period,
    Plan,
    Strategy,
    UserQuality,
)
from fairstream.threads import Threads, limit_threads, training_threads
from fairstream.training import (
    Batches,
    Engine,
    EngineName,
    OnEpoch,
    Schedule,
    TrainingJob,
    TrainingReport,
    Windows,
    cut_batches,
    cut_windows,
    train,
)
from fairstream.training.distributed import Checkpoints, DistributedEngine, WorkerGroup
from fairstream.training.optimizers import (
    set_learning_rate,
)

MOST_ITEMS = 5_000
"""Up to so many items, sequence models rank each positive among all of them while they are trained …"""
N_SHARED = 1_024
"""… beyond, among so many that are drawn for each batch."""
MIN_USERS_OF_AN_ITEM = 10
"""An item that fewer users of known groups have had could identify one of them: such a user's events count once."""
CALIBRATION_SHARE = 0.05
"""Share of the first events, the latest ones, from which `fit` learns what a model inherits: the blend's weights."""
LAMBDA_PER_LOG_WEIGHT: Mapping[str, float] = {"log-likelihood": 0.25, "probability": 8.0}
"""λ for each unit of log weight, where a controller sets it, by the surrogate of the fairness loss; else 2."""


@dataclass(frozen=True)
class Update:
    """What an update did."""

    t: int
    step: str
    """keep, retrain, fine-tune, or the name that a strategy gave its plan."""
    seconds: float
    report: TrainingReport | None
    """None where nothing was trained by gradient descent."""
    notes: tuple[str, ...] = ()
    """One sentence for each thing worth knowing."""
    event_weights: Mapping[str, float] = field(default_factory=dict)
    """How many times the events of each group counted; once where a group is not named."""
    control: Control | None = None
    """What the controller of the disparity decided, where there is one."""
    fairness_weight: float | None = None
    """λ where that controller set it; None: it set the weights of events alone."""


class _Result(NamedTuple):
    """What training has made."""

    model: Scorer
    optimizer: torch.optim.Optimizer | None
    report: TrainingReport | None
    engine: Engine | None
    """Holds the result until it is finished, where it worked on a copy."""
    users: Rows
    """Whom it was trained on."""
    items: Rows
    """The positives."""


class _Lesson(NamedTuple):
    """What is to be learned."""

    plan: Plan
    history: History
    about: NewEvents
    """The groups of the users and the features of the items."""
    t: int
    unlearned: Rows
    """Positions of the events that the model has not learned."""
    event_weights: Mapping[str, float]
    """How many times the events of each group count."""
    control: Control | None = None
    """What the controller decided, where there is one."""
    was_weighted: bool = False
    """Whether the model holds events by other weights."""

    @property
    def groups(self) -> Groups:
        """The groups that training may use; with group weights those of users whom no rare item identifies."""
        if all(weight == 1 for weight in self.event_weights.values()):
            return self.about.groups
        assert self.plan.events is not None
        return _shown_groups(self.about.groups, self.history, _without(self.unlearned, self.plan.events))

    @property
    def user_weights(self) -> UserWeights | None:
        """(n_users,) how many times the events of each user count; None: once."""
        return self.groups.weights(self.event_weights)


@dataclass(eq=False)
class Candidate:
    """The next state, trained but not yet in force."""

    state: State
    step: str
    report: TrainingReport | None
    notes: tuple[str, ...]
    _engine: Engine | None
    _began: float
    control: Control | None = None
    fairness_weight: float | None = None

    def commit(self, *, in_place: bool) -> tuple[State, Update]:
        """Finish the next state; `in_place` reuses the memory of the one before, which is void from then on."""
        if self._engine is not None:
            self._engine.finish(in_place=in_place)
        if self.state.model.device.type == "cuda":
            torch.cuda.synchronize(self.state.model.device)
        self.state.model.eval()
        seconds = time.perf_counter() - self._began
        return self.state, Update(
            self.state.t,
            self.step,
            seconds,
            self.report,
            self.notes,
            dict(self.state.event_weights),
            self.control,
            self.fairness_weight,
        )

    def undo(self) -> None:
        """Give the state before its memory back."""
        if self._engine is not None:
            self._engine.undo()


@dataclass(frozen=True, eq=False)
class Learning:
    """How states follow each other: the method, its parts, and where they run. It has no state itself."""

    config: MethodConfig
    parts: Parts
    randomness: Randomness
    device: torch.device
    engine: EngineName = "auto"
    oracle: History | None = None
    """All events, future ones included: the paper's protocol lets training know of them."""
    workers: WorkerGroup | None = None
    """Who takes the steps of gradient descent; None: this process."""
    checkpoint: Path | None = None
    """Where the workers' trainings are saved while they last."""
    threads: Threads = "auto"

    def __post_init__(self) -> None:
        self.parts.check(self.config)
        # What cannot be honoured is said now, not at the first fit.
        _ = (self.factory, self.objective, self.strategy, self.controller, self._sets_lambda)
        if self.controller is not None or self.config.group_weight != 1:
            _check_takes_weights(self.example)

    @cached_property
    def factory(self) -> ModelFactory:
        """Makes the model."""
        return self.parts.make_model_factory(self.config)

    @cached_property
    def models(self) -> ModelBuilder:
        """Makes, copies and grows models with their optimizers."""
        return ModelBuilder(self.config, self.factory, self.randomness, self.device, self.oracle)

    @cached_property
    def example(self) -> Scorer:
        """A model for one user and one item: it shows what kind of model there is."""
        with self.randomness.seeded("weights", 0):
            return make_model(self.factory, 1, 1)

    @cached_property
    def objective(self) -> Objective:
        """What training minimises."""
        return self.parts.make_objective(self.config)

    @cached_property
    def controller(self) -> DisparityController | None:
        """What holds the disparity, where one is accepted."""
        return self.parts.make_controller(self.config)

    @cached_property
    def strategy(self) -> Strategy:
        """What each update learns."""
        return self.parts.make_strategy(self.config)

    @cached_property
    def reads_features(self) -> bool:
        """Whether the model reads features of items: its factory takes `feature_buckets`."""
        return "feature_buckets" in inspect.signature(self.factory).parameters

    def readable(self, log: EventLog) -> EventLog:
        """The log without features of items where the model does not read them, and a note that says so."""
        if log.features is None or self.reads_features:
            return log
        note = f"the model {self.config.model} does not read features of items: they have no effect"
        return replace(log, features=None, notes=(*log.notes, note))

    def measure(
        self,
        evaluator: Evaluator,
        state: State,
        events: NewEvents,
        known: Evaluation | None = None,
        by: MeasureGroups | None = None,
    ) -> Measured | None:
        """How the model in service does on events before it learns them; None where no controller asks.

        `known` is its evaluation on these events for the controller's task, where there is one; `by` measures the
        groups instead of `Measured.of`.
        """
        if self.controller is None:
            return None
        (metric,) = resolve_metrics((self.config.disparity_metric,), 20, evaluator.protocol.metrics)
        # A list is no longer than the catalogue.
        name = f"{metric.name.rpartition('@')[0]}@{min(metric.k, state.history.n_items)}"
        evaluator = replace(evaluator, metrics=(name,), k=1, n_resamples=0, rerank=None)
        (metric,) = evaluator.resolved_metrics

        def tested(model: Scorer, contexts: ContextBuilder, **options: Any) -> UserResults:
            return evaluator.evaluate(
                model,
                events.users,
                events.items,
                history=state.history,
                contexts=contexts,
                t=state.t,
                by_event=self.config.disparity_task == "event",
                **options,
            ).tested

        if known is None or metric.name not in known.metrics:
            results = tested(state.model, state.contexts)
        else:
            results = known.tested
        yardstick = None
        if self.config.max_group_loss is not None:
            popular = RecentPopularity.of(state.history).eval().to(self.device)
            yardstick = tested(popular, ContextBuilder(Reads(), state.history, None, self.device)).values_of(metric)
        values, names = results.values_of(metric), events.groups.names
        if by is not None:
            return by(results.users, values, results.codes, names, yardstick)
        return Measured.of(values, results.codes, names, evaluator.min_group_size, yardstick)

    def test(self, evaluator: Evaluator, state: State, events: NewEvents, results: UserResults) -> UserQuality | None:
        """How the model in service does on each user it knows, beside recent popularity; None where no strategy asks.

        `results` are the model's, as the evaluator found them for the task `next`.
        """
        if not self.strategy.needs_quality:
            return None
        evaluator = replace(evaluator, metrics=("ndcg",), n_resamples=0, rerank=None)
        n_rankable = None if self.oracle is None else self.oracle.n_items
        reference = evaluator.evaluate(
            RecentPopularity.of(state.history, n_rankable).eval().to(self.device),
            events.users,
            events.items,
            history=state.history,
            contexts=ContextBuilder(Reads(), state.history, None, self.device),
            t=state.t,
            n_rankable=n_rankable,
        ).tested
        metric = evaluator.resolved_metrics[0]
        # Whatever metrics were asked for, and whatever they are called.
        known = [replace(part, values={}, totals={}).where(~part.is_cold) for part in (results, reference)]
        values, of_reference = (part.values_of(metric) for part in known)
        return UserQuality(known[0].users, values, of_reference, events.groups)

    # ── transitions ──────────────────────────────────────────────────────────────────────

    def fit(self, events: NewEvents, on_epoch: OnEpoch | None = None, t: int = 0, **about: Any) -> Candidate:
        """Pre-train on events alone."""
        history = History.of(events.users, events.items, n_items=events.n_items)
        return self.fit_history(history, events, on_epoch, t, **about)

    def fit_history(
        self, history: History, events: NewEvents, on_epoch: OnEpoch | None = None, t: int = 0, **about: Any
    ) -> Candidate:
        """Train from scratch on a whole history, as of period t.

        A model that inherits (the blend, its weights) is trained on the history up to a short tail, and then updated
        with the tail: how well it predicts the tail before learning it decides what it would otherwise have to guess.
        """
        n_head = len(history) - int(CALIBRATION_SHARE * len(history))
        if type(self.example).inherit is Scorer.inherit or n_head == len(history):
            return self._fit_at_once(history, events, on_epoch, t, **about)
        head, tail = range(n_head), range(n_head, len(history))

        def progress(n_done: int, n_more: int) -> OnEpoch | None:
            return on_epoch and (lambda done, total: on_epoch(n_done + done, n_done + total + n_more))

        before = History.of(history.users_at(head), history.items_at(head), n_items=events.n_items)
        first = self._fit_at_once(before, events, progress(0, self.config.update_epochs), t, **about)
        state, _ = first.commit(in_place=True)
        fine_tuning = replace(self, parts=replace(self.parts, strategy=FineTune()), checkpoint=None)
        new = events._replace(users=history.users_at(tail), items=history.items_at(tail))
        try:
            candidate = fine_tuning.update(state, new, on_epoch=progress(self.config.pretrain_epochs, 0))
        except DataError:  # nobody in the tail has items left to draw negatives from
            return self._fit_at_once(history, events, on_epoch, t, **about)
        # The tail is no period of its own.
        following = replace(candidate.state, history=history, t=t, started_at=t, memory={}, control={})
        return Candidate(following, first.step, first.report, following.model.notes, candidate._engine, first._began)

    def _fit_at_once(
        self, history: History, events: NewEvents, on_epoch: OnEpoch | None, t: int, **about: Any
    ) -> Candidate:
        """Train from scratch on a whole history."""
        began = time.perf_counter()
        period = self._period(t, history, range(len(history)), None, {})
        plan, weights = Plan.retrain(period), self.fixed_weights(events.groups)
        lesson = _Lesson(plan, history, events, t, np.arange(len(history)), weights)
        result = self._train(lesson, None, on_epoch)
        state = State(
            result.model,
            result.optimizer,
            history,
            events.groups,
            events.user_ids,
            events.item_ids,
            _marked(np.zeros(0, np.bool_), history.n_users, result.users),
            _marked(np.zeros(0, np.bool_), history.n_items, result.items),
            t,
            t,
            last_time=events.last_time,
            features=events.features,
            event_weights=weights,
            **about,
        )
        return Candidate(state, plan.step, result.report, result.model.notes, result.engine, began)

    def update(
        self,
        state: State,
        events: NewEvents,
        quality: float | None = None,
        on_epoch: OnEpoch | None = None,
        *,
        measured: Measured | None = None,
        tested: UserQuality | None = None,
        control_step: float = 1.0,
    ) -> Candidate:
        """Make W_t of W_{t−1} and D_t.

        `quality` and `tested`, and `measured`, are how W_{t−1} did on D_t, for the strategy and for the controller of
        the disparity, where they ask for it; `control_step` is how much of that controller's step is taken.
        """
        began, t = time.perf_counter(), state.t + 1
        history = state.history.after(events.users, events.items, n_items=events.n_items)
        new: Positions = range(len(state.history), len(history))
        arrived = np.arange(len(state.history), len(history))
        if len(state.pending):  # np.asarray of an empty range would be of floats
            new = np.concatenate([state.pending, arrived])
        unlearned = np.concatenate([state.unlearned, arrived])
        plan = self.strategy.plan(replace(self._period(t, history, new, quality, state.memory), tested=tested))
        reasons = (plan.reason,) if plan.reason else ()
        control = self._controlled(state, measured, control_step)
        following = replace(self._following(state, events, history, t), control=control.memory)
        if plan.events is None:
            model, optimizer = self.models.grown(state, history, events.features)
            following = replace(
                following,
                model=model,
                optimizer=optimizer,
                trained=_marked(state.trained, history.n_users),
                trained_items=_marked(state.trained_items, history.n_items),
                memory=plan.memory,
                unlearned=unlearned,
            )
            notes = (*reasons, *model.notes)
            return Candidate(following, plan.step, None, notes, None, began, *self._told(control, None))
        if len(plan.events) and not 0 <= plan.events[0] <= plan.events[-1] < len(history):
            raise ConfigurationError(f"a plan names events that are not there; the history has {len(history)}")
        is_fresh = plan.start == "fresh"
        unlearned = np.arange(len(history)) if is_fresh else unlearned
        base = None if is_fresh else self.models.grown(state, history, events.features, always=True)
        weights = self.fixed_weights(events.groups) if self.controller is None else dict(control.weights)
        lesson = _Lesson(plan, history, events, t, unlearned, weights, control, state.is_weighted)
        result = self._train(lesson, base, on_epoch)
        if type(result.model).inherit is not Scorer.inherit:
            previous = self.models.grown(state, history, events.features)[0] if base is None else base[0]
            with limit_threads(training_threads(self.threads)):  # many small steps as well
                result.model.inherit(previous, history, new, state.contexts, lesson.user_weights)
        nobody, nothing = state.trained[:0], state.trained_items[:0]
        following = replace(
            following,
            model=result.model,
            optimizer=result.optimizer,
            trained=_marked(nobody if is_fresh else state.trained, history.n_users, result.users),
            trained_items=_marked(nothing if is_fresh else state.trained_items, history.n_items, result.items),
            started_at=t if is_fresh else state.started_at,
            memory=self.strategy.after(plan, result.report),
            pending=state.pending[:0],
            unlearned=_without(unlearned, plan.events),
            memory_use=MemoryUse(),  # its memory is its own, or the caller lets it take over the last state's
            event_weights=weights,
        )
        notes = (*reasons, *control.reasons, *result.model.notes)
        return Candidate(
            following, plan.step, result.report, notes, result.engine, began, *self._told(control, result.optimizer)
        )

    def kept(self, state: State, events: NewEvents) -> State:
        """W_{t−1} after D_t, knowing of it and not having learned it: what would be in force without an update."""
        keeping = replace(self, parts=replace(self.parts, strategy=Keep()))
        return keeping.update(state, events).commit(in_place=False)[0]

    def without_lever(self) -> Learning:
        """The same, with nothing done for fairness in training."""
        return replace(self, config=self.config.without_lever())

    def without_groups(self) -> Learning:
        """The same where there are no groups: only a fairness loss that needs none stays on."""
        return replace(self, config=self.parts.without_groups(self.config))

    def unweighted(self, state: State) -> State:
        """The state with the events of every group counting once, where that needs no training.

        That is in closed-form parts of the model; what was learned by gradient stays.
        """
        if not state.is_weighted:
            return state
        model, optimizer = self.models.grown(state, state.history, state.features, always=True)
        self._compute(model, state.history, range(0), state.unlearned, None, state.started_at, was_weighted=True)
        return replace(state, model=model.eval(), optimizer=optimizer, event_weights={})

    def observe(self, state: State, events: NewEvents, *, learn_later: bool) -> State:
        """Know of events without learning from them yet; they belong to the period that the next update ends."""
        history = state.history.after(events.users, events.items, ends_period=False, n_items=events.n_items)
        following = self._following(state, events, history, state.t)
        model, optimizer = self.models.grown(state, history, events.features)
        pending, arrived = state.pending, np.arange(len(state.history), len(history))
        if learn_later:
            pending = np.concatenate([pending, arrived])
        return replace(
            following,
            model=model.eval(),
            optimizer=optimizer,
            trained=_marked(state.trained, history.n_users),
            trained_items=_marked(state.trained_items, history.n_items),
            pending=pending,
            unlearned=np.concatenate([state.unlearned, arrived]),
        )

    def forget(self, state: State, rows: Rows) -> State:
        """Remove users: ids, groups, events, rows and optimizer state; the rows of later users move up.

        A closed-form model is computed again without them, as if they had never been there.
        """
        return self._keep(state, np.flatnonzero(~np.isin(state.history.users, rows)), np.unique(rows))

    def retain(self, state: State, kept: Rows) -> State:
        """Remove all events but those at the positions `kept`, and the users who have none of them.

        A closed-form model is computed again; what gradient descent has learned from the others stays.
        """
        if len(kept) == len(state.history):
            return state
        still_there = np.unique(state.history.users_at(kept))
        return self._keep(state, kept, np.setdiff1d(np.arange(state.history.n_users), still_there))

    def _keep(self, state: State, kept: Rows, rows: Rows) -> State:
        """Remove all events but those at some positions, and users who have none of them."""
        history, groups = state.history.keep(kept, rows), state.groups.without(rows)
        pending, unlearned = (
            np.searchsorted(kept, positions[np.isin(positions, kept)]) for positions in (state.pending, state.unlearned)
        )
        model, optimizer = self.models.forgotten(state, rows)
        if parts := closed_forms(model):
            self._reset(parts, history, state.started_at)
            everything = np.arange(len(history))
            weights = _shown_groups(groups, history, unlearned).weights(state.event_weights)
            self._compute(model, history, _without(everything, unlearned), everything, weights, state.started_at)
        return replace(
            state,
            model=model.eval(),
            optimizer=optimizer,
            history=history,
            groups=groups,
            user_ids=state.user_ids.without(rows),
            trained=np.delete(state.trained, rows),
            memory=self.strategy.forget(state.memory, rows),
            pending=pending,
            unlearned=unlearned,
            memory_use=MemoryUse(),
        )

    # ── training ─────────────────────────────────────────────────────────────────────────

    def _controlled(self, state: State, measured: Measured | None, share: float) -> Control:
        """What the controller decides, if there is one; without a measurement nothing changes."""
        if self.controller is None:
            return Control({}, {}, ())
        memory = state.control or self.controller.start(state.event_weights)
        return self.controller.unchanged(memory) if measured is None else self.controller.step(memory, measured, share)

    def _told(self, control: Control, optimizer: torch.optim.Optimizer | None) -> tuple[Control | None, float | None]:
        """What an update tells of the controller: its decision, and λ where it was trained with one."""
        if self.controller is None:
            return None, None
        return control, self._lambda(control) if self._sets_lambda and optimizer is not None else None

    def _lambda(self, control: Control) -> float:
        """λ for what the controller decided."""
        return LAMBDA_PER_LOG_WEIGHT.get(self.config.surrogate, 2.0) * control.log_weight

    def fixed_weights(self, groups: Groups) -> dict[str, float]:
        """How many times the events of each group count by the configuration alone.

        Raises
        ------
        ConfigurationError
            If they are to count more, and nobody has said for which of three groups or more.

        """
        weight = self.config.group_weight
        if weight == 1:
            return {}
        if not groups.has_advantaged:
            raise ConfigurationError(
                f"group_weight is for every group but the advantaged one, and none of the {len(groups.names)} groups "
                f"of {groups.attribute} was named; name the best-served one with advantaged= (on the command line: "
                f"--advantaged), or use max_disparity, which finds out who is behind"
            )
        return dict.fromkeys(groups.behind(), weight)

    def notes_on_fairness(self, groups: Groups) -> tuple[str, ...]:
        """What is asked of the fairness loss and cannot be done: one sentence, or none."""
        config, model = self.config, self.example
        if groups.is_empty or not self.objective.is_fair:
            return ()
        if isinstance(model, ClosedFormScorer):
            if config.group_weight != 1:  # which closed forms do take
                return ()
            name = config.model if self.parts.model is None else type(model).__name__
            twin = next((n for n, m in METHODS.items() if m == Method(n, METHODS[config.method].strategy)), None)
            return (
                f"{name} is computed in closed form, so the fairness loss of {config.method} has no effect: the "
                f"results equal those of {twin or 'fairness_weight=0'}; use "
                f"{'max_disparity or group_weight, or ' if takes_weights(model) else ''}"
                f"a model trained by gradient descent",
            )
        if self._is_undirected(groups):
            return (
                f"{len(groups.names)} groups of {groups.attribute} and no advantaged one named: the "
                f"{config.fairness_name} fairness loss was not applied; name the best-served group with advantaged= "
                f"(on the command line: --advantaged), or use max_disparity or fairness='largest', which find out who "
                f"is behind",
            )
        return ()

    def _is_undirected(self, groups: Groups) -> bool:
        """Whether the fairness loss has to know which group is better served, and nobody has said."""
        return getattr(self.objective.fairness, "needs_advantaged", False) and not groups.has_advantaged

    def _train(self, lesson: _Lesson, base: Trained | None, on_epoch: OnEpoch | None) -> _Result:
        """Learn a lesson, on a fresh model or on `base`, which shares its memory with the state before."""
        plan, history, about, t = lesson.plan, lesson.history, lesson.about, lesson.t
        assert plan.events is not None
        if base is None:
            model = self.models.new(history, t, about.features)
            optimizer = self.models.optimizer(model)
        else:
            model, optimizer = base
        learned = history, plan.events, lesson.unlearned, lesson.user_weights, t
        if optimizer is None:
            self._compute(model, *learned, was_weighted=lesson.was_weighted)
            return _Result(model, None, None, None, history.users_at(plan.events), history.items_at(plan.events))
        is_fresh = plan.start == "fresh"
        config, epochs = self.config, plan.epochs
        rate = (None if is_fresh else config.update_learning_rate) or config.learning_rate
        epochs = epochs or (config.pretrain_epochs if is_fresh else config.update_epochs)
        job = self._job(lesson, model.gradient_part.train(), optimizer)
        make_engine = self._engine_of(job)
        works_on_copy = base is not None and job.same_batches_every_epoch and _works_on_copy(make_engine, job)
        if base is not None and not works_on_copy:
            model, optimizer = self.models.copied(model, optimizer, about.features)
            assert optimizer is not None
            job = replace(job, model=model.gradient_part.train(), optimizer=optimizer)
        set_learning_rate(job.optimizer, rate)
        if is_fresh and config.schedule == "cosine":
            job = replace(job, schedule=Schedule(job.optimizer, rate, epochs * len(job.batches)))
        try:
            with limit_threads(training_threads(self.threads)):
                engine = make_engine(job)
                report = train(
                    job,
                    engine,
                    n_interactions=len(plan.events),
                    t=t,
                    epochs=epochs,
                    randomness=self.randomness,
                    learning_rate=rate,
                    on_epoch=on_epoch,
                )
        except BaseException:
            if self.workers is not None:
                self.workers.stop()
            raise
        if job.schedule is not None:
            job.schedule.finish()
        if works_on_copy:
            return _Result(model, optimizer, report, engine, job.batches.users, job.batches.positives)
        engine.finish(in_place=True)  # the model is nobody else's
        self._compute(model, *learned, was_weighted=lesson.was_weighted)
        return _Result(model, optimizer, report, None, job.batches.users, job.batches.positives)

    def _engine_of(self, job: TrainingJob) -> Callable[[TrainingJob], Engine]:
        """What runs a job: this process, or the workers."""
        if self.workers is None:
            return self.parts.engine_choice(self.config)(self.engine, job)
        if METHODS[self.config.method].engine is not None:
            raise ConfigurationError(
                f"{self.config.method} has a training of its own, which no cluster can divide; leave out cluster"
            )
        return partial(DistributedEngine, group=self.workers, checkpoints=Checkpoints(folder=self.checkpoint))

    def _compute(
        self,
        model: Scorer,
        history: History,
        events: Positions,
        unlearned: Rows,
        user_weights: UserWeights | None,
        t: int,
        *,
        was_weighted: bool = False,
    ) -> None:
        """Let the closed-form parts of a model learn `events`, each event once."""
        parts = closed_forms(model)
        if not parts:
            return
        learned = _without(np.arange(len(history)), unlearned)
        new = _without(np.asarray(events, np.int64), learned)
        counting = np.union1d(learned, new)
        if user_weights is not None or was_weighted:  # the weights may have changed: all events count anew
            self._reset(parts, history, t)
            new = counting
        only, at = history.only(counting), np.searchsorted(counting, new)
        weights = {} if user_weights is None else {"weights": user_weights}
        for part in parts.values():  # each replaces its tensors, so older states keep theirs
            part.learn(only, at, **(weights if takes_weights(part) else {}))

    def _reset(self, parts: Mapping[str, ClosedFormScorer], history: History, t: int) -> None:
        """Let closed-form parts forget everything."""
        fresh = closed_forms(self.models.new(history, t))
        for name, part in parts.items():
            for key, value in fresh[name].named_buffers(recurse=False):
                setattr(part, key, value)

    def _objective(self, lesson: _Lesson) -> Objective:
        """What training minimises, with the λ that a controller sets; 0 where nobody has said whom it is to help."""
        if self._sets_lambda and lesson.control is not None and lesson.control.log_weight != 0:
            return replace(self.objective, lambda_=self._lambda(lesson.control), mu=self.config.n_fairness_negatives)
        if self._is_undirected(lesson.about.groups) and not self.objective.is_auto:
            return replace(self.objective, lambda_=0.0, mu=self.config.n_negatives)
        return self.objective

    @property
    def _sets_lambda(self) -> bool:
        """Whether λ is what a controller sets for the part of a model that is trained by gradient descent."""
        lever = self.config.disparity_lever
        if self.controller is None:
            return False
        if lever == "event-weights" and not self.objective.is_weighted and not closed_forms(self.example):
            raise ConfigurationError(
                f"the loss {self.config.loss} takes no weights of events; choose loss='softmax' or "
                f"disparity_lever='fairness-loss'"
            )
        return lever == "fairness-loss" or not self.objective.is_weighted

    def _job(self, lesson: _Lesson, model: Scorer, optimizer: torch.optim.Optimizer) -> TrainingJob:
        plan, history, about = lesson.plan, lesson.history, lesson.about
        assert plan.events is not None
        rows, config, groups = self.oracle or history, self.config, lesson.groups
        objective, user_weights = self._objective(lesson), lesson.user_weights
        if self._sets_lambda and lesson.control is not None:
            groups, user_weights = groups.with_ahead(lesson.control.ahead(groups.names)), None
        among = None
        if about.features is not None and isinstance(model, WindowScorer):
            among = self._items_with_events(rows)
        sampler = NegativeSampler(
            rows.seen, history.users_at(plan.events), n_items=rows.n_items, among=among, device=self.device
        )
        batches: Batches | Windows
        if isinstance(model, WindowScorer):
            batches = cut_windows(
                history,
                plan.events,
                groups.codes,
                sampler,
                n_drawn=objective.n_drawn,
                length=model.reads.history,
                size=config.batch_size,
                activity_exponent=config.activity_exponent,
                user_weights=user_weights,
            )
        else:
            batches = cut_batches(
                history, plan.events, groups.codes, sampler, n_drawn=objective.n_drawn, size=config.batch_size
            )
        if config.activity_exponent and not (isinstance(batches, Windows) and self.objective.is_weighted):
            raise ConfigurationError(
                "activity_exponent weighs the events of sequence models (gru, sasrec, blend) in the softmax loss; "
                "choose both, or leave it at 0"
            )
        shuffle = plan.start == "fresh" if plan.shuffle is None else plan.shuffle
        return TrainingJob(
            model,
            optimizer,
            objective,
            batches,
            sampler,
            tuple(groups.signs(groups.n_groups_among(rows.n_users))),
            ContextBuilder(model.reads, history, None, self.device),
            same_batches_every_epoch=not shuffle,
            extra_loss=plan.extra_loss,
            shared_negatives=self._shared_negatives(model, history, rows.n_items, among),
        )

    @staticmethod
    def _items_with_events(history: History) -> Rows | None:
        """The items that training may take for negatives; None: all of them.

        Nobody has passed over an item that has had no event: it is to be scored by its features alone.
        """
        has_events = np.bincount(history.items, minlength=history.n_items) > 0
        return None if has_events.all() else np.flatnonzero(has_events)

    def _shared_negatives(
        self, model: Scorer, history: History, n_items: int, among: Rows | None
    ) -> SharedNegatives | None:
        """What stands for all items, where there are too many to score at every step or some are no negatives."""
        if not (isinstance(model, WindowScorer) and self.objective.needs_all_items):
            return None
        if (n_items if among is None else len(among)) <= MOST_ITEMS:
            return None if among is None else EveryItem(among, self.device)
        counts = np.bincount(history.items, minlength=n_items)
        return SharedNegatives(counts if among is None else counts[among], N_SHARED, self.device, rows=among)

    def _period(self, t: int, history: History, new: Positions, quality: float | None, memory: Any) -> Period:
        return Period(t, history, new, quality, memory, self.randomness)

    def _following(self, state: State, events: NewEvents, history: History, t: int) -> State:
        return replace(
            state,
            history=history,
            groups=events.groups,
            user_ids=events.user_ids,
            item_ids=events.item_ids,
            features=events.features,
            t=t,
            last_time=state.last_time if events.last_time is None else events.last_time,
        )


def _works_on_copy(make_engine: Any, job: TrainingJob) -> bool:
    """Whether an engine touches nothing of the model before it is finished."""
    return isinstance(make_engine, type) and issubclass(make_engine, Engine) and make_engine.works_on_copy(job)


def _check_takes_weights(model: Scorer) -> None:
    """Raise a `ConfigurationError` where a closed-form model knows no weights."""
    if not isinstance(model, ClosedFormScorer) or takes_weights(model):
        return
    raise ConfigurationError(
        f"group_weight needs a model whose learn takes weights, and that of {type(model).__name__} does not; "
        f"add `weights` to it (see ClosedFormScorer.learn), or leave group_weight at 1"
    )


def _shown_groups(groups: Groups, history: History, unlearned: Rows) -> Groups:
    """The groups of the users whom no rare item among the learned events could identify.

    What training does for a group shows in the scores of the items that its users have had. Where few users have had
    an item, its scores would reveal their groups.
    """
    learned = history.only(_without(np.arange(len(history)), unlearned))
    return groups.hide(learned.users_with_rare_items(groups.codes != UNKNOWN, MIN_USERS_OF_AN_ITEM))


def _without(positions: Rows, gone: Positions) -> Rows:
    """The positions that are not among those of `gone`."""
    if isinstance(gone, range):
        return positions[(positions < gone.start) | (positions >= gone.stop)]
    return np.setdiff1d(positions, gone, assume_unique=True)


def _marked(mask: Mask, n_rows: int, rows: Rows | tuple[()] = ()) -> Mask:
    """The mask with a place for each of `n_rows` rows, and these marked."""
    marked = np.zeros(n_rows, np.bool_)
    marked[: len(mask)] = mask
    marked[np.asarray(rows, np.int64)] = True
    return marked


def note_on_undecided(groups: Iterable[str]) -> str:
    """Why `advantaged="auto"` could not decide for some groups."""
    names = ", ".join(groups) or "any group"
    return (
        f"whether {names} is ahead could not be decided from this period, which has too few users of it whom the model "
        f"knows; what was decided before still holds"
    )
