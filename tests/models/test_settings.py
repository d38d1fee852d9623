"""Models own their hyperparameters: they are checked with one sentence, and the model that is built obeys them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fairstream as fs
from fairstream.models import MODELS, Blend, SASRec, SASRecScorer, resolve_model
from fairstream.models.config import ModelConfig


@pytest.mark.parametrize(
    ("model", "settings", "sentence"),
    [
        ("sasrec", {"lenght": 9}, "lenght is not a setting of sasrec; its settings are blocks, .*, length"),
        ("popularity", {"embedding_dim": 8}, "embedding_dim is not a setting of popularity; it has none"),
        ("blend", {"sequence.lenght": 9}, "lenght is not a setting of sasrec; .*"),
        ("blend", {"ridge": 9}, "ridge is not a setting of blend; its settings are item_item, sequence, transitions"),
        ("blend", {"sequence": 9, "sequence.length": 9}, "sequence is a part of the model .*; give one of them"),
        ("sasrec", {"length": 0}, "length must be >= 1, got 0"),
        ("sasrec", {"dropout": 1.0}, "dropout must be < 1, got 1.0"),
        ("item-item", {"ridge": "high"}, r"ridge must be a number, got 'high' \(the default is 10.0\)"),
        ("sasrec", {"embedding_dim": 10, "heads": 4}, "embedding_dim must be a multiple of heads, 4, got 10; .*"),
        ("sasrec", {"embedding_dim": 9}, "embedding_dim must be a multiple of heads, 2, got 9; .*"),
        ("blend", {"sequence.heads": 3}, "embedding_dim must be a multiple of heads, 3, got 64; .*"),
        ("mf", "embedding_dim=8", "the settings of a model are values by name, .*, got 'embedding_dim=8'"),
    ],
)
def test_a_setting_that_does_not_fit_is_one_sentence(model: str, settings: Any, sentence: str) -> None:
    for make in (resolve_model, lambda model, settings: fs.MethodConfig(model=model, model_settings=settings)):
        with pytest.raises(fs.ConfigurationError, match=rf"\A{sentence}\Z"):
            make(model, settings)


@pytest.mark.parametrize("name", MODELS)
def test_a_name_is_the_object_behind_it(name: str) -> None:
    model = resolve_model(name)
    assert isinstance(model, ModelConfig)
    assert model == type(model)() == resolve_model(type(model)) == resolve_model(name, model.settings)
    assert model.name == name


def test_a_part_is_changed_by_its_path_and_nothing_else_is() -> None:
    given = {"sequence": {"blocks": 3}, "sequence.length": 20}
    model = resolve_model("blend", given)
    assert model == fs.models.Blend(sequence=fs.models.SASRec(blocks=3, length=20))
    assert given == {"sequence": {"blocks": 3}, "sequence.length": 20}
    assert resolve_model(model, {"item_item.ridge": 5}) == fs.models.Blend(
        sequence=fs.models.SASRec(blocks=3, length=20), item_item=fs.models.ItemItem(ridge=5)
    )


def test_sasrec_is_built_as_its_settings_say_and_reads_that_many_items() -> None:
    model = fs.models.SASRec(embedding_dim=6, length=5, blocks=3, heads=3, dropout=0.4).build(10, 20)
    assert isinstance(model, SASRecScorer)
    assert (model.history_length, len(model.blocks), model.item.embedding_dim) == (5, 3, 6)
    assert {part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)} == {0.4}
    assert {tuple(part.bias.shape) for part in model.blocks} == {(3, 5)}  # heads × distances
    assert model.eval().states(torch.tensor([[1, 2, 3, 4, 5]])).shape == (1, 5, 6)


class Wide(fs.Scorer):
    """A custom model with one setting."""

    def __init__(self, n_users: int, n_items: int, *, width: int = 4) -> None:
        super().__init__()
        self.user, self.item = fs.UserTable(n_users, width), fs.ItemTable(n_items, width)

    def forward(self, users: Tensor, items: Tensor, context: fs.Context) -> Tensor:
        return (self.user(users).unsqueeze(1) * self.item(items)).sum(-1)


def test_the_keywords_of_a_custom_class_are_its_settings() -> None:
    model = resolve_model(Wide, {"width": 6})
    assert model.build(3, 4).item.embedding_dim == 6
    with pytest.raises(fs.ConfigurationError, match="wdth is not a setting of Wide; its settings are width"):
        resolve_model(Wide, {"wdth": 6})
    rec = fs.FairRecommender(Wide)
    assert rec.get_params()["model__width"] == 4
    assert rec.set_params(model__width=5).recipe.model.build(3, 4).item.embedding_dim == 5


@pytest.mark.parametrize("name", ["MF", "Popularity"])
def test_a_custom_class_that_is_named_like_a_built_in_model_is_kept(name: str) -> None:
    own = type(name, (Wide,), {})
    options, parts = fs.methods.Parts.split(model=own)
    assert options["model"] == "custom"
    assert parts.model.scorer is own
    assert fs.FairRecommender(own).recipe.to_json()["model"]["name"] == "custom"


def wide(n_users: int, n_items: int, *, width: int) -> Wide:
    return Wide(n_users, n_items, width=width)


def test_a_function_may_need_its_settings() -> None:
    assert fs.FairRecommender(resolve_model(wide, {"width": 6})).recipe.model.scorer is Wide


@pytest.mark.parametrize("model", [type("Odd", (), {"__init__": lambda self, n_users, n_items: None}), lambda u, i: 3])
def test_a_model_must_be_a_scorer(model: Any) -> None:
    with pytest.raises(fs.ModelError, match=r"must be a fairstream\.Scorer, got (Odd|int)"):
        fs.FairRecommender(model)


def test_a_part_may_be_an_object_and_have_settings_too() -> None:
    rec = fs.FairRecommender().set_params(model__sequence__blocks=1, model__sequence=SASRec(length=3))
    assert rec.recipe.model == Blend(sequence=SASRec(length=3, blocks=1))
    assert resolve_model(Blend(), {"sequence": SASRec(length=3)}) == Blend(sequence=SASRec(length=3))
    with pytest.raises(fs.ConfigurationError, match=r"sequence must be SASRec\(…\) or its settings by name, got 3"):
        rec.set_params(model__sequence=3)
