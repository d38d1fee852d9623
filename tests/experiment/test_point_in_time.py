"""Nothing that happens after period t can change what was computed up to t.

The tests take a log, change everything after the end of D_t (another order, other events by other
users, no events at all), and compare the two runs bit for bit: weights, optimizer, what is known,
the steps taken, and every result that was judged on events up to D_t. A result judged on later
events has to change with them; the models that it judges must not.

Under `paper` the same change does alter the weights. That is the leak of the paper's protocol, and
the proof that these tests can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fairstream
from fairstream import EventLog, FairRecommender, Run
from fairstream.training import state_tensors

N_EVENTS, N_USERS, N_ITEMS = 300, 24, 30
CUT = {"pretrain_ratio": 0.5, "n_periods": 5, "n_blocks": 6}  # D_0 has 150 events, each period 25, the tail 25
LEARNING = {
    "pretrain_epochs": 1,
    "update_epochs": 2,
    "embedding_dim": 4,
    "batch_size": 25,
    "n_negatives": 2,
    "n_fairness_negatives": 3,
    "device": "cpu",
}
Pairs = np.ndarray[Any, np.dtype[np.int64]]


@dataclass
class Carried:
    """A finished run, and how its learner stood after each period."""

    run: Run
    states: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def results(self) -> list[fairstream.PeriodResult]:
        assert self.run.pretrained is not None
        return [self.run.pretrained, *self.run.results]


def carried(log: EventLog, **options: Any) -> Carried:
    def remember(t: int, done: int, total: int) -> None:
        if done == total:
            kept.states[t] = standing(kept.run._learner)

    kept = Carried(fairstream.run(log, **{**CUT, **LEARNING, "k": 5, **options}, on_progress=remember))
    list(kept.run)
    return kept


def standing(learner: Any) -> dict[str, Any]:
    """All that a learner is made of, as plain values that compare bit for bit."""
    tensors = {**learner.model.state_dict(), **state_tensors(learner.trainer.optimizer, learner.model)}
    return {
        **{name: value.tolist() for name, value in tensors.items()},
        "known": (learner.known.n_users, learner.known.n_items, learner.known.seen.keys.tolist()),
        "strategy": learner.strategy.state(),
    }


def make_log(pairs: Pairs) -> EventLog:
    """A log of (user, item) pairs in the order given; the odd users are the advantaged ones."""
    events = pa.table({"user_id": pairs[:, 0], "item_id": pairs[:, 1], "time": np.arange(len(pairs))})
    users = pa.table({"user_id": np.arange(2 * N_USERS), "parity": ["even", "odd"] * N_USERS})
    log = fairstream.read_events(events, users=users, group="parity", advantaged="odd")
    assert len(log) == len(pairs)  # no repeated pairs: the cut depends on the count
    return log


def random_pairs(rng: np.random.Generator, n: int, *, n_users: int, n_items: int, but: Pairs | None = None) -> Pairs:
    """n distinct (user, item) pairs in random order, none of them in `but`."""
    free = np.ones((n_users, n_items), dtype=np.bool_)
    if but is not None:
        free[but[:, 0], but[:, 1]] = False
    return rng.permutation(np.argwhere(free))[:n]


# ── three ways to change the future ──────────────────────────────────────────────────────


def reordered(pairs: Pairs, end: int, rng: np.random.Generator) -> Pairs:
    """The same later events in another order."""
    return np.concatenate([pairs[:end], rng.permutation(pairs[end:])])


def replaced(pairs: Pairs, end: int, rng: np.random.Generator) -> Pairs:
    """Other later events, half of whose users and items nobody had heard of."""
    later = random_pairs(rng, len(pairs) - end, n_users=2 * N_USERS, n_items=2 * N_ITEMS, but=pairs[:end])
    return np.concatenate([pairs[:end], later])


def reassigned(pairs: Pairs, end: int, rng: np.random.Generator) -> Pairs:
    """Other later events by the same users on the same items."""
    later = random_pairs(rng, len(pairs) - end, n_users=N_USERS, n_items=N_ITEMS, but=pairs[:end])
    return np.concatenate([pairs[:end], later])


# ── strict ───────────────────────────────────────────────────────────────────────────────


WAYS = [
    {"method": "FADE"},
    {"method": "FADE", "optimizer": "dense"},
    {"method": "FADE", "model": "ncf"},
    {"method": "FADE", "restart": "on-degradation"},
    {"method": "FADE", "restart_every": 2},
    {"method": "Retrain-Fair"},
    {"method": "Finetune"},
]
each_way = pytest.mark.parametrize("options", WAYS, ids=lambda options: "-".join(map(str, options.values())))


@each_way
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32), t=st.integers(0, 4), change=st.sampled_from([reordered, replaced, reassigned]))
def test_the_future_changes_nothing_before_it(
    options: dict[str, Any], seed: int, t: int, change: Callable[..., Pairs]
) -> None:
    rng = np.random.default_rng(seed)
    pairs = random_pairs(rng, N_EVENTS, n_users=N_USERS, n_items=N_ITEMS)
    here = carried(make_log(pairs), seed=seed, **options)
    end = here.run.periods.ends[t]
    there = carried(make_log(change(pairs, end, rng)), seed=seed, **options)
    assert there.run.periods == here.run.periods
    for s in range(t + 1):
        ours, theirs = here.results[s], there.results[s]
        # W_s was trained on D_0 … D_s, all of them in the past
        assert there.states[s] == here.states[s]
        assert (theirs.update.step, theirs.update.report) == (ours.update.step, ours.update.report)
        if s < t:  # judged on D_{s+1}, which is past too
            assert theirs.tasks["next"] == ours.tasks["next"]
        if change is reordered:  # judged on the same events, whatever their order
            assert theirs.tasks["remain"] == ours.tasks["remain"]


@each_way
@settings(max_examples=3)
@given(seed=st.integers(0, 2**32), t=st.integers(1, 4))
def test_the_future_can_be_missing_altogether(options: dict[str, Any], seed: int, t: int) -> None:
    pairs = random_pairs(np.random.default_rng(seed), N_EVENTS, n_users=N_USERS, n_items=N_ITEMS)
    whole = carried(make_log(pairs), **options)
    end = whole.run.periods.ends[t + 1]
    # the same cut of a shorter log: D_0 … D_{t+1} and no event after them
    cut = {"pretrain_ratio": 150 / end, "n_periods": t + 1, "n_blocks": t + 1}
    short = carried(make_log(pairs[:end]), **{**options, **cut})
    assert short.run.periods.ends == whole.run.periods.ends[: t + 2]
    assert short.states == {s: state for s, state in whole.states.items() if s <= t}
    for ours, theirs in zip(whole.results, short.results, strict=False):
        assert theirs.tasks["next"] == ours.tasks["next"]
        assert theirs.update.step == ours.update.step


@pytest.mark.parametrize("options", [way for way in WAYS if "restart" not in way])  # a recommender decides at k = 20
@settings(max_examples=3)
@given(seed=st.integers(0, 2**32))
def test_a_recommender_that_is_given_one_period_at_a_time_arrives_at_the_same_model(
    options: dict[str, Any], seed: int
) -> None:
    pairs = random_pairs(np.random.default_rng(seed), N_EVENTS, n_users=N_USERS, n_items=N_ITEMS)
    log = make_log(pairs)
    run = carried(log, **options)
    recommender = FairRecommender(**{**LEARNING, **options})
    starts, ends = run.run.periods.starts, run.run.periods.ends
    recommender.fit(make_log(pairs[: ends[0]]))
    for t in range(5):
        if t > 0:
            recommender.update(make_log(pairs[starts[t] : ends[t]]))
        assert standing(recommender._learner) == run.states[t]
        judged = recommender.disparity(make_log(pairs[starts[t + 1] : ends[t + 1]]), k=5)
        assert judged == run.results[t].tasks["next"]


# ── paper ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("optimizer", ["dense", "row"])
def test_the_papers_protocol_lets_the_future_into_the_weights(seed: int, optimizer: str) -> None:
    rng = np.random.default_rng(seed)
    everyone = np.stack([np.arange(N_ITEMS) % N_USERS, np.arange(N_ITEMS)], axis=1)
    others = random_pairs(rng, N_EVENTS - N_ITEMS, n_users=N_USERS, n_items=N_ITEMS, but=everyone)
    pairs = np.concatenate([everyone, others])  # all users and items are there from the start
    other_future = reassigned(pairs, 150, rng)

    def pretrained(future: Pairs, protocol: str) -> dict[str, Any]:
        weights = carried(make_log(future), protocol=protocol, optimizer=optimizer).states[0]
        return {name: value for name, value in weights.items() if name.endswith("weight")}

    assert pretrained(pairs, "paper") != pretrained(other_future, "paper")
    assert pretrained(pairs, "strict") == pretrained(other_future, "strict")
    # It comes in through the negatives: what a user will have later is never drawn for it now.
    assert pretrained(pairs, "paper") != pretrained(pairs, "strict")
