"""Each transition makes the next state and leaves the one before it alone; none knows anything ahead of time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fairstream import EventLog, Groups, SyntheticStream, read_events
from fairstream.data import History, SeenItems, Vocabulary
from fairstream.errors import ConfigurationError
from fairstream.methods import MethodConfig, Parts
from fairstream.models import ModelFactory, Scorer
from fairstream.paper.run import PaperTrainer
from fairstream.periods import Periods, cut_periods
from fairstream.randomness import Randomness
from fairstream.recommender.model_builder import tensors_of
from fairstream.recommender.state import NewEvents, State
from fairstream.recommender.trainer import Candidate, Judgement, Trainer, Update
from fairstream.strategies import Period, Plan, Strategy
from fairstream.training import Batch, OnEpoch, TrainingReport
from fairstream.training.optimizers import state_tensors
from support import Recorder

N_PERIODS = 3
ENGINES = pytest.mark.parametrize(
    "options",
    [
        {"factory": None, "optimizer": "row"},  # the fused engine, on a copy of the rows
        {"factory": None, "optimizer": "dense"},  # the fused engine, on a copy of the model
        {"factory": None, "engine": "reference"},
        {"factory": None, "model": "ncf"},
    ],
    ids=["fused row", "fused dense", "reference", "ncf"],
)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options", [{"model": "mf"}, {"model": "mf", "engine": "reference"}, {"model": "gru", "loss": "softmax"}], ids=str
)
def test_an_update_learns_at_its_own_rate_and_a_retraining_at_that_of_the_fit(
    options: dict[str, Any], log: EventLog, periods: Periods
) -> None:
    """Adam moves no weight by much more than the rate at each step. (The biases of `gru` match the period first.)"""
    learning = trainer_of(factory=None, learning_rate=0.01, update_learning_rate=1e-9, fairness_weight=0.0, **options)
    (before, after), _ = run(learning, log, periods, 1)
    of_before = before.model.state_dict()
    moved = {
        name: float((value[: len(of_before[name])] - of_before[name]).abs().max())
        for name, value in after.model.state_dict().items()
        if options["model"] == "mf" or not name.endswith("bias.weight")
    }
    assert 0 < max(moved.values()) < 1e-6
    retrained = trainer_of("Retrain", factory=None, learning_rate=0.01, update_learning_rate=1e-9, **options)
    at_the_same = trainer_of("Retrain", factory=None, learning_rate=0.01, **options)
    (_, one), (_, other) = (run(each, log, periods, 1)[0] for each in (retrained, at_the_same))
    assert all(torch.equal(value, other.model.get_parameter(name)) for name, value in one.model.named_parameters())


@pytest.fixture(scope="module")
def periods(log: EventLog) -> Periods:
    """D_0 of 100 events and D_1 … D_3 of 100, early on, where users and items keep appearing."""
    cut = cut_periods(len(log), pretrain_ratio=0.025, n_periods=N_PERIODS, n_blocks=39)
    n_users = [log.n_users_after(end) for end in cut.ends]
    n_items = [log.n_items_after(end) for end in cut.ends]
    assert n_users == sorted(set(n_users))
    assert n_items == sorted(set(n_items))
    return cut


def trainer_of(
    method: str = "FADE",
    *,
    factory: ModelFactory | None = Recorder,
    oracle: History | None = None,
    strategy: Strategy | None = None,
    engine: Any = "auto",
    model: str = "mf",
    **options: Any,
) -> Trainer:
    defaults = {"pretrain_epochs": 2, "update_epochs": 2, "batch_size": 64}
    config = MethodConfig(
        method=method,
        model=model if factory is None else "custom",
        strategy=None if strategy is None else "custom",
        model_settings={"embedding_dim": 4} if factory is None and model in ("mf", "ncf") else {},
        **{**defaults, **options},
    )
    parts = Parts(factory, strategy=strategy)
    return PaperTrainer(config.recipe(parts), Randomness(0), torch.device("cpu"), engine, oracle=oracle)


def new_events(log: EventLog, periods: Periods, t: int, *, groups: Groups | None = None) -> NewEvents:
    """D_t in the rows of the log."""
    at, end = periods.span(t), periods.ends[t]
    ids = (
        Vocabulary(log.user_ids.ids.slice(0, log.n_users_after(end))),
        Vocabulary(log.item_ids.ids.slice(0, log.n_items_after(end))),
    )
    return NewEvents(log.users[at], log.items[at], *ids, groups or log.require_groups())


def candidate_for(
    learning: Trainer,
    log: EventLog,
    periods: Periods,
    t: int,
    state: State | None = None,
    *,
    quality: float | None = None,
    on_epoch: OnEpoch | None = None,
    groups: Groups | None = None,
) -> Candidate:
    events = new_events(log, periods, t, groups=groups)
    if state is None:
        return learning.fit(events, on_epoch)
    return learning.update(state, events, Judgement(quality), on_epoch)


def run(
    learning: Trainer,
    log: EventLog,
    periods: Periods,
    last: int = N_PERIODS,
    *,
    in_place: bool = False,
    **options: Any,
) -> tuple[list[State], list[Update]]:
    """The states after D_0 … D_last, and what the updates did."""
    states: list[State] = []
    updates: list[Update] = []
    for t in range(last + 1):
        candidate = candidate_for(learning, log, periods, t, states[-1] if states else None, **options)
        state, update = candidate.commit(in_place=in_place)
        states.append(state)
        updates.append(update)
    return states, updates


def tensors(state: State) -> dict[str, Tensor]:
    moments = {} if state.optimizer is None else state_tensors(state.optimizer, state.model)
    return {**state.model.state_dict(), **moments}


def copied(state: State) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in tensors(state).items()}


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def asked_of(model: Scorer) -> tuple[Any, Any]:
    assert isinstance(model, Recorder)
    return model.told()


def pairs(users: Any, items: Any) -> set[tuple[int, int]]:
    return set(zip(users.tolist(), items.tolist(), strict=True))


# ── states ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.few(2)
@ENGINES
def test_an_update_leaves_the_state_before_it_bit_for_bit(
    log: EventLog, periods: Periods, options: dict[str, Any]
) -> None:
    learning = trainer_of(**options)
    states, before = [], []
    for t in range(N_PERIODS + 1):
        state, _ = candidate_for(learning, log, periods, t, states[-1] if states else None).commit(in_place=False)
        states.append(state)
        before.append(copied(state))
        for older, expected in zip(states, before, strict=True):
            assert_equal(tensors(older), expected)
    assert [state.t for state in states] == list(range(N_PERIODS + 1))
    assert [len(state.history) for state in states] == list(periods.ends)


@pytest.mark.few(1)
@ENGINES
def test_reusing_the_memory_of_the_state_before_gives_the_same_numbers(
    log: EventLog, periods: Periods, options: dict[str, Any]
) -> None:
    learning = trainer_of(**options)
    (*_, in_place), ours = run(learning, log, periods, in_place=True)
    (*_, apart), theirs = run(learning, log, periods, in_place=False)
    assert_equal(tensors(in_place), tensors(apart))
    assert [update.report for update in ours] == [update.report for update in theirs]


def test_the_fused_engine_reuses_the_memory_where_it_may(log: EventLog, periods: Periods) -> None:
    learning = trainer_of(factory=None)
    (before,), _ = run(learning, log, periods, last=0)
    place = before.model.get_parameter("user.weight").data_ptr()
    kept = copied(before)
    candidate = candidate_for(learning, log, periods, 1, before)
    assert_equal(tensors(before), kept)  # trained, but not in force
    after, _ = candidate.commit(in_place=True)
    if after.model.n_users <= len(kept["user.weight"]) * 9 // 8:
        assert after.model.get_parameter("user.weight").data_ptr() == place
    candidate.undo()
    assert_equal(tensors(before), kept)


@pytest.mark.few(1)
@ENGINES
def test_two_updates_of_one_state_do_not_disturb_each_other(
    log: EventLog, periods: Periods, options: dict[str, Any]
) -> None:
    """Both append rows behind those of the state that they share, and one must not write over the other's."""
    learning = trainer_of(**options)
    (*_, state), _ = run(learning, log, periods, last=1)
    events = new_events(log, periods, 2)
    alone = copied(learning.update(state, events).commit(in_place=False)[0])
    first, second = learning.update(state, events), learning.update(state, new_events(log, periods, 2))
    one, _ = first.commit(in_place=False)
    kept = copied(one)
    other, _ = second.commit(in_place=False)
    assert_equal(tensors(one), kept)
    assert_equal(kept, alone)
    assert_equal(tensors(other), alone)
    observed = learning.observe(state, events, learn_later=True)
    assert_equal(tensors(one), kept)
    learning.update(observed, new_events(log, periods, 3)).commit(in_place=False)
    assert_equal(tensors(one), kept)
    assert_equal(tensors(other), alone)


