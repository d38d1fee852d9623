"""One immutable state, swapped whole: beside other threads, under interruptions, in other processes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import fairstream
from fairstream import Context, FairRecommender, ItemTable, Scorer, UserTable
from fairstream.recommender.model_builder import tensors_of
from fairstream.recommender.trainer import Trainer
from support import make_recommender

FAST: dict[str, Any] = {
    "pretrain_epochs": 2, "update_epochs": 2, "embedding_dim": 8, "batch_size": 64, "device": "cpu"
}  # fmt: skip
STREAM = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=2000)
USERS = STREAM.users
FIRST = STREAM.events.slice(0, 1200)
PERIODS = [STREAM.events.slice(start, 100) for start in range(1200, 2000, 100)]
EVERYBODY = pa.array([*sorted(set(STREAM.events["user_id"].to_pylist())), 10**6])


class Biased(Scorer):
    """A model that no compiled engine knows."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.user, self.item = UserTable(n_users, 1), ItemTable(n_items, 1)

    def forward(self, users: torch.Tensor, items: torch.Tensor, context: Context) -> torch.Tensor:
        return self.item(items).squeeze(-1) + self.user(users)


MODELS = pytest.mark.parametrize("model", ["mf", "ncf", "popularity", "item-item", Biased])


def fitted(model: Any = "mf", **options: Any) -> FairRecommender:
    log = fairstream.read_events(FIRST, users=USERS, group="community", advantaged="majority")
    return make_recommender(model, **{**FAST, **options}).fit(log)


def lists(recommender: FairRecommender, k: int = 5) -> pa.Table:
    return recommender.recommend(EVERYBODY, k=k)


def contents(recommender: FairRecommender) -> dict[str, Any]:
    """Everything a recommender is made of, as plain values, without marking the state as shared."""
    state = recommender._states.current
    assert state is not None
    tensors = tensors_of(state)
    return {
        "tensors": {name: value.tolist() for name, value in tensors.items()},
        "ids": (state.user_ids.ids.to_pylist(), state.item_ids.ids.to_pylist()),
        "events": (state.history.users.tolist(), state.history.items.tolist(), state.history.ends),
        "groups": state.groups.codes.tolist(),
        "trained": state.trained.tolist(),
        "rest": (state.t, state.started_at, dict(state.memory), state.pending.tolist(), state.unlearned.tolist()),
    }


# ── states never change ──────────────────────────────────────────────────────────────────


@pytest.mark.few(3)
@MODELS
def test_a_state_that_somebody_holds_is_what_it_was_after_any_later_change(model: Any) -> None:
    recommender = fitted(model)
    held, before = copy.deepcopy(recommender), contents(recommender)
    recommender.update(PERIODS[0], users=USERS)
    recommender.observe(PERIODS[1])
    recommender.forget(EVERYBODY[:2])
    recommender.update(PERIODS[2], users=USERS)
    assert contents(held) == before


@pytest.mark.few(1)
@MODELS
def test_an_update_in_place_and_one_into_a_copy_give_the_same(model: Any) -> None:
    in_place, copied = fitted(model), fitted(model)
    for period in PERIODS[:3]:
        _ = copied.state  # whoever holds the state keeps its memory from being reused
        in_place.update(period, users=USERS)
        copied.update(period, users=USERS)
    assert contents(in_place) == contents(copied)


@pytest.mark.few(1)
@MODELS
def test_two_descendants_of_one_state_do_not_disturb_each_other(model: Any) -> None:
    """Both grow: neither may write where the other has put its new rows."""
    one = fitted(model)
    other = copy.deepcopy(one)
    alone_one, alone_other = fitted(model), fitted(model)
    one.update(PERIODS[0], users=USERS)
    other.update(PERIODS[4], users=USERS)
    one.update(PERIODS[1], users=USERS)
    other.update(PERIODS[5], users=USERS)
    for period in (0, 1):
        alone_one.update(PERIODS[period], users=USERS)
        alone_other.update(PERIODS[period + 4], users=USERS)
    assert contents(one) == contents(alone_one)
    assert contents(other) == contents(alone_other)


