"""Targets choose a level by what it did on past periods, and do nothing without evidence."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream.errors import ConfigurationError
from fairstream.models import NO_LEVEL, Level, levels_of
from fairstream.strategies import LeastRegret, MaxGap, PeriodReplay, PooledReplay, past_regret, target_named

LEVELS = levels_of(["A", "B"], (2.0, 5.0))  # no level, A × 2, A × 5, A alone, B × 2, B × 5, B alone
NAMES = ("A", "B")


def period(
    effect_a: list[float], effect_b: list[float], *, n: tuple[int, int] = (400, 200), seed: int = 0, noise: float = 0.05
) -> PeriodReplay:
    """One period in which the levels change the groups' means (.3 and .2) by these shares."""
    rng = np.random.default_rng(seed)
    values = []
    for base, effect, size in ((0.3, effect_a, n[0]), (0.2, effect_b, n[1])):
        own = base + 0.1 * rng.standard_normal(size)
        change = base * np.array([0.0, *effect])[None] + noise * rng.standard_normal((size, len(LEVELS)))
        change[:, 0] = 0.0
        values.append(own[:, None] + change)
    codes = np.repeat([0, 1], n)
    return PeriodReplay.of(LEVELS, np.concatenate(values), codes, NAMES, 20)


NOTHING = [0.0] * 6
RAISES_B = [0.0, 0.0, 0.0, 0.10, 0.15, 0.20]  # of B's mean, at the six levels
COSTS_A = [0.0, 0.0, 0.0, -0.005, -0.015, -0.10]


def test_the_level_with_the_smallest_largest_regret_is_served() -> None:
    decision = LeastRegret().decide({}, period(COSTS_A, RAISES_B))
    assert decision.level == Level("B", 5.0)
    assert "events of B count 5 times in popularity" in decision.sentence
    assert "for B" in decision.sentence
    assert "overall" in decision.sentence


def test_no_group_loses_more_than_is_allowed() -> None:
    costly = [0.0, 0.0, 0.0, -0.03, -0.04, -0.10]
    assert LeastRegret(max_group_loss=0.02).decide({}, period(costly, RAISES_B)).level == NO_LEVEL
    assert LeastRegret(max_group_loss=0.05).decide({}, period(costly, RAISES_B)).level.group == "B"


def test_everyone_together_loses_no_more_than_chance() -> None:
    lopsided = [0.0, 0.0, 0.0, -0.019, -0.019, -0.019]
    few = {"n": (5000, 100), "noise": 0.02}
    replay = period(lopsided, RAISES_B, **few)
    pooled = PooledReplay.of([replay])
    assert pooled is not None
    assert (pooled.everyone[4:] < pooled.everyone[0]).all()
    assert LeastRegret().decide({}, replay).level == NO_LEVEL


@pytest.mark.parametrize("target", [LeastRegret(), LeastRegret(max_group_loss=0.5)])
def test_noise_moves_it_in_at_most_five_of_a_hundred_periods(target: LeastRegret) -> None:
    moves = [target.decide({}, period(NOTHING, NOTHING, seed=seed)).level != NO_LEVEL for seed in range(400)]
    assert np.mean(moves) <= 0.05


def test_evidence_is_pooled_over_periods() -> None:
    weak = [0.0, 0.0, 0.0, 0.010, 0.011, 0.012]
    memory: dict[str, Any] = {}
    served = []
    for seed in range(8):
        decision = LeastRegret().decide(memory, period(NOTHING, weak, seed=seed + 1, noise=0.03))
        memory = json.loads(json.dumps(decision.memory))  # as a checkpoint keeps it
        served.append(decision.level.group)
    assert served[0] is None
    assert served[-1] == "B"


@pytest.mark.parametrize("other", [LeastRegret(task="event"), LeastRegret(metric="hit@20"), MaxGap(0.5, task="moment")])
def test_what_was_judged_by_other_lists_is_no_evidence(other: LeastRegret | MaxGap) -> None:
    before = LeastRegret().decide({}, period(COSTS_A, RAISES_B))
    changed = other.decide(before.memory, period(NOTHING, NOTHING, seed=1))
    assert changed == other.decide({}, period(NOTHING, NOTHING, seed=1))
    assert (
        MaxGap(0.5).decide(before.memory, period(NOTHING, NOTHING, seed=1)).memory["periods"][:1]
        == before.memory["periods"]
    )


def test_a_group_that_vanishes_or_comes_later_is_no_obstacle() -> None:
    both = period(COSTS_A, RAISES_B)
    alone = PeriodReplay(LEVELS, {"A": both.groups["A"]})
    decision = LeastRegret().decide({}, both)
    away = LeastRegret().decide(decision.memory, alone)
    assert away.level == NO_LEVEL
    assert "too few users of two groups" in away.sentence
    assert LeastRegret().decide(away.memory, both).level.group == "B"
    third = period(COSTS_A, RAISES_B, seed=1)
    more = levels_of(["A", "B", "C"], (2.0,))
    values = np.random.default_rng(0).random((300, len(more)))
    later = PeriodReplay.of(more, values, np.repeat([0, 1, 2], 100), ("A", "B", "C"), 20)
    assert LeastRegret().decide(LeastRegret().decide({}, third).memory, later).sentence


