"""Restarts follow evidence: noise gives few, a real loss gives one soon, and every decision has a reason."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fairstream as fs
from fairstream.data import Groups, History
from fairstream.errors import ConfigurationError
from fairstream.strategies import Period, Plan, RestartOnDegradation, Strategy, UserQuality
from fairstream.strategies.restart import MAX_USERS, MIN_USERS, _change, _UserSums
from support import coded, rows

HISTORY = History.of(rows(0, 1), rows(0, 1)).after(rows(0), rows(2))
N_USERS = 400


class World:
    """Users with abilities of their own, of whom some are tested in each period."""

    def __init__(self, seed: int, n_users: int = N_USERS) -> None:
        self.rng = np.random.default_rng(seed)
        self.ability = self.rng.normal(0.3, 0.1, n_users)
        self.groups = coded(np.arange(n_users) % 2)

    def tested(
        self, *, lost: float = 0.0, hardship: float = 0.0, lost_by_second: float = 0.0, share: float = 0.5
    ) -> UserQuality:
        users = np.flatnonzero(self.rng.random(len(self.ability)) < share)
        is_second = self.groups.codes[users] == 1
        shared = self.rng.normal(-hardship, 0.05, len(users))
        own = self.ability[users] - lost - lost_by_second * is_second + self.rng.normal(0, 0.1, len(users))
        reference = 0.2 + shared + self.rng.normal(0, 0.05, len(users))
        return UserQuality(users, own + shared, reference, self.groups)


def period_of(tested: UserQuality | None, memory: Any, t: int = 1) -> Period:
    return Period(t, HISTORY, range(2, 3), None, memory, tested=tested)


def plans(strategy: Strategy, over: list[UserQuality | None], memory: Any = None) -> list[Plan]:
    """The plans of one period after the other, with what each says to remember as JSON keeps it."""
    made: list[Plan] = []
    for t, tested in enumerate(over):
        memory = json.loads(json.dumps(dict(made[-1].memory))) if made else memory or {}
        made.append(strategy.plan(period_of(tested, memory, t)))
    return made


def restarts(over: list[UserQuality | None], **options: Any) -> list[int]:
    made = plans(RestartOnDegradation(**options), over)
    assert all(plan.reason.startswith("restart: " if plan.start == "fresh" else "no restart: ") for plan in made)
    return [t for t, plan in enumerate(made) if plan.start == "fresh"]


# ── on evidence ──────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_without_a_change_there_are_as_few_restarts_as_the_confidence_says() -> None:
    """At 95 % confidence at most one world in twenty may be retrained at all, however long it lasts."""
    n_worlds = 20
    n_alarmed = 0
    for seed in range(n_worlds):
        world = World(seed)
        n_alarmed += bool(restarts([world.tested() for _ in range(15)]))
    assert n_alarmed <= 0.05 * n_worlds + 2 * math.sqrt(0.05 * 0.95 * n_worlds)


def test_a_loss_of_quality_restarts_within_two_periods() -> None:
    n_soon = 0
    for seed in range(20):
        world = World(seed)
        found = restarts([*(world.tested() for _ in range(10)), *(world.tested(lost=0.06) for _ in range(3))])
        n_soon += bool({10, 11} & set(found))
    assert n_soon >= 18


@pytest.mark.slow
def test_a_period_that_is_hard_for_everybody_is_no_reason() -> None:
    n_alarmed = 0
    for seed in range(20):
        world = World(seed)
        over = [world.tested(hardship=0.1 if t >= 10 else 0.0) for t in range(13)]
        n_alarmed += bool(restarts(over))
        alone = [part._replace(reference=np.full(len(part.users), 0.2)) for part in over]
        assert restarts(alone)  # without the reference it is one
    assert n_alarmed <= 2


def test_a_group_that_falls_behind_is_a_reason_and_is_named() -> None:
    n_named = 0
    for seed in range(10):
        world = World(seed)
        over: list[UserQuality | None] = [world.tested() for _ in range(10)]
        # what one loses the other gains: everyone's mean stays
        over += [world.tested(lost=-0.05, lost_by_second=0.1) for _ in range(3)]
        reasons = [plan.reason for plan in plans(RestartOnDegradation(), over)[10:] if plan.start == "fresh"]
        n_named += any("NDCG of g1 minus that of the rest" in reason for reason in reasons)
    assert n_named >= 9


@pytest.mark.slow
def test_a_group_that_was_ahead_and_is_so_by_less_has_not_fallen_behind() -> None:
    n_alarmed = 0
    for seed in range(10):
        world = World(seed)
        over = [world.tested(lost=0.1, lost_by_second=-0.2) for _ in range(10)]
        over += [world.tested(lost=0.05, lost_by_second=-0.1) for _ in range(5)]
        n_alarmed += bool(restarts(over))
    assert n_alarmed <= 2


def test_after_a_restart_everything_is_compared_anew() -> None:
    world = World(0)
    over = [*(world.tested() for _ in range(6)), *(world.tested(lost=0.1) for _ in range(12))]
    made = plans(RestartOnDegradation(), over)
    assert [plan.step for plan in made].count("retrain") == 1  # what is worse for good is the new normal
    at = next(t for t, plan in enumerate(made) if plan.start == "fresh")
    assert dict(made[at].memory) == {}
    assert "needs 2 more period(s)" in made[at + 1].reason


def test_more_confidence_restarts_no_earlier_and_a_wider_window_waits_longer() -> None:
    world = World(3)
    over = [*(world.tested() for _ in range(6)), *(world.tested(lost=0.03) for _ in range(10))]
    first = [restarts(over, confidence=confidence)[:1] or [99] for confidence in (0.5, 0.95, 0.9999)]
    assert first == sorted(first)
    assert [plan.reason.split(" more")[0][-1] for plan in plans(RestartOnDegradation(window=4), over[:4])] == list(
        "4321"
    )


@pytest.mark.slow
@given(st.integers(0, 100), st.integers(1, 8))
@settings(max_examples=20)
def test_it_goes_on_from_its_memory_alone(seed: int, cut: int) -> None:
    world = World(seed, 100)
    over = [world.tested(lost=0.1 * (t > 4)) for t in range(10)]
    whole = [(plan.step, plan.reason) for plan in plans(RestartOnDegradation(), over)]
    memory = dict(plans(RestartOnDegradation(), over[:cut])[-1].memory)
    assert [(plan.step, plan.reason) for plan in plans(RestartOnDegradation(), over[cut:], memory)] == whole[cut:]


def test_a_period_that_tested_nobody_changes_nothing() -> None:
    world = World(0)
    before = [world.tested() for _ in range(4)]
    nobody = UserQuality(rows(), np.empty(0), np.empty(0), world.groups)
    made = plans(RestartOnDegradation(), [*before, None, nobody])
    assert made[-1].memory == made[-2].memory == made[-3].memory
    assert "no user whom the model knows" in made[-1].reason


def test_who_is_forgotten_is_forgotten_here_too_and_the_later_rows_move_up() -> None:
    world, strategy = World(0, 60), RestartOnDegradation()
    memory = dict(plans(strategy, [world.tested(share=0.9) for _ in range(4)])[-1].memory)
    gone = rows(0, 7, 31)
    left = strategy.forget(memory, gone)
    for before, after in zip((memory["before"], *memory["recent"]), (left["before"], *left["recent"]), strict=True):
        kept = [n for n, user in enumerate(before["users"]) if user not in gone]
        assert after["users"] == [before["users"][n] - int((gone < before["users"][n]).sum()) for n in kept]
        assert after["total"] == [before["total"][n] for n in kept]
    assert strategy.forget({}, gone) == {}


def test_of_very_many_users_a_sample_is_remembered_the_same_in_every_period() -> None:
    n = 3 * MAX_USERS
    tested = UserQuality(np.arange(n), np.zeros(n), np.zeros(n), Groups("g", ("a", "b"), np.zeros(n, np.int16)))
    first, second = (_UserSums.of(period_of(tested, {}, t), tested) for t in (1, 2))
    assert first.users.tolist() == second.users.tolist()
    assert len(first.users) == pytest.approx(MAX_USERS, rel=0.05)


def test_the_same_users_are_compared_with_themselves() -> None:
    """Abilities that differ much between users do not blur a change of each of them."""
    rng = np.random.default_rng(0)
    ability, n = rng.normal(0, 10, 100), np.ones(100, np.int64)
    same = _change(_UserSums(np.arange(100), n, ability), _UserSums(np.arange(100), n, ability - 0.1))
    others = _change(_UserSums(np.arange(100), n, ability), _UserSums(np.arange(100, 200), n, ability - 0.1))
    assert same is not None
    assert others is not None
    assert same.value == pytest.approx(-0.1)
    assert others.value == pytest.approx(-0.1)
    assert same.variance**0.5 < 1e-3
    assert others.variance**0.5 == pytest.approx(math.sqrt(2 * ability.var(ddof=1) / 100))
    few = _UserSums(np.arange(MIN_USERS - 1), n[: MIN_USERS - 1], ability[: MIN_USERS - 1])
    assert _change(few, few) is None


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: RestartOnDegradation(confidence=1.0), "confidence must be between 0 and 1, got 1"),
        (lambda: RestartOnDegradation(window=0), "window must be a whole number >= 1, got 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        make()


# ── on whole streams ─────────────────────────────────────────────────────────────────────


def turning_log(n_periods: int, *, turns_at: int | None, seed: int = 0) -> fs.EventLog:
    """Two kinds of users, each with half of the items; from one period on each wants the other half."""
    rng = np.random.default_rng(seed)
    n_users, n_items, n_first, n_each = 240, 400, 7_200, 1_200
    parts, had = [], np.zeros((n_users, n_items), np.bool_)
    for t in range(n_periods + 1):
        users = rng.integers(0, n_users, n_first if t == 0 else n_each)
        kind = (users % 2) ^ (turns_at is not None and t >= turns_at)
        items = rng.integers(0, n_items // 2, len(users)) + n_items // 2 * kind
        is_new = ~had[users, items]
        had[users, items] = True
        users, items = users[is_new], items[is_new]
        parts.append(np.column_stack([users, items, np.full(len(users), t)]))
    pairs = np.unique(np.concatenate(parts), axis=0)
    pairs = pairs[np.argsort(pairs[:, 2], kind="stable")]
    events = {"user_id": pairs[:, 0], "item_id": pairs[:, 1], "time": pairs[:, 2]}
    users = pa.table({"user_id": np.arange(n_users), "side": np.where(np.arange(n_users) % 4 < 2, "left", "right")})
    return fs.read_events(pa.table(events), users=users, group="side", advantaged="left")


def steps_of(log: fs.EventLog, n_periods: int, **options: Any) -> tuple[list[str], list[str]]:
    times = np.asarray(log.times)
    run = fs.run(
        log,
        "Finetune",
        model="mf",
        pretrain_events=int((times < 1).sum()),
        n_periods=n_periods,
        n_blocks=n_periods,
        pretrain_epochs=10,
        update_epochs=3,
        learning_rate=0.01,
        tasks=("next",),
        n_resamples=0,
        device="cpu",
        **options,
    )
    updates = [result.update for result in run]
    assert [period["notes"] for period in run.document()["periods"]] == [list(update.notes) for update in updates]
    return [update.step for update in updates], [update.notes[0] for update in updates]


@pytest.mark.slow
def test_a_stream_that_turns_restarts_and_one_that_does_not_does_not() -> None:
    turned, reasons = steps_of(turning_log(10, turns_at=6), 10, restart="on-degradation")
    # period t is learned once W_{t−1} has been tested on it
    assert "retrain" not in turned[:5]
    assert "retrain" in turned[5:8]
    assert all(reason.startswith(("restart: ", "no restart: ")) for reason in reasons)
    still, _ = steps_of(turning_log(10, turns_at=None), 10, restart="on-degradation")
    assert "retrain" not in still