class Interrupted(BaseException):
    """The user has pressed Ctrl-C."""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [
        {"method": "FADE"},
        {"method": "FADE", "factory": None},
        {"method": "FADE", "factory": None, "optimizer": "dense"},
        {"method": "Retrain-Fair"},
        {"method": "FADE", "restart_every": 2},
    ],
    ids=str,
)
def test_an_update_that_fails_has_changed_nothing(log: EventLog, periods: Periods, options: dict[str, Any]) -> None:
    def give_up(done: int, total: int) -> None:
        raise Interrupted

    learning = trainer_of(**options)
    (*undisturbed,), _ = run(learning, log, periods)
    with pytest.raises(Interrupted):
        candidate_for(learning, log, periods, 0, on_epoch=give_up)
    state, _ = candidate_for(learning, log, periods, 0).commit(in_place=False)
    for t in range(1, N_PERIODS + 1):
        before, fields = copied(state), dict(state.__dict__)
        with pytest.raises(Interrupted):
            candidate_for(learning, log, periods, t, state, on_epoch=give_up)
        assert_equal(tensors(state), before)
        assert {name: state.__dict__[name] for name in fields} == fields
        state, _ = candidate_for(learning, log, periods, t, state).commit(in_place=True)
        assert_equal(tensors(state), tensors(undisturbed[t]))
        assert dict(state.memory) == dict(undisturbed[t].memory)


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["Pretrain", "FADE", "Retrain-Fair"])
def test_the_same_seed_gives_the_same_states(log: EventLog, periods: Periods, method: str) -> None:
    (*_, first), _ = run(trainer_of(method), log, periods)
    torch.rand(7)  # whatever else the program draws
    (*_, second), _ = run(trainer_of(method), log, periods)
    assert_equal(tensors(first), tensors(second))


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["Pretrain", "FADE", "Retrain-Fair"])
def test_a_restored_state_goes_on_bit_for_bit(log: EventLog, periods: Periods, method: str) -> None:
    learning = trainer_of(method)
    (*_, state), _ = run(learning, log, periods, last=1)
    history = History.of(state.history.users.copy(), state.history.items.copy(), ends=state.history.ends)
    saved = {name: value.clone() for name, value in tensors_of(state).items()}
    model, optimizer = trainer_of(method).models.load(history, saved, state.started_at)
    restored = replace(state, model=model, optimizer=optimizer, history=history)
    assert_equal(tensors(restored), tensors(state))
    for t in (2, 3):
        results = [candidate_for(learning, log, periods, t, one).commit(in_place=False) for one in (state, restored)]
        (state, ours), (restored, theirs) = results
        assert (ours.t, ours.step, ours.report) == (theirs.t, theirs.step, theirs.report)
        assert state.trained.tolist() == restored.trained.tolist()
        assert_equal(tensors(restored), tensors(state))


