"""What is done for fairness, and what is said where that is nothing: closed forms, and groups that nobody has named."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fairstream as fs
from fairstream.cli.report import write_runs
from fairstream.cli.run import _introduction
from fairstream.models import ItemItemScorer
from support import make_recommender

STREAM = fs.synthetic_stream(n_users=120, n_items=50, n_events=2400, seed=1)
FIRST, LATER = STREAM.events.slice(0, 1800), STREAM.events.slice(1800)
QUICK: dict[str, Any] = {"pretrain_epochs": 1, "update_epochs": 1, "embedding_dim": 8, "device": "cpu"}
RUN: dict[str, Any] = {
    **{name: value for name, value in QUICK.items() if name != "embedding_dim"},
    "n_periods": 3,
    "n_resamples": 20,
    "min_group_size": 1,
}
NO_EFFECT = "is computed in closed form, so the fairness loss {} has no effect"


def by(n_groups: int) -> pa.Table:
    """The users in so many groups; the first is the largest."""
    ages = [0 if user % 3 == 0 else user % n_groups for user in range(120)]
    return pa.table({"user_id": range(120), "age": [f"{10 * age}-{10 * age + 9}" for age in ages]})


def log(n_groups: int = 4, **options: Any) -> fs.EventLog:
    return fs.read_events(STREAM.events, users=by(n_groups), group="age", **options)


def fitted(model: Any, n_groups: int = 4, advantaged: str | None = None, **options: Any) -> fs.FairRecommender:
    events = fs.read_events(FIRST, users=by(n_groups), group="age", advantaged=advantaged)
    return make_recommender(model, **{**QUICK, **options}).fit(events)


def said(rec: fs.FairRecommender) -> list[dict[str, Any]]:
    return rec.recommend(list(range(20)), k=8).to_pylist()


# ── closed forms ─────────────────────────────────────────────────────────────────────────


def make_item_item(n_users: int, n_items: int) -> fs.Scorer:
    return ItemItemScorer(n_users, n_items)


@pytest.mark.parametrize("method", ["FADE", "FADE-Abs", "Retrain-Fair"])
@pytest.mark.parametrize(
    "model", ["item-item", "popularity", ItemItemScorer, partial(ItemItemScorer, max_items=40), make_item_item]
)
def test_a_fairness_loss_that_has_no_effect_is_noted(model: Any, method: str) -> None:
    rec, plain = (fitted(model, 2, method=name) for name in (method, "Finetune"))
    assert said(rec) == said(plain)
    assert [note for note in rec.notes if NO_EFFECT.format("absolute" if method == "FADE-Abs" else "signed") in note]
    assert not [note for note in plain.notes if "no effect" in note]


@pytest.mark.parametrize(
    "options",
    [{"group_weight": 2.0}, {"fairness_weight": 0.0}],
    ids=["weights", "no loss"],
)
def test_nothing_is_noted_where_weights_act_or_no_loss_is_asked_for(options: dict[str, Any]) -> None:
    assert fitted("item-item", 2, **options).notes == ()


@pytest.mark.parametrize("model", ["mf", "blend"])
def test_nothing_is_noted_where_the_loss_acts(model: str) -> None:
    assert not [note for note in fitted(model, 2).notes if "no effect" in note or "not applied" in note]


@pytest.mark.slow
def test_a_run_says_so_everywhere(tmp_path: Path) -> None:
    runs = [fs.run(log(2), method, model="item-item", **RUN) for method in ("FADE", "Finetune")]
    assert [NO_EFFECT.format("signed") in " ".join(run.notes) for run in runs] == [True, False]  # before it begins
    for run in runs:
        list(run)
    assert [NO_EFFECT.format("signed") in " ".join(run.notes) for run in runs] == [True, False]
    document = json.loads(json.dumps(runs[0].document()))
    assert [NO_EFFECT.format("signed") in note for note in document["notes"]] == [True]
    (tmp_path / "run.parquet").write_bytes(fs.Record.from_document(document).content())
    assert fs.Record.read(tmp_path / "run.parquet").document["notes"] == document["notes"]
    comparison = fs.compare(runs, n_resamples=20)
    assert [note for note in comparison.notes if note.startswith("FADE: item-item ")] == list(comparison.notes)
    assert comparison.notes[0] in repr(comparison)
    (tmp_path / "other.parquet").write_bytes(fs.Record.from_document(runs[1].document()).content())
    files = [tmp_path / "run.parquet", tmp_path / "other.parquet"]
    reported = write_runs(files, tmp_path / "report.html", metric=None, task=None)
    assert reported["notes"] == list(comparison.notes)
    assert NO_EFFECT.format("signed") in (tmp_path / "report.html").read_text()


def test_a_run_of_a_factory_says_so() -> None:
    run = fs.run(log(2), "FADE", model=make_item_item, **RUN)
    assert [NO_EFFECT.format("signed") in note for note in run.notes] == [True]


@pytest.mark.slow
def test_a_stored_run_that_retrains_says_so(tmp_path: Path) -> None:
    (record,) = fs.run_seeds(
        log(2), [0], store=tmp_path / "s", n_workers=1, method="Retrain-Fair", model="item-item", **RUN
    )
    assert [NO_EFFECT.format("signed") in note for note in record.document["notes"]] == [True]


# ── groups that nobody has named ─────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("n_groups", "advantaged", "is_known"), [(2, None, True), (4, None, False), (4, "10-19", True)]
)
def test_of_three_groups_or_more_nobody_guesses_who_is_better_served(
    n_groups: int, advantaged: str | None, is_known: bool
) -> None:
    """With the signed loss off, the lists are those without any."""
    rec, plain = (fitted("mf", n_groups, advantaged, fairness_weight=weight) for weight in (4.0, 0.0))
    assert (said(rec) == said(plain)) is not is_known
    assert [note.startswith("4 groups of age and no advantaged one named: the signed") for note in rec.notes] == (
        [] if is_known else [True]
    )
    assert rec.state.groups.has_advantaged is is_known
    rec.update(LATER, users=by(n_groups))
    assert rec.notes == ()  # said once


@pytest.mark.parametrize("fairness", ["absolute", "largest", "group-dro"])
def test_losses_that_find_out_who_is_behind_need_nobody_named(fairness: str) -> None:
    rec = fitted("mf", 4, fairness=fairness, fairness_weight=4.0)
    assert rec.notes == ()
    assert said(rec) != said(fitted("mf", 4, fairness_weight=0.0))
    for named in ("0-9", "20-29"):  # and are the same whoever is
        other = fitted("mf", 4, named, fairness=fairness, fairness_weight=4.0)
        ours, theirs = (np.array([row["score"] for row in said(one)]) for one in (rec, other))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", ["mf", "item-item"])
def test_a_target_finds_out_who_is_behind(model: str) -> None:
    rec = fitted(model, 4, method="Finetune", max_gap=0.0001)
    rec.update(LATER, users=by(4), min_group_size=2)
    assert any("behind the rest" in note for note in rec.notes)


def test_a_third_group_that_comes_with_an_update_ends_the_guess() -> None:
    users = by(4)
    two = pa.table(
        {
            "user_id": users["user_id"],
            "age": [age if age in ("0-9", "10-19") else None for age in users["age"].to_pylist()],
        }
    )
    rec = make_recommender("mf", **QUICK).fit(FIRST, users=two, group="age")
    assert not any("not applied" in note for note in rec.notes)
    newcomer = LATER.slice(0, 5).set_column(0, "user_id", pa.array([900] * 5))
    rec.update(newcomer, users=pa.table({"user_id": [900], "age": ["80-89"]}))
    assert any("3 groups of age and no advantaged one named" in note for note in rec.notes)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: fitted("item-item", 4, group_weight=2.0),
        lambda: fs.run(log(), "Finetune", model="item-item", group_weight=2.0, **RUN),
    ],
    ids=["fit", "run"],
)
def test_weights_of_groups_that_nobody_has_named_are_refused_in_one_sentence(ask: Callable[[], object]) -> None:
    with pytest.raises(fs.ConfigurationError, match="none of the 4 groups of age was named; name the best") as caught:
        ask()
    assert "\n" not in str(caught.value)


def test_a_frontier_of_a_loss_that_needs_nobody_named_is_measured() -> None:
    rec = make_recommender("mf", **QUICK)
    options: dict[str, Any] = {"n_periods": 1, "n_resamples": 10, "min_group_size": 1}
    options |= {"lever": "fairness_weight", "levels": [0, 4]}
    with pytest.raises(fs.ConfigurationError, match="no advantaged one named"):
        rec.frontier(log(), **options)
    found = make_recommender("mf", fairness="largest", **QUICK).frontier(log(), **options)
    assert found.target_groups == ()


def test_no_header_claims_an_advantaged_group_that_nobody_has_named() -> None:
    run = fs.run(log(), "Finetune", model="mf", **RUN)
    assert "age: 0-9, 10-19, 20-29, 30-39 (no advantaged one named)" in _introduction(run)
    list(run)
    document = run.document()
    assert (document["data"]["advantaged"], document["data"]["advantaged_by"]) == (None, None)
    assert [period["advantaged"] for period in document["periods"]] == [[], []]
    score = document["summary"]["next"]["ndcg@20"]
    assert (score["performance_disparity"], score["abs_performance_disparity"], score["disparity"]) == (None,) * 3
    assert score["furthest_behind"]["value"] > 0
    assert "PD" not in repr(run)


# ── the one who is said to be ahead is behind ────────────────────────────────────────────


@pytest.mark.parametrize(("advantaged", "is_noted"), [("low", True), ("high", False), (None, True)])
def test_where_the_advantaged_group_is_behind_by_more_than_chance_a_note_says_so(
    advantaged: str | None, is_noted: bool
) -> None:
    """The larger group, low, gets nothing right; of two groups it counts as advantaged where none is named."""
    people = pa.table({"user": range(100), "income": ["low" if user < 60 else "high" for user in range(100)]})
    truth = pa.table({"user": range(100), "item": ["a"] * 100})
    lists = pa.table(
        {"user": range(100), "item": ["b" if user < 60 else "a" for user in range(100)], "rank": [1] * 100}
    )
    found = fs.evaluate_recommendations(
        lists, truth, users=people, group="income", advantaged=advantaged, k=1, metrics=["hit"], n_resamples=200
    )
    notes = [note for note in found.notes if note.startswith("low counts as advantaged, but is 1.0000 behind the rest")]
    assert bool(notes) is is_noted


def test_an_evaluation_and_a_run_note_it_too() -> None:
    """Users of the larger group buy at random, the others what they always do: the larger group is behind."""
    rng = np.random.default_rng(0)
    users = np.tile(np.arange(200), 12)
    items = np.where(users < 120, rng.integers(10, 200, len(users)), rng.integers(0, 10, len(users)))
    events = pa.table({"user": users, "item": items, "time": np.arange(len(users))})
    people = pa.table({"user": range(200), "side": ["random" if user < 120 else "regular" for user in range(200)]})
    read = partial(fs.read_events, users=people, group="side")
    rec = make_recommender("popularity", method="Finetune").fit(read(events.slice(0, 1600)))
    evaluation = rec.evaluate(read(events.slice(1600)), n_resamples=200)
    assert [note.startswith("random counts as advantaged, but is ") for note in evaluation.notes] == [True]
    assert evaluation.notes[0] in repr(evaluation)
    assert evaluation.to_dict()["notes"] == list(evaluation.notes)
    run = fs.run(read(events), "Finetune", model="popularity", n_periods=3, n_resamples=100, device="cpu")
    list(run)
    assert ["random counts as advantaged" in note for note in run.document()["notes"]] == [True]


# ── parts that are none ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"fairness": 0.5}, ["fairness must be a name or a function", "0.5", "fairness_weight"]),
        ({"loss": 3}, ["loss must be", "3"]),
        ({"strategy": b"x"}, ["strategy must be", "b'x'"]),
        ({"model": 7}, ["model must be", "7"]),
    ],
)
def test_a_part_that_is_neither_a_name_nor_an_object_is_refused_at_once(part: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(fs.ConfigurationError) as caught:
        make_recommender(**{"model": "mf", **part})
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)
