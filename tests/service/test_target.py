"""A target in the service: every update says which level it chose and why, and a rejected one leaves no trace."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from running import signed_in
from streams import PERSON, create, know, named_stream, take_in, values_of
from typer.testing import CliRunner

from fairstream import load
from fairstream.cli import app
from fairstream.models import NO_LEVEL
from fairstream.service import updater
from fairstream.service.api.manage import full_periods
from fairstream.service.audit import entries
from fairstream.service.forgetting import forget
from fairstream.service.gate import Check
from fairstream.service.learning import Learning
from fairstream.service.lists import Ask
from fairstream.service.registry import in_service, model, promote
from fairstream.service.serving_model import ServingModel
from fairstream.service.settings import Gate, LiveConfig, Privacy
from fairstream.service.updater import Outcome, update
from fairstream.service.workspace import Workspace
from fairstream.strategies import LeastRegret
from fairstream.text import sentence

PERIODS, PEOPLE = named_stream(disparity=0.9)
# A gate that lets everything pass: what is tested here is what the target does.
OPEN = Gate(min_tested_users=50, max_fall=0.99, max_group_fall=0.99, max_rise=1.0, max_drift=1.0)
TARGET = Learning(model="recent-popularity", max_gap=0.08)


def made(folder: Path, n_periods: int, **options: Any) -> Workspace:
    exact = Privacy(epsilon_per_quarter="off")
    config = LiveConfig(group="community", **{"learning": TARGET, "gate": OPEN, "privacy": exact, **options})
    workspace = create(folder, config)
    know(workspace, PEOPLE)
    for events in PERIODS[:n_periods]:
        take_in(workspace, events)
        assert update(workspace).kind == "promoted"
    return workspace


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two periods learned: the first model, and one with a level."""
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


def model_page(workspace: Workspace, model_id: str) -> str:
    return signed_in(workspace).get(f"/models/{model_id}").text


def replays(workspace: Workspace, model_id: str) -> list[Any]:
    """The periods that a model's target remembers."""
    return list(load(workspace.models.path(model_id)).state.replays.get("periods", ()))


def test_every_update_says_which_level_it_chose_and_why(copied: Callable[[], Workspace]) -> None:
    workspace = copied()
    first, _ = (period.control for period in full_periods(workspace.engine))
    assert first is None  # of the first period nobody was known before
    take_in(workspace, PERIODS[2])
    said = CliRunner().invoke(app, ["update", str(workspace.folder)], catch_exceptions=False).stdout
    row = serving(workspace)
    control = row.about["control"]
    assert control["target"] == {"name": "max-gap", "gap": 0.08, "task": "event", "metric": "ndcg@20"}
    assert control["level"]["group"] == "minority"
    assert control["level"]["weight"] > 1
    assert control["sentence"].startswith("events of minority count")
    assert set(control["regret"]) == {"majority", "minority"}
    assert control["regret"]["majority"][0] > 0.05  # it pays for the gap
    assert load(workspace.models.path(row.id)).state.level == tuple(control["level"].values())
    last = list(entries(workspace.engine))[-1]
    assert json.loads(last.body)["about"]["control"] == control == full_periods(workspace.engine)[-1].control
    recorded = CliRunner().invoke(app, ["audit", str(workspace.folder)], catch_exceptions=False).stdout
    page = model_page(workspace, row.id)
    assert control["sentence"] in " ".join(said.split())
    assert control["sentence"] in recorded
    assert sentence(control["sentence"]) in page
    assert "No group may be more than 0.080 behind everyone else." in page
    assert f"{100 * control['regret']['majority'][0]:.1f} % (" in page


def test_by_default_updates_steer_to_the_least_regret(tmp_path: Path) -> None:
    with made(tmp_path / "w", 3, learning=Learning(model="recent-popularity", max_group_loss=0.3)) as workspace:
        control = serving(workspace).about["control"]
        assert control["target"] == {"name": "least-regret", **vars(LeastRegret(0.3, task="event"))}
        assert control["level"]["group"] == "minority"
        assert "on the last 2 periods that gave +" in control["sentence"]


@pytest.mark.parametrize(("epsilon", "is_replayed"), [(50.0, True), (0.2, False)])
def test_with_noise_the_level_follows_from_released_numbers(tmp_path: Path, epsilon: float, is_replayed: bool) -> None:
    learning = Learning(model="recent-popularity", max_gap=0.1)  # level 5 gives .08
    with made(tmp_path / "w", 2, learning=learning, privacy=Privacy(epsilon_per_quarter=epsilon)) as workspace:
        row = serving(workspace)
        periods = replays(workspace, row.id)
        assert len(periods) == is_replayed  # without a replay the level stays
        for period in periods:
            assert [weight for _, weight in period["levels"]] == [1.0, 2.0, 5.0, 2.0, 5.0]
        for group in [group for period in periods for group in period["groups"].values()]:
            assert group["n_users"] != int(group["n_users"])
            assert group["strata"] == []
        control = row.about["control"]
        assert bool(control["regret"]) == is_replayed
        assert (control["level"]["group"] == "minority") == is_replayed
        assert set(control["withheld"]) | set(control["regret"]) == {"majority", "minority"}