# ── what it may know ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", ["FADE", "Retrain"])
def test_negatives_are_known_items_that_the_user_has_not_had_so_far(
    log: EventLog, periods: Periods, method: str
) -> None:
    learning, state, n_had_later = trainer_of(method), None, 0
    for t in range(N_PERIODS + 1):
        state, _ = candidate_for(learning, log, periods, t, state).commit(in_place=False)
        end = periods.ends[t]
        users, candidates = asked_of(state.model)
        negatives = candidates[:, 1:]
        assert negatives.min() >= 0
        assert negatives.max() < log.n_items_after(end)
        repeated = np.repeat(users, negatives.shape[1])
        assert not SeenItems.from_pairs(log.users[:end], log.items[:end]).has(repeated, negatives.ravel()).any()
        n_had_later += SeenItems.from_pairs(log.users, log.items).has(repeated, negatives.ravel()).sum()
    assert n_had_later > 0  # the future is not avoided: it is not known


@pytest.mark.parametrize("method", ["FADE", "Retrain"])
def test_with_the_oracle_negatives_are_never_what_the_user_will_ever_have(
    log: EventLog, periods: Periods, method: str
) -> None:
    everything = SeenItems.from_pairs(log.users, log.items)
    learning, state = trainer_of(method, oracle=History.of(log.users, log.items)), None
    n_unknown = 0
    for t in range(N_PERIODS + 1):
        state, _ = candidate_for(learning, log, periods, t, state).commit(in_place=False)
        assert (state.model.n_users, state.model.n_items) == (log.n_users, log.n_items)
        users, candidates = asked_of(state.model)
        negatives = candidates[:, 1:]
        assert not everything.has(np.repeat(users, negatives.shape[1]), negatives.ravel()).any()
        n_unknown += int((negatives >= log.n_items_after(periods.ends[t])).sum())
        # The history, by which the model is evaluated, ends at t all the same.
        assert state.history.n_items == log.n_items_after(periods.ends[t])
        assert len(state.trained) == log.n_users_after(periods.ends[t])
    assert n_unknown > 0  # the whole catalogue is there from the first day


