"""Computes the next state of a recommender: fit, update, observe, forget, retain."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fairstream.data import EventLog, Groups, History, Rows
from fairstream.data.history import Positions
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import Evaluation, Evaluator, Metric
from fairstream.models import NO_LEVEL, ClosedFormScorer, Level, Mask, Scorer, closed_forms, takes_weights, tilts
from fairstream.recommender.jobs import JobRunner, TrainingRequest, hide_identifiable, subtract
from fairstream.recommender.judging import UNJUDGED, Judgement, judge_users, replay_levels
from fairstream.recommender.state import MemoryUse, NewEvents, State
from fairstream.strategies import (
    Decision,
    FineTune,
    Keep,
    LeastRegret,
    Memory,
    Period,
    PeriodReplay,
    Plan,
    ReplayGroups,
    Strategy,
)
from fairstream.threads import limit_threads, training_threads
from fairstream.training import Engine, OnEpoch, TrainingReport

MIN_GROUP_SIZE = 20  # tested users that a group needs in the replay of a `fit`
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
    decision: Decision | None = None
    """What the target decided; None without a target, or before a period could be replayed."""
    level: Level = NO_LEVEL
    """The level in force since then."""
    replay: PeriodReplay | None = None
    """How all levels did on the last events of a `fit` that calibrates the model, before it learned them."""


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
        by: ReplayGroups | None = None,
    ) -> Judgement:
        """Evaluate W_{t−1} on D_t before it learns D_t, if the strategy or the target needs it.

        `known` maps tasks to existing evaluations of this model on these events; `by` replaces `PeriodReplay.of`.
        """
        known, target, judgement = known or {}, self.recipe.target, UNJUDGED
        if self.recipe.strategy.needs_quality:
            judgement = judge_users(evaluator, state, events, known.get("next"))
        if target is None:
            return judgement
        replay = replay_levels(evaluator, state, events, target, known.get(target.task), self.metrics, by)
        return judgement._replace(replay=replay)

    # ── transitions ──────────────────────────────────────────────────────────────────────

    def fit(self, events: NewEvents, on_epoch: OnEpoch | None = None, t: int = 0, **about: Any) -> Candidate:
        history = History.of(events.users, events.items, **events.columns, n_items=events.n_items)
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

        before = History.of(
            history.users_at(first), history.items_at(first), **history.columns_at(first), n_items=events.n_items
        )
        pretrained = self._fit_all(before, events, progress(0, self.recipe.update_epochs), t, **about)
        state, _ = pretrained.commit(in_place=True)
        moments = None if events.moments is None else events.moments[n_first:]
        new = events._replace(
            users=history.users_at(last),
            items=history.items_at(last),
            times=history.times_at(last),
            moments=moments,
            marks=None if events.marks is None else events.marks.at(slice(n_first, None)),
        )
        replay = self._replay_last(state, new)
        on_update = progress(self.recipe.training.epochs_on(n_first), 0)
        try:
            candidate = self.with_strategy(FineTune()).update(state, new, on_epoch=on_update)
        except DataError:  # no user of the last events has items left to draw negatives from
            return self._fit_all(history, events, on_epoch, t, **about)
        # The last events are not a period.
        state = replace(candidate.state, history=history, t=t, started_at=t, memory={})
        # Notes on the pre-trained model are outdated; notes on its training are not.
        notes = [note for note in pretrained.update.notes if note not in pretrained.state.model.notes]
        about = {"notes": (*state.model.notes, *notes), "event_weights": state.event_weights, "replay": replay}
        state, update = self.begin_target(state, replace(pretrained.update, **about))
        return Candidate(state, update, candidate._engine, pretrained._began)

    def _replay_last(self, state: State, events: NewEvents) -> PeriodReplay | None:
        """Replay the levels on the last events of a `fit`, also without a target: other methods may share the model."""
        k, target = min(20, state.history.n_items), self.recipe.target or LeastRegret()
        evaluator = Evaluator(k, events.groups, self.randomness, MIN_GROUP_SIZE)
        return replay_levels(evaluator, state, events, target, None, self.metrics, None)

    def begin_target(self, state: State, update: Update) -> tuple[State, Update]:
        """Let the target decide on the replay of a `fit`, if there are both."""
        decision = self._decide(state, update.replay)
        if decision is None:
            return state, update
        state = self.with_tilt(replace(state, **self._level(decision)))
        notes = (decision.sentence, *update.notes)
        return state, replace(update, decision=decision, level=decision.level, notes=notes)

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
    ) -> Candidate:
        """Train W_t on D_t, from W_{t−1}; `judgement` is how W_{t−1} did on D_t (`judge`)."""
        began, t = time.perf_counter(), state.t + 1
        history = events.after(state.history)
        arrived = np.arange(len(state.history), len(history))
        new: Positions = range(len(state.history), len(history))
        new = np.concatenate([state.pending, arrived]) if len(state.pending) else new
        if events.raised is not None:  # a view that has become a purchase is learned as one
            new = np.union1d(events.raised[0], new)
        unlearned = np.concatenate([state.unlearned, arrived])
        period = Period(t, history, new, judgement.quality, state.memory, self.randomness, tested=judgement.users)
        plan = self.recipe.strategy.plan(period)
        if not isinstance(plan, Plan):
            raise ConfigurationError(f"Strategy.plan must return a fairstream.Plan, got {plan!r}")
        decision = self._decide(state, judgement.replay)
        following = replace(
            self._with_events(state, events, history), t=t, memory=_check_memory(plan.memory), **self._level(decision)
        )
        following = self.with_tilt(following)
        reasons = (*((plan.reason,) if plan.reason else ()), *(() if decision is None else (decision.sentence,)))
        if plan.events is None:
            model, optimizer = self.models.grow(state, history, events.features)
            following = replace(following, model=model, optimizer=optimizer, unlearned=unlearned)
            notes = (*reasons, *model.notes)
            update = Update(t, plan.step, 0.0, None, notes, state.event_weights, decision, following.level)
            return Candidate(following, update, None, began)
        if len(plan.events) and not 0 <= plan.events[0] <= plan.events[-1] < len(history):
            raise ConfigurationError(f"a plan names events that do not exist; the history has {len(history)}")
        is_fresh, calibrates = plan.start == "fresh", self.recipe.calibrates
        unlearned = np.arange(len(history)) if is_fresh else unlearned
        weights = self.fixed_weights(events.groups)
        was_weighted = any(weight != 1 for weight in state.event_weights.values())
        request = TrainingRequest(plan, history, events, t, unlearned, weights, was_weighted, state.trained_items)
        start = self.models.grow(state, history, events.features, always=True) if calibrates or not is_fresh else None
        # Training changes the twin, and calibration needs the model as it was.
        previous = start[0].sharing_memory() if calibrates and start is not None else None
        result = self.train(request, None if is_fresh else start, on_epoch)
        if previous is not None:
            with limit_threads(training_threads(self.recipe.training.threads)):  # many small steps, as in training
                unseen = np.setdiff1d(new, () if events.raised is None else events.raised[0])
                result.model.calibrate_from(previous, history, unseen, state.contexts, request.user_weights)
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
        notes = (*reasons, *result.model.notes, *result.notes)
        update = Update(t, plan.step, 0.0, result.report, notes, weights, decision, following.level)
        return Candidate(following, update, result.engine, began)

    def observe(self, state: State, events: NewEvents, *, learn_later: bool) -> State:
        """Record events without training on them; they belong to the period that the next update ends."""
        history = events.after(state.history, ends_period=False)
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
        """Return the state without a level, and with group weights of 1 in closed forms."""
        if not state.is_weighted:
            return state
        state, history = replace(state, level=NO_LEVEL, tilt=None), state.history
        if not any(weight != 1 for weight in state.event_weights.values()):
            return state
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
        remaining = replace(
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
        return self.with_tilt(remaining)

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

    def _decide(self, state: State, replay: PeriodReplay | None) -> Decision | None:
        """The target's decision; None without a target or a replay, and then the level stays."""
        target = self.recipe.target
        return None if target is None or replay is None else target.decide(state.replays, replay)

    def _level(self, decision: Decision | None) -> dict[str, Any]:
        """The fields of a state that a decision changes."""
        if self.recipe.target is None:
            return {"level": NO_LEVEL, "replays": {}}
        return {} if decision is None else {"level": decision.level, "replays": decision.memory}

    @staticmethod
    def with_tilt(state: State) -> State:
        """Return the state with the tilts of its level, from all events that it knows."""
        if state.level == NO_LEVEL:
            return replace(state, tilt=None)
        return replace(state, tilt=tilts(state.history, state.groups, [state.level])[0])

    def fixed_weights(self, groups: Groups) -> dict[str, float]:
        """Return how many times the events of each group count by the recipe; raise if it is unclear which."""
        weight, group = self.recipe.group_weight, self.recipe.weighted_group
        if weight == 1:
            return {}
        if group is not None and not groups.is_empty:
            if group not in groups.names:
                raise ConfigurationError(
                    f"the group weight is for the group {group!r}, but the groups of {groups.attribute} are "
                    f"{', '.join(groups.names)}; name one of them"
                )
            return {group: weight}
        if not groups.has_advantaged:
            raise ConfigurationError(
                f"a group weight is for every group but the advantaged one, and none of the {len(groups.names)} groups "
                f"of {groups.attribute} was named; name the best-served one with advantaged= (--advantaged), or one "
                f"to raise with GroupWeight(group=…) (--weighted-group), or use a target (--target least-regret)"
            )
        return dict.fromkeys(groups.behind(), weight)

    def notes_on_fairness(self, groups: Groups) -> tuple[str, ...]:
        """Return notes if the target, the group weight or the fairness loss has little or no effect."""
        has_levels = self.recipe.target is not None and not groups.is_empty
        return (*(self.note_on_levels() if has_levels else ()), *self._notes_on_losses(groups))

    def note_on_levels(self) -> tuple[str, ...]:
        """Return a note if levels cannot change the lists of users that the model can score."""
        if type(self.models.example).tilted is not Scorer.tilted:
            return ()
        return (f"levels reach newcomers only: {self.recipe.model.name} does not read popularity",)

    def _notes_on_losses(self, groups: Groups) -> tuple[str, ...]:
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
            weights = "a target or group weights, or " if takes_weights(model) else "a target, or "
            return (
                f"{recipe.model.name} is computed in closed form, so the fairness loss {recipe.fairness_name} has no "
                f"effect: the results equal those without it; use {weights}a model trained by gradient descent",
            )
        if self.is_undirected(groups):
            return (
                f"{len(groups.names)} groups of {groups.attribute} and no advantaged one named: the "
                f"{recipe.fairness_name} fairness loss was not applied; name the best-served group with advantaged= "
                f"(--advantaged), or use a target (--target least-regret) or fairness='largest', which can raise any "
                f"group",
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