# ── the largest gap ──────────────────────────────────────────────────────────────────────

NARROWS = [0.0, 0.0, 0.0, -0.02, -0.10, -0.30]


def test_the_gap_is_held_at_the_lowest_cost() -> None:
    replay = period(NARROWS, RAISES_B)  # gaps of about .1, .074, .04 and −.03
    levels = {gap: MaxGap(gap).decide({}, replay) for gap in (0.2, 0.08, 0.05)}
    assert [decision.level for decision in levels.values()] == [NO_LEVEL, Level("B", 2.0), Level("B", 5.0)]
    assert all(decision.is_met for decision in levels.values())
    assert "is accepted" in levels[0.2].sentence


def test_an_unreachable_gap_is_said_at_once_and_nothing_changes() -> None:
    decision = MaxGap(0.001).decide({}, period([0.0] * 5 + [-0.02], [0.0] * 5 + [0.02]))
    assert decision.level == NO_LEVEL
    assert decision.is_met is False
    for part in (
        "no level reaches 0.001",
        "the smallest gap is",
        "for A",
        "remains when each group gets its best level",
    ):
        assert part in decision.sentence


def test_a_gap_that_every_level_widens_is_said_at_once() -> None:
    decision = MaxGap(0.001).decide({}, period(NOTHING, [-0.1] * 6))
    assert (decision.level, decision.is_met) == (NO_LEVEL, False)
    assert "no level reaches 0.001; none makes the gap smaller" in decision.sentence


def test_a_level_of_a_group_too_small_to_test_can_hold_the_gap() -> None:
    both = period(NARROWS, RAISES_B)
    levels = tuple(level._replace(group="C") if level.group == "B" else level for level in LEVELS)
    decision = MaxGap(0.05).decide({}, PeriodReplay(levels, both.groups))
    assert decision.level == Level("C", 5.0)
    assert "for A" in decision.sentence


def test_a_gap_that_may_be_chance_moves_nothing() -> None:
    equal = period(NARROWS, RAISES_B, n=(30, 20), seed=3)
    level = {name: group._replace(mean=0.25, mean_variance=0.01) for name, group in equal.groups.items()}
    assert MaxGap(0.0001).decide({}, PeriodReplay(LEVELS, level)).level == NO_LEVEL


@given(st.floats(0.01, 0.2), st.integers(0, 5))
def test_what_is_served_holds_the_gap_on_the_past(gap: float, seed: int) -> None:
    replay = period(NARROWS, RAISES_B, seed=seed)
    pooled, decision = PooledReplay.of([replay]), MaxGap(gap).decide({}, replay)
    assert pooled is not None
    at = LEVELS.index(decision.level)
    if decision.is_met:
        assert (pooled.gaps[:, at] - pooled.se.max(axis=0)[at] <= gap).all()
    else:
        assert decision.level == NO_LEVEL


# ── regret on the past ───────────────────────────────────────────────────────────────────


def test_past_regret_is_the_share_that_a_group_did_not_get() -> None:
    periods = [period(NOTHING, RAISES_B, seed=seed, n=(2000, 2000)) for seed in range(4)]
    none, served = past_regret(periods, NO_LEVEL)["B"], past_regret(periods, Level("B", 1000.0))["B"]
    assert none.regret == pytest.approx(1 - 1 / 1.2, abs=0.01)
    assert none.interval[0] < none.regret < none.interval[1]
    assert served.regret == 0.0
    assert served.served == pytest.approx(none.attainable, abs=0.002)


def test_past_regret_has_no_winners_curse() -> None:
    levels = levels_of(["A", "B"])
    gains = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        values = 0.2 + 0.1 * rng.standard_normal((4, 400, len(levels)))
        codes = np.repeat([0, 1], 200)
        periods = [PeriodReplay.of(levels, part, codes, NAMES, 20) for part in values]
        raw = np.mean([period.groups["B"].change for period in periods], axis=0).max() / 0.2
        gains.append((past_regret(periods, NO_LEVEL)["B"].regret, raw))
    honest, naive = np.mean(gains, axis=0)
    assert naive > 0.02
    assert honest < naive / 2


def test_targets_have_names_and_checked_settings() -> None:
    assert target_named("least-regret") == LeastRegret()
    assert target_named(None) is None
    for make in (lambda: LeastRegret(1.5), lambda: MaxGap(0.0), lambda: MaxGap(0.1, task="later")):  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="must be"):
            make()
    with pytest.raises(ConfigurationError, match="target must be"):
        target_named("largest")
