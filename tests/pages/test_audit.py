"""The fairness report: its page and its JSON hold the numbers, and the first half page says what they mean."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import fairstream as fs
from fairstream.errors import ConfigurationError, DataError
from fairstream.models import levels_of
from fairstream.text import number

HOSTILE = "<script>alert('x')</script>"
FIELDS = {"schema", "made", "system", "summary", "groups", "measure", "declared", "results", "newcomers", "gap"} | {
    *("comparisons", "trend", "tried", "limits", "regulators", "reproduce", "results_sha256")
}


@pytest.fixture(scope="module")
def log() -> fs.EventLog:
    stream = fs.synthetic_stream(n_users=500, n_items=120, n_events=12_000, seed=3)
    return fs.read_events(stream.events, users=stream.users, group="community", advantaged="majority")


def finish(log: fs.EventLog, **options: Any) -> fs.Record:
    common: dict[str, Any] = {"model": "popularity", "method": "Finetune", "target": "least-regret", "n_periods": 3}
    common |= {"k": 10, "n_resamples": 100, "device": "cpu"}
    run = fs.run(log, **{**common, **options})
    list(run)
    return run.record()


@pytest.fixture(scope="module")
def record(log: fs.EventLog) -> fs.Record:
    return finish(log)


@pytest.fixture(scope="module")
def report(record: fs.Record) -> fs.FairnessReport:
    return fs.fairness_report(record, accepted_gap=0.03, materiality=0.001, declared_by="the board, 2026-01-05")


def lists_and_truth(n: int = 300) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Lists of implicit's kind (ids, and scores without ranks): users of F get what they want half as often."""
    rng = np.random.default_rng(0)
    users = np.arange(n)
    sex = np.where(users % 2 == 0, "M", "F")
    wanted = rng.integers(0, 50, n)
    is_hit = rng.random(n) < np.where(sex == "M", 0.6, 0.3)
    first = np.where(is_hit, wanted, 99)
    rows = [(u, i, s) for u, item in zip(users, first, strict=True) for i, s in ((item, 1.0), (98, 0.5))]
    lists = pa.table(dict(zip(("user", "item", "score"), map(list, zip(*rows, strict=True)), strict=True)))
    return lists, pa.table({"user": users, "item": wanted}), pa.table({"user": users, "sex": sex})


def test_the_json_has_a_schema_and_every_part(report: fs.FairnessReport) -> None:
    stored = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert stored["schema"] == "fairstream-audit/1"
    assert stored.keys() >= FIELDS
    assert stored["declared"]["accepted_gap"] == 0.03
    assert re.fullmatch("[0-9a-f]{64}", stored["declared"]["sha256"])


def test_a_run_is_reported_with_its_own_numbers(record: fs.Record, report: fs.FairnessReport) -> None:
    score = record.about["summary"]["next"]["ndcg@10"]
    stored, page = report.to_dict(), report.html()
    rows = {row["group"]: row for row in stored["results"]}
    for name in ("majority", "minority"):
        assert rows[name]["value"] == score["by_group"][name]
        assert rows[name]["difference"] == score["gaps"][name]["value"]
        assert rows[name]["attainable"] == score["attainable"][name]
        assert rows[name]["ratio_to_best"] == score["by_group"][name] / max(score["by_group"].values())
        assert f">{number(score['by_group'][name])}</td>" in page
        assert f">{number(score['attainable'][name])}</td>" in page
    assert rows["everyone"]["n_users"] == len(np.unique(np.concatenate([t.users for t in record.tested("next")])))
    assert stored["gap"]["inherent"] + stored["gap"]["avoidable"]["value"] == pytest.approx(
        stored["gap"]["gap"]["value"]
    )
    assert [period["t"] for period in stored["trend"]] == [result["t"] for result in record.about["periods"]]
    assert "the accepted gap of 0.03" in page
    assert "the board, 2026-01-05" in page
    assert record.about["data"]["sha256"] in page
    assert len(stored["tried"]["lists"]) == len(levels_of(("majority", "minority"))) - 1
    assert stored["tried"]["seed_certificate"] is None


