"""Lists of any recommender: the metrics against ir_measures, the statistics against the library's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import RR, P, R, Success, nDCG

import fairstream
from fairstream import ConfigurationError, DataError, Evaluation
from fairstream import evaluate_recommendations as evaluate
from fairstream.evaluation import Estimate, GroupPanel, Lists, Truth, panel_scores
from support import make_recommender

QUICK: dict[str, Any] = {"n_resamples": 0, "min_group_size": 1}


def random_lists(rng: np.random.Generator, n_users: int, n_items: int, length: int) -> pd.DataFrame:
    """Lists of different lengths, with scores that do not tie, in a random order of rows."""
    rows = [
        (f"u{user}", int(item))
        for user in range(n_users)
        for item in rng.permutation(n_items)[: rng.integers(1, length + 1)]
    ]
    frame = pd.DataFrame(rows, columns=["user_id", "item_id"])
    return frame.assign(score=rng.permutation(len(frame)) / 7)


def random_truth(rng: np.random.Generator, n_users: int, n_items: int) -> pd.DataFrame:
    """One to five positives a user; some of no item that is ever listed."""
    rows = [
        (f"u{user}", int(item))
        for user in range(n_users)
        for item in rng.permutation(n_items + 5)[: rng.integers(1, 6)]
    ]
    return pd.DataFrame(rows, columns=["user_id", "item_id"]).sample(frac=1, random_state=0)


def by_oracle(lists: pd.DataFrame, truth: pd.DataFrame, k: int) -> dict[str, dict[str, float]]:
    """Metric → user → value; a user without a list has 0."""
    run = lists.rename(columns={"user_id": "query_id", "item_id": "doc_id"}).astype({"doc_id": str})
    qrels = truth.rename(columns={"user_id": "query_id", "item_id": "doc_id"}).astype({"doc_id": str})
    found: dict[str, dict[str, float]] = {}
    for metric in ir_measures.iter_calc([nDCG @ k, R @ k, P @ k, Success @ k, RR @ k], qrels.assign(relevance=1), run):
        found.setdefault(metric.measure.NAME, {})[metric.query_id] = metric.value
    names = {"nDCG": "ndcg", "R": "recall", "P": "precision", "Success": "hit", "RR": "mrr"}
    return {f"{names[name]}@{k}": values for name, values in found.items()}


def values_of(found: Evaluation) -> dict[str, dict[str, float]]:
    users = list(found.users)
    ids = [user.as_py() for user in users]
    return {name: dict(zip(ids, values.tolist(), strict=True)) for name, values in found.values.items()}


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_the_users_values_are_those_of_ir_measures(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    lists, truth = random_lists(rng, 8, 20, 15), random_truth(rng, 8, 20)
    lists = lists[~lists["user_id"].isin(["u0"])]  # nobody recommended anything to this one
    found = evaluate(lists, truth, k=k, **QUICK)
    expected = by_oracle(lists, truth, k)
    for name, values in values_of(found).items():
        if name in expected:
            assert values == pytest.approx({"u0": 0.0, **expected[name]}, abs=1e-9)
            assert found[name].mean == pytest.approx(np.mean(list(values.values())))
    assert set(expected) < set(found.metrics)
    precision, recall, f1 = (
        np.array(list(values_of(found)[f"{m}@{k}"].values())) for m in ("precision", "recall", "f1")
    )
    both = np.where(precision + recall > 0, precision + recall, 1)
    assert f1 == pytest.approx(2 * precision * recall / both)


@given(st.integers(0, 2**32 - 1))
def test_only_the_order_within_each_list_counts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lists, truth = random_lists(rng, 6, 15, 10), random_truth(rng, 6, 15)
    expected = values_of(evaluate(lists, truth, k=5, **QUICK))
    rank = lists.groupby("user_id")["score"].rank(ascending=False)
    others = {
        "shuffled": lists.sample(frac=1, random_state=1),
        "other scores": lists.assign(score=lambda frame: np.arctan(frame["score"] - 3) * 5),
        "ranks from 1": lists.assign(rank=rank).drop(columns="score"),
        "ranks from 0": lists.assign(rank=rank.astype(int) - 1).drop(columns="score"),
        "ranks beside scores": lists.assign(rank=rank, score=-lists["score"]),  # the rank is what was shown
        "ranks with holes": lists.assign(rank=10 * rank).drop(columns="score"),
    }
    for name, other in others.items():
        assert values_of(evaluate(other, truth, k=5, **QUICK)) == expected, name
    assert values_of(evaluate(lists, truth.sample(frac=1, random_state=2), k=5, **QUICK)) == {
        name: pytest.approx(values) for name, values in expected.items()
    }


def test_among_equals_a_relevant_item_comes_last() -> None:
    lists = pa.table({"user": [1, 1, 1], "item": ["a", "b", "c"], "score": [1.0, 1.0, 1.0]})
    found = evaluate(lists, pa.table({"user": [1], "item": ["a"]}), k=3, metrics=["mrr", "hit@2"], **QUICK)
    assert (found["mrr@3"].mean, found["hit@2"].mean) == (pytest.approx(1 / 3), 0)
    assert "in 1 list(s) a relevant item shares its score" in found.notes[0]
    clear = evaluate(lists.set_column(2, "score", pa.array([3, 2, 1])), pa.table({"user": [1], "item": ["a"]}), k=3)
    assert clear.notes == ()


# ── the library's own evaluation ─────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def own() -> dict[str, Any]:
    """Lists of a recommender, what came next, and what its own evaluation says of them."""
    stream = fairstream.synthetic_stream(n_users=250, n_items=60, n_events=5000, disadvantaged_share=0.4, seed=2)
    known, later = stream.events.slice(0, 3500), stream.events.slice(3500)
    log = fairstream.read_events(known, users=stream.users, group="community", advantaged="majority")
    rec = make_recommender("recent-popularity", device="cpu").fit(log)
    users = later["user_id"].unique()
    return {
        "lists": rec.recommend(users, k=20),
        "truth": later,
        "users": stream.users,
        "expected": rec.evaluate(later, users=stream.users, task="next", n_resamples=200),
        "known": known,
    }


def test_a_recommenders_lists_score_what_its_own_evaluation_says(own: dict[str, Any]) -> None:
    found = evaluate(
        own["lists"], own["truth"], users=own["users"], group="community", advantaged="majority", n_resamples=200
    )
    expected = own["expected"]
    assert found.n_users == expected.n_users > 100
    assert list(found.metrics) == list(expected.metrics)
    for name, score in expected.metrics.items():
        assert found[name].mean == pytest.approx(score.mean)
        assert found[name].interval == pytest.approx(score.interval)
        assert found[name].by_group == pytest.approx(score.by_group)
        assert found[name].disparity.interval == pytest.approx(score.disparity.interval)
        assert found[name].p_value == pytest.approx(score.p_value, abs=0.1)  # other permutations


# ── groups ───────────────────────────────────────────────────────────────────────────────


def a_gap(n_users: int = 120, gap: float = 0.5, base: float = 0.7, seed: int = 0) -> dict[str, Any]:
    """Everyone wants item 0; women get it less often."""
    rng = np.random.default_rng(seed)
    ids = np.arange(n_users)
    gender = np.where(ids % 3 == 0, "F", "M")
    is_hit = rng.random(n_users) < np.where(gender == "F", base - gap, base)
    lists = pd.DataFrame({"user_id": ids, "item_id": np.where(is_hit, 0, 1), "rank": 1})
    truth = pd.DataFrame({"user_id": ids, "item_id": 0})
    return {"recommendations": lists, "truth": truth, "users": pd.DataFrame({"user_id": ids, "gender": gender})}


def test_the_statistics_are_those_of_the_group_panel() -> None:
    data = a_gap()
    found = evaluate(**data, group="gender", advantaged="M", k=1, metrics=["hit"], seed=3)
    values = np.array(data["recommendations"]["item_id"] == 0, float)
    codes = np.array(data["users"]["gender"] == "F", np.int16)
    panel = GroupPanel(values[:, None, None], codes, 2, 20)
    (expected,) = panel_scores(panel, ["M", "F"], np.random.default_rng(0), 1000)
    assert found["hit@1"].by_group == pytest.approx({"M": values[codes == 0].mean(), "F": values[codes == 1].mean()})
    assert found["hit@1"].disparity.interval == pytest.approx(expected.disparity.interval)
    assert found["hit@1"].p_value == pytest.approx(expected.p_value, abs=0.02)
    assert found["hit@1"].p_value < 0.01
    assert found.verdict.startswith(f"gender F is {found['hit@1'].performance_disparity:.4f} behind M in hit@1")
    assert "more than chance explains" in found.verdict


def test_no_gap_may_be_chance() -> None:
    found = evaluate(**a_gap(gap=0.0), group="gender", k=1, metrics=["hit"])
    assert found["hit@1"].p_value > 0.05
    assert "may be chance" in found.verdict


def test_who_is_advantaged_decides_the_sign_alone() -> None:
    data = a_gap()
    one, other = (evaluate(**data, group="gender", advantaged=name, k=1, metrics=["hit"]) for name in ("M", "F"))
    larger = evaluate(**data, k=1, metrics=["hit"])  # the only column with two values, the larger group first
    assert one["hit@1"].performance_disparity == pytest.approx(-other["hit@1"].performance_disparity)
    assert larger["hit@1"] == one["hit@1"]
    assert larger.n_users_by_group == {"M": 80, "F": 40}


def test_the_groups_can_be_columns_of_the_truth_and_users_without_one_count_overall() -> None:
    data = a_gap()
    gender = data["users"]["gender"].where(data["users"]["user_id"] > 9)
    beside = evaluate(data["recommendations"], data["truth"].assign(gender=gender), group="gender", k=1)
    apart = evaluate(**{**data, "users": data["users"].assign(gender=gender)}, group="gender", k=1)
    assert beside.to_dict() == apart.to_dict()
    assert beside.n_users == 120
    assert sum(beside.n_users_by_group.values()) == 110
    assert any("10 of 120 users have no known group" in note for note in beside.notes)


def test_small_groups_are_excluded_and_several_columns_make_intersections() -> None:
    data = a_gap()
    people = data["users"].assign(age=np.where(data["users"]["user_id"] < 15, "young", "old"))
    found = evaluate(data["recommendations"], data["truth"], users=people, group=["gender", "age"], k=1)
    assert found.group == "gender,age"
    assert set(found.excluded_groups) == {"M,young", "F,young"}
    assert set(found["hit@1"].gaps) == {"M,old", "F,old"}
    assert "F,old" in str(found)
    assert "excluded" in str(found)


def test_without_groups_there_are_means_and_intervals_alone() -> None:
    data = a_gap()
    found = evaluate(data["recommendations"], data["truth"], k=1)
    assert (found.group, found["hit@1"].disparity, found["hit@1"].by_group) == (None, None, {})
    low, high = found["hit@1"].interval
    assert low < found["hit@1"].mean < high
    assert "no disparity" in found.verdict
    json.dumps(found.to_dict(), allow_nan=False)


# ── several systems ──────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def systems() -> dict[str, Any]:
    good, bad = a_gap(300, gap=0.1, seed=0), a_gap(300, gap=0.4, base=0.5, seed=1)
    names = {"good": good["recommendations"], "bad": bad["recommendations"], "same": bad["recommendations"]}
    return {"recommendations": names, "truth": good["truth"], "users": good["users"]}


def test_differences_are_differences_of_the_means_with_the_width_of_a_paired_test(systems: dict[str, Any]) -> None:
    found = evaluate(**systems, group="gender", advantaged="M", k=1, metrics=["hit", "mrr"], n_resamples=2000)
    assert list(found.systems) == ["good", "bad", "same"]
    (first, second) = found.against("bad", "hit@1")
    assert (first.system, second.system) == ("good", "same")
    values = found["good"].values["hit@1"] - found["bad"].values["hit@1"]
    assert first.mean.value == pytest.approx(values.mean())
    # Users are drawn from each group, so what differs between groups is not in the width.
    is_f = np.array(systems["users"]["gender"] == "F")
    variance = sum((is_f == side).mean() * values[is_f == side].var() for side in (True, False))
    width = 2 * 1.96 * np.sqrt(variance / len(values))
    assert first.mean.high - first.mean.low == pytest.approx(width, rel=0.1)
    for name, mask in (("M", ~is_f), ("F", is_f)):
        assert first.by_group[name].value == pytest.approx(values[mask].mean())
    sizes = [abs(found[name]["hit@1"].performance_disparity) for name in ("good", "bad")]
    assert first.furthest_behind.value == pytest.approx(sizes[0] - sizes[1])
    assert first.mean.excludes_zero
    assert (second.mean.value, second.mean.low, second.mean.high) == (0, 0, 0)
    (back,) = (part for part in found.against("good", "hit@1") if part.system == "bad")
    assert (back.mean.value, back.mean.low) == pytest.approx((-first.mean.value, -first.mean.high))
    assert len(found.differences) == 2 * 3 * 2
    assert found.verdict == "good is ahead in hit@1: no other's interval of the difference contains 0."
    json.dumps(found.to_dict(), allow_nan=False)


def test_each_system_scores_what_it_scores_alone(systems: dict[str, Any]) -> None:
    together = evaluate(**systems, group="gender", k=1)
    for name, lists in systems["recommendations"].items():
        alone = evaluate(lists, systems["truth"], users=systems["users"], group="gender", k=1)
        assert alone == together[name]


def test_systems_that_are_alike_cannot_be_told_apart(systems: dict[str, Any]) -> None:
    pair = {name: systems["recommendations"][name] for name in ("bad", "same")}
    found = evaluate(pair, systems["truth"], k=1)
    assert found.verdict == "bad leads in ndcg@1, but cannot be told from same."
    assert found.differences[0].furthest_behind is None
    assert "minus bad" in str(found)
    with pytest.raises(KeyError, match="there are bad, same"):
        found["other"]
    with pytest.raises(KeyError, match="ndcg@1"):
        found["bad"]["ndcg@3"]


def test_all_systems_are_tested_on_the_same_users(systems: dict[str, Any]) -> None:
    lists = systems["recommendations"]
    parts = {"first": lists["good"].iloc[:200], "second": lists["bad"].iloc[100:]}
    zero = evaluate(parts, systems["truth"], k=1)
    assert {system.n_users for system in zero.systems.values()} == {300}
    assert zero["first"].values["hit@1"][200:].sum() == 0
    assert zero["first"].n_without_list == zero["second"].n_without_list == 100
    shared = evaluate(parts, systems["truth"], k=1, missing="exclude")
    assert {system.n_users for system in shared.systems.values()} == {100}
    assert [user.as_py() for user in shared["first"].users] == list(range(100, 200))
    expected = (lists["good"]["item_id"].iloc[100:200] == 0).mean()
    assert shared["first"]["hit@1"].mean == pytest.approx(expected)
    assert any("200 of 300 users of the truth are excluded" in note for note in shared["first"].notes)


def test_users_without_a_list_can_be_left_out_as_if_they_were_not_in_the_truth() -> None:
    data = a_gap()
    lists = data["recommendations"].iloc[::2]
    excluded = evaluate(**{**data, "recommendations": lists}, group="gender", k=1, missing="exclude", min_group_size=1)
    truth = data["truth"].iloc[::2]
    expected = evaluate(lists, truth, users=data["users"], group="gender", k=1, min_group_size=1)
    assert excluded.metrics == expected.metrics
    assert excluded.n_users_by_group == expected.n_users_by_group == {"M": 40, "F": 20}


# ── metrics of one's own ─────────────────────────────────────────────────────────────────


def coverage(lists: Lists, truth: Truth) -> float:
    return len(np.unique(lists.items[lists.items >= 0])) / truth.n_items


def test_a_number_for_all_users_has_groups_and_no_interval(systems: dict[str, Any]) -> None:
    found = evaluate(
        **systems, group="gender", k=1, metrics={"coverage": coverage, "mine": lambda lists, _: lists.hits[:, 0]}
    )
    score = found["good"]["coverage@1"]
    assert (score.mean, score.interval, score.p_value) == (1.0, None, None)
    assert score.by_group == {"M": 1.0, "F": 1.0}
    difference = found.against("bad", "coverage@1")[0]
    assert difference.mean == Estimate(0.0)
    assert found["good"]["mine@1"].interval is not None
    assert "coverage@1" in str(found)
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("read", [lambda truth: truth.popularity, lambda truth: truth.history])
def test_a_metric_that_reads_the_past_is_told_that_there_is_none(read: Any) -> None:
    data = a_gap()
    with pytest.raises(ConfigurationError, match=r"reads truth\.history or truth\.popularity"):
        evaluate(data["recommendations"], data["truth"], metrics={"mine": lambda _, truth: read(truth)})


# ── tables ───────────────────────────────────────────────────────────────────────────────


def test_frames_and_files_of_other_libraries_are_read_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lists, truth = random_lists(rng, 10, 20, 10), random_truth(rng, 10, 20)
    expected = evaluate(lists, truth, k=5, **QUICK)
    lists.to_parquet(tmp_path / "lists.parquet")
    truth.to_csv(tmp_path / "truth.csv", index=False)
    assert evaluate(tmp_path / "lists.parquet", str(tmp_path / "truth.csv"), k=5, **QUICK) == expected
    assert evaluate(pl.from_pandas(lists), pa.Table.from_pandas(truth), k=5, **QUICK) == expected
    spark = lists.rename(columns={"user_id": "userId", "item_id": "movieId", "score": "prediction"})
    assert evaluate(spark, truth, k=5, **QUICK)["ndcg@5"] == expected["ndcg@5"]
    named = lists.rename(columns={"user_id": "who", "item_id": "what", "score": "how much"})
    columns = {"user_column": "who", "item_column": "what", "score_column": "how much"}
    renamed = truth.rename(columns={"user_id": "who", "item_id": "what"})
    assert evaluate(named, renamed, k=5, **columns, **QUICK)["ndcg@5"] == expected["ndcg@5"]


def test_ratings_of_the_truth_must_be_numbers() -> None:
    truth = pa.table({"user": [1], "item": [5], "rating": ["good"]})
    with pytest.raises(DataError, match="the truth: 'rating' must hold numbers, but holds string"):
        evaluate(pa.table({"user": [1], "item": [5], "rank": [1]}), truth, rating_above=2.0, **QUICK)


def test_rows_of_the_truth_count_by_their_rating_where_that_is_asked_for() -> None:
    lists = pa.table({"user": [1, 1], "item": [5, 6], "rank": [1, 2]})
    truth = pa.table({"user": [1, 1, 1], "item": [5, 6, 6], "rating": [1.0, 5.0, 5.0]})
    every, high = (evaluate(lists, truth, k=2, rating_above=above, **QUICK) for above in (None, 2.0))
    assert (every["precision@2"].mean, high["precision@2"].mean) == (1.0, 0.5)
    assert every.notes == (
        "every row of the truth counts, whatever its rating; rating_above keeps only high ones",
        "1 repeated (user, item) pair(s) of the truth count once",
    )
    assert "2 of 3 rows of the truth have rating > 2 and count" in high.notes


def test_what_was_left_out_is_said() -> None:
    lists = pa.table({"user": [1, 3], "item": [5, 6], "rank": [1, 1]})
    found = evaluate(lists, pa.table({"user": [1, 2], "item": [5, 5]}), k=2, **QUICK)
    assert found.notes == (
        "1 user(s) with a list have nothing in the truth and are not tested",
        "no list has more than 1 item(s), fewer than the cut-off 2",
        "1 of 2 users of the truth have no list and count with an empty one",
    )
    assert found["hit@2"].mean == 0.5
    assert all(note in str(found) for note in found.notes)


LISTS = pa.table({"user": [1, 2], "item": [5, 6], "rank": [1, 1]})
TRUTH = pa.table({"user": [1, 2], "item": [5, 5]})


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"recommendations": LISTS.drop_columns("rank")}, "need a rank or a score column"),
        ({"recommendations": LISTS, "score_column": "s"}, "have no column 's'"),
        ({"recommendations": pa.concat_tables([LISTS, LISTS])}, "that of user 1 holds 5 more than once"),
        ({"recommendations": LISTS.set_column(2, "rank", pa.array([1, None]))}, "1 of 2 have none"),
        ({"recommendations": LISTS.set_column(2, "rank", pa.array(["a", "b"]))}, "must hold numbers"),
        ({"recommendations": LISTS.set_column(1, "item", pa.array([1, None]))}, "1 of 2 are missing"),
        ({"recommendations": LISTS.set_column(0, "user", pa.array(["1", "2"]))}, "ids must stay of one kind"),
        ({"recommendations": LISTS.set_column(0, "user", pa.array([8, 9]))}, "none of their users is in the truth"),
        ({"recommendations": LISTS.slice(2)}, "have no rows"),
        ({"recommendations": {"a": LISTS, "b": LISTS.slice(2)}}, "the recommendations of b have no rows"),
        ({"truth": TRUTH.slice(2)}, "at least one user needs a relevant item"),
        ({"rating_above": 2.0}, "needs a rating column"),
        ({"advantaged": "M"}, "give group=COLUMN too"),
        ({"group": "gender"}, "the truth has no column 'gender'"),
        (
            {"users": pa.table({"user": [8, 9], "gender": ["M", "F"]}), "group": "gender"},
            "none of the 2 users of the truth has a group in the users table",
        ),
        (
            {"users": pa.table({"user": [1, 2], "gender": ["M", "M"]}), "group": "gender"},
            "takes 1 value",
        ),
    ],
)
def test_tables_that_cannot_be_used_are_refused(changed: dict[str, Any], expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        evaluate(**{"recommendations": LISTS, "truth": TRUTH, **changed})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"k": 0}, "k must be >= 1"),
        ({"n_resamples": -1}, "n_resamples >= 0"),
        ({"missing": "drop"}, "missing must be zero or exclude"),
        ({"metrics": ["nonsense"]}, "metric must be one of"),
        ({"recommendations": {"one": LISTS}}, "takes two of them or more"),
        ({"recommendations": {"one": LISTS, "two": LISTS}, "n_resamples": 0}, "n_resamples >= 1"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        evaluate(**{"recommendations": LISTS, "truth": TRUTH, **options})
