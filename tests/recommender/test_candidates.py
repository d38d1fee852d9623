"""Lists for people without an id, and from a part of the catalogue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairstream as fs
from fairstream.evaluation import top_k
from support import make_recommender

QUICK: dict[str, Any] = {"pretrain_epochs": 2, "embedding_dim": 8, "device": "cpu"}
READERS = ["item-item", "transitions", "gru", "sasrec", "blend"]
MODELS = ["mf", "recent-popularity", *READERS]


@pytest.fixture(scope="module")
def stream() -> fs.SyntheticStream:
    return fs.synthetic_stream(n_users=80, n_items=60, n_events=1500, seed=0)


@pytest.fixture(scope="module")
def recommenders(stream: fs.SyntheticStream) -> dict[str, fs.FairRecommender]:
    log = fs.read_events(stream.events, users=stream.users, group="community", advantaged="majority")
    return {name: make_recommender(name, **QUICK).fit(log) for name in MODELS}


def lists(table: Any, by: str = "user_id") -> dict[Any, list[tuple[Any, float]]]:
    found: dict[Any, list[tuple[Any, float]]] = {}
    for row in table.to_pylist():
        found.setdefault(row[by], []).append((row["item_id"], row["score"]))
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
def test_filters_leave_the_order_of_what_is_left(
    name: str, stream: fs.SyntheticStream, recommenders: dict[str, fs.FairRecommender], data: Any
) -> None:
    rec = recommenders[name]
    items = rec.state.item_ids.ids.to_pylist()
    only = data.draw(st.none() | st.lists(st.sampled_from(items), min_size=1))
    exclude = data.draw(st.none() | st.lists(st.sampled_from(items)))
    left = set(items if only is None else only) - set(exclude or ())
    users = stream.users["user_id"][:7]
    if not left:
        with pytest.raises(fs.ConfigurationError, match="no item is left"):
            rec.recommend(users, only=only, exclude=exclude)
        return
    whole = lists(rec.recommend(users, k=len(items)))
    with pytest.MonkeyPatch.context() as patch:  # the catalogue in one block or in many
        backend = top_k.BACKENDS["cpu"]._replace(items_at_once=data.draw(st.sampled_from([7, 1 << 12])))
        patch.setitem(top_k.BACKENDS, "cpu", backend)
        part, short = (lists(rec.recommend(users, k=k, only=only, exclude=exclude)) for k in (len(items), 3))
    for user, found in whole.items():
        expected = [pair for pair in found if pair[0] in left]
        assert [item for item, _ in part.get(user, [])] == [item for item, _ in expected]
        assert np.allclose([s for _, s in part.get(user, [])], [s for _, s in expected], atol=1e-5)
    assert all(short[user] == part[user][:3] for user in short)


@pytest.mark.parametrize("name", READERS)
def test_a_history_gets_what_a_user_with_it_gets(
    name: str, stream: fs.SyntheticStream, recommenders: dict[str, fs.FairRecommender]
) -> None:
    rec = recommenders[name]
    users = stream.users["user_id"][:10].to_pylist()
    events = list(zip(stream.events["user_id"].to_pylist(), stream.events["item_id"].to_pylist(), strict=True))
    histories = [list(dict.fromkeys(item for user, item in events if user == wanted)) for wanted in users]
    anonymous = lists(rec.recommend(histories=histories, k=5), by="history")
    by_id = lists(rec.recommend(users, k=5))
    for at, user in enumerate(users):
        found = [item for item, _ in by_id.get(user, [])]  # nothing for a user who has had everything
        assert [item for item, _ in anonymous.get(at, [])] == found
        assert not set(found) & set(histories[at])
    reversed_order = lists(rec.recommend(histories=[history[::-1] for history in histories], k=5), by="history")
    one, other = ([dict(found) for found in answer.values()] for answer in (anonymous, reversed_order))
    is_same = all(a == pytest.approx(b, abs=1e-4) for a, b in zip(one, other, strict=True))
    assert is_same == (name == "item-item")


def test_nothing_of_a_history_is_kept(recommenders: dict[str, fs.FairRecommender]) -> None:
    rec = recommenders["sasrec"]
    before, items = rec.state, rec.state.item_ids.ids.to_pylist()
    rec.recommend(histories=[items[:4], items[5:9]])
    assert rec.state is before
    assert len(rec.state.history) == len(before.history)


UNKNOWN = [10**9, 10**9 + 1]


@pytest.mark.parametrize("name", READERS)
def test_histories_that_say_nothing_get_the_fallback_and_unknown_items_are_named(
    name: str, recommenders: dict[str, fs.FairRecommender]
) -> None:
    rec = recommenders[name]
    known = rec.state.item_ids.ids[0].as_py()
    with pytest.warns(UserWarning, match="2 of the 3 items in histories are unknown"):
        table = rec.recommend(histories=[[], [UNKNOWN[0], known], [UNKNOWN[1]]], k=5)
    sources = dict(zip(table["history"].to_pylist(), table["source"].to_pylist(), strict=True))
    newcomers = "model" if rec.model.answers_newcomers else "popularity"
    assert sources == {0: newcomers, 1: "model", 2: newcomers}
    found = lists(table, by="history")
    stranger = lists(rec.recommend(UNKNOWN[:1], k=5))[UNKNOWN[0]]
    only_known = lists(rec.recommend(histories=[[known]], k=5), by="history")[0]
    for history, alone in ((0, stranger), (1, only_known), (2, stranger)):
        assert [item for item, _ in found[history]] == [item for item, _ in alone]
        # in a batch of another size a score may differ in its last bit
        assert [score for _, score in found[history]] == pytest.approx([score for _, score in alone], rel=1e-5)
    assert len(found[1]) == 5
    assert known not in dict(found[1])
    assert set(recommenders["mf"].recommend(histories=[[known]])["source"].to_pylist()) == {"popularity"}
    assert len(rec.recommend(histories=[])) == 0


@pytest.mark.parametrize("name", MODELS)
def test_who_has_had_everything_gets_nothing_and_the_others_are_not_disturbed(
    name: str, recommenders: dict[str, fs.FairRecommender]
) -> None:
    rec = recommenders[name]
    items = rec.state.item_ids.ids.to_pylist()
    found = lists(rec.recommend(histories=[items, [], items[1:]], k=5), by="history")
    assert 0 not in found
    assert len(found[1]) == 5
    assert list(dict(found[2])) == items[:1]


# ── a part of the catalogue ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", MODELS)
def test_where_fewer_than_k_items_are_left_all_of_them_come(
    name: str, recommenders: dict[str, fs.FairRecommender]
) -> None:
    rec = recommenders[name]
    items = rec.state.item_ids.ids.to_pylist()
    table = rec.recommend(histories=[[], items[:1], items[:2]], k=10, only=items[:4], exclude=items[3])
    found = {at: set(dict(pairs)) for at, pairs in lists(table, by="history").items()}
    assert found == {0: set(items[:3]), 1: set(items[1:3]), 2: set(items[2:3])}
    assert table["rank"].to_pylist() == [1, 2, 3, 1, 2, 1]


def test_unknown_items_in_a_filter_change_nothing_and_a_filter_that_leaves_no_item_is_one_sentence(
    recommenders: dict[str, fs.FairRecommender],
) -> None:
    rec = recommenders["mf"]
    users, items = rec.state.user_ids.ids[:3], rec.state.item_ids.ids.to_pylist()
    assert rec.recommend(users, exclude=UNKNOWN).equals(rec.recommend(users))
    assert rec.recommend(users, exclude=[]).equals(rec.recommend(users))
    for some in (iter([*UNKNOWN, items[0]]), np.array([*UNKNOWN, items[0]], object)):
        assert rec.recommend(users, exclude=some).equals(rec.recommend(users, exclude=items[0]))
    assert rec.recommend(users, only=[*UNKNOWN, *items[:30]]).equals(rec.recommend(users, only=items[:30]))
    for nothing in (
        {"only": []},
        {"only": UNKNOWN},
        {"exclude": items},
        {"only": items[:2], "exclude": items[:2]},
    ):
        with pytest.raises(fs.ConfigurationError, match="no item is left to recommend"):
            rec.recommend(users, **nothing)


@pytest.mark.parametrize("filters", ["only", "exclude"])
@pytest.mark.parametrize("ids", ["3", ["alien", "dune"], 3.5, [None], [b"x"], pa.array(["alien"]), ["alien", 3]])
def test_ids_of_another_kind_in_a_filter_are_an_error(
    recommenders: dict[str, fs.FairRecommender], filters: str, ids: Any
) -> None:
    """A sold-out item must not stay in the lists because its id came as text."""
    with pytest.raises(fs.DataError, match="ids must"):
        recommenders["mf"].recommend([1], **{filters: ids})


def test_one_item_alone_needs_no_list(recommenders: dict[str, fs.FairRecommender]) -> None:
    rec = recommenders["mf"]
    users, item = rec.state.user_ids.ids[:3], rec.state.item_ids.ids[0].as_py()
    for filters in ("only", "exclude"):
        one, many = (rec.recommend(users, k=5, **{filters: ids}) for ids in (item, [item]))
        assert one.equals(many)


def test_what_cannot_be_meant_is_one_sentence(recommenders: dict[str, fs.FairRecommender]) -> None:
    rec = recommenders["mf"]
    with pytest.raises(fs.ConfigurationError, match="either user_ids or histories"):
        rec.recommend()
    with pytest.raises(fs.ConfigurationError, match="either user_ids or histories"):
        rec.recommend([1], histories=[[1]])
    for histories in ("alien", ["alien"], [1, 2], [None], 7):
        with pytest.raises(fs.ConfigurationError, match="lists of item ids"):
            rec.recommend(histories=histories)
    with pytest.raises(fs.DataError, match="ids must stay of one kind"):
        rec.recommend(histories=[["alien"]])
