"""`max_disparity` in the service: every update says what the controller did, and a held candidate leaves no trace."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from sqlalchemy import insert
from streams import PERSON, know, named_stream, take_in, values_of
from typer.testing import CliRunner

from fairstream import load
from fairstream.cli import app
from fairstream.service import schema
from fairstream.service.api.manage import full_periods
from fairstream.service.audit import entries
from fairstream.service.candidates import control_step
from fairstream.service.dashboard.reading import ModelStory, Overview
from fairstream.service.dashboard.web import render
from fairstream.service.database import writing
from fairstream.service.forgetting import forget
from fairstream.service.gate import Check, Decision, finite, flood
from fairstream.service.learning import Learning
from fairstream.service.registry import in_service, model, promote
from fairstream.service.serving import ServingModel
from fairstream.service.settings import Gate, LiveConfig, Privacy
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace

PERIODS, PEOPLE = named_stream()
# A gate that lets everything pass: what is tested here is what the controller does.
OPEN = Gate(min_tested_users=50, max_fall=0.99, max_rise=1.0, max_drift=1.0)
TARGET = Learning(model="item-item", max_disparity=0.001)


def made(folder: Path, n_periods: int, **options: Any) -> Workspace:
    exact = Privacy(epsilon="off")
    config = LiveConfig(group="community", **{"learning": TARGET, "gate": OPEN, "privacy": exact, **options})
    workspace = Workspace.create(folder, config)
    know(workspace, PEOPLE)
    for events in PERIODS[:n_periods]:
        take_in(workspace, events)
        assert update(workspace).kind == "promoted"
    return workspace


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two periods learned: the first model, and one that the controller had a hand in."""
    folder = tmp_path_factory.mktemp("target") / "workspace"
    made(folder, 2).close()
    return folder


@pytest.fixture
def copied(source: Path, tmp_path: Path) -> Iterator[Callable[[], Workspace]]:
    opened: list[Workspace] = []

    def copy() -> Workspace:
        folder = tmp_path / f"copy{len(opened)}"
        shutil.copytree(source, folder)
        opened.append(Workspace.open(folder))
        return opened[-1]

    yield copy
    for workspace in opened:
        workspace.close()


def serving(workspace: Workspace) -> Any:
    current = in_service(workspace.engine)
    assert current is not None
    return model(workspace.engine, current.model)


def audit_page(workspace: Workspace, model_id: str) -> str:
    story = ModelStory(workspace, model_id)
    return render("audit.html", story=story, name="", group="", made=0, css="")


def held_for(workspace: Workspace, *checks: Check) -> None:
    """Let a candidate of the model in service have been held for what these checks say."""
    parent, n = serving(workspace), len(checks)
    row = parent.model_dump() | {
        "created": 0,
        "id": f"held{n}{checks[0].name}",
        "parent": parent.id,
        "state": "rejected",
    }
    with writing(workspace.engine) as connection:
        connection.execute(insert(schema.models).values(**row | {"decision": Decision(checks).to_dict()}))


@pytest.mark.slow
def test_every_update_says_what_it_did_and_why(copied: Callable[[], Workspace]) -> None:
    workspace = copied()
    first, second = (period.control for period in full_periods(workspace.engine))
    assert "first to hold" in first["sentences"][0]
    take_in(workspace, PERIODS[2])
    said = CliRunner().invoke(app, ["update", str(workspace.folder)], catch_exceptions=False).stdout
    row = serving(workspace)
    control, weights = row.about["control"], row.about["event_weights"]
    assert set(weights) == set(control["gaps"]) == {"majority", "minority"}
    assert weights["minority"] > 1 == weights["majority"]
    assert control["gaps"]["minority"]["se"] < second["gaps"]["minority"]["se"]  # pooled
    assert control["sentences"][0].startswith("minority is ")
    last = list(entries(workspace.engine))[-1]
    assert json.loads(last.body)["about"]["control"] == control == full_periods(workspace.engine)[-1].control
    recorded = CliRunner().invoke(app, ["audit", str(workspace.folder)], catch_exceptions=False).stdout
    page = audit_page(workspace, row.id)
    for sentence in control["sentences"]:
        assert sentence in " ".join(said.split())
        assert sentence in recorded
        assert f"<li>{sentence}.</li>" in page
    assert "No group may be more than 0.001 behind everyone else." in page
    assert f"{weights['minority']:.2f} times" in page
    newest = Overview(workspace).newest
    assert newest is not None
    assert newest.about["control"] == control


def test_without_a_target_nothing_is_said_of_one(tmp_path: Path) -> None:
    with made(tmp_path / "w", 1, learning=Learning(model="item-item", group_weight=4.0)) as workspace:
        row = serving(workspace)
        assert "control" not in row.about
        assert row.about["event_weights"] == {"majority": 1.0, "minority": 4.0}
        page = audit_page(workspace, row.id)
        assert "minority 4.00 times" in page
        assert "accepted gap" not in page