# ── threads ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mf", Biased])
def test_whoever_reads_while_another_thread_writes_sees_one_whole_state(model: Any, tmp_path: Path) -> None:
    """Every list, checkpoint and evaluation is one that some state would give."""
    recommender, undisturbed = fitted(model), fitted(model)
    steps: list[Callable[[FairRecommender], object]] = [
        *(lambda rec, part=part: rec.update(part, users=USERS) for part in PERIODS[:3]),
        lambda rec: rec.observe(PERIODS[3]),
        lambda rec: rec.forget(EVERYBODY[3:5]),
        *(lambda rec, part=part: rec.update(part, users=USERS) for part in PERIODS[4:6]),
    ]
    later = PERIODS[7]
    possible, values = [lists(undisturbed)], [_ndcg(undisturbed, later)]
    for step in steps:
        step(undisturbed)
        possible.append(lists(undisturbed))
        values.append(_ndcg(undisturbed, later))
    is_over, seen, problems = threading.Event(), [], []

    def watch(look: Callable[[int], object]) -> None:
        turn = 0
        try:
            while not is_over.is_set() or turn == 0:
                seen.append(look(turn))
                turn += 1
        except BaseException as error:
            problems.append(error)

    def saved(turn: int) -> pa.Table:
        folder = tmp_path / str(turn)
        recommender.save(folder)
        return lists(fairstream.load(folder, **({"model": model} if callable(model) else {})))

    looks = [lambda turn: lists(recommender), lambda turn: _ndcg(recommender, later), saved]
    watchers = [threading.Thread(target=watch, args=(look,)) for look in looks]
    for watcher in watchers:
        watcher.start()
    for step in steps:
        step(recommender)
    is_over.set()
    for watcher in watchers:
        watcher.join()
    assert problems == []
    assert seen
    for found in seen:
        assert found in values if isinstance(found, float) else any(found.equals(table) for table in possible)
    assert contents(recommender) == contents(undisturbed)


def _ndcg(recommender: FairRecommender, events: pa.Table) -> float:
    value = recommender.evaluate(events, users=USERS, n_resamples=0)["ndcg@20"].mean
    assert value is not None
    return value


