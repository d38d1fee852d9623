"""Items that were only observed have an untrained row: no model recommends them from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
import pytest
import torch

import fairstream
from fairstream import Context, FairRecommender, ItemTable, Scorer
from fairstream.service.lists import Ask
from fairstream.service.serving_model import ServingModel
from fairstream.strategies import Keep
from support import make_recommender

FAST: dict[str, Any] = {"pretrain_epochs": 2, "update_epochs": 1, "embedding_dim": 8, "batch_size": 64, "device": "cpu"}
STREAM = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=2000, seed=1)
FIRST, LATER = STREAM.events.slice(0, 1600), STREAM.events.slice(1600)
KNOWN = FIRST["user_id"].unique().to_pylist()
KNOWN_ITEM = FIRST["item_id"][0].as_py()
NEW = [7000 + n for n in range(40)]
"""Items that nobody has had before; as many as make noise find its way into short lists."""


class Loud(Scorer):
    """A custom model whose untrained rows score highest."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.item = ItemTable(n_items, 1, std=100.0)

    def forward(self, users: torch.Tensor, items: torch.Tensor, context: Context) -> torch.Tensor:
        return self.item(items).squeeze(-1).abs() + 0.0 * users[:, None]


WITH_ROWS = [Loud, "mf", "ncf", "gru", "sasrec", "blend"]


def fitted(model: Any = Loud, **options: Any) -> FairRecommender:
    return make_recommender(model, **{**FAST, **options}).fit(FIRST, users=STREAM.users)


def on_new_items(users: list[int]) -> pa.Table:
    """One event on each new item."""
    owners = [users[n % len(users)] for n in range(len(NEW))]
    return pa.table({"user_id": owners, "item_id": NEW, "time": [10**6 + n for n in range(len(NEW))]})


def observed(model: Any = Loud, users: list[int] | None = None, **options: Any) -> FairRecommender:
    rec = fitted(model, **options)
    return rec.observe(on_new_items(users or KNOWN[:10]))


def recommended(rec: FairRecommender, users: list[int], **options: Any) -> set[int]:
    lists = rec.recommend(users, k=20, **options)
    return set(lists["item_id"].filter(pa.compute.equal(lists["source"], "model")).to_pylist())


@pytest.mark.few(1)
@pytest.mark.parametrize("model", WITH_ROWS)
def test_an_item_that_was_only_observed_is_recommended_to_nobody(model: Any) -> None:
    rec = observed(model)
    assert recommended(rec, KNOWN)
    assert not recommended(rec, KNOWN) & set(NEW)
    assert not recommended(rec, KNOWN, only=NEW)
    assert recommended(rec, KNOWN, only=[*NEW, KNOWN_ITEM]) == {KNOWN_ITEM}


@pytest.mark.few(1)
@pytest.mark.parametrize("model", WITH_ROWS)
def test_the_lists_of_everybody_else_stay_as_they_were(model: Any) -> None:
    """New rows, most of them at the end of the catalogue, change no list of a user without new events."""
    rec, others = fitted(model), KNOWN[10:]
    before = rec.recommend(others, k=20)
    before = before.filter(pa.compute.equal(before["source"], "model"))
    rec.observe(on_new_items(KNOWN[:10]))
    after = rec.recommend(others, k=20)
    after = after.filter(pa.compute.equal(after["source"], "model"))
    assert after.drop_columns("score").equals(before.drop_columns("score"))
    assert np.allclose(after["score"], before["score"], atol=1e-5)


def test_a_list_is_shorter_where_too_few_items_are_trained() -> None:
    rec = observed()
    n_trained, had = (
        int(rec.state.trained_items.sum()),
        FIRST["item_id"].filter(pa.compute.equal(FIRST["user_id"], KNOWN[-1])),
    )
    assert rec.recommend(KNOWN[-1], k=10**6).num_rows == n_trained - len(had.unique())


def test_strangers_get_observed_items_as_soon_as_they_are_popular() -> None:
    """Popularity counts every event, and no row has to be trained for that."""
    rec = observed("mf")
    assert set(NEW) & set(rec.recommend(10**9, k=60)["item_id"].to_pylist())


@pytest.mark.few(1)
@pytest.mark.parametrize("model", [Loud, "sasrec", "blend"])
@pytest.mark.parametrize("task", ["next", "event"])
def test_an_evaluation_ranks_what_recommend_would_list(model: Any, task: Any) -> None:
    """An item without a trained row is missed, however many positives it is."""
    rec, others = observed(model), KNOWN[10:50]
    wanted = on_new_items(others)
    assert rec.evaluate(wanted, task=task, k=60, n_resamples=0)["hit@60"].mean == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["mf", "sasrec", "blend"])
