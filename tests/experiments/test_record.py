"""Stored runs: read back whole or refused in one sentence, and several seeds made one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

import fairstream
from fairstream import DataError, EventLog, Record
from fairstream.experiments import pooled, write_json
from support import made_run

FAST = {"pretrain_epochs": 1, "update_epochs": 1, "embedding_dim": 8, "n_periods": 3, "device": "cpu"}
SEEDS = (0, 4, 2)


@pytest.fixture(scope="module", params=["strict", "paper"])
def records(log: EventLog, request: pytest.FixtureRequest) -> list[Record]:
    """The same run from three seeds."""
    found = []
    for seed in SEEDS:
        options = {"min_group_size": 5, "n_resamples": 20, "batch_size": 64, "protocol": request.param}
        run = fairstream.run(log, "FADE", seed=seed, **options, **FAST)
        list(run)
        found.append(Record(run.document()))
    return found


def stored(document: Any) -> Any:
    """The document as it comes back from a file; fails on NaN and infinity, which JSON has not."""
    return json.loads(json.dumps(document, allow_nan=False))


# ── reading ──────────────────────────────────────────────────────────────────────────────


def test_what_was_written_is_read_back(records: list[Record], tmp_path: Path) -> None:
    for record in records:
        write_json(record.document, tmp_path / "run.json")
        again = Record.read(tmp_path / "run.json")
        assert again.document == stored(record.document)
        assert (again.seed, again.settings, again.protocol) == (record.seed, stored(record.settings), record.protocol)
        for task in ("remain", "next"):
            for ours, theirs in zip(record.tested(task), again.tested(task), strict=True):
                assert theirs.to_dict() == ours.to_dict()


def test_the_surrogate_is_a_setting_where_there_is_a_fairness_loss() -> None:
    groups, found = [0, 1], [[1, 2]]
    hit, other = (made_run(found, groups, surrogate=name) for name in ("hit", "neural-ndcg"))
    older = {**hit, "config": {name: value for name, value in hit["config"].items() if name != "surrogate"}}
    assert Record(hit).settings == Record(older).settings != Record(other).settings
    unfair = (made_run(found, groups, method="Finetune", surrogate=name) for name in ("hit", "neural-ndcg"))
    assert len({str(sorted(Record(document).settings.items(), key=str)) for document in unfair}) == 1


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        Record.read(path)
    said = str(caught.value)
    assert said.startswith(f"{path} ")
    assert "\n" not in said
    assert not re.search(r"[.!?] [A-Z]", said)
    return said


def test_a_file_that_is_not_there_or_no_file_is_said(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path / "nowhere.json")
    assert "cannot be read: Is a directory" in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"PAR1\x00\xff\xfe", b'{"config": ', b"config: 1"])
def test_what_is_no_json_is_said(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(content)
    assert "is not JSON; give files that `fairstream run --json` wrote" in refusal(tmp_path / "run.json")


@pytest.mark.parametrize("document", [3, None, [], {}, "run", {"config": {}}, {"contenders": [], "verdicts": []}])
def test_json_that_is_no_run_is_said(document: Any, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(document))
    assert "is not a finished run; give files that" in refusal(tmp_path / "run.json")


def test_a_run_that_was_stored_before_its_first_period_is_not_finished(log: EventLog, tmp_path: Path) -> None:
    write_json(fairstream.run(log, **FAST).document(), tmp_path / "run.json")
    assert "is not a finished run" in refusal(tmp_path / "run.json")


@pytest.mark.parametrize("part", ["config", "data", "pretrained", "periods", "summary", "slices", "timing"])
def test_a_run_that_lacks_a_part_is_refused(part: str, tmp_path: Path) -> None:
    document = made_run([[1, 2]], [0, 1])
    del document[part]
    (tmp_path / "run.json").write_text(json.dumps(document))
    refusal(tmp_path / "run.json")


def test_a_run_without_its_users_values_is_of_an_older_version(tmp_path: Path) -> None:
    document = made_run([[1, 2]], [0, 1])
    for task in document["periods"][0]["tasks"].values():
        task.pop("tested", None)
    (tmp_path / "run.json").write_text(json.dumps(document))
    assert "was written by an older version, without users' values; run it again" in refusal(tmp_path / "run.json")


def test_a_run_in_the_first_layout_is_of_an_older_version(tmp_path: Path) -> None:
    document = made_run([[1, 2]], [0, 1])
    del document["slices"]
    for task in document["periods"][0]["tasks"].values():
        del task["tested"]
    (tmp_path / "run.json").write_text(json.dumps(document))
    assert "was written by an older version" in refusal(tmp_path / "run.json")


@pytest.mark.parametrize("periods", [[{}], [1], {"1": {}}])
def test_a_run_whose_periods_are_none_is_refused(periods: Any, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({**made_run([[1, 2]], [0, 1]), "periods": periods}))
    assert "is not a finished run" in refusal(tmp_path / "run.json")


@pytest.mark.parametrize(("part", "content"), [("config", None), ("config", {}), ("data", {}), ("data", 3)])
def test_a_run_whose_parts_are_empty_is_refused(part: str, content: Any, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({**made_run([[1, 2]], [0, 1]), part: content}))
    assert "is not a finished run" in refusal(tmp_path / "run.json")


# ── several seeds as one ─────────────────────────────────────────────────────────────────


def test_one_record_pooled_is_the_record(records: list[Record]) -> None:
    assert pooled(records[:1]) == records[0].document


def scores(document: Any) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Every metric of every period and of the summary."""
    found = {}
    for period in (document["pretrained"], *document["periods"]):
        for task, judged in period["tasks"].items():
            found |= {(period["t"], task, name): part for name, part in judged.items() if "@" in name}
    for task, metrics in document["summary"].items():
        found |= {("mean", task, name): part for name, part in metrics.items()}
    return found


