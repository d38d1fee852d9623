"""A factory of models is as good as the class of the models that it makes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import fairstream as fs
from fairstream.errors import ConfigurationError
from fairstream.experiments.config import RunConfig
from fairstream.methods import Parts
from fairstream.models import (
    MODELS,
    BlendScorer,
    GRU4RecScorer,
    ItemItemScorer,
    MFScorer,
    ModelFactory,
    SASRecScorer,
    Scorer,
)
from support import make_recommender

STREAM = fs.synthetic_stream(n_users=60, n_items=40, n_events=1000, seed=0)
FIRST, LATER = STREAM.events.slice(0, 800), STREAM.events.slice(800)
QUICK: dict[str, Any] = {"pretrain_epochs": 1, "update_epochs": 1, "device": "cpu"}


def made(n_users: int, n_items: int, model: Any = SASRecScorer, **options: Any) -> Scorer:
    """A factory that is no class."""
    scorer: Scorer = model(n_users, n_items, **options)
    return scorer


def factories(model: Any, **options: Any) -> list[ModelFactory]:
    return [partial(model, **options), partial(made, model=model, **options), lambda u, i: made(u, i, model, **options)]


def fitted(model: Any, **options: Any) -> fs.FairRecommender:
    return make_recommender(model, **{**QUICK, **options}).fit(FIRST, users=STREAM.users)


@pytest.fixture
def registered() -> Iterator[str]:
    MODELS.register("wide-sasrec", partial(SASRecScorer, embedding_dim=24))
    yield "wide-sasrec"
    del MODELS._parts["wide-sasrec"], MODELS._names["wide-sasrec"]


@pytest.mark.parametrize("model", [SASRecScorer, GRU4RecScorer])
@pytest.mark.parametrize("kind", range(3))
def test_it_is_trained_with_the_defaults_of_the_model(model: Any, kind: int) -> None:
    expected = fs.FairRecommender(model).recipe
    assert expected.training.loss == "softmax"
    recipe = fs.FairRecommender(factories(model)[kind]).recipe
    assert (recipe.training, recipe.update_epochs) == (expected.training, 3)
    assert RunConfig(**Parts.split(model=factories(model)[kind], loss=None, fairness=None, strategy=None)[0]) == (
        RunConfig(**Parts.split(model=model, loss=None, fairness=None, strategy=None)[0])
    )


def test_it_learns_what_the_model_by_name_learns() -> None:
    users = LATER["user_id"][:20]
    by_name, by_factory = fitted("sasrec", embedding_dim=8), fitted(partial(SASRecScorer, embedding_dim=8))
    assert by_factory.recommend(users) == by_name.recommend(users)


@pytest.mark.parametrize("model", [SASRecScorer, *factories(SASRecScorer)])
def test_options_that_are_given_win(model: Any) -> None:
    training = fs.FairRecommender(model, training=fs.Training(learning_rate=0.5, loss="bpr")).recipe.training
    assert (training.learning_rate, training.loss, training.optimizer) == (0.5, "bpr", "dense")
    assert training.activity_exponent == 0  # weights of events go with the model's own loss


def test_the_length_of_embeddings_in_a_partial_wins_over_the_default(registered: str, tmp_path: Path) -> None:
    own = fitted(partial(SASRecScorer, embedding_dim=24))
    assert own.model.item.embedding_dim == 24
    assert fitted(registered).model.item.embedding_dim == 24
    assert fitted(registered, model_settings={"embedding_dim": 8}).model.item.embedding_dim == 8
    own.save(tmp_path / "model")
    loaded = fs.load(tmp_path / "model", model=partial(SASRecScorer, embedding_dim=24))
    assert loaded.recipe.training == own.recipe.training
    users = LATER["user_id"][:20]
    assert loaded.update(LATER).recommend(users) == own.update(LATER).recommend(users)


def test_the_rows_of_features_in_a_partial_win_over_the_default() -> None:
    items = {"item_id": list(range(40)), "kind": [str(item % 3) for item in range(40)]}
    rec = make_recommender(partial(SASRecScorer, feature_buckets=32), **QUICK).fit(FIRST, items=items)
    assert rec.model.item.features.num_embeddings == 32


@pytest.mark.parametrize("kind", range(3))
def test_a_closed_form_is_known_as_one(kind: int) -> None:
    closed, trained = factories(ItemItemScorer, ridge=5.0)[kind], factories(MFScorer)[kind]
    log = fs.read_events(STREAM.events, users=STREAM.users, group="community", advantaged="majority")
    notes = [make_recommender(model, group_weight=2.0, **QUICK).fit(log).notes for model in (closed, trained)]
    assert ["takes no event weights" in " ".join(each) for each in notes] == [False, True]


@pytest.mark.parametrize("model", factories(MFScorer))
def test_a_model_that_inherits_nothing_can_begin_at_any_period(model: Any) -> None:
    log = fs.read_events(STREAM.events, users=STREAM.users, group="community", advantaged="majority")
    options: dict[str, Any] = {**QUICK, "n_periods": 3, "k": 5, "min_group_size": 1}
    assert fs.run(log, "Retrain", model=model, **options).retrain_at(1).t == 1
    with pytest.raises(ConfigurationError, match="only a method that retrains every period"):
        fs.run(log, "Retrain", model=partial(made, model=BlendScorer), **options).retrain_at(1)


def test_looking_at_a_factory_draws_nothing_of_the_callers() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    make_recommender(factories(SASRecScorer)[2])
    assert torch.equal(torch.rand(3), expected)