def test_without_a_target_nothing_is_said_of_one(tmp_path: Path) -> None:
    learning = Learning(model="item-item", group_weight=4.0, target="none")
    with made(tmp_path / "w", 2, learning=learning) as workspace:
        row = serving(workspace)
        assert "control" not in row.about
        assert row.about["event_weights"] == {"majority": 1.0, "minority": 4.0}
        page = model_page(workspace, row.id)
        assert "minority 4.00 times" in page
        assert "<h2>Groups</h2>" not in page


def test_groups_that_are_too_small_are_neither_measured_nor_told_of(tmp_path: Path) -> None:
    small = OPEN.with_options(min_group_size=150)  # the majority alone has so many
    with made(tmp_path / "w", 2, gate=small, groups=["majority", "minority"]) as workspace:
        control = serving(workspace).about["control"]
        assert control["regret"] == {}
        assert set(control["withheld"]) == {"majority", "minority"}
        assert control["level"] == NO_LEVEL._asdict()
        assert control["sentence"].startswith("no level: too few users of two groups")


def test_a_group_may_vanish_come_back_and_be_joined_by_another(copied: Callable[[], Workspace]) -> None:
    workspace, users = copied(), PEOPLE["user_id"]
    know(workspace, pa.table({"user_id": users, "value": ["majority"] * len(users)}))
    take_in(workspace, PERIODS[2])
    assert "fewer than two groups are known" in update(workspace).reason
    assert serving(workspace).about["control"]["regret"].keys() <= {"majority"}
    know(workspace, PEOPLE)
    take_in(workspace, PERIODS[3])
    assert update(workspace).kind == "promoted"
    assert serving(workspace).about["control"]["level"]["group"] == "minority"
    values = np.array(PEOPLE["value"].to_pylist(), object)
    values[::3] = "other"
    know(workspace, pa.table({"user_id": users, "value": pa.array(values.tolist())}))
    take_in(workspace, PERIODS[4])
    assert update(workspace).kind == "promoted"
    assert set(serving(workspace).about["control"]["regret"]) == {"majority", "minority", "other"}


@pytest.fixture
def rejects(monkeypatch: pytest.MonkeyPatch) -> Callable[[Workspace], Outcome]:
    """Runs an update that the gate rejects."""

    def run(workspace: Workspace) -> Outcome:
        with monkeypatch.context() as patched:
            patched.setattr(updater, "compared", lambda *_: [Check("performance", False, "it is worse")])
            outcome = update(workspace)
        assert (outcome.kind, outcome.reason) == ("rejected", "it is worse")
        return outcome

    return run


def test_a_rejected_period_is_not_counted_and_the_next_one_is(
    copied: Callable[[], Workspace], rejects: Callable[[Workspace], Outcome]
) -> None:
    """The target goes on from the model in service: it replays it again, and counts each period at most once."""
    workspace = copied()
    before = replays(workspace, serving(workspace).id)
    take_in(workspace, PERIODS[2])
    rejected = rejects(workspace)
    take_in(workspace, PERIODS[3])
    outcome = update(workspace)
    assert outcome.kind == "promoted"
    of_rejected, of_next = (replays(workspace, str(each.model)) for each in (rejected, outcome))
    assert of_rejected[:-1] == of_next[:-1] == before
    assert of_rejected[-1] != of_next[-1]


def test_a_rejected_candidate_that_is_promoted_by_hand_brings_its_memory(
    copied: Callable[[], Workspace], rejects: Callable[[Workspace], Outcome]
) -> None:
    workspace = copied()
    take_in(workspace, PERIODS[2])
    rejected = str(rejects(workspace).model)
    promote(workspace, rejected, by="a person")
    take_in(workspace, PERIODS[3])
    assert update(workspace).kind == "promoted"
    assert replays(workspace, serving(workspace).id)[:-1] == replays(workspace, rejected)


def test_what_is_served_and_what_forgetting_leaves_has_the_level(copied: Callable[[], Workspace]) -> None:
    workspace = copied()
    name = serving(workspace).id
    known = load(workspace.models.path(name))
    level = known.state.level
    assert level.group == "minority"
    known.set_groups(values_of(workspace).rename_columns(["user_id", "community"]))
    stranger = ServingModel(load(workspace.models.path(name)).state, name).recommend("nobody", Ask(20))
    assert stranger.items == known.recommend(["nobody"], k=20)["item_id"].to_pylist()
    assert set(stranger.scores) == {None} or stranger.source == "model"
    known.forget(PERSON)
    assert name in forget(workspace, [PERSON], by="test").models
    left = load(workspace.models.path(serving(workspace).folder)).state
    assert (left.groups.codes < 0).all()
    assert left.level == level
    np.testing.assert_array_equal(left.tilt, known.state.tilt)
