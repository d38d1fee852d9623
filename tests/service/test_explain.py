"""What a workspace keeps is enough to say why its periods differ, and tells of no person."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from streams import PERSON, SMALL, know, named_stream, take_in
from typer.testing import CliRunner

from fairstream.cli import app
from fairstream.errors import ConfigurationError, WorkspaceError
from fairstream.evaluation import Explanation
from fairstream.service.explain import explain_workspace
from fairstream.service.periods import closed_periods
from fairstream.service.registry import models, rollback
from fairstream.service.settings import Gate
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]
PERIODS, PEOPLE = named_stream()


def check_sums(explanation: Explanation) -> None:
    for change in (explanation.everyone, *explanation.groups.values(), *explanation.gaps.values()):
        assert sum(part.value for part in change.parts.values()) == pytest.approx(change.change.value, abs=1e-12)
        assert change.change.value == pytest.approx(change.after - change.before, abs=1e-12)


def test_the_parts_of_two_periods_add_up(learned: Workspace) -> None:
    take_in(learned, PERIODS[2])
    assert update(learned).kind == "promoted"
    explained = explain_workspace(learned)
    assert (explained.t, list(explained.periods)) == (2, [2])
    check_sums(explained.shown)
    judged = [period.evaluation for period in closed_periods(learned.engine)]
    for position, side in ((1, "before"), (2, "after")):
        score = judged[position]["metrics"]["ndcg@20"]
        assert getattr(explained.shown.everyone, side) == pytest.approx(score["mean"])
        assert getattr(explained.shown.groups["minority"], side) == pytest.approx(score["by_group"]["minority"])
        assert getattr(explained.shown.gaps["majority"], side) == pytest.approx(score["performance_disparity"])
    newest = {row.t: row for row in models(learned.engine)}[1]
    gain = (
        newest.about["evaluation"]["metrics"]["ndcg@20"]["mean"] - newest.about["before"]["metrics"]["ndcg@20"]["mean"]
    )
    assert explained.shown.everyone.parts["learning"].value == pytest.approx(gain)
    assert explained.shown.everyone.parts["learning"].interval is not None


def test_a_model_that_stays_in_service_has_no_part(learned: Workspace) -> None:
    learned = replace(learned, config=learned.config.with_options(gate=Gate(max_user_share=0.001, min_tested_users=50)))
    for events in PERIODS[2:4]:
        take_in(learned, events)
        assert update(learned).kind == "rejected"
    explained = explain_workspace(learned)
    assert explained.t == 3
    assert explained.shown.everyone.parts["learning"].value == 0
    assert any("same model was in service" in note for note in explained.notes)
    check_sums(explained.shown)


@pytest.mark.slow
def test_a_model_put_back_by_hand_is_left_in_the_drift(learned: Workspace) -> None:
    take_in(learned, PERIODS[2])
    update(learned)
    rollback(learned, by="a test")
    rollback(learned, by="a test")
    take_in(learned, PERIODS[3])
    update(learned)
    explained = explain_workspace(learned)
    assert "learning" not in explained.shown.everyone.parts
    assert any("changed by hand" in note for note in explained.notes)
    check_sums(explained.shown)
    with pytest.raises(ConfigurationError, match="period must be one of 2, 3, got 1"):
        explain_workspace(learned, t=1)


def test_two_periods_that_judged_a_model_are_needed(learned: Workspace) -> None:
    with pytest.raises(WorkspaceError, match=r"has 1 periods that judged a model .* two in a row are needed"):
        explain_workspace(learned)


def test_nothing_kept_tells_of_a_person_or_of_a_small_group(new_workspace: Maker) -> None:
    workspace = new_workspace(**{**SMALL, "gate": Gate(min_tested_users=50, min_group_size=100)})
    know(workspace, PEOPLE)
    for events in PERIODS[:3]:
        take_in(workspace, events)
        update(workspace)
    for period in closed_periods(workspace.engine)[1:]:
        assert PERSON not in json.dumps(period.evaluation)
        assert set(period.evaluation["levels"]) == set(period.evaluation["strata"]) == {"all users"}
        assert list(period.evaluation["withheld"]) == ["majority", "minority"]  # or the other would follow
    shown = explain_workspace(workspace).shown
    assert shown.groups == shown.gaps == {}
    check_sums(shown)


@pytest.mark.slow
def test_the_command_writes_the_page_of_a_workspace(
    learned: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    take_in(learned, PERIODS[2])
    update(learned)
    page = tmp_path_factory.mktemp("page") / "page.html"
    told = CliRunner().invoke(app, ["explain", str(learned.folder), "--output", str(page)], catch_exceptions=False)
    assert told.exit_code == 0
    assert "the model in service on period 2, after the model in service on period 1" in told.stdout
    assert PERSON not in page.read_text()
