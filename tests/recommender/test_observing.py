"""`observe` beside an update that runs in another thread: it does not wait, and nothing observed is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

import fairstream
from fairstream import FairRecommender
from fairstream.models import SASRecScorer
from fairstream.recommender import State, Trainer
from fairstream.recommender.model_builder import tensors_of
from fairstream.strategies import FineTune, Keep, Period, Plan, Strategy
from support import make_recommender

FAST: dict[str, Any] = {"pretrain_epochs": 2, "update_epochs": 2, "embedding_dim": 8, "batch_size": 64, "device": "cpu"}
STREAM = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=2000)
USERS = STREAM.users
FIRST, SECOND, THIRD = (STREAM.events.slice(start, n) for start, n in ((0, 1200), (1200, 400), (1600, 400)))
EVERYBODY = STREAM.events["user_id"].unique().to_pylist()
NEWCOMER, NEW_ITEM = 5000, 7000
SOON = 30.0
"""Seconds within which `observe` returns on the busiest machine, while the update beside it waits for the test."""


def events(users: list[int], items: list[int]) -> pa.Table:
    return pa.table({"user_id": users, "item_id": items, "time": [9.0] * len(users)})


_had = {(row["user_id"], row["item_id"]) for row in STREAM.events.to_pylist()}
NOT_HAD = next(item for item in FIRST["item_id"].to_pylist() if (EVERYBODY[0], item) not in _had)
OBSERVED = [
    (events([EVERYBODY[0]], [NOT_HAD]), True),
    (events([NEWCOMER, NEWCOMER], [1, 2]), True),
    (events([EVERYBODY[0], NEWCOMER + 1], [NEW_ITEM, 3]), False),
    (events([NEWCOMER + 2, EVERYBODY[1]], [NEW_ITEM + 1, NEW_ITEM]), True),
    (SECOND.slice(0, 20), True),  # which the update learns, too
]
"""Users and items that are known and new, to be learned later and never, and known to the update."""


def fitted(model: Any = "mf", **options: Any) -> FairRecommender:
    log = fairstream.read_events(FIRST, users=USERS, group="community", advantaged="majority")
    return make_recommender(model, **{**FAST, **options}).fit(log)


def contents(rec: FairRecommender) -> dict[str, Any]:
    """Everything a recommender is made of, as plain values, without marking the state as shared."""
    state = rec._states.current
    assert state is not None
    return {
        "tensors": {name: value.tolist() for name, value in tensors_of(state).items()},
        "ids": (state.user_ids.ids.to_pylist(), state.item_ids.ids.to_pylist()),
        "events": (state.history.users.tolist(), state.history.items.tolist(), state.history.ends),
        "groups": (state.groups.names, state.groups.codes.tolist()),
        "trained": (state.trained.tolist(), state.trained_items.tolist()),
        "rest": (state.t, state.pending.tolist(), state.unlearned.tolist(), state.last_time),
    }


def lists(rec: FairRecommender) -> pa.Table:
    return rec.recommend([*EVERYBODY, NEWCOMER, NEWCOMER + 1, 10**6], k=5)


class Held(Strategy):
    """Fine-tuning that waits for the test before it begins."""

    def __init__(self, wait: Callable[[], None], then: Strategy) -> None:
        self._wait, self._then = wait, then

    def plan(self, period: Period) -> Plan:
        self._wait()
        return self._then.plan(period)


@contextmanager
def held_update(rec: FairRecommender, new: pa.Table = SECOND, then: Strategy | None = None) -> Iterator[Future[Any]]:
    """An update that has begun in another thread, and ends with the block.

    It waits between two epochs, or before it learns where the model has none.
    """
    began, go = Event(), Event()

    def wait(*_: object) -> None:
        began.set()
        assert go.wait(10 * SOON)

    held = {"on_epoch": wait} if then is None and rec.recipe.model.name != "item-item" else {}
    strategy = {} if held else {"strategy": Held(wait, then or FineTune())}
    with ThreadPoolExecutor(1) as pool:
        update = pool.submit(rec.update, new, users=USERS, **held, **strategy)
        try:
            assert began.wait(10 * SOON)
            yield update
            assert not update.done()
        finally:
            go.set()
            update.result()


def soon(call: Callable[[], Any], go: Callable[[], Any] = lambda: None) -> Any:
    """The result of a call that must not wait for the update."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call).result(SOON)
    finally:
        go()
        pool.shutdown(wait=False)


