"""The named fairness losses and the automatic weight, for every model that is trained by gradient descent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import fairstream as fs
from fairstream.errors import ConfigurationError

STREAM = fs.synthetic_stream(n_users=60, n_items=40, n_events=1000, seed=0)
NAMES = ["largest", "group-dro", "cvar"]
MODELS = ["mf", "ncf", "gru", "sasrec", "blend"]
QUICK: dict[str, Any] = {"pretrain_epochs": 1, "update_epochs": 1, "embedding_dim": 8, "device": "cpu"}


def by(n_groups: int) -> pa.Table:
    """The users in so many groups."""
    return pa.table({"user_id": range(60), "community": [str(user % n_groups) for user in range(60)]})


def fitted(model: Any, n_groups: int = 4, advantaged: str | None = None, **options: Any) -> fs.FairRecommender:
    log = fs.read_events(STREAM.events.slice(0, 800), users=by(n_groups), group="community", advantaged=advantaged)
    return fs.FairRecommender(model, **{**QUICK, **options}).fit(log)


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


@pytest.mark.few(2)
@pytest.mark.parametrize("model", MODELS)
def test_the_automatic_weight_is_found_for_every_model(model: str) -> None:
    rec = fitted(model, 2, fairness_weight="auto")
    assert rec.last_update is not None
    report = rec.last_update.report
    assert report is not None
    assert report.engine == "reference"
    assert report.fairness_weight > 0


def test_statistics_across_batches_change_what_is_learned_and_only_if_asked_for() -> None:
    plain, off, accumulated = (fitted("mf", advantaged="0", fairness_ema_decay=decay) for decay in (None, 0.0, 0.9))
    assert said(plain) == said(off)
    assert said(plain) != said(accumulated)
    report = accumulated.last_update.report  # type: ignore[union-attr]
    assert report is not None
    assert report.engine == "reference"


def test_what_cvar_learns_does_not_depend_on_who_is_in_which_group() -> None:
    two, four = (said(fitted("mf", n_groups, fairness="cvar", fairness_weight=4.0)) for n_groups in (2, 4))
    assert two == four
    assert two != said(fitted("mf", 2, fairness="cvar", fairness_weight=0.0))


@pytest.mark.parametrize("model", ["item-item", "popularity"])
def test_a_model_without_gradients_has_no_automatic_weight(model: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the model {model} is computed in closed form; give a number"):
        fs.FairRecommender(model, fairness_weight="auto")


def test_more_than_two_groups_have_no_automatic_weight() -> None:
    with pytest.raises(ConfigurationError, match="for two groups; there are 4, so give a number"):
        fitted("mf", 4, fairness_weight="auto")


def test_a_saved_recommender_keeps_its_loss(tmp_path: Any) -> None:
    rec = fitted("mf", 2, fairness="largest", fairness_ema_decay=0.5)
    rec.save(tmp_path / "rec")
    again = fs.load(tmp_path / "rec")
    for one in (rec, again):
        one.update(STREAM.events.slice(800), users=by(2))
    assert said(rec) == said(again)
    assert (again.config.fairness, again.config.fairness_ema_decay) == ("largest", 0.5)