@pytest.mark.parametrize("method", ["Pretrain", "Finetune", "Retrain"])
def test_the_history_after_a_period_is_what_its_events_have_shown(log: EventLog, periods: Periods, method: str) -> None:
    states, updates = run(trainer_of(method), log, periods)
    for t, (state, update) in enumerate(zip(states, updates, strict=True)):
        end = periods.ends[t]
        assert update.t == state.t == t
        assert state.history.n_users == state.model.n_users == log.n_users_after(end)
        assert state.history.n_items == state.model.n_items == log.n_items_after(end)
        assert pairs(state.history.seen.users, state.history.seen.items) == pairs(log.users[:end], log.items[:end])
        assert state.history.users.tolist() == log.users[:end].tolist()
        assert state.history.items.tolist() == log.items[:end].tolist()
        assert state.history.n_items_before == (log.n_items_after(periods.ends[t - 1]) if t else 0)
        assert state.history.ends == tuple(periods.ends[: t + 1])


@pytest.mark.parametrize("method", ["Pretrain", "FADE", "Retrain"])
def test_trained_users_are_those_with_an_event_that_the_model_in_service_learned(
    log: EventLog, periods: Periods, method: str
) -> None:
    for t, state in enumerate(run(trainer_of(method), log, periods)[0]):
        last_learned = 0 if method == "Pretrain" else t
        learned = set(log.users[: periods.ends[last_learned]].tolist())
        assert set(np.flatnonzero(state.trained).tolist()) == learned
        assert len(state.trained) == log.n_users_after(periods.ends[t])