@pytest.mark.parametrize("model", ["mf", "item-item", pytest.param("blend", marks=pytest.mark.slow)])
def test_observing_does_not_wait_for_an_update_and_lists_know_of_it_at_once(model: Any) -> None:
    rec = fitted(model)
    before, user = lists(rec), EVERYBODY[0]
    liked = rec.recommend([user], k=1)["item_id"][0].as_py()
    with held_update(rec):
        soon(lambda: rec.observe(events([user, NEWCOMER], [liked, liked])))
        assert liked not in rec.recommend([user], k=60)["item_id"].to_pylist()
        assert liked not in rec.recommend([NEWCOMER], k=60)["item_id"].to_pylist()
        assert len(rec.state.pending) == 2
    assert rec.last_update.t == rec.state.t == 1
    assert liked not in rec.recommend([user], k=60)["item_id"].to_pylist()
    assert liked not in rec.recommend([NEWCOMER], k=60)["item_id"].to_pylist()
    assert lists(rec) != before


@pytest.mark.parametrize("model", ["mf", "item-item", pytest.param("blend", marks=pytest.mark.slow)])
def test_what_was_observed_during_an_update_is_as_if_it_came_right_after(model: Any, tmp_path: Path) -> None:
    """Bit for bit: lists, events in their order, what is pending, the next update, and a checkpoint."""
    beside, after = fitted(model), fitted(model)
    with held_update(beside):
        for table, learn_later in OBSERVED:
            soon(lambda table=table, learn_later=learn_later: beside.observe(table, learn_later=learn_later))
    after.update(SECOND, users=USERS)
    for table, learn_later in OBSERVED:
        after.observe(table, learn_later=learn_later)
    assert contents(beside) == contents(after)
    assert lists(beside).equals(lists(after))
    beside.save(tmp_path)
    loaded = fairstream.load(tmp_path)
    for rec in (beside, after, loaded):
        rec.update(THIRD, users=USERS)
    assert contents(beside) == contents(after) == contents(loaded)


def test_an_observed_state_that_somebody_holds_keeps_its_memory_when_the_update_ends() -> None:
    """The update adds no rows, so that it could write into the memory that all three states share."""
    known = pc.and_(*(pc.is_in(SECOND[name], FIRST[name].unique()) for name in ("user_id", "item_id")))
    rec = fitted()
    with held_update(rec, SECOND.filter(known)):
        soon(lambda: rec.observe(events([EVERYBODY[0]], [NOT_HAD])))
        held = rec.state
        before = {name: value.clone() for name, value in tensors_of(held).items()}
    assert all(torch.equal(value, before[name]) for name, value in tensors_of(held).items())
    assert not torch.equal(rec.model.get_parameter("user.weight"), before["model/user.weight"])


def test_an_update_that_keeps_the_model_takes_over_what_was_observed() -> None:
    beside, after = fitted(), fitted()
    with held_update(beside, then=Keep()):
        soon(lambda: beside.observe(OBSERVED[1][0]))
    after.update(SECOND, users=USERS, strategy=Keep())
    after.observe(OBSERVED[1][0])
    assert contents(beside) == contents(after)


