"""What a recommender takes note of without learning, and whom it forgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fairstream
from fairstream import FairRecommender, synthetic_stream
from support import make_recommender

STREAM = synthetic_stream(n_users=60, n_items=50, n_events=1200, seed=3)
EVENTS = STREAM.events.set_column(0, "user_id", pc.cast(STREAM.events["user_id"], pa.string()))
USERS = STREAM.users.set_column(0, "user_id", pc.cast(STREAM.users["user_id"], pa.string()))
FIRST, LATER, LAST = EVENTS.slice(0, 700), EVENTS.slice(700, 300), EVENTS.slice(1000)
EVERYBODY = pc.unique(FIRST["user_id"]).to_pylist()
N_HAD = {pair["values"]: pair["counts"] for pair in pc.value_counts(FIRST["user_id"]).to_pylist()}
UNTRAINED = [user for user, n in N_HAD.items() if n > len(pc.unique(FIRST["item_id"])) - 4]


def fitted(**options: Any) -> FairRecommender:
    rec = make_recommender(**{"model": "mf", "pretrain_epochs": 2, "update_epochs": 2, "device": "cpu", **options})
    rec.fit(FIRST, users=USERS)
    return rec


def lists_of(rec: FairRecommender, users: list[str]) -> dict[str, list[tuple[Any, float]]]:
    found = rec.recommend(users, k=10).to_pylist()
    return {user: [(row["item_id"], row["score"]) for row in found if row["user_id"] == user] for user in users}


@settings(max_examples=10)
@given(gone=st.lists(st.sampled_from(EVERYBODY), min_size=1, max_size=5, unique=True), updated=st.booleans())
def test_who_is_forgotten_is_gone_and_nobody_else_notices(
    tmp_path_factory: pytest.TempPathFactory, gone: list[str], updated: bool
) -> None:
    rec = fitted()
    if updated:
        rec.update(LATER, users=USERS)
    # The lists of those whom the model was not trained on follow the popularity of items, which others notice.
    others = [user for user in EVERYBODY if user not in gone and user not in UNTRAINED]
    before, n_users = lists_of(rec, others), rec.model.n_users
    assert all(rec.forget(user) for user in gone)
    assert not any(rec.forget(user) for user in gone)
    folder = tmp_path_factory.mktemp("model")
    rec.save(folder)
    again = fairstream.load(folder)
    for one in (rec, again):
        assert lists_of(one, others) == before
        assert one.model.n_users == n_users - len(gone)
        assert set(one.recommend(gone)["source"].to_pylist()) == {"popularity"}
    rest = LAST.filter(pc.invert(pc.is_in(LAST["user_id"], pa.array(gone))))
    rec.update(rest, users=USERS)
    again.update(rest, users=USERS)
    assert lists_of(again, others) == lists_of(rec, others)
    assert set(rec.recommend(gone)["source"].to_pylist()) == {"popularity"}


@pytest.mark.parametrize("optimizer", ["row", "dense"])
@pytest.mark.parametrize("model", ["mf", "ncf"])
def test_no_number_of_a_forgotten_user_is_left(model: str, optimizer: str) -> None:
    rec = fitted(model=model, optimizer=optimizer)
    row = EVERYBODY.index("7")
    theirs = [p.detach()[row].clone() for name, p in rec.model.named_parameters() if "user" in name]
    assert theirs
    rec.forget("7")
    for name, parameter in rec.model.named_parameters():
        for vector in theirs:
            if "user" in name and parameter.shape[1:] == vector.shape:
                assert not (parameter == vector).all(dim=-1).any()


def test_items_that_only_a_forgotten_user_had_stay_known(tmp_path: Path) -> None:
    alone = pa.table({"user_id": ["hermit"], "item_id": [10_000], "time": [0.5]})
    rec = make_recommender("mf", pretrain_epochs=1, device="cpu")
    rec.fit(pa.concat_tables([FIRST, alone.cast(FIRST.schema)]), users=USERS)
    n_items = rec.model.n_items
    rec.forget("hermit")
    rec.save(tmp_path)
    again = fairstream.load(tmp_path)
    assert again.model.n_items == n_items
    assert 10_000 in again.recommend(["nobody"], k=n_items)["item_id"].to_pylist()


def test_what_is_observed_is_not_recommended_and_not_learned() -> None:
    rec = fitted()
    user = EVERYBODY[0]
    (best, *_), weights = lists_of(rec, [user])[user], rec.model.state_dict()["user.weight"][:10].clone()
    rec.observe(pa.table({"user_id": [user], "item_id": [best[0]], "time": [99.0]}).cast(FIRST.schema))
    assert best[0] not in [item for item, _ in lists_of(rec, [user])[user]]
    assert torch.equal(rec.model.state_dict()["user.weight"][:10], weights)
    assert set(rec.recommend(["nobody"])["source"].to_pylist()) == {"popularity"}


def test_groups_told_again_are_as_good_as_groups_kept(tmp_path: Path) -> None:
    rec = fitted()
    rec.save(tmp_path / "with")
    rec.save(tmp_path / "without", with_groups=False)
    kept, told = fairstream.load(tmp_path / "with"), fairstream.load(tmp_path / "without")
    told.set_groups(USERS)
    assert told.evaluate(LATER, users=USERS) == kept.evaluate(LATER, users=USERS)
    for one in (kept, told):
        one.update(LATER, users=USERS)
    assert lists_of(told, EVERYBODY) == lists_of(kept, EVERYBODY)


# ── events that are too old to be kept ───────────────────────────────────────────────────


@pytest.mark.parametrize("model", ["mf", "gru"])
def test_only_retained_events_are_known_and_who_has_none_is_gone(model: str, tmp_path: Path) -> None:
    rec = fitted(model=model, embedding_dim=8).update(LATER, users=USERS)
    rec.save(tmp_path)
    left = EVENTS.slice(850, 150)
    users = pc.unique(left["user_id"]).to_pylist()
    item_table = next(p for name, p in rec.model.named_parameters() if "item" in name).detach().clone()
    assert rec.retain([left.slice(0, 100), left.slice(90)]) == 850  # parts may overlap
    assert rec.retain(EVENTS.slice(850)) == 0  # what is not known changes nothing
    assert sorted(rec.state.user_ids.ids.to_pylist()) == sorted(users)
    known = {
        (user, item)
        for user in users
        for item in rec.state.item_ids.ids.take(
            rec.state.history.items_of(rec.state.user_ids.lookup([user]))[1]
        ).to_pylist()
    }
    assert known == set(zip(left["user_id"].to_pylist(), left["item_id"].to_pylist(), strict=True))
    assert torch.equal(next(p for name, p in rec.model.named_parameters() if "item" in name), item_table)
    again = fairstream.load(tmp_path)
    again.retain(left.select(["item_id", "user_id"]))
    for one in (rec, again):
        one.update(LAST, users=USERS)
    assert lists_of(again, EVERYBODY) == lists_of(rec, EVERYBODY)


def test_an_item_of_an_event_that_was_not_retained_can_be_recommended_again() -> None:
    rec = fitted()
    user, item = FIRST["user_id"][0].as_py(), FIRST["item_id"][0].as_py()
    assert item not in rec.recommend([user], k=rec.model.n_items)["item_id"].to_pylist()
    before = len(rec.state.history)
    rec.retain(FIRST.slice(1))
    assert len(rec.state.history) == before - 1
    assert item in rec.recommend([user], k=rec.model.n_items)["item_id"].to_pylist()


def test_of_a_recommender_something_must_be_left() -> None:
    rec = fitted()
    with pytest.raises(fairstream.DataError, match=r"none of the 700 events .* fit a new recommender"):
        rec.retain(LAST.slice(0, 0))
    with pytest.raises(fairstream.DataError, match="needs a user column"):
        rec.retain(pa.table({"item_id": [1]}))
    assert len(rec.state.history) == 700


def test_a_recommender_with_times_that_has_forgotten_everyone_can_be_loaded(tmp_path: Path) -> None:
    rec = make_recommender("item-item", device="cpu")
    rec.fit(pa.table({"user_id": [1, 2], "item_id": [1, 2], "time": [1_700_000_000, 1_700_000_060]}))
    for user in (1, 2):
        rec.forget(user)
    rec.save(tmp_path / "rec")
    assert len(fairstream.load(tmp_path / "rec").state.history) == 0
