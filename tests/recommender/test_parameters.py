"""The nine parameters of a recommender: objects and names mean the same, and they are saved, shown and changed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from torch import Tensor
from torch.nn import CrossEntropyLoss

import fairstream as fs
from fairstream.cli.config_options import with_model_settings
from fairstream.methods import MethodConfig, register_fairness, register_strategy
from fairstream.models import ItemItem, resolve_model
from fairstream.objectives import FAIRNESS_LOSSES
from fairstream.strategies import STRATEGIES, Keep, Retrain, SlidingWindow
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
    assert loaded.recipe.model == model.sized("cpu", len(LOG))
    assert loaded.recipe.strategy == rec.recipe.strategy
    assert loaded.recipe.to_json() == rec.recipe.to_json()
    for shown in (repr(rec), repr(loaded)):
        assert "SASRec(embedding_dim=8, length=7, blocks=1" in shown
    assert lists(loaded).equals(lists(rec))


def test_a_checkpoint_of_an_older_format_is_one_sentence(tmp_path: Path) -> None:
    fs.FairRecommender("popularity", device="cpu").fit(LOG).save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "format": 3}))
    with pytest.raises(
        fs.CheckpointError, match=r"\A\S+ has checkpoint format 3, this version reads 6; use the [^.]*\Z"
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
        ({"target": "least-gap"}, r"target must be fairstream.LeastRegret\(…\), .* or None, got 'least-gap'"),
        ({"target": 0.02}, r"target must be fairstream.LeastRegret\(…\), .* or None, got 0.02"),
        ({"fairness": 0.5}, "fairness must be a name, .*, got 0.5"),
        ({"fairness": CrossEntropyLoss()}, "the weight of the fairness loss must be a finite number, got None"),
        ({"strategy": 3}, r"strategy must be a name, fairstream.FineTune\(…\) or another Strategy, got 3"),
        ({"training": {"batch_size": 3}}, r"training must be fairstream.Training\(…\), got {'batch_size': 3}"),
        ({"model": 3}, "model must be a name, one of fairstream.models, or a Scorer class or function, got 3"),
        ({"training": {}}, r"training must be fairstream.Training\(…\), got {}"),
        ({"training": 0}, r"training must be fairstream.Training\(…\), got 0"),
        ({"fairness": fs.DisparityLoss}, "fairness must be a name, .*, got <class '.*DisparityLoss'>"),
        ({"fairness": fs.GroupWeight}, "fairness must be a name, .*, got <class '.*GroupWeight'>"),
        ({"metrics": 3}, "metrics must be names, or functions by name, got 3"),
        ({"metrics": [3]}, r"metrics must be names, or functions by name, got \[3\]"),
        ({"target": fs.MaxGap(0.1, metric=3)}, r"metrics must be names, or functions by name, got \(3,\)"),  # type: ignore[arg-type]
    ],
)
def test_a_parameter_of_another_kind_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(fs.ConfigurationError, match=rf"\A{sentence}\Z"):
        fs.FairRecommender(**{"model": "item-item", **options})


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fs.GroupWeight("a"), "a group weight must be a finite number, got 'a'"),  # type: ignore[arg-type]
        (lambda: fs.FineTune("3"), "epochs must be a whole number, got '3'"),  # type: ignore[arg-type]
        (lambda: fs.FineTune(learning_rate="1"), "learning_rate must be a finite number, got '1'"),  # type: ignore[arg-type]
        (lambda: fs.DisparityLoss(n_negatives=2.5), "n_negatives must be a whole number, got 2.5"),  # type: ignore[arg-type]
        (lambda: fs.DisparityLoss(temperature="3"), "temperature must be a finite number, got '3'"),  # type: ignore[arg-type]
        (lambda: fs.DisparityLoss(weight=float("inf")), "weight must be a finite number, got inf"),
        (lambda: fs.MaxGap(1.5), "gap must be between 0 and 1, got 1.5"),
    ],
)
def test_a_value_of_another_kind_is_one_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(fs.ConfigurationError, match=sentence):
        make()


@pytest.mark.parametrize(("name", "value"), [("weight", math.nan), ("weight", -1), ("n_negatives", 2.5)])
def test_the_attributes_of_a_custom_fairness_loss_are_checked(name: str, value: Any) -> None:
    def loss(scores: Any, groups: Any, signs: Any) -> Any:
        return scores.sum()

    setattr(loss, name, value)
    with pytest.raises(fs.ConfigurationError, match=f"{name}.* must be .*, got {value}"):
        fs.FairRecommender("mf", fairness=loss)


def test_a_function_that_makes_no_model_is_one_sentence() -> None:
    with pytest.raises(fs.ModelError, match=r"a model must be a fairstream.Scorer, got NoneType; see Scorer"):
        fs.FairRecommender(lambda n_users, n_items: None)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(("model", "has_effect"), [("mf", False), ("item-item", True), ("sasrec", True)])
def test_only_a_group_weight_without_effect_is_noted(model: str, has_effect: bool) -> None:
    options: dict[str, Any] = {"training": TINY, "device": "cpu"}
    plain = fs.FairRecommender(model, **options).fit(LOG)
    weighted = fs.FairRecommender(model, fairness=fs.GroupWeight(5.0), **options).fit(LOG)
    assert (lists(weighted) != lists(plain)) == has_effect
    assert any("the group weight has no effect" in note for note in weighted.notes) == (not has_effect)


def test_a_huge_group_weight_is_one_sentence() -> None:
    with pytest.raises(fs.ModelError, match="raise ridge, or lower the group weight"):
        fs.FairRecommender("item-item", fairness=fs.GroupWeight(1e300), device="cpu").fit(LOG)


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


def test_a_parameter_and_its_settings_change_together() -> None:
    rec = fs.FairRecommender("item-item", fairness="signed", training=fs.Training(batch_size=9))
    rec.set_params(
        model="sasrec",
        model__length=7,
        fairness="absolute",
        fairness__weight=2.0,
        strategy="window",
        strategy__n_periods=5,
        training=fs.Training(l2=0.5),
        training__batch_size=3,
    )
    assert rec.recipe.model == fs.models.SASRec(length=7)
    assert rec.recipe.fairness == fs.DisparityLoss("absolute", weight=2.0)
    assert rec.recipe.strategy == SlidingWindow(5)
    assert rec.get_params()["training"].given == {"l2": 0.5, "batch_size": 3}
    with pytest.raises(fs.ConfigurationError, match="model__ridge is not a parameter"):
        rec.set_params(model__ridge=5)
    rec.set_params(target=fs.MaxGap(0.1), target__gap=0.2)
    assert rec.recipe.target == fs.MaxGap(0.2)


@pytest.mark.parametrize("fairness", ["signed", "largest", "group-dro"])
def test_all_parameters_can_be_set_to_what_they_are(fairness: str) -> None:
    rec = fs.FairRecommender(fairness=fairness, target=fs.MaxGap(0.1), training=TINY)
    before = rec.recipe.to_json()
    assert rec.set_params(**rec.get_params()).recipe.to_json() == before


def test_training_with_options_leaves_the_others_to_the_model() -> None:
    training = fs.Training(batch_size=7).with_options(l2=0.5)
    assert training.given == {"batch_size": 7, "l2": 0.5}
    assert fs.FairRecommender("sasrec", training=training).recipe.training.loss == "softmax"


@pytest.mark.parametrize("loss", ["bpr", "softmax"])
def test_a_group_weight_without_effect_is_noted(loss: str) -> None:
    training = TINY.with_options(loss=loss)
    plain, weighted = (fs.FairRecommender("mf", fairness=each, training=training) for each in (None, fs.GroupWeight(5)))
    assert lists(plain.fit(LOG)).equals(lists(weighted.fit(LOG)))
    assert any("the group weight has no effect" in note for note in weighted.notes)
    assert not any("group weight" in note for note in fs.FairRecommender("item-item").fit(LOG).notes)


def test_another_strategy_for_one_update_leaves_the_memory_of_the_recommenders_own() -> None:
    rec = fs.FairRecommender("mf", strategy=fs.FineTune(epochs=1, restart_every=3), training=TINY).fit(LOG)
    others = (None, Keep(), fs.FineTune(epochs=1), None, Retrain(), None)
    memory = []
    for start, strategy in zip(range(0, 90, 15), others, strict=True):
        rec.update(LATER.slice(start, 15), users=STREAM.users, strategy=strategy)
        memory.append(rec.state.memory.get("since_restart", 0))
    assert memory == [1, 1, 1, 2, 0, 1]


# ── recipes in checkpoints ───────────────────────────────────────────────────────────────


def spread(scores: Tensor, groups: Tensor, signs: Tensor) -> Tensor:
    return scores.var()


class Spread(fs.DisparityLoss):
    """A loss that inherits the name of another one."""

    def __call__(self, scores: Tensor, groups: Tensor, signs: Tensor) -> Tensor:
        return scores.var()


@dataclass(frozen=True)
class Scaled:
    """A registered object with fields."""

    scale: float

    def __call__(self, scores: Tensor, groups: Tensor, signs: Tensor) -> Tensor:
        return self.scale * scores.var()


@dataclass(frozen=True)
class Window(fs.Strategy):
    """A strategy whose option may be None, and one that JSON cannot hold."""

    n: int | None = 3
    names: tuple[str, ...] = ("a",)

    def plan(self, period: Any) -> fs.Plan:
        return fs.Plan.fine_tune(period)


class Plain(fs.Strategy):
    """A strategy that is no dataclass."""

    def __init__(self, n: int = 1) -> None:
        self.n = n

    def plan(self, period: Any) -> fs.Plan:
        return fs.Plan.fine_tune(period)


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (FAIRNESS_LOSSES, STRATEGIES):
        for name in ("_parts", "_names"):
            monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    register_fairness("spread", spread)
    register_fairness("scaled", Scaled(3.0))
    register_strategy("some-window", Window)
    register_strategy("plain", Plain)


def saved(path: Path, **options: Any) -> fs.FairRecommender:
    rec = fs.FairRecommender(fs.models.MF(embedding_dim=4), training=TINY, device="cpu", **options).fit(LOG)
    rec.save(path)
    return rec


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(
    "options",
    [
        {"fairness": "scaled"},
        {"fairness": fs.DisparityLoss(n_negatives=np.int64(8), temperature=np.float32(0.5))},  # type: ignore[arg-type]
        {"fairness": fs.LargestGapLoss(softness=0.3)},
        {"strategy": Window(None)},
        {"strategy": "plain"},
        {"strategy": fs.FineTune(epochs=np.int64(2), learning_rate=np.float32(0.5))},  # type: ignore[arg-type]
    ],
)
def test_a_registered_part_comes_back_as_it_was(options: dict[str, Any], tmp_path: Path) -> None:
    rec = saved(tmp_path, **options)
    loaded = fs.load(tmp_path)
    assert loaded.recipe.fairness == rec.recipe.fairness
    assert type(loaded.recipe.strategy) is type(rec.recipe.strategy)
    assert vars(loaded.recipe.strategy) == vars(rec.recipe.strategy)
    assert loaded.recipe.to_json() == rec.recipe.to_json()


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(
    "options", [{"fairness": Spread()}, {"strategy": Window(names=("b",))}, {"strategy": Plain(2)}]
)
def test_a_part_that_its_name_would_not_make_again_is_custom(options: dict[str, Any], tmp_path: Path) -> None:
    saved(tmp_path, **options)
    (name,) = options
    with pytest.raises(fs.ConfigurationError, match=f"saved with a custom {name}; pass it again"):
        fs.load(tmp_path)
    loaded = fs.load(tmp_path, **options)
    assert options[name] in (loaded.recipe.fairness, loaded.recipe.strategy)


@pytest.mark.usefixtures("registries")
def test_flat_options_of_a_registered_loss_are_saved(tmp_path: Path) -> None:
    config = MethodConfig(fairness="spread", fairness_weight=2.0, n_fairness_negatives=7, pretrain_epochs=1)
    fs.FairRecommender.from_config(config, device="cpu").fit(LOG).save(tmp_path)
    objective = fs.load(tmp_path).recipe.objective
    assert (objective.lambda_, objective.mu) == (2.0, 7)
    assert fs.load(tmp_path, fairness="signed").recipe.objective.lambda_ == 0.5


class Deep(fs.models.MFScorer):
    """A custom model whose settings are no JSON values."""

    def __init__(self, n_users: int, n_items: int, *, dims: tuple[int, ...] = (4,), activation: Any = None) -> None:
        super().__init__(n_users, n_items, embedding_dim=dims[0])


def test_settings_of_a_custom_model_are_compared_as_json_holds_them(tmp_path: Path) -> None:
    model = resolve_model(Deep, {"dims": (5,)})
    fs.FairRecommender(model, training=TINY, device="cpu").fit(LOG).save(tmp_path)
    assert fs.load(tmp_path, model=model).model.item.embedding_dim == 5
    with pytest.raises(fs.ConfigurationError, match="cannot change"):
        fs.load(tmp_path, model=Deep)
    rec = fs.FairRecommender(resolve_model(Deep, {"activation": len}), training=TINY, device="cpu").fit(LOG)
    with pytest.raises(fs.ConfigurationError, match="a checkpoint holds numbers, text and lists, and Deep has"):
        rec.save(tmp_path)


class Narrow(fs.models.SASRec):
    """A model under a name that nobody registered."""

    embedding_dim: int = 8


@pytest.mark.parametrize("config", [fs.models.SASRec, Narrow, fs.models.Blend])
def test_a_checkpoint_fills_in_what_its_model_left_to_the_machine(config: Any, tmp_path: Path) -> None:
    stream = fs.synthetic_stream(n_users=40, n_items=30, n_events=600, seed=0)
    rec = fs.FairRecommender(config(), training=TINY, device="cpu").fit(stream.events)
    rec.save(tmp_path)
    users = stream.events["user_id"][:3]
    assert fs.load(tmp_path, model=config()).recommend(users) == rec.recommend(users)


def test_a_checkpoint_keeps_the_size_that_was_given(tmp_path: Path) -> None:
    stream = fs.synthetic_stream(n_users=40, n_items=30, n_events=600, seed=0)
    fs.FairRecommender(fs.models.SASRec(length=7), training=TINY, device="cpu").fit(stream.events).save(tmp_path)
    again = fs.load(tmp_path, model=fs.models.SASRec())
    assert again.recipe.model.settings["length"] == 7
    with pytest.raises(fs.ConfigurationError, match="cannot change"):
        fs.load(tmp_path, model=fs.models.SASRec(length=8))
