"""The named fairness losses, for every model that is trained by gradient descent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import fairstream as fs
from support import make_recommender

STREAM = fs.synthetic_stream(n_users=60, n_items=40, n_events=1000, seed=0)
NAMES = ["largest", "group-dro"]
MODELS = ["mf", "ncf", "gru", "sasrec", "blend"]
QUICK: dict[str, Any] = {"pretrain_epochs": 1, "update_epochs": 1, "embedding_dim": 8, "device": "cpu"}


def by(n_groups: int) -> pa.Table:
    """The users in so many groups."""
    return pa.table({"user_id": range(60), "community": [str(user % n_groups) for user in range(60)]})


def fitted(model: Any, n_groups: int = 4, advantaged: str | None = None, **options: Any) -> fs.FairRecommender:
    log = fs.read_events(STREAM.events.slice(0, 800), users=by(n_groups), group="community", advantaged=advantaged)
    return make_recommender(model, **{**QUICK, **options}).fit(log)


def said(rec: fs.FairRecommender) -> list[tuple[Any, ...]]:
    table = rec.recommend(list(range(20)), k=8)
    return list(zip(*(table[name].to_pylist() for name in ("user_id", "item_id", "score")), strict=True))


@pytest.mark.few(2)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", NAMES)
def test_every_loss_trains_every_model_for_any_number_of_groups(model: str, name: str) -> None:
    rec = fitted(model, fairness=name, fairness_weight=4.0)
    assert rec.last_update is not None
    assert rec.last_update.report is not None
    assert rec.last_update.report.fairness_weight == 4.0
    assert said(rec) != said(fitted(model, method="Finetune"))
    rec.update(STREAM.events.slice(800), users=by(4))
    assert rec.last_update.step == "fine-tune"


def test_a_saved_recommender_keeps_its_loss(tmp_path: Any) -> None:
    rec = fitted("mf", 2, fairness="largest", temperature=2.0)
    rec.save(tmp_path / "rec")
    again = fs.load(tmp_path / "rec")
    for one in (rec, again):
        one.update(STREAM.events.slice(800), users=by(2))
    assert said(rec) == said(again)
    assert again.recipe.fairness == rec.recipe.fairness
