"""What answers gives the lists of `FairRecommender.recommend` after `observe`, at once, cached or not."""

from __future__ import annotations

import json
import tracemalloc
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairstream import FairRecommender, load, read_events
from fairstream.data.catalogue import Catalogue
from fairstream.errors import ConfigurationError, ModelError
from fairstream.models.blend import PAUSES
from fairstream.service import ranking, recent
from fairstream.service.lists import Answer, Ask
from fairstream.service.ranking import popularity_of
from fairstream.service.serving import Serving
from fairstream.service.serving_model import ServingModel
from support import make_recommender

N_USERS, N_ITEMS = 30, 60
MODELS = ["mf", "ncf", "item-item", "gru", "sasrec", "blend"]
READ_HISTORIES = ["item-item", "gru", "sasrec", "blend"]
ITEMS = [f"i{row}" for row in range(N_ITEMS)]
SOME = st.sets(st.sampled_from(ITEMS), min_size=1)
USERS = st.sampled_from([*(f"u{row}" for row in range(N_USERS)), "newcomer", "nobody", "ü"])
EVENTS = st.lists(st.tuples(USERS, st.sampled_from([*ITEMS, "unheard of"])), min_size=1, max_size=8)


@cache
def fitted(model: str) -> FairRecommender:
    """One that no test changes."""
    random = np.random.default_rng(1)
    events = pa.table(
        {
            "user_id": [f"u{row}" for row in random.integers(0, N_USERS, 400)] + ["u0"] * N_ITEMS,
            "item_id": [f"i{row}" for row in random.integers(0, N_ITEMS, 400)] + ITEMS,
            "time": np.arange(400 + N_ITEMS),
        }
    )
    people = pa.table({"user_id": [f"u{row}" for row in range(N_USERS)], "g": ["a", "b"] * (N_USERS // 2)})
    recommender = make_recommender(model, device="cpu", pretrain_epochs=1, update_epochs=1, embedding_dim=8)
    return recommender.fit(read_events(events, users=people, group="g", advantaged="a"))


def new_serving(model: str) -> Serving:
    answering = Serving()
    answering.use(ServingModel(fitted(model).state, "m"), "model")
    return answering


def set_available(answering: Serving, items: dict[str, bool]) -> None:
    """Use a catalogue in which only these items are described."""
    answering.set_shop(Catalogue.of({}).updated(list(items), list(items.values()), [{}] * len(items)))


def table(events: list[tuple[str, str]], first_time: int = 1000) -> pa.Table:
    columns = zip(*events, strict=True)
    times = np.arange(first_time, first_time + len(events))
    return pa.table([*(pa.array(column, pa.string()) for column in columns), times], ["user_id", "item_id", "time"])


def expected(recommender: FairRecommender, k: int, user: str | None = None, **options: Any) -> Answer:
    rows = recommender.recommend([user] if user else None, k=k, task="event", **options)
    items, scores, sources = (rows[name].to_pylist() for name in ("item_id", "score", "source"))
    shown = [None if source == "popularity" else score for score, source in zip(scores, sources, strict=True)]
    return Answer(items, shown, sources[0] if sources else ANY, "m")


@pytest.mark.few(1)
@pytest.mark.parametrize("model", MODELS)
@settings(deadline=None, max_examples=5)
@given(batches=st.lists(EVENTS, max_size=3), k=st.integers(1, N_ITEMS), some=SOME)
def test_lists_are_those_of_recommend_after_observe(
    model: str, batches: list[list[tuple[str, str]]], k: int, some: set[str]
) -> None:
    recommender, answering = deepcopy(fitted(model)), new_serving(model)
    for n, events in enumerate(batches):
        answering.stored(table(events, 1000 * (n + 1)))
        if known := [event for event in events if event[1] in ITEMS]:
            recommender.observe(table(known, 1000 * (n + 1)))
        for user in ("u0", "newcomer", *{user for user, _ in events}):
            answering.current.recommend(user, Ask(k))  # is cached, and must not be what the next batch finds
        answering.current.refresh_popularity()
        for user in ("u0", "newcomer", *{user for user, _ in events}):
            for _ in range(2):
                assert answering.current.recommend(user, Ask(k)) == expected(recommender, k, user)
            for options in ({"exclude": some}, {"only": some}) if len(some) < N_ITEMS else ():
                assert answering.current.recommend(user, Ask(k, **options)) == expected(recommender, k, user, **options)
            content = json.loads(answering.current.json(user, Ask(k)))
            assert [item["item_id"] for item in content["items"]] == answering.current.recommend(user, Ask(k)).items


@pytest.mark.few(1)
@pytest.mark.parametrize("model", MODELS)
@settings(deadline=None, max_examples=8)
@given(events=EVENTS, k=st.integers(1, N_ITEMS), users=st.lists(USERS, min_size=1, max_size=12))
def test_lists_made_together_are_those_made_alone(
    model: str, events: list[tuple[str, str]], k: int, users: list[str]
) -> None:
    together, alone = new_serving(model), new_serving(model)
    for answering in (together, alone):
        answering.stored(table(events))
    together.current.make_lists(users, k)
    for user in users:
        assert together.current.cached_json(user, Ask(k)) is not None
        answer, wanted = together.current.recommend(user, Ask(k)), alone.current.recommend(user, Ask(k))
        assert (answer.source, answer.model) == (wanted.source, wanted.model)
        # The last bit of a score may depend on whose are computed with it, and the order of two that are alike on that.
        if answer.source == "popularity":
            assert answer == wanted
            continue
        assert answer.scores == pytest.approx(wanted.scores, rel=1e-4, abs=1e-6)
        everything = alone.current.recommend(user, Ask(N_ITEMS))
        score_of = dict(zip(everything.items, everything.scores, strict=True))
        assert answer.scores == pytest.approx([score_of[item] for item in answer.items], rel=1e-4, abs=1e-6)


@pytest.mark.few(2)
@pytest.mark.parametrize("model", MODELS)
@settings(deadline=None, max_examples=8)
@given(items=st.lists(st.sampled_from(ITEMS), max_size=6), some=SOME)
def test_sessions_are_answered_as_histories_are(model: str, items: list[str], some: set[str]) -> None:
    recommender, answering = fitted(model), new_serving(model)
    for options in ({}, {"exclude": some}, {"only": some}):
        if options != {"exclude": {*ITEMS}}:
            answer = answering.current.recommend_session([*items, "unheard of"], Ask(10, **options))
            assert answer == expected(recommender, 10, histories=[items], **options)


NOW = 1_800_000_000.0
LATE = st.just(0) | st.integers(0, 10**14) | st.sampled_from([2 * 10**15, -3 * 10**15])  # also 1963, and 2122


@cache
def fitted_with_times(model: str) -> FairRecommender:
    """One that attends by elapsed time, fitted on events of about 300 days."""
    random = np.random.default_rng(1)
    users, items = random.integers(0, N_USERS, 400), random.integers(0, N_ITEMS, 400)
    times = NOW - random.exponential(90_000, 400).cumsum()[::-1]
    columns = {"user_id": [f"u{row}" for row in users], "item_id": [f"i{row}" for row in items]}
    recommender = make_recommender(model, device="cpu", pretrain_epochs=1, update_epochs=1, embedding_dim=8)
    recommender.fit(pa.table({**columns, "time": (times * 1e6).astype("datetime64[us]")}))
    for name, parameter in recommender.state.model.named_parameters():
        if name.endswith(("elapsed", "since")):
            torch.nn.init.normal_(parameter.data[1:], std=3.0)
    return recommender


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["sasrec", "blend"])
@settings(deadline=None, max_examples=3)
@given(batches=st.lists(st.tuples(EVENTS, st.integers(0, 10**12), LATE), max_size=3))
def test_lists_are_requested_at_the_present_moment(
    model: str, batches: list[tuple[list[tuple[str, str]], int, int]]
) -> None:
    """Also of events that come late, and of some with a time that is none."""
    recommender, clock = deepcopy(fitted_with_times(model)), [NOW]
    serving = ServingModel(recommender.state, "m", lambda: clock[0])
    for events, microseconds, late in batches:
        first_time = int(clock[0] * 1e6) - late
        serving.add(table(events, first_time))
        if known := [event for event in events if event[1] in ITEMS]:
            new = table(known, first_time)
            recommender.observe(new.set_column(2, "time", new["time"].cast(pa.timestamp("us"))))
        clock[0] += 60 + microseconds / 1e6
        serving.refresh_popularity()
        for user in ("newcomer", *{user for user, _ in events}):
            assert serving.recommend(user, Ask(10, only=ITEMS)) == expected(recommender, 10, user, at=clock[0])


def test_a_cached_list_is_used_for_a_quarter_of_the_time_since_the_latest_event() -> None:
    clock = [NOW + 30]
    serving = ServingModel(fitted_with_times("sasrec").state, "m", lambda: clock[0])
    serving.add(table([("u1", serving.recommend("u1", Ask(1)).items[0])], int(NOW * 1e6)))
    for moment, is_cached in (
        (30, False),
        (89, True),
        (91, False),
        (150, True),
        (4_000, False),
        (4_900, True),
        (5_100, False),
    ):
        clock[0] = NOW + moment
        assert (serving.cached_json("u1", Ask(5)) is not None) == is_cached
        serving.recommend("u1", Ask(5))
    serving.recommend("nobody", Ask(5))
    clock[0] += 10**8
    assert serving.cached_json("nobody", Ask(5)) is not None  # nothing has an age there


@pytest.mark.parametrize("pause", PAUSES)
def test_a_cached_list_ends_with_a_pause_of_the_blend(pause: int) -> None:
    """Its weights change there."""
    change = 60 * (NOW // 60 + pause)
    clock = [change - 1]
    serving = ServingModel(fitted_with_times("blend").state, "m", lambda: clock[0])
    serving.add(table([("u1", serving.recommend("u1", Ask(1)).items[0])], int(NOW * 1e6)))
    serving.recommend("u1", Ask(5))
    assert serving.cached_json("u1", Ask(5)) is not None
    clock[0] = change
    assert serving.cached_json("u1", Ask(5)) is None


def test_one_long_history_takes_no_memory_for_the_others_of_a_batch() -> None:
    n = 100_000
    events = [*(("bot", f"i{at}") for at in range(n)), *((f"u{at}", f"i{at}") for at in range(63))]
    ranker = ranking.Ranker(popularity_of(table(events)), None)
    no_events = recent.RecentEvents().of(["nobody"])
    tracemalloc.start()
    lists = ranker.rank(np.arange(64), no_events * 64, 20, None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [len(each.rows) > 0 for each in lists] == [False, *[True] * 63]
    assert peak < 64 * n * 8  # one column of all users, padded to the longest


def test_one_moment_can_stand_for_the_present() -> None:
    recommender = fitted_with_times("sasrec")
    serving = ServingModel(recommender.state, "m", lambda: NOW)
    now = serving.recommend("u3", Ask(10))
    serving.request_at(NOW + 10**7)
    assert serving.recommend("u3", Ask(10)) == expected(recommender, 10, "u3", at=NOW + 10**7) != now
    serving.add(table([("newcomer", "i1")], int((NOW + 10**6) * 1e6)))
    with pytest.raises(ConfigurationError, match="before the latest known event, 2027-01-26"):
        serving.request_at(NOW)
    with pytest.raises(ConfigurationError, match="does not read times"):
        new_serving("mf").current.request_at(NOW)


@pytest.mark.parametrize("model", READ_HISTORIES)
def test_an_event_changes_the_next_list_of_its_user_at_once_and_no_other_list(model: str) -> None:
    answering = new_serving(model)
    for user in ("u1", "newcomer"):
        before, other = answering.current.json(user, Ask(10)), answering.current.json("u2", Ask(10))
        first, *rest = (item["item_id"] for item in json.loads(before)["items"])
        answering.stored(table([(user, first)]))
        after = json.loads(answering.current.json(user, Ask(10)))
        assert after["source"] == "model"
        assert [item["item_id"] for item in after["items"]] != [*rest, first]
        assert [item["score"] for item in after["items"]] != [item["score"] for item in json.loads(before)["items"]]
        assert first not in [item["item_id"] for item in after["items"]]
        assert answering.current.json("u2", Ask(10)) == other
        assert answering.current.cached_json("u2", Ask(10)) is not None


def test_withdrawing_more_than_a_cached_list_can_spare_makes_it_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "MIN_LENGTH", 32)
    answering = new_serving("mf")
    first = answering.current.recommend("u1", Ask(20)).items
    set_available(answering, dict.fromkeys(first, False))
    assert answering.current.cached_json("u1", Ask(20)) is None
    assert not {*first} & {*answering.current.recommend("u1", Ask(20)).items}
    assert len(answering.current.recommend("u1", Ask(20)).items) == 20


def test_the_first_event_of_a_stranger_is_in_no_other_strangers_list(monkeypatch: pytest.MonkeyPatch) -> None:
    answering = new_serving("item-item")
    wanted = new_serving("item-item").current.recommend("nobody", Ask(10))
    model, search = answering.current, answering.current._search

    def overtaken(*arguments: Any) -> Any:  # between the look at who it is for and the list
        monkeypatch.undo()
        answering.stored(table([("newcomer", wanted.items[0])]))
        return search(*arguments)

    monkeypatch.setattr(model, "_search", overtaken)
    answering.current.recommend("newcomer", Ask(10))
    assert answering.current.recommend("nobody", Ask(10)) == wanted
    assert answering.current.recommend("newcomer", Ask(10)).items[0] != wanted.items[0]


def test_events_of_known_pairs_and_of_unknown_items_keep_cached_lists() -> None:
    answering = new_serving("blend")
    answering.current.json("u0", Ask(10))
    answering.stored(table([("u0", "i3"), ("u0", "unheard of")]))
    assert answering.current.cached_json("u0", Ask(10)) is not None


def test_events_are_read_in_the_order_in_which_they_happened() -> None:
    answers = []
    for order in (slice(None), slice(None, None, -1)):
        answering, events = new_serving("gru"), table([("newcomer", item) for item in ITEMS[:5]])
        answering.stored(events.take(list(range(5))[order]))
        answers.append(answering.current.recommend("newcomer", Ask(10)))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("model", ["mf", "blend"])
def test_a_withdrawn_item_leaves_every_list_and_comes_back(model: str) -> None:
    answering = new_serving(model)
    lists = {user: answering.current.recommend(user, Ask(10)) for user in ("u1", "u2", "nobody")}
    gone = {answer.items[0] for answer in lists.values()}
    set_available(answering, dict.fromkeys(gone, False))
    for user, before in lists.items():
        after = answering.current.recommend(user, Ask(10))
        assert [item for item in after.items if item in before.items] == [i for i in before.items if i not in gone]
        assert len(after.items) == 10
        assert not gone & {item["item_id"] for item in json.loads(answering.current.json(user, Ask(10)))["items"]}
    assert not gone & set(answering.current.recommend_session(["i1"], Ask(N_ITEMS)).items)
    assert not answering.current.recommend("u1", Ask(5, only=gone)).items
    set_available(answering, {})
    assert {user: answering.current.recommend(user, Ask(10)) for user in lists} == lists


@pytest.mark.parametrize("model", ["mf", "blend"])
def test_lists_cached_while_an_item_was_withdrawn_have_it_when_it_comes_back(model: str) -> None:
    lists = {user: new_serving(model).current.recommend(user, Ask(10)) for user in ("u1", "u2", "nobody")}
    answering = new_serving(model)
    gone = {answer.items[0] for answer in lists.values()}
    set_available(answering, dict.fromkeys(gone, False))
    for user in lists:  # made, and cached, without the items
        assert not gone & {*answering.current.recommend(user, Ask(10)).items}
    set_available(answering, dict.fromkeys(gone, True))
    assert {user: answering.current.recommend(user, Ask(10)) for user in lists} == lists


def test_withdrawn_items_stay_so_when_another_model_answers() -> None:
    answering = new_serving("mf")
    first = answering.current.recommend("u1", Ask(1)).items[0]
    set_available(answering, {first: False})
    answering.use(ServingModel(fitted("mf").state, "m2"), "model")
    assert first not in answering.current.recommend("u1", Ask(N_ITEMS)).items


def test_a_list_in_the_making_is_not_cached_when_an_event_comes_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    answering = new_serving("item-item")
    ranker, rank = answering.current._ranker, answering.current._ranker.rank
    before = answering.current.recommend("u1", Ask(10))
    answering.stored(table([("u1", before.items[0])]))

    def overtaken(*arguments: Any) -> Any:
        made = rank(*arguments)
        monkeypatch.undo()
        answering.stored(table([("u1", before.items[1])]))
        return made

    monkeypatch.setattr(ranker, "rank", overtaken)
    answering.current.recommend("u1", Ask(10))
    assert not {*before.items[:2]} & {*answering.current.recommend("u1", Ask(10)).items}


def test_a_forgotten_user_is_a_stranger_and_comes_back_as_somebody_new() -> None:
    answering = new_serving("item-item")
    stranger = answering.current.recommend("nobody", Ask(10))
    answering.stored(table([("u1", "i3"), ("newcomer", "i3")]))
    for user in ("u1", "newcomer"):
        assert answering.current.recommend(user, Ask(10)) != stranger
    answering.forget(["u1", "newcomer"])
    for user in ("u1", "newcomer"):
        assert answering.current.recommend(user, Ask(10)) == stranger
        answering.stored(table([(user, "i5")]))
        assert (
            answering.current.recommend(user, Ask(10))[:2] == answering.current.recommend_session(["i5"], Ask(10))[:2]
        )


def test_events_since_are_bounded_and_those_of_who_was_away_longest_go_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recent, "MAX_EVENTS", 10)
    answering = new_serving("item-item")
    for n in range(8):
        answering.stored(table([(f"new{n}", "i1"), (f"new{n}", "i2")]))
    assert answering.current.recommend("new0", Ask(5)) == answering.current.recommend("nobody", Ask(5))
    for n in range(4, 8):
        assert answering.current.recommend(f"new{n}", Ask(5)).source == "model"
    assert "events since the last update" in caplog.text
    assert answering.current._recent._n <= 10


def test_popularity_counts_no_more_events_since_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "MAX_EVENTS", 10)
    answering = new_serving("mf")
    answering.stored(table([(f"early{n}", "i1") for n in range(300)]))
    answering.stored(table([(f"late{n}", "i2") for n in range(10)], first_time=2000))
    answering.current.refresh_popularity()
    assert answering.current.recommend("nobody", Ask(1)).items == ["i2"]


def test_cached_lists_are_bounded_and_strangers_take_one_place() -> None:
    answering = Serving()
    answering.use(ServingModel(fitted("mf").state, "m", cached_lists=5), "model")
    for stranger in range(20):
        assert answering.current.recommend(f"stranger{stranger}", Ask(5)).source == "popularity"
    assert answering.current.cached_users() == []
    for user in range(1, 20):
        assert answering.current.recommend(f"u{user}", Ask(5)).source == "model"
    assert answering.current.cached_users() == [f"u{user}" for user in range(19, 14, -1)]


@pytest.mark.parametrize("model", ["mf", "blend"])
def test_a_loaded_checkpoint_answers_the_same(model: str, tmp_path: Path) -> None:
    fitted(model).save(tmp_path, with_groups=False)
    loaded = ServingModel(load(tmp_path, device="cpu").state, "m")
    assert loaded.recommend("u3", Ask(10)) == expected(fitted(model), 10, "u3")


def test_a_model_with_nan_is_not_served() -> None:
    recommender = fitted.__wrapped__("mf")
    next(recommender.model.parameters()).data[0, 0] = float("nan")
    with pytest.raises(ModelError, match="not finite"):
        ServingModel(recommender.state, "m")


def test_without_a_model_what_is_popular_answers_and_without_events_nothing() -> None:
    answering = Serving()
    assert not answering.status().ready
    answering.use(ServingModel(popularity_of(table([("a", "x")]).slice(1)), None), "popularity")
    assert answering.current.recommend("a", Ask(5)) == Answer([], [], "popularity", None)
    # Somebody who has the same item again and again does not make it popular.
    events = [*([("a", "x")] * 50), *((f"u{n}", "y") for n in range(20)), ("a", "y"), ("b", "z")]
    answering.use(ServingModel(popularity_of(table(events)), None), "popularity", "there is no model yet")
    assert answering.current.recommend("c", Ask(2)).items == ["y", "z"]
    assert answering.current.recommend("c", Ask(5)).items == ["y", "z", "x"]
    assert answering.current.recommend("a", Ask(5)).items == ["z"]
    assert answering.status() == (None, "popularity", "there is no model yet", 0, True)