def test_what_was_observed_during_an_update_that_fails_stays_observed() -> None:
    rec, observed = fitted(), fitted()

    def fail(done: int, total: int) -> None:
        rec.observe(OBSERVED[0][0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rec.update(SECOND, users=USERS, on_epoch=fail)
    observed.observe(OBSERVED[0][0])
    assert contents(rec) == contents(observed)
    for each in (rec, observed):
        each.update(SECOND, users=USERS)
    assert contents(rec) == contents(observed)


def test_a_state_that_is_taken_while_observe_runs_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state that `observe` is about to replace shares its memory with the one after it."""
    rec, taken, observe = fitted(), list[State](), Trainer.observe

    def taking(*args: Any, **options: Any) -> State:
        following = observe(*args, **options)
        taken.append(rec.state)
        return following

    monkeypatch.setattr(Trainer, "observe", taking)
    rec.observe(events([EVERYBODY[0]], [NEW_ITEM]))
    before = {name: value.clone() for name, value in tensors_of(taken[0]).items()}
    rec.update(SECOND, users=USERS)
    assert all(torch.equal(value, before[name]) for name, value in tensors_of(taken[0]).items())


class HeldInEpoch(SASRecScorer):
    """A model that waits for the test in the middle of an epoch, while PyTorch's generator is seeded for it."""

    is_held = False
    began, go = Event(), Event()

    def states(self, history: torch.Tensor) -> torch.Tensor:
        if self.training and type(self).is_held:
            self.began.set()
            assert self.go.wait(10 * SOON)
        return super().states(history)


@pytest.mark.slow
def test_observing_newcomers_does_not_wait_for_the_epoch_of_a_model_with_dropout() -> None:
    rec, alone = fitted(HeldInEpoch, loss="softmax"), fitted(HeldInEpoch, loss="softmax")
    HeldInEpoch.is_held = True
    with ThreadPoolExecutor(1) as pool:
        update = pool.submit(rec.update, SECOND, users=USERS)
        assert HeldInEpoch.began.wait(10 * SOON)
        soon(lambda: rec.observe(OBSERVED[3][0]), HeldInEpoch.go.set)
        update.result()
    alone.update(SECOND, users=USERS)
    alone.observe(OBSERVED[3][0])
    assert contents(rec) == contents(alone)  # nor has either disturbed the other's draws


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mf", "item-item"])
def test_many_threads_observe_and_read_while_others_update(model: Any) -> None:
    """Each event is known to its user's lists from its `observe` on, and is there once in the end."""
    rec, n_each, done = fitted(model), 12, Event()
    periods = [SECOND.slice(start, 50) for start in range(0, 400, 50)]

    def observe(thread: int) -> None:
        for n in range(n_each):
            user = NEWCOMER + thread if n % 2 else EVERYBODY[thread]
            item = NEW_ITEM + n_each * thread + n
            rec.observe(events([user], [item]), learn_later=n % 3 > 0)
            state = rec.state
            row, column = state.user_ids.row_of(user), state.item_ids.row_of(item)
            assert state.history.seen.has(np.array([row]), np.array([column])).all()
            assert item not in rec.recommend([user], k=10**4)["item_id"].to_pylist()

    def read() -> None:
        while not done.is_set():
            table = rec.recommend(EVERYBODY[:20], k=5)
            assert np.isfinite(table["score"].to_numpy()).all()

    with ThreadPoolExecutor(5) as pool:
        reader = pool.submit(read)
        observers = [pool.submit(observe, thread) for thread in range(3)]
        for period in periods:
            rec.update(period, users=USERS)
        for observer in observers:
            observer.result()
        done.set()
        reader.result()
    state = rec.state
    pairs = list(zip(state.history.users.tolist(), state.history.items.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs) == len(FIRST) + 400 + 3 * n_each
    assert state.t == len(periods)
    assert set(state.pending) <= set(state.unlearned)
    assert len(state.trained) == state.history.n_users == len(state.user_ids)
    never = state.history.items_at(np.setdiff1d(state.unlearned, state.pending))
    expected = {NEW_ITEM + n_each * thread + n for thread in range(3) for n in range(0, n_each, 3)}
    assert set(state.item_ids.ids.take(pa.array(never)).to_pylist()) == expected
    rec.update(THIRD, users=USERS)
    assert len(rec.state.pending) == 0