def test_an_update_trains_what_was_observed(model: Any) -> None:
    rec = observed(model)
    rec.update(LATER)
    assert rec.state.trained_items.all()
    assert recommended(rec, KNOWN, only=NEW[:10]) == set(NEW[:10])


def test_items_that_are_never_learned_stay_untrained_until_they_are_positives() -> None:
    """Being drawn as a negative trains nothing."""
    rec = fitted("mf")
    rec.observe(on_new_items(KNOWN[:10]), learn_later=False)
    rec.update(LATER)
    assert not recommended(rec, KNOWN) & set(NEW)
    known = [item for item in rec.state.item_ids.ids.to_pylist() if item not in NEW]
    assert rec.state.trained_items[rec.state.item_ids.lookup(pa.array(known))].all()
    rec.update(pa.table({"user_id": [KNOWN[50]], "item_id": [NEW[3]], "time": [3 * 10**6]}))
    assert recommended(rec, KNOWN, only=NEW) == {NEW[3]}


def test_a_model_that_is_kept_does_not_recommend_the_items_of_the_period() -> None:
    rec = fitted(Loud)
    rec.update(on_new_items(KNOWN[:10]), strategy=Keep())
    assert not recommended(rec, KNOWN) & set(NEW)


def test_retraining_trains_the_items_that_it_learns_from_and_no_others() -> None:
    rec = observed("mf", strategy="retrain")
    rec.update(LATER)
    assert rec.state.trained_items.all()


@pytest.mark.parametrize("model", ["popularity", "item-item"])
def test_closed_forms_have_no_rows_to_train_and_rank_every_item(model: Any) -> None:
    rec = observed(model)
    assert rec.recommend(KNOWN[-1], k=10**6, only=NEW)["item_id"].to_pylist() == NEW


def test_forgetting_and_retaining_keep_the_marks() -> None:
    rec = observed(users=KNOWN[:10])
    marks = rec.state.trained_items.tolist()
    rec.forget(KNOWN[:3])
    assert rec.state.trained_items.tolist() == marks
    rec.retain(FIRST.slice(800))
    assert rec.state.trained_items.tolist() == marks
    assert not recommended(rec, KNOWN[20:40]) & set(NEW)


def test_checkpoints_keep_the_marks(tmp_path: Path) -> None:
    rec = observed("mf")
    rec.save(tmp_path)
    loaded = fairstream.load(tmp_path)
    assert loaded.state.trained_items.tolist() == rec.state.trained_items.tolist()
    assert loaded.recommend(KNOWN, k=20).equals(rec.recommend(KNOWN, k=20))


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["mf", "sasrec"])
def test_untrained_vectors_are_neither_compared_nor_exported(model: Any, tmp_path: Path) -> None:
    rec = observed(model)
    alike = rec.similar_items([KNOWN_ITEM, NEW[0]], k=10**6)
    assert set(alike["item_id"].to_pylist()) == {KNOWN_ITEM}
    assert not set(alike["similar_id"].to_pylist()) & set(NEW)
    rec.export(tmp_path / "vectors")
    exported = pa.parquet.read_table(tmp_path / "vectors" / "items.parquet")["item_id"].to_pylist()
    assert exported == [item for item in rec.state.item_ids.ids.to_pylist() if item not in NEW]
    assert len(np.load(tmp_path / "vectors" / "items.npy")) == len(exported)


def test_the_service_lists_none_of_them_whatever_is_excluded_or_allowed() -> None:
    names = {"user_id": pa.compute.cast(FIRST["user_id"], pa.string()), "time": FIRST["time"]}
    events = pa.table({**names, "item_id": pa.compute.cast(FIRST["item_id"], pa.string())})
    rec = make_recommender(Loud, **FAST).fit(events)
    user, new = str(KNOWN[-1]), [str(item) for item in NEW]
    rec.observe(pa.table({"user_id": ["x"] * len(new), "item_id": new, "time": range(10**6, 10**6 + len(new))}))
    serving = ServingModel(rec.state, "m1")
    everything = serving.recommend(user, Ask(10**4))
    assert everything.source == "model"
    assert everything.items
    assert not set(everything.items) & set(new)
    best = everything.items[0]
    assert serving.recommend(user, Ask(5, exclude=[best, new[0]])).items == everything.items[1:6]
    assert serving.recommend(user, Ask(5, only=new)).items == []
    assert serving.recommend(user, Ask(5, only=[*new, best])).items == [best]
    serving.add(pa.table({"user_id": [user] * 2, "item_id": [best, new[1]], "time": [1, 2]}))  # neither breaks a list
    assert serving.recommend(user, Ask(5)).items == everything.items[1:6]