def test_updates_from_several_threads_come_one_after_the_other() -> None:
    recommender = fitted()
    threads = [threading.Thread(target=recommender.update, args=(part,), kwargs={"users": USERS}) for part in PERIODS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recommender.state.t == len(PERIODS)
    assert len(recommender.state.history) == len(STREAM.events)


# ── interruptions ────────────────────────────────────────────────────────────────────────


class _Interrupt:
    """Raises KeyboardInterrupt at the n-th place at which Ctrl-C could be noticed in the given files.

    The interpreter looks for signals when a function is entered and when a call has returned.
    """

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        name = frame.f_code.co_filename
        if event in ("call", "c_return") and "/fairstream/" in name and any(part in name for part in _INTERRUPTED):
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


_INTERRUPTED = ("recommender", "strategies", "training/")


def _n_places(work: Callable[[], object]) -> int:
    counter = _Interrupt(-1)
    sys.setprofile(counter)
    try:
        work()
    finally:
        sys.setprofile(None)
    return -1 - counter.left


def _check_interruptions(model: Any, act: Callable[[FairRecommender], object], step: int) -> None:
    untouched, finished = fitted(model), fitted(model)
    before = contents(untouched)
    n_places = _n_places(lambda: act(finished))
    after = contents(finished)
    recommender = fitted(model)
    n_interrupted = 0
    for at in range(1, n_places + 1, step):
        sys.setprofile(_Interrupt(at))
        try:
            act(recommender)
        except KeyboardInterrupt:
            n_interrupted += 1
        finally:
            sys.setprofile(None)
        now = contents(recommender)
        if now == after:  # the new state was in force already
            recommender = fitted(model)
        else:
            assert now == before, f"interrupted at {at} of {n_places}, it left something behind"
    act(recommender)
    assert contents(recommender) == after
    assert n_interrupted > 10


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # inside a generator it is lost
@pytest.mark.parametrize("model", ["mf", Biased])
def test_an_interrupted_update_changes_nothing(model: Any) -> None:
    _check_interruptions(model, lambda rec: rec.update(PERIODS[0], users=USERS), step=23)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # inside a callback it is lost
@pytest.mark.parametrize("model", ["mf", Biased])
@pytest.mark.parametrize("action", ["update", "observe", "forget"])
def test_interrupted_anywhere_a_recommender_is_as_before_or_as_after(model: Any, action: str) -> None:
    actions: dict[str, Callable[[FairRecommender], object]] = {
        "update": lambda rec: rec.update(PERIODS[0], users=USERS),
        "observe": lambda rec: rec.observe(PERIODS[0], users=USERS),
        "forget": lambda rec: rec.forget(EVERYBODY[:3]),
    }
    _check_interruptions(model, actions[action], step=1)


def test_a_forgetting_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    recommender = fitted()
    before = contents(recommender)

    def fail(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(fairstream.History, "keep", fail)
        with pytest.raises(MemoryError):
            recommender.forget(EVERYBODY[:1])
    assert contents(recommender) == before


# ── elsewhere ────────────────────────────────────────────────────────────────────────────


_ELSEWHERE = """
import pickle, sys
recommender, events, users = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(pickle.dumps(recommender.update(events, users=users)))
"""


@pytest.mark.few(3)
@MODELS
@pytest.mark.parametrize("way", [copy.deepcopy, lambda rec: pickle.loads(pickle.dumps(rec))])
def test_a_copy_goes_on_as_the_original_does(model: Any, way: Callable[[Any], Any]) -> None:
    recommender = fitted(model)
    recommender.update(PERIODS[0], users=USERS)
    twin = way(recommender)
    assert contents(twin) == contents(recommender)
    for each in (recommender, twin):
        each.update(PERIODS[1], users=USERS)
    assert contents(twin) == contents(recommender)


@pytest.mark.slow
def test_a_recommender_can_be_sent_to_another_process_and_back() -> None:
    recommender = fitted()
    sent = pickle.dumps((recommender, PERIODS[1], USERS))
    done = subprocess.run([sys.executable, "-c", _ELSEWHERE], input=sent, capture_output=True, check=True)
    returned = pickle.loads(done.stdout)
    recommender.update(PERIODS[1], users=USERS)
    assert contents(returned) == contents(recommender)


def test_an_unfitted_recommender_can_be_copied() -> None:
    twin = copy.deepcopy(make_recommender("mf", **FAST))
    assert pickle.loads(pickle.dumps(twin)).recipe.to_json() == twin.recipe.to_json()


# ── who has been trained on ──────────────────────────────────────────────────────────────


def _events(users: list[int], items: list[int]) -> pa.Table:
    return pa.table({"user_id": users, "item_id": items, "time": [9.0] * len(users)})


def _sources(recommender: FairRecommender, users: list[int]) -> list[str]:
    return recommender.recommend(users, k=1)["source"].to_pylist()


def test_a_user_who_was_only_observed_is_not_served_as_trained() -> None:
    recommender = fitted()
    stranger, known = 5000, FIRST["user_id"][0].as_py()
    recommender.observe(_events([stranger] * 3, [1, 2, 3]), learn_later=False)
    assert _sources(recommender, [stranger, known]) == ["popularity", "model"]
    recommender.update(_events([known], [7777]))  # others' events train nobody else's row
    assert _sources(recommender, [stranger, known]) == ["popularity", "model"]
    recommender.update(_events([stranger], [4]))
    assert _sources(recommender, [stranger, known]) == ["model", "model"]


def test_a_user_who_leaves_no_negatives_to_draw_is_not_served_as_trained(tmp_path: Path) -> None:
    """Also in a state that was read from a checkpoint, and until there are items enough to learn from the user."""
    items, hungry = FIRST["item_id"].unique().to_pylist(), 5000
    events = pa.concat_tables([FIRST, _events([hungry] * (len(items) - 2), items[2:])])
    recommender = make_recommender("mf", **FAST).fit(events, users=USERS)
    recommender.save(tmp_path)
    for each in (recommender, fairstream.load(tmp_path)):
        assert _sources(each, [hungry, FIRST["user_id"][0].as_py()]) == ["popularity", "model"]
    new = [7000 + n for n in range(5)]
    recommender.update(_events([hungry, *EVERYBODY[:5].to_pylist()], [items[0], *new]))
    assert _sources(recommender, [hungry]) == ["model"]


def test_the_period_is_that_of_the_last_update_however_often_events_were_observed() -> None:
    watching, plain = (fitted(restart_every=2) for _ in range(2))
    steps = []
    for t, period in enumerate(PERIODS[:4], start=1):
        watching.observe(_events([6000 + 2 * t], [1]), learn_later=False)
        watching.observe(_events([6001 + 2 * t], [1]), learn_later=False)
        assert watching.state.t == t - 1
        for recommender in (watching, plain):
            recommender.update(period, users=USERS)
            assert recommender.state.t == recommender.last_update.t == t
        steps.append((watching.last_update.step, plain.last_update.step))
    assert steps == [("fine-tune", "fine-tune"), ("retrain", "retrain")] * 2


def test_rows_that_come_in_several_goes_of_one_period_differ() -> None:
    recommender = fitted()
    strangers = [6000, 6001, 6002]
    for stranger in strangers[:2]:
        recommender.observe(_events([stranger], [1]), learn_later=False)
    known = FIRST["user_id"][0].as_py()
    recommender.update(_events([known, strangers[2]], [7777, 1]))
    rows = recommender.model.get_parameter("user.weight")[recommender.state.user_ids.lookup(strangers)]
    assert all((rows[a] - rows[b]).abs().max() > 5e-3 for a, b in ((0, 1), (0, 2), (1, 2)))


def test_observed_events_are_learned_with_the_next_update() -> None:
    recommender = fitted()
    stranger, known = 5000, FIRST["user_id"][0].as_py()
    recommender.observe(_events([stranger] * 3, [1, 2, 3]))
    assert _sources(recommender, [stranger]) == ["popularity"]
    recommender.update(_events([known], [7777]))
    assert recommender.last_update.report.n_interactions == 4
    assert _sources(recommender, [stranger]) == ["model"]
    assert len(recommender.state.pending) == 0


def test_newcomers_who_were_not_trained_on_are_evaluated_on_the_fallback() -> None:
    """Their rows are still what they were initialised with: served from them they would get noise."""
    recommender = fitted()
    newcomers = [5000 + n for n in range(30)]
    taste = FIRST["item_id"].to_pylist()[-3:]
    recommender.observe(_events(newcomers * 2, [taste[0]] * 30 + [taste[1]] * 30), learn_later=False)
    recommender.update(PERIODS[0], users=USERS)
    tested = recommender.evaluate(_events(newcomers, [taste[2]] * 30), n_resamples=0, min_group_size=1)
    popular = recommender.recommend(newcomers[:1], k=20)
    assert set(popular["source"].to_pylist()) == {"popularity"}
    expected = float(taste[2] in popular["item_id"].to_pylist())
    assert tested["hit@20"].mean == expected


def test_forgetting_moves_the_marks_of_who_was_trained_on() -> None:
    recommender = fitted()
    recommender.observe(_events([5000] * 2, [1, 2]), learn_later=False)
    state = recommender.state
    kept = np.delete(state.trained, [0, 3])
    gone = state.user_ids.ids.take(pa.array([0, 3]))
    assert recommender.forget(gone) == 2
    assert recommender.state.trained.tolist() == kept.tolist()
    assert not kept[-1]
    assert _sources(recommender, [5000]) == ["popularity"]


def test_forgotten_events_are_no_longer_pending() -> None:
    recommender = fitted()
    recommender.observe(_events([5000, 5001, 5000], [1, 2, 3]))
    recommender.forget([5000])
    history, pending = recommender.state.history, recommender.state.pending
    assert recommender.state.user_ids.ids.take(pa.array(history.users_at(pending))).to_pylist() == [5001]


# ── small things ─────────────────────────────────────────────────────────────────────────


def test_k_may_be_any_integer() -> None:
    recommender = fitted()
    assert recommender.recommend([1], k=np.int64(5)).equals(recommender.recommend([1], k=5))


def test_events_older_than_those_known_are_noted() -> None:
    recommender = fitted()
    recommender.update(pa.table({"user_id": [1], "item_id": [7777], "time": [-5.0]}), users=USERS)
    assert any("older" in note for note in recommender.last_update.notes)
    later = FIRST["time"][-1].as_py() + 1
    recommender.update(pa.table({"user_id": [1], "item_id": [7778], "time": [later]}), users=USERS)
    assert recommender.last_update.notes == ()


def test_another_kind_of_time_is_refused_and_changes_nothing() -> None:
    recommender = fitted()
    before = contents(recommender)
    events = pa.table({"user_id": [1], "item_id": [7777], "time": pa.array([10**9], pa.timestamp("s"))})
    with pytest.raises(fairstream.DataError, match="timestamps"):
        recommender.update(events, users=USERS)
    assert contents(recommender) == before


def test_a_changed_group_is_kept_and_noted() -> None:
    recommender = fitted()
    user = FIRST["user_id"][0].as_py()
    other = {"majority": "minority", "minority": "majority"}
    changed = USERS.set_column(
        1,
        "community",
        [[other[name] if at == user else name for at, name in enumerate(USERS["community"].to_pylist())]],
    )
    recommender.observe(pa.table({"user_id": [user], "item_id": [7777], "time": [1e9]}), users=changed)
    assert any("another community" in note for note in recommender.notes)


def test_the_last_time_survives_a_checkpoint(tmp_path: Path) -> None:
    recommender = fitted()
    recommender.save(tmp_path)
    again = fairstream.load(tmp_path)
    assert again.state.last_time == recommender.state.last_time
    assert again.state.last_time.dtype == recommender.state.last_time.dtype


def test_learning_has_no_state_of_its_own() -> None:
    recommender = fitted()
    learning = recommender._trainer
    assert isinstance(learning, Trainer)
    fields = [field.name for field in dataclasses.fields(learning)]
    before = [getattr(learning, name) for name in fields]
    recommender.update(PERIODS[0], users=USERS)
    assert all(getattr(learning, name) is value for name, value in zip(fields, before, strict=True))
