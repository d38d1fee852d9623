"""What a run says about each group: its level, its regret, and the parts of the gap."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fairstream as fs
from fairstream.experiments import pooled
from fairstream.pages.runs import runs_page
from fairstream.pages.score_tables import group_table, period_table

STREAM = fs.synthetic_stream(n_users=600, n_items=300, n_events=18_000, seed=7)
LOG = fs.read_events(STREAM.events, users=STREAM.users, group="community")
OPTIONS: dict[str, Any] = {"model": "recent-popularity", "device": "cpu", "n_resamples": 100}
NEWCOMERS_ONLY = "levels reach newcomers only: {} does not read popularity"


def finished(log: fs.EventLog = LOG, method: str | None = None, **options: Any) -> fs.Run:
    run = fs.run(log, method, **{**OPTIONS, **options})
    list(run)
    return run


@pytest.fixture(scope="module")
def run() -> fs.Run:
    """A run that names no method: it fine-tunes with the target least-regret, and comes to serve a level."""
    return finished()


def test_a_run_that_names_no_method_has_the_target_of_a_recommender(run: fs.Run) -> None:
    assert (run.config.method, run.config.target) == ("Finetune", "least-regret")
    paper = {"protocol": "paper", "model": "mf"}
    for options, method in (({"temperature": 1.0}, "FADE"), (paper, "FADE"), ({"target": "none"}, "Finetune")):
        assert fs.run(LOG, **{**OPTIONS, **options}).config.method == method


def test_the_main_metric_of_one_period_has_regret(run: fs.Run) -> None:
    document = json.loads(json.dumps(run.document(), allow_nan=False))
    for part in (document["summary"], *(period["tasks"] for period in document["periods"])):
        for task, metrics in part.items():
            for name, score in metrics.items():
                if "@" not in name:
                    continue
                assert bool(score["regret"]) == (task != "remain" and name == "ndcg@20")
                if not score["regret"]:
                    assert (score["attainable"], score["inherent_gap"], score["avoidable_gap"]) == ({}, None, None)
                    continue
                assert score["inherent_gap"] + score["avoidable_gap"] == pytest.approx(score["performance_disparity"])
                for group, regret in score["regret"].items():
                    served, attainable = score["by_group"][group], score["attainable"][group]
                    assert attainable >= served - 1e-6
                    assert regret["value"] == pytest.approx(max(0.0, 1 - served / attainable), abs=1e-4)
                    low, high = regret["interval"]
                    assert 0 <= low <= high


def test_each_period_has_its_level(run: fs.Run) -> None:
    levels = [period["level"] for period in run.document()["periods"]]
    assert levels == [list(result.update.level) for result in run.results]
    assert levels[-1][0] == "minority"
    (line,) = [line for line in period_table(run.document(), "next").caption.splitlines() if line.startswith("level:")]
    at = next(t for t, (group, _) in enumerate(levels, start=1) if group)
    assert line.startswith(f"level: minority × {levels[at - 1][1]:g} from period {at} on")
    assert "level:" not in period_table(finished(target="none", tasks=["next"]).document(), "next").caption


def test_a_stored_run_has_the_regrets_of_the_run(run: fs.Run, tmp_path: Path) -> None:
    (tmp_path / "run.parquet").write_bytes(run.record().content())
    (tmp_path / "run.json").write_text(json.dumps(run.document()))
    for name in ("run.parquet", "run.json"):
        stored = fs.Record.read(tmp_path / name)
        assert stored._summary() == run.summary()  # computed again from the users' values
        for at, tested in stored.tests.items():
            own = run.record().tests[at]
            assert tested.levels == own.levels
            np.testing.assert_array_equal(tested.level_values, own.level_values)


def test_two_groups_have_a_table_in_print_and_on_pages(run: fs.Run) -> None:
    score, text = run.summary()["next"]["ndcg@20"], repr(run)
    table = group_table({"": run.document()}, "next")
    split = f"Of the gap of {score['performance_disparity']:.4f}, {score['inherent_gap']:.4f} is inherent and "
    assert split in table.caption
    for row, group in zip(table.rows, ("majority", "minority"), strict=True):
        shown = [group, f"{score['by_group'][group]:.4f}", f"{score['attainable'][group]:.4f}"]
        assert set(shown) < set(row)
        assert f"{100 * score['regret'][group]['value']:.1f} %" in row
    event = run.summary()["event"]["ndcg@20"]  # the first task
    assert f"{event['attainable']['minority']:.4f}" in text
    assert "is inherent and" in text
    page = runs_page({"mine": run.document()}, task="next", metric="ndcg@20", comparison=None)
    assert split in page


def test_a_run_without_levels_has_no_regret_among_others(run: fs.Run) -> None:
    bare = copy.deepcopy(run.document())
    bare["summary"]["next"]["ndcg@20"] |= {"regret": {}, "attainable": {}, "inherent_gap": None, "avoidable_gap": None}
    table = group_table({"bare": bare, "mine": run.document()}, "next")
    assert {len(row) for row in table.rows} == {len(table.headings)}
    at = table.headings.index("attainable")
    assert [row[at] == "–" for row in table.rows] == [True, True, False, False]
    assert not any(line.startswith("bare:") for line in table.caption.splitlines())


def test_several_seeds_show_the_levels_of_each() -> None:
    records = fs.run_seeds(LOG, (0, 1), n_workers=1, tasks=("next",), **OPTIONS)
    document = pooled(records)
    assert document["summary"]["next"]["ndcg@20"]["regret"]
    assert "level: minority" in period_table(document, "next").caption


# ── what has no effect is said ───────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("model", "options", "is_noted"),
    [
        ("item-item", {}, True),
        ("mf", {"pretrain_epochs": 1, "update_epochs": 1}, True),
        ("popularity", {}, False),
        ("blend", {"pretrain_epochs": 1, "update_epochs": 1}, False),
        ("item-item", {"target": "none"}, False),
        ("item-item", {"max_gap": 0.1}, True),
    ],
)
def test_levels_that_reach_newcomers_only_are_noted(model: str, options: dict[str, Any], is_noted: bool) -> None:
    notes = fs.run(LOG, **{**OPTIONS, "model": model, **options}).notes
    assert (NEWCOMERS_ONLY.format(model) in notes) is is_noted


def test_a_fitted_recommender_notes_it_and_one_without_groups_does_not() -> None:
    first = STREAM.events.slice(0, 3000)
    rec = fs.FairRecommender("item-item", device="cpu").fit(first, users=STREAM.users, group="community")
    assert NEWCOMERS_ONLY.format("item-item") in rec.notes
    bare = fs.FairRecommender("item-item", device="cpu").fit(first)
    assert NEWCOMERS_ONLY.format("item-item") not in bare.notes


def test_fade_takes_from_nobody_where_no_group_of_several_is_named() -> None:
    """The largest group may be the one behind: without a name the signed loss is not applied, and a note says so."""
    ages = np.array(["18", "30", "65"])[np.random.default_rng(0).integers(0, 3, len(STREAM.users))]
    people = STREAM.users.append_column("age", pa.array(ages.tolist()))
    log = fs.read_events(STREAM.events.slice(0, 4000), users=people, group="age")
    options = {"model": "mf", "pretrain_epochs": 1, "update_epochs": 1, "n_periods": 3, "tasks": ["next"]}
    fade, plain = (finished(log, method, **options) for method in ("FADE", "Finetune"))
    means = [[result.tasks["next"]["ndcg@20"].by_group for result in one.results] for one in (fade, plain)]
    assert means[0] == means[1]
    assert any("the signed fairness loss was not applied" in note for note in fade.notes)
    named = finished(
        fs.read_events(STREAM.events.slice(0, 4000), users=people, group="age", advantaged="18"), "FADE", **options
    )
    assert [result.tasks["next"]["ndcg@20"].by_group for result in named.results] != means[0]
