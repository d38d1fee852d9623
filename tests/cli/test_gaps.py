"""`explain --between groups` of runs; `report --for audit` of runs, lists and a workspace's published numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from sqlalchemy import insert

from fairstream.experiments import make_run
from fairstream.files import to_json
from fairstream.service import schema
from fairstream.service.database import writing
from fairstream.service.registry import put_into_service
from fairstream.service.settings import LiveConfig
from fairstream.service.workspace import Workspace
from stores import small, source_of, write_stream

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A strict run, one of the paper's protocol, and lists with what happened afterwards."""
    folder = tmp_path_factory.mktemp("gaps")
    log = source_of(write_stream(folder / "stream")).read()
    kinds: dict[str, dict[str, Any]] = {"strict": {"n_resamples": 50}, "paper": {"protocol": "paper"}}
    for name, options in kinds.items():
        job = make_run(log, small("Finetune", **options))
        list(job)
        (folder / f"{name}.json").write_text(to_json(job.document()))
    people = list(range(60))
    for name, items in {"als": ["a"] * 60, "popular": ["a"] * 30 + ["b"] * 30}.items():
        pa.csv.write_csv(pa.table({"user": people, "item": items, "rank": [1] * 60}), folder / f"{name}.csv")
    truth = pa.table({"user": people, "item": ["a"] * 30 + ["b"] * 30})
    pa.csv.write_csv(truth, folder / "truth.csv")
    pa.csv.write_csv(pa.table({"user": people, "sex": ["M"] * 30 + ["F"] * 30}), folder / "people.csv")
    return folder


@pytest.fixture(scope="module")
def released() -> dict[str, Any]:
    """What a model in service says about itself."""
    gap = {"value": 0.05, "interval": [0.02, 0.08], "p_value": 0.001, "null_mean": 0.01}
    behind = {**gap, "value": -0.05, "interval": [-0.08, -0.02]}
    score = {"mean": 0.22, "by_group": {"majority": 0.25, "minority": 0.2}, "advantaged": "majority"}
    score |= {"gaps": {"majority": gap, "minority": behind}, "disparity": gap}
    score["furthest_behind"] = {"group": "minority", **gap}
    return {
        "data": {"sha256": "ab" * 32},
        "evaluation": {
            "metrics": {"ndcg@20": score, "hit@20": {"mean": 0.4}},
            "sizes": {"majority": 400, "minority": 200},
            "n_tested_users": 600,
            "withheld": {"other": "too few people to report"},
            "epsilon": 1.0,
        },
        "control": {
            "level": {"group": "minority", "weight": 2.0},
            "sentence": "events of minority count 2 times in popularity",
            "regret": {"majority": [0.0, [0.0, 0.01]], "minority": [0.2, [0.1, 0.3]]},
        },
    }


def serve(folder: Path, about: dict[str, Any]) -> Path:
    """Make a workspace whose model in service has this record."""
    with Workspace.create(folder, LiveConfig(group="community")) as workspace, writing(workspace.engine) as connection:
        numbers = dict.fromkeys(("first_seq", "last_seq", "closed", "n_events", "n_users"), 1)
        late = {"n_late": 0, "latest_time": 0, "held_out": 0.5, "max_of_user": 100}
        connection.execute(insert(schema.periods).values(t=1, **numbers, **late, evaluation=about.get("evaluation")))
        row = {
            "id": "m1",
            "t": 1,
            "parent": None,
            "state": "promoted",
            "folder": "m1",
            "created": 1_700_000_000_000_000,
        }
        row |= {"training_seconds": 1.0, "decision": {"reason": "all checks passed"}, "about": about}
        connection.execute(insert(schema.models).values(**row))
        put_into_service(connection, "m1")
    return folder


def test_why_a_group_is_behind_in_a_run(command: Command, folder: Path) -> None:
    outcome = command("explain", folder / "strict.json", "--between", "groups", "--task", "next", "--json", "out.json")
    assert outcome.code == 0, outcome.err
    assert outcome.left == ["explain.html", "out.json"]
    stored = json.loads((outcome.folder / "out.json").read_text())
    score = json.loads((folder / "strict.json").read_text())["summary"]["next"]["ndcg@5"]
    assert stored["gap"]["value"] == pytest.approx(abs(score["disparity"]["value"]))
    assert abs(stored["avoidable"]["value"]) == pytest.approx(abs(score["avoidable_gap"]))
    composition = stored["composition"]
    assert composition["people"]["value"] + composition["like_for_like"]["value"] == pytest.approx(
        stored["gap"]["value"]
    )
    page = (outcome.folder / "explain.html").read_text()
    for sentence in stored["sentences"]:
        assert sentence.split(" (")[0] in page
        assert sentence.split()[0] in outcome.out


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("paper.json", (), "not tested at levels"),
        ("strict.json", ("--task", "event", "--metric", "hit@5"), "--metric and --t are for --between periods"),
        ("truth.csv", (), "is not JSON"),
    ],
)
def test_what_cannot_be_explained_is_one_sentence(
    command: Command, folder: Path, name: str, options: tuple[str, ...], says: str
) -> None:
    outcome = command("explain", folder / name, "--between", "groups", *options)
    assert outcome.code == 2
    assert says in outcome.err.replace("\n", " ")
    assert "Traceback" not in outcome.err
    assert outcome.left == []


