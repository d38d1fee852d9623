"""The MLflow flavour: what is logged comes back as it was, and MLflow itself can ask it for lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import fairstream as fs
from fairstream.tools import mlflow as flavour

pytestmark = pytest.mark.filterwarnings("default")  # MLflow's own


@pytest.fixture
def rec(stream: fs.SyntheticStream) -> fs.FairRecommender:
    return fs.FairRecommender("item-item").fit(stream.events.slice(0, 3500), users=stream.users, group="community")


@pytest.fixture(autouse=True)
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow with a store of the test's own; it takes a second to import."""
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    mlflow.set_registry_uri((tmp_path / "mlruns").as_uri())
    return mlflow


def users_of(stream: fs.SyntheticStream) -> list[int]:
    return stream.users["user_id"][:5].to_pylist()


@pytest.mark.slow
def test_a_logged_recommender_comes_back_and_goes_on_learning(
    rec: fs.FairRecommender, stream: Any, mlflow: Any
) -> None:
    with mlflow.start_run():
        info = flavour.log_model(rec, "recommender")
    again = flavour.load_model(info.model_uri)
    assert again.recommend(users_of(stream)) == rec.recommend(users_of(stream))
    for one in (rec, again):
        one.update(stream.events.slice(3500), users=stream.users)
    assert again.recommend(users_of(stream)) == rec.recommend(users_of(stream))


def test_versions_of_a_registered_recommender(rec: fs.FairRecommender, stream: Any) -> None:
    first = rec.recommend(users_of(stream))
    flavour.log_model(rec, "recommender", registered_model_name="shop")
    rec.update(stream.events.slice(3500), users=stream.users)
    flavour.log_model(rec, "recommender", registered_model_name="shop")
    assert flavour.load_model("models:/shop/1").recommend(users_of(stream)) == first
    assert flavour.load_model("models:/shop/2").recommend(users_of(stream)) == rec.recommend(users_of(stream))


@pytest.mark.slow
def test_mlflow_itself_asks_for_lists(rec: fs.FairRecommender, stream: Any, mlflow: Any, tmp_path: Path) -> None:
    flavour.save_model(rec, tmp_path / "model", with_groups=False, metadata={"shop": "north"})
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    assert model.metadata.metadata == {"shop": "north"}
    assert not list((tmp_path / "model").rglob("*.pkl"))
    users = users_of(stream)
    lists = model.predict(pd.DataFrame({"user_id": users}))
    assert pa.Table.from_pandas(lists, preserve_index=False).cast(rec.recommend(users).schema) == rec.recommend(users)
    unwrapped = flavour._load_pyfunc(str(tmp_path / "model" / "recommender"))
    histories = pd.DataFrame({"history": [[1, 2], [3]]})
    assert unwrapped.predict(histories, params={"k": 3})["history"].tolist() == [0] * 3 + [1] * 3
    with pytest.raises(fs.ConfigurationError, match="needs a column user_id"):
        unwrapped.predict(pd.DataFrame({"customer": users}))
    with pytest.raises(fs.ConfigurationError, match="params are exclude, k, only, task, got n"):
        unwrapped.predict(histories, params={"n": 3})


def test_models_of_other_flavours_are_refused(mlflow: Any, tmp_path: Path) -> None:
    model = mlflow.models.Model(flavors={"sklearn": {}})
    (tmp_path / "other").mkdir()
    model.save(str(tmp_path / "other" / "MLmodel"))
    with pytest.raises(fs.ConfigurationError, match="not a model of fairstream; its flavours are sklearn"):
        flavour.load_model(tmp_path / "other")
