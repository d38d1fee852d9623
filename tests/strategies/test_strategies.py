"""Strategies decide; the decisions can be interrupted and go on as if they had not been."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream.strategies import FineTune, Keep, RestartEvery, RestartOnDegradation, Retrain, Step, Strategy

qualities = st.lists(st.none() | st.sampled_from([0.0, 0.1, 0.2, 0.3]), max_size=30)


def steps(strategy: Strategy, over: list[float | None]) -> list[Step]:
    return [strategy.next_step(quality) for quality in over]


def restarts(strategy: Strategy, over: list[float | None]) -> list[int]:
    return [t for t, step in enumerate(steps(strategy, over)) if step is Step.RETRAIN]


@pytest.mark.parametrize(("strategy", "step"), [(Keep, Step.KEEP), (Retrain, Step.RETRAIN), (FineTune, Step.FINE_TUNE)])
@given(over=qualities)
def test_a_plain_strategy_takes_one_step_whatever_happens(
    strategy: type[Strategy], step: Step, over: list[float | None]
) -> None:
    assert set(steps(strategy(), over)) <= {step}
    assert strategy().state() == {}
    assert not strategy.needs_quality


@given(st.integers(1, 5), qualities)
def test_restart_every_r_periods_restarts_every_r_periods(every: int, over: list[float | None]) -> None:
    assert restarts(RestartEvery(every), over) == list(range(every - 1, len(over), every))
    assert not RestartEvery.needs_quality
    assert Step.KEEP not in steps(RestartEvery(every), over)


def naive_restarts(patience: int, over: list[float | None]) -> list[int]:
    """By the whole history since the last restart, of which the first quality is the mark."""
    found, since = [], []
    for t, quality in enumerate(over):
        if quality is not None:
            since.append(quality)
            if len(since) >= patience and all(value < since[0] for value in since[-patience:]):
                found.append(t)
                since = []
    return found


@given(st.integers(1, 4), qualities)
def test_restart_on_degradation_against_the_whole_history(patience: int, over: list[float | None]) -> None:
    assert restarts(RestartOnDegradation(patience), over) == naive_restarts(patience, over)
    assert RestartOnDegradation.needs_quality


@given(st.integers(1, 4), st.floats(0, 1), st.lists(st.none() | st.floats(0, 1)))
def test_it_never_restarts_while_the_mark_is_held(patience: int, mark: float, above: list[float | None]) -> None:
    held = [None if value is None else max(mark, value) for value in above]
    assert restarts(RestartOnDegradation(patience), [mark, *held]) == []


@given(st.integers(1, 5))
def test_it_restarts_after_exactly_as_many_worse_periods_in_a_row(patience: int) -> None:
    worse = [0.4] * (patience - 1)
    assert restarts(RestartOnDegradation(patience), [0.5, *worse, 0.5, *worse, 0.6, *worse]) == []
    assert restarts(RestartOnDegradation(patience), [0.5, *worse, 0.4]) == [patience]


def test_after_a_restart_the_mark_is_set_anew() -> None:
    strategy = RestartOnDegradation(patience=2)
    assert restarts(strategy, [0.5, 0.4, 0.4]) == [2]
    assert restarts(strategy, [0.3, 0.3, 0.4, 0.3]) == []  # 0.3 is the mark now, 0.5 is forgotten
    assert restarts(strategy, [0.2, 0.2]) == [1]


@given(st.integers(1, 4), qualities)
def test_a_period_that_tested_nobody_is_as_if_it_had_not_been(patience: int, over: list[float | None]) -> None:
    known = [quality for quality in over if quality is not None]
    strategy = RestartOnDegradation(patience)
    decided = [step for quality, step in zip(over, steps(strategy, over), strict=True) if quality is not None]
    assert decided == steps(RestartOnDegradation(patience), list(known))


@pytest.mark.parametrize("make", [Keep, Retrain, FineTune, lambda: RestartEvery(3), lambda: RestartOnDegradation(2)])
@given(before=qualities, after=qualities)
def test_a_restored_strategy_decides_as_the_saved_one_would_have(
    make: type[Strategy], before: list[float | None], after: list[float | None]
) -> None:
    strategy, restored = make(), make()
    steps(strategy, before)
    restored.restore(json.loads(json.dumps(strategy.state())))  # a checkpoint keeps it as JSON
    assert restored.state() == strategy.state()
    assert steps(restored, after) == steps(strategy, after)