def test_the_summary_answers_five_questions_in_short_sentences(report: fs.FairnessReport) -> None:
    assert [part["question"] for part in report.to_dict()["summary"]] == [
        *("Is it good?", "For whom?", "Is anybody left behind?", "Can something be gained?", "What to do?")
    ]
    assert all(len(sentence) < 300 and sentence.endswith(".") for sentence in report.sentences())


def test_the_page_is_one_file_without_scripts(report: fs.FairnessReport, tmp_path: Path) -> None:
    report.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert not re.search(r"(?:src|href)=", page)
    assert "@page" in page
    assert "Signature" in page
    report.save(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()) == report.to_dict()
    assert "<p>" in report._repr_html_()


def test_a_target_is_compared_with_the_run_without_one(log: fs.EventLog, record: fs.Record) -> None:
    plain = finish(log, target="none")
    (compared,) = fs.fairness_report(record, against=plain).to_dict()["comparisons"]
    for name, change in compared["changes"].items():
        expected = [r.about["summary"]["next"]["ndcg@10"]["by_group"][name] for r in (record, plain)]
        assert change["value"] == pytest.approx(expected[0] - expected[1], abs=1e-6)


def test_several_seeds_give_a_certificate(log: fs.EventLog, tmp_path: Path) -> None:
    options = {"model": "mf", "pretrain_epochs": 1, "update_epochs": 1, "n_resamples": 0}
    records = [finish(log, seed=seed, **options) for seed in (0, 1, 2)]
    for each in records:
        (tmp_path / f"{each.seed}.parquet").write_bytes(each.content())
    stored = fs.fairness_report(tmp_path).to_dict()
    gaps = sorted(abs(each.about["summary"]["next"]["ndcg@10"]["disparity"]["value"]) for each in records)
    assert stored["tried"]["seeds"] == [0, 1, 2]
    assert stored["tried"]["seed_certificate"] == pytest.approx((gaps[1] - gaps[0]) / 3)
    assert "3 seeds: another seed would narrow the gap by at most" in fs.fairness_report(tmp_path).html()


def test_lists_of_any_system() -> None:
    lists, truth, people = lists_and_truth()
    report = fs.fairness_report(lists, truth, users=people, group="sex", advantaged="M", name=HOSTILE)
    stored, page = report.to_dict(), report.html()
    evaluation = fs.evaluate_recommendations(lists, truth, users=people, group="sex", advantaged="M")
    for row in stored["results"][1:]:
        assert row["value"] == evaluation["ndcg@20"].by_group[row["group"]]
        assert "attainable" not in row
    assert "cannot be determined from lists alone" in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "F is 0.2" in report.sentences()[2]
    assert "Test an alternative" in report.sentences()[4]


def test_of_several_systems_each_group_could_have_the_best_for_it() -> None:
    lists, truth, people = lists_and_truth()
    wanted = np.column_stack([truth["item"].to_numpy(), np.full(300, 98)]).ravel()
    better = lists.set_column(1, "item", pa.array(wanted))
    mixed = {"own": lists, "oracle": better}
    stored = fs.fairness_report(mixed, truth, users=people, group="sex", advantaged="M").to_dict()
    rows = {row["group"]: row for row in stored["results"]}
    assert rows["F"]["attainable"] == pytest.approx(1.0)
    assert rows["F"]["regret"]["value"] == pytest.approx(1 - rows["F"]["value"])
    assert rows["F"]["regret"]["level"] == "oracle"
    assert stored["gap"]["inherent"] == pytest.approx(0.0, abs=1e-9)
    (compared,) = stored["comparisons"]
    assert compared["against"] == "oracle"
    assert compared["changes"]["F"]["value"] == pytest.approx(rows["F"]["value"] - 1)
    assert compared["is_levelled_down"] is False  # both lost, and the gap is wider
    reversed_ = fs.fairness_report({"a": better, "b": lists}, truth, users=people, group="sex").to_dict()
    assert all(row["regret"]["value"] == 0 for row in reversed_["results"][1:])