@pytest.mark.slow
def test_groups_that_are_too_small_are_neither_measured_nor_told_of(tmp_path: Path) -> None:
    small = OPEN.with_options(min_group_size=150)  # the majority alone has so many
    with made(tmp_path / "w", 2, gate=small) as workspace:
        about = serving(workspace).about
        assert about["control"]["gaps"] == {}
        assert about["control"]["sentences"] == [
            "no gap could be measured: too few users of more than one group were tested"
        ]
        assert set(about["event_weights"].values()) == {1.0}


@pytest.mark.slow
def test_a_held_period_is_not_counted_and_the_next_one_is(copied: Callable[[], Workspace]) -> None:
    """The controller goes on from the model in service: it measures it anew, and counts each period at most once."""
    workspace, parent = copied(), None
    parent = load(workspace.models.path(serving(workspace).id)).state
    flood_events = PERIODS[2].set_column(0, "user_id", pa.array(["u1"] * len(PERIODS[2])))
    take_in(workspace, pa.concat_tables([PERIODS[2], flood_events]))
    held = update(workspace)
    assert held.kind == "rejected"
    assert "busiest user" in held.reason
    take_in(workspace, PERIODS[3])
    outcome = update(workspace)
    assert outcome.kind == "promoted"
    memories = [load(workspace.models.path(str(name))).state.control for name in (held.model, outcome.model)]
    for memory in memories:
        assert memory["periods"][:-1] == parent.control["periods"]  # and one of its own
    assert memories[0]["periods"][-1] != memories[1]["periods"][-1]
    assert serving(workspace).about["control"]["step"] == 1  # it was held for its events, not for its weights
    take_in(workspace, PERIODS[4])
    assert update(workspace).kind == "promoted"
    last = load(workspace.models.path(serving(workspace).id)).state.control
    assert last["periods"][:-1] == memories[1]["periods"]


@pytest.mark.slow
def test_a_held_candidate_that_is_promoted_by_hand_brings_its_memory(copied: Callable[[], Workspace]) -> None:
    workspace = copied()
    take_in(
        workspace,
        pa.concat_tables([PERIODS[2], PERIODS[2].set_column(0, "user_id", pa.array(["u1"] * len(PERIODS[2])))]),
    )
    held = str(update(workspace).model)
    promote(workspace, held, by="a person")
    take_in(workspace, PERIODS[3])
    assert update(workspace).kind == "promoted"
    before, after = (load(workspace.models.path(name)).state.control for name in (held, serving(workspace).id))
    assert after["periods"][:-1] == before["periods"]


@pytest.mark.slow
def test_after_candidates_that_were_held_for_their_change_a_smaller_step_is_tried(
    copied: Callable[[], Workspace],
) -> None:
    thetas = {}
    for n_held in (0, 1, 2):
        workspace = copied()
        before = math.log(serving(workspace).about["event_weights"]["minority"])
        held_for(workspace, finite("no numbers"), flood(0.9, OPEN))  # not for what it changed
        for n in range(n_held):
            fell = Check("performance", False, f"NDCG@20 for majority falls by {n}")
            held_for(workspace, *[fell] * (n + 3))
        take_in(workspace, PERIODS[2])
        assert control_step(workspace.engine, serving(workspace).id) == 0.5**n_held
        assert update(workspace).kind == "promoted"
        row = serving(workspace)
        thetas[n_held] = math.log(row.about["event_weights"]["minority"]) - before
        assert ("of the step is taken" in " ".join(row.about["control"]["sentences"])) == (n_held > 0)
        assert control_step(workspace.engine, row.id) == 1  # a promotion ends it
    assert thetas[0] > 0
    assert thetas[1] == pytest.approx(thetas[0] / 2)
    assert thetas[2] == pytest.approx(thetas[0] / 4)


def test_what_is_served_and_what_forgetting_leaves_has_the_weights(copied: Callable[[], Workspace]) -> None:
    workspace = copied()
    name = serving(workspace).id
    known = load(workspace.models.path(name))
    assert known.state.event_weights["minority"] > 1
    known.set_groups(values_of(workspace).rename_columns(["user_id", "community"]))
    stranger = ServingModel(load(workspace.models.path(name)).state, name).recommend("nobody", 20)
    assert stranger.source == "popularity"
    assert stranger.items == known.recommend(["nobody"], k=20)["item_id"].to_pylist()
    known.forget(PERSON)
    assert name in forget(workspace, [PERSON], by="test").models
    left = load(workspace.models.path(serving(workspace).folder)).state
    assert (left.groups.codes < 0).all()
    assert torch.equal(left.fallback.popularity, known.state.fallback.popularity)
    for ours, theirs in zip(left.model.state_dict().values(), known.model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs)
