"""Strategies make plans; they keep nothing themselves, so a plan depends on the period and its memory alone."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream.data import History
from fairstream.errors import ConfigurationError
from fairstream.randomness import Randomness
from fairstream.strategies import (
    STRATEGIES,
    FineTune,
    Keep,
    Period,
    Plan,
    Replay,
    Retrain,
    SlidingWindow,
    Strategy,
)
from support import rows

qualities = st.lists(st.none() | st.sampled_from([0.0, 0.1, 0.2, 0.3]), max_size=30)
sizes = st.lists(st.integers(0, 9), min_size=2, max_size=6).filter(lambda n: n[0] > 0)


@cache
def history_of(*n_events: int) -> History:
    """Periods of so many events each."""
    pieces = [np.zeros(n, dtype=np.int64) for n in n_events]
    history = History.of(pieces[0], pieces[0])
    for piece in pieces[1:]:
        history = history.after(piece, piece)
    return history


def period_of(
    n_events: list[int], *, quality: float | None = None, memory: Any = None, t: int = 1, seed: int = 0
) -> Period:
    history = history_of(*n_events)
    new = range(len(history) - n_events[-1], len(history))
    return Period(t, history, new, quality, memory or {}, Randomness(seed))


def plans(strategy: Strategy, over: list[float | None], memory: Any = None) -> list[Plan]:
    """The plans of one period after the other, with what each says to remember as JSON keeps it."""
    made: list[Plan] = []
    for t, quality in enumerate(over):
        memory = json.loads(json.dumps(dict(made[-1].memory))) if made else memory
        made.append(strategy.plan(period_of([5, 3], quality=quality, memory=memory, t=t)))
    return made


def restarts(strategy: Strategy, over: list[float | None]) -> list[int]:
    return [t for t, plan in enumerate(plans(strategy, over)) if plan.start == "fresh"]


def events(plan: Plan) -> list[int]:
    assert plan.events is not None
    return list(plan.events)


# ── the plain ones ───────────────────────────────────────────────────────────────────────


@given(sizes)
def test_keep_retrain_and_fine_tune(n_events: list[int]) -> None:
    period, n = period_of(n_events), sum(n_events)
    assert Keep().plan(period).events is None
    retrained, tuned = Retrain().plan(period), FineTune().plan(period)
    assert (retrained.start, events(retrained)) == ("fresh", list(range(n)))
    assert (tuned.start, events(tuned)) == ("current", list(range(n - n_events[-1], n)))
    assert [plan.step for plan in (Keep().plan(period), retrained, tuned)] == ["keep", "retrain", "fine-tune"]
    assert not any(strategy.needs_quality for strategy in (Keep, Retrain, FineTune))


@given(sizes, st.integers(1, 7))
def test_a_window_is_the_last_n_periods(n_events: list[int], n_periods: int) -> None:
    plan = SlidingWindow(n_periods).plan(period_of(n_events))
    n = sum(n_events)
    assert (plan.start, plan.step) == ("current", "window")
    assert events(plan) == list(range(n - sum(n_events[-n_periods:]), n))


def test_a_window_of_one_period_is_fine_tuning() -> None:
    period = period_of([4, 2, 3])
    assert events(SlidingWindow(1).plan(period)) == events(FineTune().plan(period))


@given(sizes, st.floats(0, 3), st.integers(1, 5))
def test_replay_is_the_new_events_and_a_sample_of_the_past(n_events: list[int], share: float, t: int) -> None:
    period = period_of(n_events, t=t)
    chosen, n_past = events(Replay(share).plan(period)), sum(n_events[:-1])
    assert chosen == sorted(set(chosen))
    past = [at for at in chosen if at < n_past]
    assert [at for at in chosen if at >= n_past] == list(period.new)
    assert len(past) == min(n_past, round(share * n_events[-1]))
    assert chosen == events(Replay(share).plan(period_of(n_events, t=t)))  # nothing but the seed and t decides


def test_replay_draws_from_all_of_the_past_and_anew_in_every_period() -> None:
    samples = [tuple(events(Replay(1.0).plan(period_of([40, 10], t=t)))) for t in range(30)]
    assert len(set(samples)) == 30
    assert {at for sample in samples for at in sample} == set(range(50))
    other_seed = events(Replay(1.0).plan(period_of([40, 10], t=0, seed=1)))
    assert tuple(other_seed) != samples[0]


def test_events_that_were_observed_earlier_count_as_new() -> None:
    """They lie before the last events, but the model has not learned them."""
    history = History.of(np.arange(6), np.arange(6)).after(rows(0, 1), rows(7, 8), ends_period=False)
    history = history.after(rows(2), rows(9))
    period = Period(2, history, rows(6, 7, 8), None, {})
    assert events(FineTune().plan(period)) == [6, 7, 8]
    assert events(SlidingWindow(1).plan(period)) == [6, 7, 8]
    assert events(SlidingWindow(2).plan(period)) == list(range(9))
    assert events(Replay(100.0).plan(period)) == list(range(9))
    assert events(Replay(0.0).plan(period)) == [6, 7, 8]
    assert all(isinstance(at, int | np.integer) for at in events(Replay(0.0).plan(period)))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SlidingWindow(0), "n_periods must be >= 1, got 0"),
        (lambda: SlidingWindow(1.5), "n_periods must be a whole number, got 1.5"),
        (lambda: Replay(-0.1), "share must be >= 0, got -0.1"),
        (lambda: Replay(float("nan")), "share must be a finite number, got nan"),
        (lambda: Replay(float("inf")), "share must be a finite number, got inf"),
        (lambda: FineTune(restart_every="3"), "restart_every must be a whole number, got '3'"),
    ],
)
def test_options_that_make_no_sense_are_refused(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        make()


def test_by_default_a_strategy_remembers_what_its_plan_says_and_knows_nobody() -> None:
    plan = Plan.fine_tune(period_of([5, 3])).remembering(seen=3).because("so it was decided")
    assert (dict(plan.memory), plan.reason) == ({"seen": 3}, "so it was decided")
    assert FineTune().after(plan, None) == {"seen": 3}
    assert FineTune().forget({"seen": 3}, rows(0)) == {"seen": 3}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"start": "anywhere"}, "starts from 'current' or 'fresh', got 'anywhere'"),
        ({"start": "fresh"}, "must name the events to learn"),
        ({"events": range(3), "epochs": 0}, "the epochs of a plan must be >= 1, got 0"),
        ({"events": np.array([3, 1])}, "ascending order"),
        ({"events": np.array([1, 1])}, "each once"),
        ({"events": np.array([1.0])}, "whole numbers"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        Plan(**options)


def test_positions_may_be_a_list_or_a_range_with_steps() -> None:
    for events in (range(1, 7, 2), [1, 3, 5], np.array([1, 3, 5], dtype=np.int32)):
        plan = Plan(events=events)  # type: ignore[arg-type]
        assert isinstance(plan.events, np.ndarray)
        assert plan.events.dtype == np.int64
        assert plan.events.tolist() == [1, 3, 5]
    assert Plan(events=range(1, 7)).events == range(1, 7)  # stays a view of the log


def test_a_plan_without_a_name_is_called_by_what_it_amounts_to() -> None:
    assert Plan().step == "keep"
    assert Plan(events=range(3)).step == "fine-tune"
    assert Plan(start="fresh", events=range(3)).step == "retrain"
    assert Plan(events=range(3), name="replay").step == "replay"


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_registered_strategy_makes_a_plan_without_being_told_anything(name: str) -> None:
    strategy = STRATEGIES[name]
    plan = (strategy() if isinstance(strategy, type) else strategy).plan(period_of([5, 3], quality=0.5))
    json.dumps(dict(plan.memory))


# ── restarts ─────────────────────────────────────────────────────────────────────────────


@given(st.integers(1, 5), qualities)
def test_restart_every_r_periods_restarts_every_r_periods(every: int, over: list[float | None]) -> None:
    made = plans(FineTune(restart_every=every), over)
    assert restarts(FineTune(restart_every=every), over) == list(range(every - 1, len(over), every))
    assert not FineTune.needs_quality
    assert "keep" not in {plan.step for plan in made}
    assert all(plan.reason.startswith("restart: " if plan.start == "fresh" else "no restart: ") for plan in made)


@given(before=qualities, after=qualities)
def test_a_strategy_object_keeps_nothing_itself(before: list[float | None], after: list[float | None]) -> None:
    """With the memory of the last plan it goes on; without one it starts over, whatever it was asked before."""
    strategy = FineTune(restart_every=3)
    whole = [plan.step for plan in plans(strategy, before + after)]
    memory = dict(plans(strategy, before)[-1].memory) if before else None
    assert [plan.step for plan in plans(strategy, after, memory)] == whole[len(before) :]
    assert [plan.step for plan in plans(strategy, before)] == whole[: len(before)]


def test_a_schedule_of_less_than_a_period_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="restart_every must be >= 1, got 0"):
        FineTune(restart_every=0)
