"""One user's answer is what `recommend` gives, less what the user has had since."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairstream import FairRecommender, read_events
from fairstream.errors import ModelError
from fairstream.service import serving
from fairstream.service.recent import Recent
from fairstream.service.serving import Served

N_USERS, N_ITEMS = 40, 70


@cache
def shared(name: str) -> FairRecommender:
    """One that no test changes: mf, ncf, or one with many items."""
    return fitted("mf", 9000) if name == "large" else fitted(name)


def fitted(model: str = "mf", n_items: int = N_ITEMS) -> FairRecommender:
    random = np.random.default_rng(1)
    events = pa.table(
        {
            "user_id": [f"u{row}" for row in random.integers(0, N_USERS, 600)],
            "item_id": [f"i{row}" for row in random.integers(0, n_items, 600)],
            "time": np.arange(600),
        }
    )
    people = pa.table({"user_id": [f"u{row}" for row in range(N_USERS)], "g": ["a", "b"] * (N_USERS // 2)})
    recommender = FairRecommender(model, device="cpu", pretrain_epochs=1, update_epochs=1)
    recommender.fit(read_events(events.slice(0, 500), users=people, group="g", advantaged="a"))
    recommender.observe(pa.table({"user_id": ["late", "late"], "item_id": ["i1", "new"], "time": [700, 701]}))
    return recommender


USERS = st.sampled_from([*(f"u{row}" for row in range(N_USERS)), "late", "nobody", "ü"])


def told(recommender: FairRecommender, user: str, k: int) -> list[tuple[str, float, str]]:
    n_items = recommender.state.history.n_items
    table = recommender.recommend([user], k=min(k, n_items))
    return list(zip(*(table[name].to_pylist() for name in ("item_id", "score", "source")), strict=True))


def answered(served: Served, user: str, k: int, had: list[str]) -> list[tuple[str, float, str]]:
    recent = Recent(served)
    if had:
        recent.add(pa.array([user] * len(had)), pa.array(had))
    items, scores, source = served.answer(user, k, recent.of(user, served.row_of(user)))
    return [(item, score, source) for item, score in zip(items, scores, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mf", "ncf", "large"])
@settings(deadline=None)
@given(
    asked=st.lists(
        st.tuples(
            USERS, st.integers(1, 90), st.lists(st.sampled_from([f"i{row}" for row in range(N_ITEMS)]), max_size=9)
        ),
        max_size=6,
    )
)
def test_answers_are_those_of_recommend_whatever_was_asked_before(
    name: str, asked: list[tuple[str, int, list[str]]]
) -> None:
    recommender = shared(name)
    served = Served(recommender, "m")
    for user, k, had in asked:
        everything = told(recommender, user, N_ITEMS + 10**6)
        assert answered(served, user, k, had) == [entry for entry in everything if entry[0] not in had][:k]
        assert answered(served, user, k, []) == everything[:k] == told(recommender, user, k)


def test_a_loaded_checkpoint_answers_the_same(tmp_path: object) -> None:
    recommender = shared("mf")
    recommender.save(str(tmp_path))
    served = Served.load(tmp_path, "m")  # type: ignore[arg-type]
    assert answered(served, "u3", 10, []) == told(recommender, "u3", 10)


def test_lists_that_are_kept_are_bounded_and_strangers_take_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_KEPT_LISTS", 5)
    served = Served(shared("mf"), "m")
    for stranger in range(20):
        assert served.answer(f"stranger{stranger}", 5).source == "popularity"
    assert len(served._lists) == 1
    for user in range(20):
        assert served.answer(f"u{user}", 5).source == "model"
    assert len(served._lists) == 5


def test_a_model_with_nan_is_not_served() -> None:
    recommender = fitted()
    next(recommender.model.parameters()).data[3, 0] = float("nan")
    with pytest.raises(ModelError, match="not numbers"):
        Served(recommender, "m")


@settings(deadline=None)
@given(
    parts=st.lists(
        st.lists(st.tuples(USERS, st.sampled_from(["i1", "i2", "i3", "unheard of"])), max_size=8), max_size=6
    )
)
def test_recent_is_what_was_added_in_whatever_parts(parts: list[list[tuple[str, str]]]) -> None:
    served = Served(shared("mf"), "m")
    recent = Recent(served)
    for part in parts:
        users, items = ([event[column] for event in part] for column in (0, 1))
        recent.add(pa.array(users, pa.string()), pa.array(items, pa.string()))
    names, known_pairs = served.items.ids.to_pylist(), shared("mf").state.history.seen
    for user in {user for part in parts for user, _ in part} | {"nobody else"}:
        row = served.row_of(user)
        known = {names[item] for item in known_pairs.lists(np.array([row if row >= 0 else 10**6]))[1]}
        expected = {item for part in parts for other, item in part if other == user and item != "unheard of"}
        assert {names[item] for item in recent.of(user, row)} == expected - known
