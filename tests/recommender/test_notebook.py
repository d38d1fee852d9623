"""What a notebook needs: objects that show themselves, tables, charts, parameters to search, vectors to index."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

import fairstream as fs
from fairstream.display import Summary
from fairstream.recommender.vectors import similar_items, similarities
from support import make_recommender

STREAM = fs.synthetic_stream(n_users=120, n_items=50, n_events=2400, seed=1)
FIRST, LATER = STREAM.events.slice(0, 1800), STREAM.events.slice(1800)
FAST: dict[str, Any] = {"pretrain_epochs": 1, "update_epochs": 1, "embedding_dim": 8, "device": "cpu"}
RUN: dict[str, Any] = {
    **{name: value for name, value in FAST.items() if name != "embedding_dim"},
    "model": fs.models.MF(embedding_dim=8),
    "n_periods": 4,
    "n_resamples": 50,
    "min_group_size": 1,
    "k": 5,
}


@pytest.fixture(scope="module")
def log() -> fs.EventLog:
    return fs.read_events(STREAM.events, users=STREAM.users, group="community", advantaged="majority")


@pytest.fixture(scope="module")
def fitted() -> fs.FairRecommender:
    return make_recommender("mf", **FAST).fit(FIRST, users=STREAM.users)


@pytest.fixture(scope="module")
def runs(log: fs.EventLog) -> list[fs.Run]:
    runs = [fs.run(log, method, **RUN) for method in ("Finetune", "FADE")]
    for run in runs:
        list(run)
    return runs


@pytest.fixture(scope="module")
def shown(log: fs.EventLog, fitted: fs.FairRecommender, runs: list[fs.Run]) -> dict[str, Any]:
    return {
        "log": log,
        "recommender": fitted,
        "evaluation": fitted.evaluate(LATER, n_resamples=50),
        "run": runs[0],
        "comparison": fs.compare(runs, n_resamples=50),
    }


WORDS = {
    "log": ["EventLog: 2,400 events", "majority", "minority"],
    "recommender": ["FairRecommender(model=MF(embedding_dim=8), ", "1,800", "retrain"],
    "evaluation": ["Evaluation:", "ndcg@20", "majority", "PD"],
    "run": ["Run of Finetune with mf", "3 of 3 periods", "fine-tune", "ndcg@5"],
    "comparison": ["Comparison of ndcg@5", "Finetune", "FADE", "Pareto front"],
}


@pytest.mark.parametrize("kind", WORDS)
def test_objects_show_what_they_are(kind: str, shown: dict[str, Any]) -> None:
    text, page = repr(shown[kind]), shown[kind]._repr_html_()
    assert all(word in text for word in WORDS[kind]), text
    assert "object at 0x" not in text
    assert page.count("<tr>") == page.count("</tr>") > 1
    assert len(text) < 10_000


@pytest.mark.parametrize("kind", ["log", "evaluation", "run", "comparison"])
def test_tables_are_the_same_in_every_library(kind: str, shown: dict[str, Any]) -> None:
    table = shown[kind].to_arrow()
    assert isinstance(shown[kind].to_pandas(), pd.DataFrame)
    assert isinstance(shown[kind].to_polars(), pl.DataFrame)
    assert shown[kind].to_polars().to_dicts() == table.to_pylist()
    assert list(shown[kind].to_pandas().columns) == table.column_names


def test_tables_hold_the_numbers(log: fs.EventLog, shown: dict[str, Any], runs: list[fs.Run]) -> None:
    again = fs.read_events(log.to_pandas(), group="group", advantaged="majority")
    assert (len(again), again.n_users) == (len(log), log.n_users)
    assert again.groups is not None
    assert log.groups is not None
    assert again.groups.codes.tolist() == log.groups.codes.tolist()
    evaluation = shown["evaluation"]
    rows = {(row["metric"], row["group"]): row for row in evaluation.to_arrow().to_pylist()}
    assert rows["ndcg@20", "all"]["value"] == evaluation["ndcg@20"].mean
    assert rows["ndcg@20", "minority"]["value"] == evaluation["ndcg@20"].by_group["minority"]
    assert rows["ndcg@20", "majority"]["gap"] == evaluation["ndcg@20"].performance_disparity
    of_run = runs[0].to_pandas()
    chosen = of_run[(of_run.t == 2) & (of_run.task == "event") & (of_run.metric == "ndcg@5") & (of_run.group == "all")]
    assert chosen.value.item() == runs[0].results[1].tasks["event"]["ndcg@5"].mean


@pytest.mark.parametrize("kind", ["log", "evaluation", "run", "comparison"])
def test_charts_are_valid_and_hold_the_data(kind: str, shown: dict[str, Any]) -> None:
    chart = shown[kind].plot()
    specification = json.loads(chart.to_json())  # checked against Vega-Lite's schema
    assert "majority" in chart.to_json() or kind == "comparison"
    assert specification["$schema"].startswith("https://vega.github.io")


def test_what_is_not_installed_is_named(shown: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("altair", "polars", "pandas"):
        monkeypatch.setitem(sys.modules, module, None)
    evaluation = shown["evaluation"]
    for call, install in (
        (evaluation.plot, r"fairstream\[report\]"),
        (evaluation.to_polars, "polars"),
        (evaluation.to_pandas, "pandas"),
    ):
        with pytest.raises(fs.ConfigurationError, match=f"pip install '{install}'"):
            call()


def test_a_metric_that_is_not_there_is_named_with_those_that_are(shown: dict[str, Any]) -> None:
    with pytest.raises(KeyError, match=r"ndcg@7; there are .*ndcg@20"):
        shown["evaluation"]["ndcg@7"]


def test_html_is_escaped() -> None:
    page = Summary("<b>", ["<i>"], [["<u>"]], ["<script>"]).html()
    assert not any(tag in page for tag in ("<b>", "<i>", "<u>", "<script>"))


def test_a_run_without_results_says_so(log: fs.EventLog) -> None:
    fresh = fs.run(log, "FADE", **RUN)
    assert "0 of 3 periods" in repr(fresh)
    with pytest.raises(fs.ConfigurationError, match="no results yet"):
        fresh.to_pandas()


# ── parameters ───────────────────────────────────────────────────────────────────────────


def cloned(estimator: Any) -> Any:
    """What scikit-learn's `clone` does and checks."""
    params = {name: copy.deepcopy(value) for name, value in estimator.get_params(deep=False).items()}
    twin = type(estimator)(**params)
    assert all(twin.get_params(deep=False)[name] is value for name, value in params.items())
    return twin


