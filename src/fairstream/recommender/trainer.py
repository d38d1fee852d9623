"""Computes the next state of a recommender: fit, update, observe, forget, retain."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fairstream.data import EventLog, Groups, History, Rows
from fairstream.data.history import Positions
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import Evaluation, Evaluator, Metric
from fairstream.models import ClosedFormScorer, Mask, closed_forms, takes_weights
from fairstream.recommender.jobs import JobRunner, TrainingRequest, hide_identifiable, subtract
from fairstream.recommender.judging import UNJUDGED, Judgement, judge_users, measure_gaps
from fairstream.recommender.state import MemoryUse, NewEvents, State
from fairstream.strategies import (
    Control,
    DisparityController,
    FineTune,
    Keep,
    Measured,
    MeasureGroups,
    Memory,
    Period,
    Plan,
    Strategy,
)
from fairstream.threads import limit_threads, training_threads
from fairstream.training import Engine, OnEpoch, TrainingReport

CALIBRATION_SHARE = 0.05  # of the first events, the latest ones: on them `fit` calibrates the blend's weights
_NOBODY: Mask = np.zeros(0, np.bool_)


@dataclass(frozen=True)
class Update:
    """The report of an update."""

    t: int
    step: str
    """keep, retrain, fine-tune, or the name that a strategy gave its plan."""
    seconds: float
    report: TrainingReport | None
    """None if nothing was trained by gradient descent."""
    notes: tuple[str, ...] = ()
    """One sentence for each thing worth knowing."""
    event_weights: Mapping[str, float] = field(default_factory=dict)
    """How many times the events of each group counted; once if a group is missing."""
    control: Control | None = None
    """The controller's decision, if there is a target."""
    fairness_weight: float | None = None
    """λ if the controller set it; None: it set event weights alone."""


@dataclass(eq=False)
class Candidate:
    """The next state, trained but not yet serving."""

    state: State
    update: Update  # `commit` sets its seconds
    _engine: Engine | None
    _began: float

    def commit(self, *, in_place: bool) -> tuple[State, Update]:
        """Finish the next state; `in_place` reuses the memory of the previous state and so destroys it."""
        if self._engine is not None:
            self._engine.finish(in_place=in_place)
        if self.state.model.device.type == "cuda":
            torch.cuda.synchronize(self.state.model.device)
        self.state.model.eval()
        return self.state, replace(self.update, seconds=time.perf_counter() - self._began)

    def undo(self) -> None:
        if self._engine is not None:
            self._engine.undo()


