"""Filters and rules change which items a list shows, never how the model ranks them, whatever changes meanwhile."""

from __future__ import annotations

import json
import threading
import time
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairstream import FairRecommender, read_events
from fairstream.data.catalogue import Catalogue
from fairstream.data.filters import FilterError, Kind
from fairstream.errors import DataError
from fairstream.service import ranking, serving_model
from fairstream.service.arms import Arms
from fairstream.service.lists import Ask, with_user, written
from fairstream.service.rules import Rules, rules_from_json
from fairstream.service.serving import Serving
from fairstream.service.serving_model import ServingModel
from fairstream.service.settings import EventKinds
from support import make_recommender

N_USERS, N_ITEMS = 30, 200
KINDS: dict[str, Kind] = {"category": "text", "price": "number", "stock": "number"}
ITEMS = [f"i{n}" for n in range(N_ITEMS)]
PROPERTIES = [{"category": f"c{n % 7}", "price": n % 50, "stock": n % 3} for n in range(N_ITEMS)]
FILTERS = {
    'category = "c1"': lambda item: item["category"] == "c1",
    "price < 2": lambda item: item["price"] < 2,
    "price >= 5": lambda item: item["price"] >= 5,
    "stock > 0 and not price = 7": lambda item: item["stock"] > 0 and item["price"] != 7,
    'category = "none"': lambda item: False,
}
MODELS = ["mf", "item-item", "blend"]


@cache
def fitted(model: str) -> FairRecommender:
    random = np.random.default_rng(1)
    users, items = random.integers(0, N_USERS, 900), random.integers(0, N_ITEMS, 900)
    columns = {"user_id": [f"u{n}" for n in users], "item_id": [f"i{n}" for n in items], "time": np.arange(900)}
    recommender = make_recommender(model, device="cpu", pretrain_epochs=1, embedding_dim=8)
    return recommender.fit(read_events(pa.table(columns)))


def a_shop() -> Catalogue:
    return Catalogue.of(KINDS).updated(ITEMS, [True] * N_ITEMS, PROPERTIES)