def own_loss(scores: Any) -> Any:
    return scores.mean()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": "item-item", "fairness": fs.GroupWeight(2.5)},
        {"model": "mf", "training": fs.Training(loss=own_loss), "metrics": ["ndcg@5"]},
    ],
    ids=["defaults", "item-item", "own loss"],
)
def test_a_clone_has_the_same_parameters(options: dict[str, Any]) -> None:
    rec = fs.FairRecommender(**options)
    twin = cloned(rec)
    assert twin.get_params() == rec.get_params()
    assert twin.recipe.to_json() == rec.recipe.to_json()
    assert {name: rec.get_params()[name] for name in options} == options


def test_changed_parameters_count_and_drop_what_was_fitted(fitted: fs.FairRecommender) -> None:
    rec = cloned(fitted).fit(FIRST, users=STREAM.users)
    assert rec.set_params(seed=5, fairness__weight=0.0) is rec
    assert (rec.recipe.objective.lambda_, rec.get_params()["seed"]) == (0.0, 5)
    with pytest.raises(fs.ConfigurationError, match="not been fitted"):
        rec.recommend([1])
    fresh = make_recommender("mf", **FAST, seed=5, fairness_weight=0.0)
    users = FIRST["user_id"][:9]
    assert rec.fit(FIRST).recommend(users) == fresh.fit(FIRST).recommend(users)


def test_wrong_parameters_change_nothing(fitted: fs.FairRecommender) -> None:
    rec = cloned(fitted)
    for wrong, words in (
        ({"fairnes_weight": 1}, "fairnes_weight is not a parameter"),
        ({"batch_size": 0}, "batch_size"),
    ):
        with pytest.raises(fs.ConfigurationError, match=words):
            rec.set_params(**wrong)
        assert rec.get_params() == fitted.get_params()


# ── vectors ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", ["mf", "gru", "sasrec"])
def test_inner_products_of_exported_vectors_are_the_scores(model: str, tmp_path: Path) -> None:
    rec = make_recommender(model, **FAST).fit(FIRST)
    rec.export(tmp_path / "vectors")
    items, users = (pyarrow.parquet.read_table(tmp_path / "vectors" / f"{name}.parquet") for name in ("items", "users"))
    matrices = {name: np.load(tmp_path / "vectors" / f"{name}.npy") for name in ("items", "users")}
    for name, table in (("items", items), ("users", users)):
        np.testing.assert_array_equal(np.array(table["vector"].to_pylist(), np.float32), matrices[name])
        assert matrices[name].dtype == np.float32
    user = users["user_id"][3].as_py()
    place = {item: at for at, item in enumerate(items["item_id"].to_pylist())}
    for row in rec.recommend(user, k=10).to_pylist():
        score = matrices["users"][3] @ matrices["items"][place[row["item_id"]]]
        assert score == pytest.approx(row["score"], abs=1e-4)


@pytest.mark.parametrize("model", ["item-item", "popularity", "ncf", "blend"])
def test_scores_that_are_no_inner_products_are_not_exported(model: str, tmp_path: Path) -> None:
    options = {} if model in ("item-item", "popularity") else FAST
    rec = make_recommender(model, **options).fit(FIRST)
    with pytest.raises(fs.ConfigurationError, match=f"model {model} are not inner products"):
        rec.export(tmp_path / "vectors")
    assert not (tmp_path / "vectors").exists()