def test_a_gap_narrowed_by_losses_alone_is_named_levelling_down() -> None:
    lists, truth, people = lists_and_truth()
    is_m = np.repeat(people["sex"].to_numpy(zero_copy_only=False) == "M", 2)
    worse = lists.set_column(1, "item", pa.array(np.where(is_m, 98 + np.arange(600) % 2, lists["item"].to_numpy())))
    systems = {"worse": worse, "before": lists}
    (compared,) = fs.fairness_report(systems, truth, users=people, group="sex").to_dict()["comparisons"]
    # M now gets nothing, so F leads: M is behind, and what it lost did not narrow the gap.
    assert compared["is_levelled_down"] is False
    is_hurt = is_m & (np.arange(600) // 4 % 3 == 0)
    half = lists.set_column(1, "item", pa.array(np.where(is_hurt, 98 + np.arange(600) % 2, lists["item"].to_numpy())))
    report = fs.fairness_report({"half": half, "before": lists}, truth, users=people, group="sex")
    (compared,) = report.to_dict()["comparisons"]
    assert compared["is_levelled_down"] is True
    assert "levelling down" in compared["verdict"]


def test_a_recommender_is_tested_on_later_events() -> None:
    stream = fs.synthetic_stream(n_users=600, n_items=300, n_events=18_000, seed=7)
    first, later = stream.events.slice(0, 15_000), stream.events.slice(15_000)
    rec = fs.FairRecommender("popularity").fit(first, users=stream.users, group="community")
    stored = fs.fairness_report(rec, later, users=stream.users).to_dict()
    score = rec.evaluate(later, users=stream.users)["ndcg@20"]
    assert {row["group"]: row["value"] for row in stored["results"][1:]} == score.by_group
    assert stored["gap"]["behind"] == "minority"
    assert stored["newcomers"]["by_group"].keys() == {"majority", "minority"}


def test_unknown_and_small_groups_are_counted() -> None:
    lists, truth, people = lists_and_truth()
    sex = people["sex"].to_pylist()
    sex[:7], sex[7:12] = [None] * 7, ["X"] * 5
    table = pa.table({"user": people["user"], "sex": sex})
    groups = fs.fairness_report(lists, truth, users=table, group="sex").to_dict()["groups"]
    assert groups["n_unknown"] == 7
    assert groups["excluded"] == {"X": 5}
    assert groups["below_2_percent"] == ["X"]


def test_bad_input_is_one_sentence(record: fs.Record, log: fs.EventLog, tmp_path: Path) -> None:
    lists, truth, _ = lists_and_truth()
    plain = fs.read_events(fs.synthetic_stream(n_users=200, n_items=80, n_events=3_000, seed=3).events)
    cases: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ConfigurationError, "needs truth=", lambda: fs.fairness_report(lists)),
        (ConfigurationError, "a run knows its users", lambda: fs.fairness_report(record, group="community")),
        (ConfigurationError, "against is for runs", lambda: fs.fairness_report(lists, truth, against=record)),
        (ConfigurationError, "task must be one of", lambda: fs.fairness_report(record, task="moment")),
        (ConfigurationError, "accepted_gap", lambda: fs.fairness_report(record, accepted_gap=-1.0)),
        (DataError, "there are no groups", lambda: fs.fairness_report(lists, truth)),
        (DataError, "made without groups", lambda: fs.fairness_report(finish(plain, n_resamples=0, target="none"))),
        (DataError, "same events and periods", lambda: fs.fairness_report(record, against=finish(log, n_periods=2))),
        (DataError, "cannot be read", lambda: fs.fairness_report(tmp_path / "missing.json")),
    ]
    for error, message, call in cases:
        with pytest.raises(error, match=message):
            call()


def test_a_report_of_files_says_how_to_repeat_it(tmp_path: Path) -> None:
    lists, truth, people = lists_and_truth()
    pa.csv.write_csv(lists, tmp_path / "als.csv")
    pq.write_table(truth, tmp_path / "truth.parquet")
    pq.write_table(people, tmp_path / "people.parquet")
    paths = [str(tmp_path / name) for name in ("als.csv", "truth.parquet", "people.parquet")]
    stored = fs.fairness_report(paths[0], paths[1], users=paths[2], group="sex").to_dict()
    assert stored["reproduce"] == (
        f"fairstream report {paths[0]} --for audit --truth {paths[1]} --users {paths[2]} --group sex"
    )
    assert re.fullmatch("[0-9a-f]{64}", stored["system"]["lists_sha256"])
