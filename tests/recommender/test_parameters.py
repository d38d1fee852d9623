"""The nine parameters of a recommender: objects and names mean the same, and they are saved, shown and changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fairstream as fs
from fairstream.cli.config_options import with_model_settings
from fairstream.models import ItemItem, resolve_model
from support import make_recommender

STREAM = fs.synthetic_stream(n_users=40, n_items=30, n_events=600, seed=0)
FIRST, LATER = STREAM.events.slice(0, 500), STREAM.events.slice(500)
LOG = fs.read_events(FIRST, users=STREAM.users)
TINY = fs.Training(pretrain_epochs=1, batch_size=64)


def lists(rec: fs.FairRecommender) -> pa.Table:
    return rec.recommend(list(range(10)), k=5)


def test_a_setting_is_the_same_by_object_by_name_and_by_set_params() -> None:
    by_object = fs.FairRecommender(ItemItem(ridge=5), device="cpu")
    by_params = fs.FairRecommender("item-item", device="cpu").set_params(model__ridge=5)
    by_set = make_recommender(**with_model_settings({"model": "item-item", "ridge": 5}), device="cpu")
    assert by_params.get_params()["model__ridge"] == 5
    wanted = lists(by_object.fit(LOG))
    assert all(lists(rec.fit(LOG)).equals(wanted) for rec in (by_params, by_set))
    assert not lists(fs.FairRecommender("item-item", device="cpu").fit(LOG)).equals(wanted)


@pytest.mark.parametrize("name", ["mf", "item-item"])
def test_a_registered_name_and_the_object_behind_it_are_the_same_recommender(name: str) -> None:
    by_name, by_object = (
        fs.FairRecommender(model, training=TINY, device="cpu").fit(LOG) for model in (name, resolve_model(name))
    )
    assert lists(by_name).equals(lists(by_object))
    assert by_name.recipe.to_json() == by_object.recipe.to_json()


def test_settings_are_saved_loaded_and_shown(tmp_path: Path) -> None:
    model = fs.models.SASRec(embedding_dim=8, length=7, blocks=1)
    rec = fs.FairRecommender(model, training=TINY, strategy=fs.FineTune(epochs=1, restart_every=2), device="cpu")
    rec.fit(LOG).save(tmp_path)
    loaded = fs.load(tmp_path)
    assert loaded.recipe.model == model
    assert loaded.recipe.strategy == rec.recipe.strategy
    assert loaded.recipe.to_json() == rec.recipe.to_json()
    for shown in (repr(rec), repr(loaded)):
        assert "SASRec(embedding_dim=8, length=7, blocks=1)" in shown
    assert lists(loaded).equals(lists(rec))


def test_a_checkpoint_of_an_older_format_is_one_sentence(tmp_path: Path) -> None:
    fs.FairRecommender("popularity", device="cpu").fit(LOG).save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "format": 3}))
    with pytest.raises(
        fs.CheckpointError, match=r"\A\S+ has checkpoint format 3, this version reads 4; use the [^.]*\Z"
    ):
        fs.load(tmp_path)


def test_training_is_merged_over_the_defaults_of_the_model() -> None:
    plain, given = (fs.FairRecommender("sasrec", training=each).recipe for each in (None, fs.Training(batch_size=7)))
    assert plain.training.loss == given.training.loss == "softmax"
    assert given.training == plain.training.with_options(batch_size=7)
    paper = fs.FairRecommender("sasrec", training=fs.Training(loss="bpr")).recipe.training
    assert (paper.loss, paper.activity_exponent) == ("bpr", 0.0)  # the weights of events go with the model's own loss


def test_fine_tuning_has_its_own_epochs_and_rate_and_restarts() -> None:
    plain = fs.FairRecommender("mf", training=TINY).recipe
    assert (plain.update_epochs, plain.update_learning_rate) == (10, plain.training.learning_rate)
    strategy = fs.FineTune(epochs=2, learning_rate=0.5, restart_every=2)
    rec = fs.FairRecommender("mf", strategy=strategy, training=TINY, device="cpu").fit(LOG)
    assert (rec.recipe.update_epochs, rec.recipe.update_learning_rate) == (2, 0.5)
    steps, epochs = [], []
    for start in (0, 30, 60):
        rec.update(LATER.slice(start, 30), users=STREAM.users)
        assert rec.last_update is not None
        assert rec.last_update.report is not None
        steps.append(rec.last_update.step)
        epochs.append(len(rec.last_update.report.losses))
    assert (steps, epochs) == (["fine-tune", "retrain", "fine-tune"], [2, 1, 2])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"target": "least-gap"}, r"target must be fairstream.MaxGap\(…\) or None, got 'least-gap'"),
        ({"target": 0.02}, r"target must be fairstream.MaxGap\(…\) or None, got 0.02"),
        ({"fairness": 0.5}, "fairness must be a name, .*, got 0.5"),
        ({"strategy": 3}, r"strategy must be a name, fairstream.FineTune\(…\) or another Strategy, got 3"),
        ({"training": {"batch_size": 3}}, r"training must be fairstream.Training\(…\), got {'batch_size': 3}"),
        ({"model": 3}, "model must be a name, one of fairstream.models, or a Scorer class or function, got 3"),
    ],
)
def test_a_parameter_of_another_kind_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(fs.ConfigurationError, match=rf"\A{sentence}\Z"):
        fs.FairRecommender(**{"model": "item-item", **options})


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fs.GroupWeight("a"), "a group weight must be > 0, got 'a'"),  # type: ignore[arg-type]
        (lambda: fs.FineTune("3"), "epochs must be >= 1, got '3'"),  # type: ignore[arg-type]
        (lambda: fs.FineTune(learning_rate="1"), "learning_rate must be > 0, got '1'"),  # type: ignore[arg-type]
    ],
)
def test_a_value_of_another_kind_is_one_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(fs.ConfigurationError, match=sentence):
        make()


def test_the_model_of_a_checkpoint_may_be_passed_again_and_no_other(tmp_path: Path) -> None:
    stream = fs.synthetic_stream(n_users=40, n_items=30, n_events=600, seed=0)
    fs.FairRecommender(fs.models.ItemItem(ridge=5)).fit(stream.events).save(tmp_path)
    users = stream.events["user_id"][:3]
    again = fs.load(tmp_path, model=fs.models.ItemItem(ridge=5))
    assert again.recommend(users) == fs.load(tmp_path).recommend(users)
    with pytest.raises(fs.ConfigurationError, match="cannot change"):
        fs.load(tmp_path, model=fs.models.ItemItem(ridge=6))
    with pytest.raises(fs.ConfigurationError, match="do not pass a model"):
        fs.load(tmp_path, model="mf")