@dataclass(frozen=True, eq=False)
class Trainer(JobRunner):
    """Computes the next state of a recommender from its recipe. It holds no state itself."""

    metrics: Mapping[str, Metric] = field(default_factory=dict)  # custom metrics by name, which a target may name

    def __post_init__(self) -> None:
        _ = self.sets_lambda  # raises if the lever does not fit the loss

    @cached_property
    def controller(self) -> DisparityController | None:
        """Sets the event weights or λ, if there is a target."""
        target = self.recipe.target
        return None if target is None else DisparityController(target.gap, max_group_loss=target.max_group_loss)

    def without_lever(self) -> Trainer:
        return replace(self, recipe=self.recipe.without_lever())

    def with_strategy(self, strategy: Strategy) -> Trainer:
        return replace(self, recipe=replace(self.recipe, strategy=strategy))

    def readable(self, log: EventLog) -> EventLog:
        """Return the log without item features, and with a note, if the model does not read them."""
        if log.features is None or self.recipe.model.reads_features:
            return log
        note = f"the model {self.recipe.model.name} does not read features of items: they have no effect"
        return replace(log, features=None, notes=(*log.notes, note))

    def judge(
        self,
        evaluator: Evaluator,
        state: State,
        events: NewEvents,
        known: Mapping[str, Evaluation] | None = None,
        by: MeasureGroups | None = None,
    ) -> Judgement:
        """Evaluate W_{t−1} on D_t before it learns D_t, if the strategy or the target needs it.

        `known` maps tasks to existing evaluations of this model on these events; `by` replaces `Measured.of`.
        """
        known, target, judgement = known or {}, self.recipe.target, UNJUDGED
        if self.recipe.strategy.needs_quality:
            judgement = judge_users(evaluator, state, events, known.get("next"))
        if target is None:
            return judgement
        measured = measure_gaps(evaluator, state, events, target, known.get(target.task), self.metrics, by)
        return judgement._replace(measured=measured)

    # ── transitions ──────────────────────────────────────────────────────────────────────

    def fit(self, events: NewEvents, on_epoch: OnEpoch | None = None, t: int = 0, **about: Any) -> Candidate:
        history = History.of(events.users, events.items, n_items=events.n_items)
        return self.fit_history(history, events, on_epoch, t, **about)

    def fit_history(
        self, history: History, events: NewEvents, on_epoch: OnEpoch | None = None, t: int = 0, **about: Any
    ) -> Candidate:
        """Train from scratch on a whole history, as of period t.

        A model that calibrates (the blend, its weights) is trained on the history without its last events, then
        updated with them: how well it predicts them before learning them decides the weights.
        """
        n_first = len(history) - int(CALIBRATION_SHARE * len(history))
        if not self.recipe.calibrates or n_first == len(history):
            return self._fit_all(history, events, on_epoch, t, **about)
        first, last = range(n_first), range(n_first, len(history))

        def progress(n_done: int, n_more: int) -> OnEpoch | None:
            return on_epoch and (lambda done, total: on_epoch(n_done + done, n_done + total + n_more))

        before = History.of(history.users_at(first), history.items_at(first), n_items=events.n_items)
        pretrained = self._fit_all(before, events, progress(0, self.recipe.update_epochs), t, **about)
        state, _ = pretrained.commit(in_place=True)
        new = events._replace(users=history.users_at(last), items=history.items_at(last))
        on_update = progress(self.recipe.training.pretrain_epochs, 0)
        try:
            candidate = self.with_strategy(FineTune()).update(state, new, on_epoch=on_update)
        except DataError:  # no user of the last events has items left to draw negatives from
            return self._fit_all(history, events, on_epoch, t, **about)
        # The last events are not a period.
        state = replace(candidate.state, history=history, t=t, started_at=t, memory={}, control={})
        # Notes on the pre-trained model are outdated; notes on its training are not.
        notes = [note for note in pretrained.update.notes if note not in pretrained.state.model.notes]
        update = replace(pretrained.update, notes=(*state.model.notes, *notes), event_weights=state.event_weights)
        return Candidate(state, update, candidate._engine, pretrained._began)

    def _fit_all(
        self, history: History, events: NewEvents, on_epoch: OnEpoch | None, t: int, **about: Any
    ) -> Candidate:
        began = time.perf_counter()
        plan = Plan("fresh", range(len(history)), name="retrain")
        weights = self.fixed_weights(events.groups)
        request = TrainingRequest(plan, history, events, t, np.arange(len(history)), weights)
        result = self.train(request, None, on_epoch)
        state = State(
            result.model,
            result.optimizer,
            history,
            events.groups,
            events.user_ids,
            events.item_ids,
            _mark(_NOBODY, history.n_users, result.users),
            _mark(_NOBODY, history.n_items, result.items),
            t,
            t,
            last_time=events.last_time,
            features=events.features,
            event_weights=weights,
            **about,
        )
        update = Update(t, plan.step, 0.0, result.report, (*result.model.notes, *result.notes), weights)
        return Candidate(state, update, result.engine, began)

    def update(
        self,
        state: State,
        events: NewEvents,
        judgement: Judgement = UNJUDGED,
        on_epoch: OnEpoch | None = None,
        *,
        control_step: float = 1.0,
    ) -> Candidate:
        """Train W_t on D_t, from W_{t−1}.

        `judgement` is how W_{t−1} did on D_t (`judge`); `control_step` is the share of the controller's step to take.
        """
        began, t = time.perf_counter(), state.t + 1
        history = state.history.after(events.users, events.items, n_items=events.n_items)
        arrived = np.arange(len(state.history), len(history))
        new: Positions = range(len(state.history), len(history))
        new = np.concatenate([state.pending, arrived]) if len(state.pending) else new
        unlearned = np.concatenate([state.unlearned, arrived])
        period = Period(t, history, new, judgement.quality, state.memory, self.randomness, tested=judgement.users)
        plan = self.recipe.strategy.plan(period)
        if not isinstance(plan, Plan):
            raise ConfigurationError(f"Strategy.plan must return a fairstream.Plan, got {plan!r}")
        control = self._control(state, judgement.measured, control_step)
        following = replace(
            self._with_events(state, events, history), t=t, control=control.memory, memory=_check_memory(plan.memory)
        )
        reasons = (plan.reason,) if plan.reason else ()
        if plan.events is None:
            model, optimizer = self.models.grow(state, history, events.features)
            following = replace(following, model=model, optimizer=optimizer, unlearned=unlearned)
            update = Update(t, plan.step, 0.0, None, (*reasons, *model.notes), state.event_weights)
            return Candidate(following, self._with_control(update, control), None, began)
        if len(plan.events) and not 0 <= plan.events[0] <= plan.events[-1] < len(history):
            raise ConfigurationError(f"a plan names events that do not exist; the history has {len(history)}")
        is_fresh, calibrates = plan.start == "fresh", self.recipe.calibrates
        unlearned = np.arange(len(history)) if is_fresh else unlearned
        weights = self.fixed_weights(events.groups) if self.controller is None else dict(control.weights)
        request = TrainingRequest(plan, history, events, t, unlearned, weights, control, state.is_weighted)
        start = self.models.grow(state, history, events.features, always=True) if calibrates or not is_fresh else None
        # Training changes the twin, and calibration needs the model as it was.
        previous = start[0].sharing_memory() if calibrates and start is not None else None
        result = self.train(request, None if is_fresh else start, on_epoch)
        if previous is not None:
            with limit_threads(training_threads(self.recipe.training.threads)):  # many small steps, as in training
                result.model.calibrate_from(previous, history, new, state.contexts, request.user_weights)
        trained, trained_items = (_NOBODY, _NOBODY) if is_fresh else (state.trained, state.trained_items)
        following = replace(
            following,
            model=result.model,
            optimizer=result.optimizer,
            trained=_mark(trained, history.n_users, result.users),
            trained_items=_mark(trained_items, history.n_items, result.items),
            started_at=t if is_fresh else state.started_at,
            memory=_check_memory(self.recipe.strategy.after(plan, result.report)),
            pending=state.pending[:0],
            unlearned=subtract(unlearned, plan.events),
            # It owns its memory, or reuses the previous state's after the caller has checked for readers.
            memory_use=MemoryUse(),
            event_weights=weights,
        )
        notes = (*reasons, *control.reasons, *result.model.notes, *result.notes)
        update = self._with_control(Update(t, plan.step, 0.0, result.report, notes, weights), control)
        return Candidate(following, update, result.engine, began)

    def observe(self, state: State, events: NewEvents, *, learn_later: bool) -> State:
        """Record events without training on them; they belong to the period that the next update ends."""
        history = state.history.after(events.users, events.items, ends_period=False, n_items=events.n_items)
        model, optimizer = self.models.grow(state, history, events.features)
        arrived = np.arange(len(state.history), len(history))
        return replace(
            self._with_events(state, events, history),
            model=model.eval(),
            optimizer=optimizer,
            pending=np.concatenate([state.pending, arrived]) if learn_later else state.pending,
            unlearned=np.concatenate([state.unlearned, arrived]),
        )

    def without_learning(self, state: State, events: NewEvents) -> State:
        """Return the state that knows D_t but has not learned it: W_{t−1} without an update."""
        return self.with_strategy(Keep()).update(state, events).commit(in_place=False)[0]

    def unweighted(self, state: State) -> State:
        """Return the state with group weights of 1 in closed forms; gradient parts do not change."""
        if not state.is_weighted:
            return state
        history = state.history
        model, optimizer = self.models.grow(state, history, state.features, always=True)
        self.update_closed_forms(model, history, range(0), state.unlearned, None, state.started_at, restart=True)
        return replace(state, model=model.eval(), optimizer=optimizer, event_weights={})

    def forget(self, state: State, rows: Rows) -> State:
        """Remove users: ids, groups, events, rows and optimizer state; compute closed forms again."""
        return self._remove_events(state, np.flatnonzero(~np.isin(state.history.users, rows)), np.unique(rows))

    def retain(self, state: State, positions: Rows) -> State:
        """Keep only the events at these positions and their users; compute closed forms again."""
        if len(positions) == len(state.history):
            return state
        remaining = np.unique(state.history.users_at(positions))
        return self._remove_events(state, positions, np.setdiff1d(np.arange(state.history.n_users), remaining))

    def _remove_events(self, state: State, positions: Rows, rows: Rows) -> State:
        """Keep the events at some positions, and drop the users `rows`; none of these events is theirs."""
        history, groups = state.history.keep(positions, rows), state.groups.without(rows)
        pending, unlearned = (
            np.searchsorted(positions, part[np.isin(part, positions)]) for part in (state.pending, state.unlearned)
        )
        model, optimizer = self.models.drop_users(state, rows)
        if closed_forms(model):
            learned = subtract(np.arange(len(history)), unlearned)
            weights = hide_identifiable(groups, history, unlearned).weights(state.event_weights)
            self.update_closed_forms(model, history, learned, unlearned, weights, state.started_at, restart=True)
        return replace(
            state,
            model=model.eval(),
            optimizer=optimizer,
            history=history,
            groups=groups,
            user_ids=state.user_ids.without(rows),
            trained=np.delete(state.trained, rows),
            memory=self.recipe.strategy.forget(state.memory, rows),
            pending=pending,
            unlearned=unlearned,
            memory_use=MemoryUse(),
        )

    @staticmethod
    def _with_events(state: State, events: NewEvents, history: History) -> State:
        """The state with a longer history; its model has no rows for new users and items yet."""
        return replace(
            state,
            history=history,
            groups=events.groups,
            user_ids=events.user_ids,
            item_ids=events.item_ids,
            features=events.features,
            trained=_mark(state.trained, history.n_users),
            trained_items=_mark(state.trained_items, history.n_items),
            last_time=state.last_time if events.last_time is None else events.last_time,
        )

    # ── fairness ─────────────────────────────────────────────────────────────────────────

    def _control(self, state: State, measured: Measured | None, share: float) -> Control:
        """The controller's decision; without a measurement nothing changes."""
        if self.controller is None:
            return Control({}, {}, ())
        # Before the first decision, events may have fixed weights.
        memory = state.control if "thetas" in state.control else self.controller.start(state.event_weights)
        return self.controller.unchanged(memory) if measured is None else self.controller.step(memory, measured, share)

    def _with_control(self, update: Update, control: Control) -> Update:
        """The update with the controller's decision, and with λ if a gradient step used it."""
        if self.controller is None:
            return update
        has_lambda = self.sets_lambda and update.report is not None
        return replace(update, control=control, fairness_weight=self.lambda_of(control) if has_lambda else None)

    def fixed_weights(self, groups: Groups) -> dict[str, float]:
        """Return how many times the events of each group count by the recipe; raise if no group is advantaged."""
        weight = self.recipe.group_weight
        if weight == 1:
            return {}
        if not groups.has_advantaged:
            raise ConfigurationError(
                f"a group weight is for every group but the advantaged one, and none of the {len(groups.names)} groups "
                f"of {groups.attribute} was named; name the best-served one with advantaged= (--advantaged), or set "
                f"target=MaxGap(…) (--max-disparity), which finds the group that is behind"
            )
        return dict.fromkeys(groups.behind(), weight)

    def notes_on_fairness(self, groups: Groups) -> tuple[str, ...]:
        """Return a note if the group weight or the fairness loss has no effect."""
        recipe, model = self.recipe, self.models.example
        if recipe.group_weight != 1 and not self.takes_event_weights:
            return (
                f"{recipe.model.name} with the loss {recipe.training.loss} takes no event weights: the group weight "
                f"has no effect; use a sequence model with the loss softmax, a closed form, or the blend",
            )
        if groups.is_empty or not recipe.objective.is_fair:
            return ()
        if isinstance(model, ClosedFormScorer):
            if recipe.group_weight != 1:  # which closed forms do take
                return ()
            weights = "a target or group weights, or " if takes_weights(model) else ""
            return (
                f"{recipe.model.name} is computed in closed form, so the fairness loss {recipe.fairness_name} has no "
                f"effect: the results equal those without it; use {weights}a model trained by gradient descent",
            )
        if self.is_undirected(groups):
            return (
                f"{len(groups.names)} groups of {groups.attribute} and no advantaged one named: the "
                f"{recipe.fairness_name} fairness loss was not applied; name the best-served group with advantaged= "
                f"(--advantaged), or use target=MaxGap(…) (--max-disparity) or fairness='largest', which find the "
                f"group that is behind",
            )
        return ()


def _check_memory(memory: Memory) -> Memory:
    """Return the memory of a strategy; raise if it could not be saved after the update."""
    try:
        json.dumps(memory, default=np.generic.item)
    except (TypeError, ValueError):
        raise ConfigurationError(f"the memory of a strategy must hold JSON values, got {memory!r}") from None
    return memory


def _mark(mask: Mask, n_rows: int, rows: Rows | tuple[()] = ()) -> Mask:
    """The mask extended to `n_rows` rows, with these rows marked."""
    marked = np.zeros(n_rows, np.bool_)
    marked[: len(mask)] = mask
    marked[np.asarray(rows, np.int64)] = True
    return marked