def test_the_gap_of_a_workspace_is_not_explained(command: Command, tmp_path: Path, released: dict[str, Any]) -> None:
    outcome = command("explain", serve(tmp_path / "shop", released), "--between", "groups")
    assert outcome.code == 2
    assert "--for audit" in " ".join(outcome.err.split())


@pytest.mark.parametrize("what", ["untested", "empty"])
def test_a_workspace_without_numbers_says_so(command: Command, tmp_path: Path, what: str) -> None:
    if what == "empty":
        Workspace.create(tmp_path / "shop", LiveConfig(group="community")).close()
    else:
        serve(tmp_path / "shop", {"data": {}})
    outcome = command("report", tmp_path / "shop", "--for", "audit")
    says = {"untested": "was not tested yet", "empty": "no model in service yet"}
    assert outcome.code == 2
    assert says[what] in outcome.err.replace("\n", " ")
    assert "Traceback" not in outcome.err


def test_a_workspace_is_reported_for_an_audit(command: Command, tmp_path: Path, released: dict[str, Any]) -> None:
    shop = serve(tmp_path / "shop", released)
    outcome = command("report", shop, "--for", "audit", "--accepted-gap", "0.02", "--json", "out.json")
    assert outcome.code == 0, outcome.err
    stored = json.loads((outcome.folder / "out.json").read_text())
    assert stored["schema"] == "fairstream-audit/1"
    assert [row["value"] for row in stored["results"]] == [0.22, 0.25, 0.2]
    assert [period["level"] for period in stored["trend"]] == ["minority × 2"]
    page = (outcome.folder / "report.html").read_text()
    assert "above the accepted gap of 0.02" in page
    assert "other: too few people to report" in page.replace("Other", "other")
    assert "ab" * 32 in page
    older = serve(tmp_path / "older", {**released, "control": {}})
    outcome = command("report", older, "--for", "audit")
    assert outcome.code == 0, outcome.err
    assert "cannot be determined" in (outcome.folder / "report.html").read_text()


def test_lists_are_reported_for_an_audit(command: Command, folder: Path) -> None:
    reading = ("--truth", folder / "truth.csv", "--users", folder / "people.csv", "--group", "sex")
    outcome = command("report", folder / "als.csv", "--for", "audit", *reading, "--json", "out.json")
    assert outcome.code == 0, outcome.err
    assert "cannot be determined from lists alone" in " ".join(outcome.out.split())
    outcome = command("report", folder / "als.csv", folder / "popular.csv", "--for", "audit", *reading, "--json", "-")
    stored = json.loads(outcome.out)
    rows = {row["group"]: row for row in stored["results"]}
    assert (rows["F"]["value"], rows["F"]["attainable"]) == (0.0, 1.0)
    assert stored["system"]["name"] == "als"


def test_a_run_is_reported_for_an_audit_and_compared(command: Command, folder: Path) -> None:
    outcome = command("report", folder / "strict.json", folder / "strict.json", "--for", "audit", "--json", "out.json")
    assert outcome.code == 0, outcome.err
    (compared,) = json.loads((outcome.folder / "out.json").read_text())["comparisons"]
    assert all(abs(change["value"]) < 1e-6 for change in compared["changes"].values())
    assert compared["verdict"].startswith("No group lost")
    assert outcome.left == ["out.json", "report.html"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("strict.json", "--accepted-gap", "0.1"), "are for --for audit"),
        (("strict.json", "--for", "audit", "--metric", "hit@5"), "not for --for audit"),
        (("strict.json", "strict.json", "strict.json", "--for", "audit"), "at most one to compare it with"),
        (("strict.json", "--for", "audit", "--accepted-gap", "2"), "accepted_gap must be"),
        (("strict.json", "--for", "audit", "--group", "sex"), "a run knows its users"),
    ],
)
def test_bad_use_of_a_report_is_one_sentence(
    command: Command, folder: Path, arguments: tuple[str, ...], says: str
) -> None:
    paths = [folder / each if each.endswith(".json") else each for each in arguments]
    outcome = command("report", *paths)
    assert outcome.code == 2
    assert says in " ".join(outcome.err.split())
    assert "Traceback" not in outcome.err
    assert outcome.left == []
