"""The learner carries a model through the periods and knows nothing ahead of time."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fairstream import EventLog, Groups
from fairstream.data import History, SeenItems
from fairstream.methods import MethodConfig, make_learner
from fairstream.models import ScorerFactory
from fairstream.periods import Periods, cut_periods
from fairstream.randomness import Randomness
from fairstream.sampling import NegativeSampler
from fairstream.strategies import Learner, Step, Update
from fairstream.training import OnEpoch, Trainer
from fairstream.training.optimizers import restore_state, state_tensors
from support import Recorder

CPU = torch.device("cpu")
N_PERIODS = 3


@pytest.fixture(scope="module")
def periods(log: EventLog) -> Periods:
    """D_0 of 100 events and D_1 … D_3 of 100, early on, where users and items keep appearing."""
    cut = cut_periods(len(log), pretrain_ratio=0.025, n_periods=N_PERIODS, n_blocks=39)
    n_users = [log.n_users_after(end) for end in cut.ends]
    n_items = [log.n_items_after(end) for end in cut.ends]
    assert n_users == sorted(set(n_users))
    assert n_items == sorted(set(n_items))
    return cut


def learner_of(
    method: str, *, factory: ScorerFactory | None = Recorder, foresight: History | None = None, **options: Any
) -> Learner:
    defaults = {"pretrain_epochs": 2, "update_epochs": 2, "batch_size": 64, "embedding_dim": 4}
    config = MethodConfig(method=method, model="mf" if factory is None else "custom", **{**defaults, **options})
    return make_learner(config, factory=factory, randomness=Randomness(0), device=CPU, foresight=foresight)


def take(
    learner: Learner,
    log: EventLog,
    periods: Periods,
    t: int,
    quality: float | None = None,
    *,
    groups: Groups | None = None,
    on_epoch: OnEpoch | None = None,
) -> Update:
    at, groups = periods.span(t), groups or log.require_groups()
    if t == 0:
        return learner.fit(log.users[at], log.items[at], groups, on_epoch)
    return learner.update(log.users[at], log.items[at], groups, quality, on_epoch)


def state(learner: Learner) -> dict[str, Tensor]:
    return {**learner.model.state_dict(), **state_tensors(learner.trainer.optimizer, learner.model)}


def assert_same(ours: Learner, theirs: Learner) -> None:
    found, expected = state(ours), state(theirs)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


def pairs(users: Any, items: Any) -> set[tuple[int, int]]:
    return set(zip(users.tolist(), items.tolist(), strict=True))


# ── what it may know ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", ["FADE", "Retrain"])
def test_negatives_are_known_items_that_the_user_has_not_had_so_far(
    log: EventLog, periods: Periods, method: str
) -> None:
    learner = learner_of(method)
    drawn_later_had = 0
    for t in range(N_PERIODS + 1):
        take(learner, log, periods, t)
        end = periods.ends[t]
        users, candidates = learner.model.told()
        negatives = candidates[:, 1:]
        assert negatives.min() >= 0
        assert negatives.max() < log.n_items_after(end)
        repeated = np.repeat(users, negatives.shape[1])
        assert not SeenItems.from_pairs(log.users[:end], log.items[:end]).has(repeated, negatives.ravel()).any()
        drawn_later_had += SeenItems.from_pairs(log.users, log.items).has(repeated, negatives.ravel()).sum()
    assert drawn_later_had > 0  # the future is not avoided: it is not known


@pytest.mark.parametrize("method", ["FADE", "Retrain"])
def test_with_foresight_negatives_are_never_what_the_user_will_ever_have(
    log: EventLog, periods: Periods, method: str
) -> None:
    everything = SeenItems.from_pairs(log.users, log.items)
    learner = learner_of(method, foresight=History.of(log.users, log.items))
    drawn_unknown = 0
    for t in range(N_PERIODS + 1):
        take(learner, log, periods, t)
        assert (learner.model.n_users, learner.model.n_items) == (log.n_users, log.n_items)
        users, candidates = learner.model.told()
        negatives = candidates[:, 1:]
        assert not everything.has(np.repeat(users, negatives.shape[1]), negatives.ravel()).any()
        drawn_unknown += int((negatives >= log.n_items_after(periods.ends[t])).sum())
        # What is *known*, by which the model is judged, stays at t all the same.
        assert learner.known.n_items == log.n_items_after(periods.ends[t])
    assert drawn_unknown > 0  # the whole catalogue is there from the first day


@pytest.mark.parametrize("method", ["Pretrain", "Finetune", "Retrain"])
def test_what_is_known_after_a_period_is_what_its_events_have_shown(
    log: EventLog, periods: Periods, method: str
) -> None:
    learner = learner_of(method)
    for t in range(N_PERIODS + 1):
        assert take(learner, log, periods, t).t == learner.t == t
        end = periods.ends[t]
        assert learner.known.n_users == learner.model.n_users == log.n_users_after(end)
        assert learner.known.n_items == learner.model.n_items == log.n_items_after(end)
        assert pairs(learner.known.seen.users, learner.known.seen.items) == pairs(log.users[:end], log.items[:end])
        assert learner.known.users.tolist() == log.users[:end].tolist()
        assert learner.known.items.tolist() == log.items[:end].tolist()
        assert learner.known.n_items_before == (log.n_items_after(periods.ends[t - 1]) if t else 0)


@pytest.mark.parametrize("method", ["Pretrain", "FADE", "Retrain", "Pretrain-Fair"])
def test_learned_users_are_those_whom_the_model_in_service_was_trained_on(
    log: EventLog, periods: Periods, method: str
) -> None:
    learner = learner_of(method)
    assert learner.n_learned_users == 0
    for t in range(N_PERIODS + 1):
        take(learner, log, periods, t)
        last_trained = 0 if method.startswith("Pretrain") else t
        assert learner.n_learned_users == log.n_users_after(periods.ends[last_trained])
        assert learner.known.n_users == log.n_users_after(periods.ends[t])


@pytest.mark.parametrize("method", ["FADE", "FADE-Abs", "Retrain-Fair"])
def test_nothing_is_learned_from_the_groups_of_users_who_are_still_to_come(
    log: EventLog, periods: Periods, method: str
) -> None:
    """A new group opens with every eighth user; the learner is told of all of them, or of those that there are."""
    cohorts = [str(row // 8) for row in range(log.n_users)]
    whole = Groups.from_values("cohort", cohorts, advantaged="1")
    told_all, told_present = learner_of(method), learner_of(method)
    n_groups = []
    for t in range(N_PERIODS + 1):
        n_users = log.n_users_after(periods.ends[t])
        present = Groups.from_values("cohort", cohorts[:n_users], advantaged="1")
        n_groups.append(len(present.names))
        take(told_all, log, periods, t, groups=whole)
        take(told_present, log, periods, t, groups=present)
        assert_same(told_all, told_present)
    assert n_groups[0] < n_groups[-1] < len(whole.names)


# ── the steps ────────────────────────────────────────────────────────────────────────────


def test_fit_comes_first() -> None:
    with pytest.raises(RuntimeError, match="fit first"):
        _ = learner_of("FADE").model


@pytest.mark.parametrize("method", ["Pretrain", "Finetune", "Retrain"])
def test_the_first_step_is_training_on_all_of_d_0(log: EventLog, periods: Periods, method: str) -> None:
    learner = learner_of(method, pretrain_epochs=3)
    update = take(learner, log, periods, 0)
    assert (update.t, update.step) == (0, Step.RETRAIN)
    assert update.report is not None
    users, candidates = learner.model.told()
    n = periods.ends[0]
    assert len(users) == 3 * n
    assert pairs(users, candidates[:, 0]) == pairs(log.users[:n], log.items[:n])


def test_a_kept_model_grows_and_is_otherwise_left_as_it_is(log: EventLog, periods: Periods) -> None:
    learner = learner_of("Pretrain")
    take(learner, log, periods, 0)
    before = copy.deepcopy(state(learner))
    learner.model.told()
    for t in range(1, N_PERIODS + 1):
        update = take(learner, log, periods, t)
        assert (update.step, update.report) == (Step.KEEP, None)
        assert learner.model.asked == []
    for name, value in state(learner).items():
        assert torch.equal(value[: len(before[name])], before[name])
    assert learner.model.n_users == log.n_users_after(periods.ends[N_PERIODS]) > len(before["user.weight"])
    assert bool(learner.model.user.weight[len(before["user.weight"]) :].ne(0).all())


def test_fine_tuning_goes_on_from_the_old_model_with_the_new_events_alone(log: EventLog, periods: Periods) -> None:
    learner = learner_of("Finetune", update_epochs=3)
    take(learner, log, periods, 0)
    learner.model.told()
    for t in range(1, N_PERIODS + 1):
        model, optimizer = learner.model, learner.trainer.optimizer
        n_updates = state(learner)["user.weight/n_updates"].sum()
        update = take(learner, log, periods, t)
        assert update.step is Step.FINE_TUNE
        assert (learner.model, learner.trainer.optimizer) == (model, optimizer)
        assert state(learner)["user.weight/n_updates"].sum() > n_updates  # its past is carried along
        users, candidates = learner.model.told()
        at = periods.span(t)
        assert users.tolist() == 3 * log.users[at].tolist()
        assert candidates[:, 0].tolist() == 3 * log.items[at].tolist()


def test_fine_tuning_leaves_whoever_is_away_bit_for_bit(log: EventLog, periods: Periods) -> None:
    """The promise of the row optimizer, kept through a whole period."""
    learner = learner_of("FADE", optimizer="row")
    take(learner, log, periods, 0)
    before = copy.deepcopy(state(learner))
    take(learner, log, periods, 1)
    away = np.setdiff1d(np.arange(len(before["user.weight"])), log.users[periods.span(1)])
    assert len(away) > 0
    for name in ("user.weight", "user.weight/exp_avg", "user.weight/exp_avg_sq"):
        assert torch.equal(state(learner)[name][away], before[name][away])


@pytest.mark.parametrize("optimizer", ["row", "dense"])
@pytest.mark.parametrize("model", [Recorder, None])
def test_fade_without_a_fairness_weight_is_finetune(
    log: EventLog, periods: Periods, optimizer: str, model: ScorerFactory | None
) -> None:
    fade = learner_of("FADE", factory=model, optimizer=optimizer, fairness_weight=0.0, n_fairness_negatives=6)
    absolute = learner_of("FADE-Abs", factory=model, optimizer=optimizer, fairness_weight=0.0, n_fairness_negatives=6)
    finetune = learner_of("Finetune", factory=model, optimizer=optimizer, fairness_weight=2.0, n_fairness_negatives=6)
    weighted = learner_of("FADE", factory=model, optimizer=optimizer, fairness_weight=2.0, n_fairness_negatives=6)
    for learner in (fade, absolute, finetune, weighted):
        for t in range(N_PERIODS):
            take(learner, log, periods, t)
    assert_same(fade, finetune)
    assert_same(absolute, finetune)
    assert not torch.equal(state(weighted)["user.weight"], state(finetune)["user.weight"])


def test_retraining_starts_anew_and_uses_everything(log: EventLog, periods: Periods) -> None:
    learner = learner_of("Retrain-Fair")
    take(learner, log, periods, 0)
    old = learner.model
    update = take(learner, log, periods, 1)
    assert update.step is Step.RETRAIN
    assert learner.model is not old

    end, groups = periods.ends[1], log.require_groups()
    users, items = log.users[:end], log.items[:end]
    sizes = {"n_users": log.n_users_after(end), "n_items": log.n_items_after(end)}
    alone = Trainer(Recorder, learner.hyper, learner.objective, randomness=learner.randomness, device=CPU, t=1, **sizes)
    sampler = NegativeSampler(SeenItems.from_pairs(users, items), users, n_items=sizes["n_items"])
    epochs = learner.hyper.pretrain_epochs
    report = alone.train(users, items, groups, sampler, n_groups=2, t=1, epochs=epochs, shuffled=True)
    assert report == update.report
    expected = {**alone.model.state_dict(), **state_tensors(alone.optimizer, alone.model)}
    assert all(torch.equal(value, expected[name]) for name, value in state(learner).items())


def test_restarts_happen_where_the_strategy_says(log: EventLog, periods: Periods) -> None:
    every = learner_of("FADE", restart_every=2)
    assert [take(every, log, periods, t).step for t in range(N_PERIODS + 1)] == [
        Step.RETRAIN,
        Step.FINE_TUNE,
        Step.RETRAIN,
        Step.FINE_TUNE,
    ]
    worse = learner_of("FADE", restart="on-degradation")
    qualities = [None, 0.5, 0.4, 0.3]
    assert [take(worse, log, periods, t, qualities[t]).step for t in range(N_PERIODS + 1)] == [
        Step.RETRAIN,
        Step.FINE_TUNE,
        Step.FINE_TUNE,
        Step.RETRAIN,
    ]


@pytest.mark.parametrize("method", ["Pretrain", "FADE", "Retrain-Fair"])
def test_the_same_seed_goes_the_same_way(log: EventLog, periods: Periods, method: str) -> None:
    first, second = learner_of(method), learner_of(method)
    for t in range(N_PERIODS):
        take(first, log, periods, t)
    torch.rand(7)  # whatever else the program draws
    for t in range(N_PERIODS):
        take(second, log, periods, t)
    assert_same(first, second)


@pytest.mark.parametrize("method", ["Pretrain", "FADE", "Retrain-Fair"])
def test_a_restored_learner_goes_on_bit_for_bit(log: EventLog, periods: Periods, method: str) -> None:
    learner, restored = learner_of(method), learner_of(method)
    take(learner, log, periods, 0)
    take(learner, log, periods, 1)
    known = History.of(learner.known.users.copy(), learner.known.items.copy())
    trainer = restored.restore(learner.t, known, n_learned_users=learner.n_learned_users, started_at=0)
    trainer.model.load_state_dict(learner.model.state_dict())
    tensors = {name: value.clone() for name, value in state_tensors(learner.trainer.optimizer, learner.model).items()}
    restore_state(trainer.optimizer, trainer.model, tensors)
    assert_same(restored, learner)
    for t in (2, 3):
        ours, theirs = (take(one, log, periods, t) for one in (learner, restored))
        assert (ours.t, ours.step, ours.report) == (theirs.t, theirs.step, theirs.report)
        assert restored.n_learned_users == learner.n_learned_users
    assert_same(restored, learner)


class Interrupted(BaseException):
    """Somebody has lost patience."""


@pytest.mark.parametrize(
    "options", [{"method": "FADE"}, {"method": "Retrain-Fair"}, {"method": "FADE", "restart_every": 2}]
)
def test_an_update_that_fails_has_not_been(log: EventLog, periods: Periods, options: dict[str, Any]) -> None:
    def give_up(done: int, total: int) -> None:
        raise Interrupted

    learner, undisturbed = learner_of(**options), learner_of(**options)
    with pytest.raises(Interrupted):
        take(learner, log, periods, 0, on_epoch=give_up)
    assert (learner.t, learner.n_learned_users, learner.known.n_users) == (-1, 0, 0)
    for t in range(N_PERIODS + 1):
        take(learner, log, periods, t)
        take(undisturbed, log, periods, t)
        if t < N_PERIODS:
            with pytest.raises(Interrupted):
                take(learner, log, periods, t + 1, on_epoch=give_up)
        assert (learner.t, learner.n_learned_users) == (t, undisturbed.n_learned_users)
        assert learner.known.users.tolist() == undisturbed.known.users.tolist()
        assert learner.known.seen.keys.tolist() == undisturbed.known.seen.keys.tolist()
        assert learner.strategy.state() == undisturbed.strategy.state()
        assert_same(learner, undisturbed)


def test_epochs_are_told(log: EventLog, periods: Periods) -> None:
    told: list[tuple[int, int]] = []
    learner = learner_of("FADE", pretrain_epochs=2, update_epochs=1)
    for t in (0, 1):
        update = take(learner, log, periods, t, on_epoch=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2), (1, 1)]
    assert update.seconds > 0