def new_serving(model: str, rules: list[dict[str, Any]] | None = None) -> Serving:
    answering = Serving()
    answering.set_shop(a_shop(), Rules.of(rules_from_json(rules or [], KINDS), KINDS))
    answering.use(ServingModel(fitted(model).state, "m"), "model")
    return answering


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("few", [0.0, 1.0])
def test_a_filtered_list_is_the_ranking_of_all_items_without_the_others(
    model: str, few: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it comes from a cached ranking, a longer one, or one of the allowed items alone."""
    monkeypatch.setattr(serving_model, "_FEW", few)
    monkeypatch.setattr(ranking, "MIN_LENGTH", 8)
    for user in ("u1", "u2", "nobody"):
        complete = new_serving(model).current.recommend(user, Ask(N_ITEMS))
        whole = list(zip(complete.items, complete.scores, strict=True))
        answering = new_serving(model).current
        for where, passes in FILTERS.items():
            expected = [each for each in whole if passes(PROPERTIES[int(each[0][1:])])]
            for k in (1, 10, 100):
                for answer in (
                    answering.recommend(user, Ask(k, where=where)),
                    answering.recommend(user, Ask(k, where=where)),
                ):
                    assert answer.items == [item for item, _ in expected[:k]], (where, k)
                    wanted = [score for _, score in expected[:k]]
                    np.testing.assert_allclose(np.array(answer.scores, float), np.array(wanted, float), rtol=1e-5)
                expected_rest = [item for item, _ in expected if item not in ITEMS[:60]][:k]
                assert answering.recommend(user, Ask(k, ITEMS[:60], where=where)).items == expected_rest
                inside = [item for item, _ in expected if item in ITEMS[:60]][:k]
                assert answering.recommend(user, Ask(k, (), ITEMS[:60], where)).items == inside
        assert answering.recommend(user, Ask(10)) == new_serving(model).current.recommend(user, Ask(10))


def test_a_session_is_filtered_too_and_a_bad_filter_is_refused_with_its_position() -> None:
    current = new_serving("item-item").current
    everything = current.recommend_session(["i1"], Ask(N_ITEMS)).items
    expected = [item for item in everything if PROPERTIES[int(item[1:])]["price"] < 2]
    assert current.recommend_session(["i1"], Ask(5, where="price < 2")).items == expected[:5]
    with pytest.raises(FilterError) as caught:
        current.recommend("u1", Ask(5, where="price <"))
    assert caught.value.position == 8


@pytest.mark.parametrize("share", [0.9, 0.2])
def test_items_that_are_withdrawn_and_come_back_leave_and_return(share: float) -> None:
    """Also where most items are withdrawn, and cached rankings are of the others alone."""
    answering, full = new_serving("mf"), new_serving("mf").current.recommend("u1", Ask(N_ITEMS)).items
    random, catalogue = np.random.default_rng(0), a_shop()
    for _ in range(6):
        is_available = random.random(N_ITEMS) < share
        catalogue = catalogue.updated(ITEMS, is_available.tolist(), PROPERTIES)
        answering.set_shop(catalogue)
        for k in (5, 150):
            expected = [item for item in full if is_available[int(item[1:])]][:k]
            assert answering.current.recommend("u1", Ask(k)).items == expected


def test_switching_an_item_back_and_forth_keeps_the_other_lists() -> None:
    answering, catalogue = new_serving("mf"), a_shop()
    answering.current.recommend("u1", Ask(5))
    for is_available in (False, True, False, True):
        catalogue = catalogue.updated(["i1"], [is_available], PROPERTIES[1:2])
        answering.set_shop(catalogue)
        assert answering.current.cached_users() == ["u1"]


def test_rules_boost_then_limit_then_pin() -> None:
    boost = {"boost": {"filter": 'category = "c1"', "factor": 3}}
    limit, pin = {"at_most": {"n": 2, "per": "category"}}, {"pin": {"items": ["new", "i5"], "position": 2}}
    plain = new_serving("mf").current.recommend("u1", Ask(N_ITEMS)).items
    category = {item: properties["category"] for item, properties in zip(ITEMS, PROPERTIES, strict=True)}

    rank = {item: n / (3 if category[item] == "c1" else 1) for n, item in enumerate(plain, start=1)}
    boosted = sorted(plain, key=rank.__getitem__)
    assert new_serving("mf", [boost]).current.recommend("u1", Ask(12)).items == boosted[:12]

    limited = [item for at, item in enumerate(boosted) if [category[i] for i in boosted[:at]].count(category[item]) < 2]
    assert new_serving("mf", [limit, boost]).current.recommend("u1", Ask(50)).items == limited

    rest = [item for item in limited if item != "i5"]
    shaped = new_serving("mf", [pin, limit, boost]).current
    expected = [rest[0], "new", "i5", *rest[1:]][:10]
    assert shaped.recommend("u1", Ask(10)).items == expected
    assert [b"i5" in body for body in (shaped.json("u1", Ask(2)), shaped.json("u1", Ask(3)))] == [False, True]


@pytest.mark.parametrize("model", MODELS)
@settings(deadline=None, max_examples=30)
@given(
    factors=st.lists(st.tuples(st.sampled_from(list(FILTERS)), st.sampled_from([0.1, 0.5, 2, 10])), max_size=3),
    k=st.integers(1, 30),
    where=st.sampled_from(["", *FILTERS]),
)
def test_boosts_are_those_of_the_whole_ranking_however_long_the_cached_one_is(
    model: str, factors: list[tuple[str, float]], k: int, where: str
) -> None:
    rules = [{"boost": {"filter": text, "factor": factor}} for text, factor in factors]
    whole = new_serving(model, rules).current.recommend("u1", Ask(N_ITEMS, where=where))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "MIN_LENGTH", 4)
        assert new_serving(model, rules).current.recommend("u1", Ask(k, where=where)).items == whole.items[:k]


def test_no_rule_brings_back_what_may_not_be_shown() -> None:
    answering = new_serving("item-item", [{"pin": {"items": ["i1", "i2", "i3", "i4", "i5", "i6"]}}])
    shop = a_shop().updated(["i1", "i2"], [False, True], [PROPERTIES[1], {**PROPERTIES[2], "price": 100}])
    answering.set_shop(shop, answering._rules)
    answering.stored(pa.table({"user_id": ["newcomer"], "item_id": ["i4"], "time": [5]}))
    answering.dislike([("newcomer", "i5")])
    shown = answering.current.recommend("newcomer", Ask(10, ["i3"], where="price < 50")).items
    assert shown[0] == "i6"
    assert not {"i1", "i2", "i3", "i4", "i5"} & {*shown}
    assert answering.current.recommend("other", Ask(10, ["i3"], where="price < 50")).items[:3] == ["i4", "i5", "i6"]


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ({}, "expected a JSON list of at most 100 rules"),
        ([{}], "rule 1: Value error, a rule has exactly one of pin, boost and at_most"),
        ([{"pin": {"items": []}}], "rule 1: pin.items: "),
        ([{"pin": {"items": ["a"], "position": 0}}], "rule 1: pin.position: "),
        ([{"pin": {"items": ["a"]}}, {"boost": {"filter": "price <", "factor": 2}}], "rule 2: the filter, character 8"),
        ([{"boost": {"filter": "price < 1", "factor": 0}}], "rule 1: boost.factor: "),
        ([{"at_most": {"n": 1, "per": "colour"}}], "rule 1: per must name a property of one value: category, price"),
        ([{"at_most": {"n": 1, "per": "price", "filter": "x"}}], "rule 1: at_most.filter: "),
        ([5], "rule 1: "),
    ],
)
def test_a_bad_rule_is_named_with_its_part(rules: Any, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        rules_from_json(rules, KINDS)
    assert str(caught.value).startswith(sentence)


def test_items_that_may_return_come_back_and_others_do_not() -> None:
    for model in ("mf", "item-item"):
        answering = new_serving(model)
        columns = {"user_id": ["u1"] * 2, "item_id": ["i1", "i2"], "time": [10**9, 10**9 + 1]}
        answering.stored(pa.table({**columns, "returns": [True, False]}))
        had = {*new_serving(model).current.recommend("u1", Ask(N_ITEMS)).items} - {
            *answering.current.recommend("u1", Ask(N_ITEMS)).items
        }
        assert had <= {"i2"}
        answering.stored(pa.table({**columns, "returns": [False, False]}))
        assert not {"i1", "i2"} & {*answering.current.recommend("u1", Ask(N_ITEMS)).items}


def test_a_filter_never_returns_what_it_forbids_while_items_change() -> None:
    """Every item of an answer passed at some moment between the request and the answer.

    Stock and availability change all the time; `since` says when each item last became forbidden.
    """
    answering, catalogue = new_serving("mf"), a_shop()
    forbidden_since = {item: (-np.inf if PROPERTIES[n]["stock"] == 0 else np.inf) for n, item in enumerate(ITEMS)}
    lock, stop, problems, n_answers = threading.Lock(), threading.Event(), list[str](), [0]

    def change() -> None:
        nonlocal catalogue
        random = np.random.default_rng(0)
        while not stop.is_set():
            rows = random.choice(N_ITEMS, 20, replace=False)
            stock, is_available = random.integers(0, 3, 20).tolist(), (random.random(20) < 0.8).tolist()
            names = [ITEMS[row] for row in rows]
            after = catalogue.updated(
                names, is_available, [{**PROPERTIES[row], "stock": n} for row, n in zip(rows, stock, strict=True)]
            )
            allowed = [n > 0 and available for n, available in zip(stock, is_available, strict=True)]
            with lock:  # from here on an item may be in a list
                forbidden_since.update({name: np.inf for name, may in zip(names, allowed, strict=True) if may})
            answering.set_shop(after)
            catalogue = after
            with lock:  # from here on it may not: the change is acknowledged
                now = time.monotonic()
                for name, may in zip(names, allowed, strict=True):
                    if not may and forbidden_since[name] == np.inf:
                        forbidden_since[name] = now

    def ask(seed: int) -> None:
        random = np.random.default_rng(seed)
        while not stop.is_set():
            user, k = f"u{random.integers(0, 40)}", int(random.integers(1, 60))
            with lock:
                gone = {item: since for item, since in forbidden_since.items() if since < np.inf}
            items = answering.current.recommend(user, Ask(k, where="stock > 0")).items
            n_answers[0] += 1
            with lock:  # forbidden before the request, and not allowed for a moment meanwhile
                problems.extend(item for item in items if gone.get(item) == forbidden_since[item])

    threads = [threading.Thread(target=change), *(threading.Thread(target=ask, args=(seed,)) for seed in range(3))]
    for thread in threads:
        thread.start()
    time.sleep(3)
    stop.set()
    for thread in threads:
        thread.join()
    assert n_answers[0] > 100
    assert problems == []


def test_negative_feedback_leaves_the_persons_lists_for_good_and_counts_for_nothing_else() -> None:
    answering = new_serving("item-item")
    plain = new_serving("item-item").current.recommend("u1", Ask(N_ITEMS))
    columns = {"user_id": ["u1", "u1"], "item_id": [plain.items[0], plain.items[1]], "time": [10**9, 10**9]}
    answering.stored(pa.table({**columns, "kind": ["dislike", "nothing known"]}))
    expected = new_serving("item-item")
    expected.stored(pa.table({"user_id": ["u1"], "item_id": [plain.items[1]], "time": [10**9]}))
    rest = expected.current.recommend("u1", Ask(11, [plain.items[0]])).items
    assert answering.current.recommend("u1", Ask(10)).items == rest[:10]
    assert plain.items[0] in answering.current.recommend("u2", Ask(N_ITEMS)).items
    answering.use(ServingModel(fitted("mf").state, "m2"), "model")
    assert plain.items[0] not in answering.current.recommend("u1", Ask(N_ITEMS)).items
    answering.forget(["u1"])
    assert plain.items[0] in answering.current.recommend("u1", Ask(N_ITEMS)).items


def test_kinds_that_repeat_say_which_items_may_come_back() -> None:
    answering = Serving(EventKinds(repeats=("purchase",)))
    answering.use(ServingModel(fitted("item-item").state, "m"), "model")
    columns = {"user_id": ["new"] * 2, "item_id": ["i1", "i2"], "time": [1, 2], "kind": ["purchase", "view"]}
    answering.stored(pa.table(columns))
    items = answering.current.recommend("new", Ask(N_ITEMS)).items
    assert ("i1" in items, "i2" in items) == (True, False)


def test_events_that_are_read_again_change_no_list_although_their_items_may_return() -> None:
    random = np.random.default_rng(1)
    columns = {"user_id": [f"u{n}" for n in random.integers(0, 20, 300)], "kind": ["purchase"] * 300}
    columns["item_id"] = [f"i{n}" for n in random.integers(0, 60, 300)]
    times = np.arange(1_700_000_000, 1_700_000_000 + 300 * 60, 60) * 10**6
    log = pa.table({**columns, "time": times.astype("datetime64[us]")})
    kinds = {"kind_column": "kind", "kinds": {"purchase": 1.0}, "returning": ("purchase",)}
    recommender = make_recommender("blend", device="cpu", pretrain_epochs=1, embedding_dim=8)
    state = recommender.fit(read_events(log, **kinds)).state
    model = ServingModel(state, "m", lambda: 1_700_100_000.0)
    learned = pa.table({**columns, "time": times, "returns": [True] * 300})
    new = pa.table({"user_id": ["u1"], "item_id": ["i1"], "time": [times[-1] + 1], "returns": [True]})
    before = model.recommend("u1", Ask(60))
    model.add(learned)  # those of the model's last period, which a process reads when it loads the model
    assert model.recommend("u1", Ask(60)) == before
    model.add(new)
    once = model.recommend("u1", Ask(60))
    assert once != before
    model.add(new)  # stored by this process, and read by its next poll
    assert model.recommend("u1", Ask(60)) == once


def test_a_pinned_item_that_the_model_does_not_know_has_no_reason() -> None:
    current = new_serving("item-item", [{"pin": {"items": ["new"]}}]).current
    answer = current.recommend("u1", Ask(3, explain=True))
    assert answer.because is not None
    assert (answer.items[0], answer.because[0], len(answer.because)) == ("new", None, 3)
    session = json.loads(with_user(None, written(current.recommend_session(["i1"], Ask(3, explain=True)))))
    assert [len(session["items"]), session["items"][0]] == [3, {"item_id": "new", "score": None, "because": None}]


def test_a_model_answers_with_the_catalogue_of_that_moment() -> None:
    answering, second = new_serving("mf"), ServingModel(fitted("mf").state, "m2")
    best = second.recommend("u1", Ask(1)).items
    answering.prepare(second)
    answering.set_shop(a_shop().updated(best, [False], [{}]))  # while events are read and lists are made
    answering.use_second(Arms("x1", "split", "m", "m2", 1.0, b"s"), second)
    assert best[0] not in second.recommend("u1", Ask(N_ITEMS)).items