def test_pooled_numbers_are_the_means_of_the_runs(records: list[Record]) -> None:
    ours, each = scores(pooled(records)), [scores(record.document) for record in records]
    assert set(ours) == set(each[0])
    for at, score in ours.items():
        parts = [found[at] for found in each]
        for field in ("mean", "performance_disparity", "abs_performance_disparity"):
            assert score[field] == pytest.approx(mean(part[field] for part in parts), abs=1e-12)
        for group, value in score["by_group"].items():
            assert value == pytest.approx(mean(part["by_group"][group] for part in parts), abs=1e-12)
        for group, gap in score["gaps"].items():
            assert gap["value"] == pytest.approx(mean(part["gaps"][group]["value"] for part in parts), abs=1e-12)
        assert score["disparity"]["value"] == score["performance_disparity"]


def test_the_spread_between_seeds_is_the_sample_standard_deviation(records: list[Record]) -> None:
    ours, each = scores(pooled(records)), [scores(record.document) for record in records]
    for at, score in ours.items():
        assert set(score["seed_sd"]) == {"mean", "performance_disparity", "abs_performance_disparity"}
        for field, sd in score["seed_sd"].items():
            assert sd == pytest.approx(stdev(found[at][field] for found in each), rel=1e-9, abs=1e-15)
    assert any(score["seed_sd"]["performance_disparity"] > 0 for score in ours.values())


def test_a_pooled_document_says_what_it_is_made_of(records: list[Record]) -> None:
    document = pooled(records)
    stored(document)
    assert document["config"] == {**records[0].config, "seed": list(SEEDS)}
    assert document["data"] == records[0].document["data"]
    for at, score in scores(document).items():
        assert set(score) == set(scores(records[0].document)[at]) | {"seed_sd"}
        assert score["interval"][0] <= score["interval"][1]
        assert 0 < score["disparity"]["p_value"] <= 1
    for t, period in enumerate(document["periods"]):
        for task, judged in period["tasks"].items():
            own = [record.document["periods"][t]["tasks"][task] for record in records]
            # the same users are tested whatever the seed
            for name in ("n_tested_users", "n_cold_users", "excluded_groups"):
                assert all(part[name] == judged[name] for part in own)
    for task, parts in document["slices"].items():
        warm = [record.document["slices"][task]["warm_users"]["ndcg@20"]["mean"] for record in records]
        assert parts["warm_users"]["ndcg@20"]["mean"] == pytest.approx(mean(warm), abs=1e-12)
    seconds = [record.document["timing"]["pretrain_s"] for record in records]
    assert document["timing"]["pretrain_s"] == pytest.approx(mean(seconds))


def test_the_same_values_from_every_seed_are_pooled_into_themselves(records: list[Record]) -> None:
    same = [Record({**records[0].document, "config": {**records[0].config, "seed": seed}}) for seed in (1, 2)]
    ours, theirs = scores(pooled(same)), scores(records[0].document)
    for at, score in ours.items():
        assert score["mean"] == pytest.approx(theirs[at]["mean"], abs=1e-12)
        assert score["by_group"] == pytest.approx(theirs[at]["by_group"], abs=1e-12)
        assert set(score["seed_sd"].values()) == {0.0}


def test_what_chance_gives_is_that_of_the_runs_like_the_size_beside_it(records: list[Record]) -> None:
    for task, metrics in pooled(records)["summary"].items():
        for metric, score in metrics.items():
            own = [record.document["summary"][task][metric]["null_mean"] for record in records]
            assert score["null_mean"] == pytest.approx(mean(own), abs=1e-12)