@pytest.mark.few(2)
@pytest.mark.parametrize("method", ["FADE", "FADE-Abs", "Retrain-Fair"])
def test_nothing_is_learned_from_the_groups_of_users_who_are_still_to_come(
    log: EventLog, periods: Periods, method: str
) -> None:
    """A new group opens with every eighth user; all of them are given, or those that there are so far."""
    cohorts = [str(row // 8) for row in range(log.n_users)]
    whole = Groups.from_values("cohort", cohorts, advantaged="1")
    learning, with_all, with_present = trainer_of(method), None, None
    n_groups = []
    for t in range(N_PERIODS + 1):
        present = Groups.from_values("cohort", cohorts[: log.n_users_after(periods.ends[t])], advantaged="1")
        n_groups.append(len(present.names))
        with_all, _ = candidate_for(learning, log, periods, t, with_all, groups=whole).commit(in_place=False)
        with_present, _ = candidate_for(learning, log, periods, t, with_present, groups=present).commit(in_place=False)
        assert_equal(tensors(with_all), tensors(with_present))
    assert n_groups[0] < n_groups[-1] < len(whole.names)


def test_events_are_aligned_to_the_rows_of_a_state_and_known_pairs_left_out(
    stream: SyntheticStream, log: EventLog, periods: Periods
) -> None:
    (state,), _ = run(trainer_of(), log, periods, last=0)
    new_log = read_events(stream.events, users=stream.users, group="community", advantaged="majority")
    assert len(new_log) == len(log)
    n_before = len(state.user_ids), len(state.item_ids)
    aligned = NewEvents.align(new_log, state)
    assert (len(state.user_ids), len(state.item_ids)) == n_before  # the state stays as it is
    end = periods.ends[0]
    assert len(aligned.users) == len(log) - end
    ids = aligned.user_ids.ids.take(aligned.users), aligned.item_ids.ids.take(aligned.items)
    assert ids[0].to_pylist() == log.user_ids.ids.take(log.users[end:]).to_pylist()
    assert ids[1].to_pylist() == log.item_ids.ids.take(log.items[end:]).to_pylist()
    assert aligned.user_ids.ids[: n_before[0]].to_pylist() == state.user_ids.ids.to_pylist()
    assert aligned.last_time == log.times[-1]
    again = NewEvents.align(new_log, trainer_of().observe(state, aligned, learn_later=True))
    assert len(again.users) == 0


# ── the steps ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", ["Pretrain", "Finetune", "Retrain"])
def test_the_first_step_is_training_on_all_of_d_0(log: EventLog, periods: Periods, method: str) -> None:
    (state,), (update,) = run(trainer_of(method, pretrain_epochs=3), log, periods, last=0)
    assert (update.t, update.step) == (0, "retrain")
    assert update.report is not None
    users, candidates = asked_of(state.model)
    n = periods.ends[0]
    assert len(users) == 3 * n
    assert pairs(users, candidates[:, 0]) == pairs(log.users[:n], log.items[:n])


def test_a_kept_model_grows_and_is_otherwise_left_as_it_is(log: EventLog, periods: Periods) -> None:
    learning = trainer_of("Pretrain")
    (state,), _ = run(learning, log, periods, last=0)
    before = copied(state)
    asked_of(state.model)
    for t in range(1, N_PERIODS + 1):
        state, update = candidate_for(learning, log, periods, t, state).commit(in_place=False)
        assert (update.step, update.report) == ("keep", None)
        assert isinstance(state.model, Recorder)
        assert state.model.asked == []
    for name, value in tensors(state).items():
        assert torch.equal(value[: len(before[name])], before[name])
    n_users = log.n_users_after(periods.ends[N_PERIODS])
    assert state.model.n_users == n_users > len(before["user.weight"])
    assert bool(state.model.get_parameter("user.weight")[len(before["user.weight"]) :].ne(0).all())


def test_fine_tuning_goes_on_from_the_old_model_with_the_new_events_alone(log: EventLog, periods: Periods) -> None:
    learning = trainer_of("Finetune", update_epochs=3)
    (state,), _ = run(learning, log, periods, last=0)
    asked_of(state.model)
    for t in range(1, N_PERIODS + 1):
        n_updates = tensors(state)["user.weight/n_updates"].sum()
        state, update = candidate_for(learning, log, periods, t, state).commit(in_place=False)
        assert update.step == "fine-tune"
        assert tensors(state)["user.weight/n_updates"].sum() > n_updates  # its past is carried along
        users, candidates = asked_of(state.model)
        at = periods.span(t)
        assert users.tolist() == 3 * log.users[at].tolist()
        assert candidates[:, 0].tolist() == 3 * log.items[at].tolist()


def test_fine_tuning_leaves_whoever_is_away_bit_for_bit(log: EventLog, periods: Periods) -> None:
    """The promise of the row optimizer, kept through a whole period."""
    (before, after), _ = run(trainer_of("FADE", optimizer="row"), log, periods, last=1)
    away = np.setdiff1d(np.arange(before.model.n_users), log.users[periods.span(1)])
    assert len(away) > 0
    for name in ("user.weight", "user.weight/exp_avg", "user.weight/exp_avg_sq"):
        assert torch.equal(tensors(after)[name][away], tensors(before)[name][away])


@pytest.mark.few(2)
@pytest.mark.parametrize("optimizer", ["row", "dense"])
@pytest.mark.parametrize("factory", [Recorder, None])
def test_fade_without_a_fairness_weight_is_finetune(
    log: EventLog, periods: Periods, optimizer: str, factory: ModelFactory | None
) -> None:
    def last(method: str, weight: float) -> dict[str, Tensor]:
        options = {"optimizer": optimizer, "fairness_weight": weight, "n_fairness_negatives": 6}
        return tensors(run(trainer_of(method, factory=factory, **options), log, periods, last=2)[0][-1])

    finetune = last("Finetune", 2.0)
    assert_equal(last("FADE", 0.0), finetune)
    assert_equal(last("FADE-Abs", 0.0), finetune)
    assert not torch.equal(last("FADE", 2.0)["user.weight"], finetune["user.weight"])


def test_retraining_is_training_from_scratch_on_everything(log: EventLog, periods: Periods) -> None:
    learning = trainer_of("Retrain-Fair")
    (_, state), (_, update) = run(learning, log, periods, last=1)
    end = periods.ends[1]
    history = History.of(log.users[:end], log.items[:end])
    scratch, alone = learning.fit_history(history, new_events(log, periods, 1), t=1).commit(in_place=False)
    assert (update.step, state.started_at) == ("retrain", 1)
    assert update.report == alone.report
    assert_equal(tensors(state), tensors(scratch))
    assert state.trained.tolist() == scratch.trained.tolist()


def test_restarts_happen_where_the_strategy_says(log: EventLog, periods: Periods) -> None:
    states, updates = run(trainer_of("FADE", restart_every=2), log, periods)
    assert [update.step for update in updates] == ["retrain", "fine-tune", "retrain", "fine-tune"]
    assert [dict(state.memory) for state in states] == [{}, *({"since_restart": n} for n in (1, 0, 1))]
    assert [state.started_at for state in states] == [0, 0, 2, 2]
    assert [update.notes[0].split(":")[0] for update in updates[1:]] == ["no restart", "restart", "no restart"]


class Attentive(Strategy):
    """Remembers the losses of the last training and the users it was told of."""

    def plan(self, period: Period) -> Plan:
        return Plan.fine_tune(period).remembering(users=[0, 1, 2]).because("why not")

    def after(self, plan: Plan, report: TrainingReport | None) -> dict[str, Any]:
        assert report is not None
        return {**plan.memory, "losses": list(report.losses)}

    def forget(self, memory: Any, users: Any) -> dict[str, Any]:
        return {**memory, "users": [user for user in memory["users"] if user not in users]}


def test_a_strategy_hears_how_training_went_and_whom_to_forget(log: EventLog, periods: Periods) -> None:
    learning = trainer_of("Finetune", strategy=Attentive(), update_epochs=3)
    states, updates = run(learning, log, periods, last=1)
    assert updates[1].notes[0] == "why not"
    assert len(states[1].memory["losses"]) == 3
    assert updates[1].report is not None
    assert states[1].memory["losses"][-1] == updates[1].report.loss
    assert learning.forget(states[1], np.array([1])).memory["users"] == [0, 2]


class Given(Strategy):
    """A plan that the test has written down."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.periods: list[Period] = []

    def plan(self, period: Period) -> Plan:
        self.periods.append(period)
        return Plan(**self.options)


def test_a_plan_is_carried_out_to_the_letter(log: EventLog, periods: Periods) -> None:
    seen: list[Batch] = []

    def extra(model: Scorer, batch: Batch) -> Tensor:
        seen.append(batch)
        return 0.0 * batch.scores.sum()

    chosen = np.array([3, 5, 8, 101])
    strategy = Given(events=chosen, epochs=4, extra_loss=extra, name="chosen", memory={"n": 1})
    learning = trainer_of("FADE", strategy=strategy)
    (before, state), (_, update) = run(learning, log, periods, last=1)
    users, candidates = asked_of(state.model)
    users, candidates = users[-4 * len(chosen) :], candidates[-4 * len(chosen) :]
    assert users.tolist() == 4 * log.users[chosen].tolist()
    assert candidates[:, 0].tolist() == 4 * log.items[chosen].tolist()
    assert len(seen) == 4
    assert (update.step, dict(state.memory)) == ("chosen", {"n": 1})
    assert set(np.flatnonzero(state.trained)) == set(np.flatnonzero(before.trained)) | {int(log.users[101])}
    (period,) = strategy.periods
    assert (period.t, list(period.new), period.quality) == (1, list(range(100, 200)), None)
    assert len(period.history) == 200


@pytest.mark.parametrize("events", [range(150, 201), np.array([-1, 3])])
def test_a_plan_cannot_name_events_that_are_not_there(log: EventLog, periods: Periods, events: Any) -> None:
    learning = trainer_of(strategy=Given(events=events))
    (state,), _ = run(learning, log, periods, last=0)
    with pytest.raises(ConfigurationError, match="events that do not exist; the history has 200"):
        candidate_for(learning, log, periods, 1, state)


def test_an_extra_loss_is_felt(log: EventLog, periods: Periods) -> None:
    def held_down(model: Scorer, batch: Batch) -> Tensor:
        return 1e3 * batch.scores.square().mean()

    learned = range(100, 200)
    plain, held = (
        run(trainer_of(factory=None, strategy=Given(events=learned, **extra)), log, periods, last=1)
        for extra in ({}, {"extra_loss": held_down})
    )
    assert [updates[1].report.engine for _, updates in (plain, held) if updates[1].report] == ["fused", "reference"]
    norms = [float(states[1].model.get_parameter("user.weight").detach().norm()) for states, _ in (plain, held)]
    assert norms[1] < norms[0]


def test_a_shuffled_plan_has_new_orders_and_negatives(log: EventLog, periods: Periods) -> None:
    strategy = Given(events=range(100, 200), shuffle=True, epochs=2)
    (_, state), _ = run(trainer_of(strategy=strategy), log, periods, last=1)
    users, candidates = asked_of(state.model)
    users, candidates = users[-200:], candidates[-200:]
    epochs = [(users[at : at + 100].tolist(), candidates[at : at + 100].tolist()) for at in (0, 100)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0][0]) == sorted(epochs[1][0]) == sorted(log.users[100:200].tolist())


def test_a_part_of_ones_own_has_to_be_given() -> None:
    with pytest.raises(ConfigurationError, match="custom model; pass it again as model="):
        MethodConfig(model="custom").recipe()


def test_epochs_are_reported_one_by_one(log: EventLog, periods: Periods) -> None:
    reported: list[tuple[int, int]] = []
    learning = trainer_of("FADE", pretrain_epochs=2, update_epochs=1)
    _, updates = run(learning, log, periods, last=1, on_epoch=lambda done, total: reported.append((done, total)))
    assert reported == [(1, 2), (2, 2), (1, 1)]
    assert updates[-1].seconds > 0


@pytest.mark.parametrize("model", ["popularity", "recent-popularity", "item-item"])
def test_a_closed_form_is_updated_exactly(log: EventLog, periods: Periods, model: str) -> None:
    updated, updates = run(trainer_of("Finetune", factory=None, model=model), log, periods)
    scratch, _ = run(trainer_of("Retrain", factory=None, model=model), log, periods)
    assert all(update.report is None for update in updates)
    for ours, theirs in zip(updated, scratch, strict=True):
        assert ours.optimizer is None
        for name, value in tensors(ours).items():
            torch.testing.assert_close(value, tensors(theirs)[name], rtol=1e-4, atol=1e-6)
        assert ours.trained.tolist() == theirs.trained.tolist()


# ── observing and forgetting ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("learn_later", [True, False])
def test_observed_events_are_known_at_once_and_learned_with_the_next_update(
    log: EventLog, periods: Periods, learn_later: bool
) -> None:
    learning = trainer_of("Finetune", update_epochs=1)
    (state,), _ = run(learning, log, periods, last=0)
    before, trained = copied(state), state.trained.copy()
    asked_of(state.model)
    observed = learning.observe(state, new_events(log, periods, 1), learn_later=learn_later)
    observed = learning.observe(observed, new_events(log, periods, 2), learn_later=learn_later)
    assert len(observed.history) == periods.ends[2]
    assert observed.model.n_users == log.n_users_after(periods.ends[2])
    assert observed.trained[: len(trained)].tolist() == trained.tolist()
    assert not observed.trained[len(trained) :].any()  # a row that nobody has trained is not a trained user
    assert_equal({name: value[: len(before[name])] for name, value in tensors(observed).items()}, before)
    assert observed.pending.tolist() == (list(range(100, 300)) if learn_later else [])
    following, _ = learning.update(observed, new_events(log, periods, 3)).commit(in_place=False)
    users, candidates = asked_of(following.model)
    learned = slice(100 if learn_later else 300, 400)
    assert users.tolist() == log.users[learned].tolist()
    assert candidates[:, 0].tolist() == log.items[learned].tolist()
    assert len(following.pending) == 0
    expected = set(log.users[:100].tolist()) | set(log.users[learned].tolist())
    assert set(np.flatnonzero(following.trained).tolist()) == expected
    assert following.history.ends == (100, 400)  # observing ends no period


def test_observed_events_can_be_learned_without_any_new_ones(log: EventLog, periods: Periods) -> None:
    learning = trainer_of("Finetune", update_epochs=1)
    (state,), _ = run(learning, log, periods, last=0)
    asked_of(state.model)
    events = new_events(log, periods, 1)
    observed = learning.observe(state, events, learn_later=True)
    nothing = events._replace(users=events.users[:0], items=events.items[:0])
    following, update = learning.update(observed, nothing).commit(in_place=False)
    users, _ = asked_of(following.model)
    assert users.tolist() == log.users[100:200].tolist()
    assert update.report is not None
    assert update.report.n_interactions == 100


@pytest.mark.parametrize("factory", [None, Recorder])
def test_forgetting_removes_every_row_and_moves_the_others_up(
    log: EventLog, periods: Periods, factory: ModelFactory | None
) -> None:
    learning = trainer_of("Finetune", factory=factory)
    (*_, state), _ = run(learning, log, periods, last=2)
    state = learning.observe(state, new_events(log, periods, 3), learn_later=True)
    before = copied(state)
    gone = np.unique(log.users[:400])[[0, 3, 7]]
    kept = np.setdiff1d(np.arange(state.history.n_users), gone)
    forgotten = learning.forget(state, gone)
    assert_equal(tensors(state), before)
    for name, value in tensors(forgotten).items():
        rows = kept if name.startswith("user.") else slice(None)
        assert torch.equal(value, before[name][rows]), name
    assert forgotten.trained.tolist() == state.trained[kept].tolist()
    assert forgotten.user_ids.ids.to_pylist() == [state.user_ids.ids[int(row)].as_py() for row in kept]
    assert forgotten.groups.codes.tolist() == np.delete(state.groups.codes, gone).tolist()
    left = [(user, item) for user, item in zip(log.users[:400], log.items[:400], strict=True) if user not in gone]
    assert kept[forgotten.history.users].tolist() == [user for user, _ in left]
    assert forgotten.history.items.tolist() == [item for _, item in left]
    was_pending = [at for at in range(300, 400) if log.users[at] not in gone]
    assert kept[forgotten.history.users_at(forgotten.pending)].tolist() == log.users[was_pending].tolist()
    nothing = new_events(log, periods, 3)._replace(
        users=log.users[:0], items=log.items[:0], user_ids=forgotten.user_ids, groups=forgotten.groups
    )
    after, _ = learning.update(forgotten, nothing).commit(in_place=False)
    assert after.model.n_users == len(kept)
    assert after.trained[np.unique(forgotten.history.users_at(forgotten.pending))].all()