def test_a_log_says_when_it_begins_and_ends() -> None:
    moments = np.array(["2026-01-01T09:30", "2026-02-01T10:00"], "datetime64[s]")
    for times, written in (
        (moments, "from 2026-01-01T09:30 to 2026-02-01T10:00"),
        (np.array([8.5e-05, 6.8125]), "from 0.0001 to 6.8125"),
        (np.array([1_700_000_000, 1_700_086_400]), "from 1700000000 to 1700086400"),
    ):
        log = fs.read_events(pa.table({"user": [1, 2], "item": [3, 4], "time": times}))
        assert written in repr(log)


def test_an_export_overwrites_nothing(fitted: fs.FairRecommender, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(fs.CheckpointError, match="is not empty"):
        fitted.export(tmp_path)


@pytest.mark.parametrize("model", ["mf", "sasrec", "item-item", "popularity"])
def test_similar_items(model: str) -> None:
    options = {} if model in ("item-item", "popularity") else FAST
    rec = make_recommender(model, **options).fit(FIRST)
    known = FIRST["item_id"].unique()[:3].to_pylist()
    table = rec.similar_items([*known, 10**9], k=4).to_pandas()
    assert sorted(table.item_id.unique()) == sorted(known)
    assert (table.item_id != table.similar_id).all()
    for _, of_item in table.groupby("item_id", sort=False):
        assert of_item["rank"].tolist() == [1, 2, 3, 4]
        assert of_item.score.is_monotonic_decreasing
    assert table.score.between(-1.0001, 1.0001).all()
    one = rec.similar_items(known[0], k=4).to_pandas()
    among = table[table.item_id == known[0]]
    assert one.similar_id.tolist() == among.similar_id.tolist()
    np.testing.assert_allclose(one.score, among.score, atol=1e-5)
    assert rec.similar_items([], k=4).num_rows == 0


def test_items_are_similar_that_the_same_people_had() -> None:
    pairs = [(1, "a"), (1, "b"), (2, "a"), (2, "b"), (3, "a"), (3, "c"), (4, "d")]
    events = pa.table({"user": [u for u, _ in pairs], "item": [i for _, i in pairs], "time": range(len(pairs))})
    rec = make_recommender("item-item").fit(events)
    rows = rec.similar_items(["a", "d"]).to_pylist()
    found = [(row["item_id"], row["similar_id"], round(row["score"], 4)) for row in rows]
    assert found == [("a", "b", round(2 / np.sqrt(3 * 2), 4)), ("a", "c", round(1 / np.sqrt(3), 4))]


@pytest.mark.parametrize("model", ["mf", "item-item"])
def test_similarities_of_some_items_are_those_of_all(model: str) -> None:
    rec = make_recommender(model, **({} if model == "item-item" else FAST)).fit(FIRST)
    state, n_items = rec.state, len(rec.state.item_ids)
    items, others = np.array([3, 0, 7]), np.array([5, 3, 1, 2])
    expected = np.full((3, 4), -np.inf)
    for row in similar_items(state, state.item_ids.ids.take(pa.array(items)), n_items).to_pylist():
        at, other = (state.item_ids.row_of(row[name]) for name in ("item_id", "similar_id"))
        expected[items == at, np.flatnonzero(others == other)] = row["score"]
    np.testing.assert_allclose(similarities(state, items, others), expected, atol=1e-5)


def test_similar_items_among_some_and_with_enough_common_users() -> None:
    rec = make_recommender("item-item").fit(FIRST)
    state = rec.state
    first, users = state.item_ids.ids[:1], state.history.pairs
    everything = similar_items(state, first, 10**6)
    shared = {
        item: len(set(users.users[users.items == 0]) & set(users.users[users.items == item]))
        for item in range(len(state.item_ids))
    }
    rows = [state.item_ids.row_of(item) for item in everything["similar_id"].to_pylist()]
    some = np.array(sorted(rows)[::2])
    assert similar_items(state, first, 10**6, allowed=some)["similar_id"].to_pylist() == [
        item for item, row in zip(everything["similar_id"].to_pylist(), rows, strict=True) if row in some
    ]
    n = min(shared[row] for row in rows) + 1
    few = similar_items(state, first, 10**6, min_shared=n)["similar_id"].to_pylist()
    assert few == [
        item for item, row in zip(everything["similar_id"].to_pylist(), rows, strict=True) if shared[row] >= n
    ]
    assert 0 < len(few) < len(rows)
    sampled = similar_items(state, first, 10**6, max_users=1)  # one user stands for all
    one = users.users[users.items == 0][0]
    had = users.items[users.users == one]
    assert {state.item_ids.row_of(item) for item in sampled["similar_id"].to_pylist()} == set(had.tolist()) - {0}
