"""Events have kinds: what each counts, how a file names them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from streams import SMALL, periods_of, take_in
from typer.testing import CliRunner

from fairstream.cli import app
from fairstream.errors import ConfigurationError, DataError
from fairstream.recommender import load
from fairstream.service.event_store import EventStore, closed_periods, split_of
from fairstream.service.incoming import batch_from_arrow, batch_from_json
from fairstream.service.registry import models
from fairstream.service.settings import FILE, EventKinds, LiveConfig
from fairstream.service.status import Status
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace

PERIODS, PEOPLE = periods_of()
Maker = Callable[..., Workspace]
EVENT = {"user_id": "u", "item_id": "i", "time": 0}
SHOP = EventKinds(kinds={"look": 0.5, "buy": 2, "seen": 0, "return": -1}, default="look")


def kinds_of(events: list[dict[str, Any]], kinds: EventKinds) -> list[str]:
    batch = batch_from_json(events, LiveConfig().limits, kinds)
    return list(batch["kind"].to_pylist())


def test_an_event_has_the_kind_that_it_names_or_the_default() -> None:
    assert kinds_of([EVENT, {**EVENT, "kind": None}, {**EVENT, "kind": "buy"}], SHOP) == ["look", "look", "buy"]


@pytest.mark.parametrize("kind", ["purchase", "", "Buy"])
def test_an_unknown_kind_is_refused_with_the_kinds_that_there_are(kind: str) -> None:
    with pytest.raises(DataError, match="event 2: kind must be one of look, buy, seen, return"):
        kinds_of([EVENT, {**EVENT, "kind": kind}], SHOP)


def test_a_view_and_a_purchase_of_one_moment_are_two_events(new_workspace: Maker) -> None:
    workspace = new_workspace()
    events = [{**EVENT, "kind": kind} for kind in ("view", "purchase", "view")]
    store = EventStore(workspace)
    receipt = store.append(batch_from_json(events, workspace.config.limits))
    assert (receipt.accepted, receipt.repeated) == (2, 1)
    assert store.read(0)["kind"].to_pylist() == ["view", "purchase"]


@pytest.mark.sqlite_only
@pytest.mark.parametrize(("column", "given"), [("kind", []), ("Event_Type", []), ("what", ["--kind-column", "what"])])
def test_a_file_names_the_kind_in_a_column(new_workspace: Maker, tmp_path: Path, column: str, given: list[str]) -> None:
    workspace = new_workspace()
    file = tmp_path / "events.csv"
    file.write_text(f"user_id,item_id,time,{column}\na,x,1,view\na,x,1,purchase\nb,y,2,\n")
    result = CliRunner().invoke(app, ["ingest", str(workspace.folder), str(file), *given])
    assert result.exit_code == 0, result.output
    assert EventStore(workspace).read(0)["kind"].to_pylist() == ["view", "purchase", "event"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kinds": {"view": "much"}}, "kinds must be a number, got 'much'"),
        ({"kinds": {"view": True}}, "kinds must be a number, got True"),
        ({"kinds": {"view": float("nan")}}, "kinds must be a finite number, got nan"),
        ({"kinds": {"a\nb": 1.0}}, "kinds must be a name, got"),
        ({"kinds": {"view": 0.0, "dislike": -1.0}}, "at least one kind with a weight above 0"),
        ({"kinds": {"view": 1.0}}, "default must name one of the kinds view, got 'event'"),
        ({"repeats": ["food"]}, "repeats must name one of the kinds"),
        ({"judge_by": ["sale"]}, "judge_by must name one of the kinds"),
        ({"judge_by": ["dislike"]}, "judge_by must name kinds with a weight above 0"),
    ],
)
def test_kinds_that_cannot_be_honoured_are_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        EventKinds(**options)


def test_kinds_of_the_file_are_read_as_they_were_written(new_workspace: Maker) -> None:
    kinds = EventKinds(kinds={"look": 1, "in the cart": 2.5}, default="look", judge_by=("in the cart",))
    workspace = new_workspace(events=kinds)
    assert "[events]" in (workspace.folder / FILE).read_text()
    with Workspace.open(workspace.folder) as again:
        assert again.config.events == kinds


def with_kinds(events: pa.Table, share: float = 0.5, kind: str = "purchase", other: str = "view") -> pa.Table:
    """The same events, some of them by lot of one kind and the rest of another."""
    is_one = np.random.default_rng(len(events)).random(len(events)) < share
    return events.append_column("kind", pa.array(np.where(is_one, kind, other)))


def test_updates_judge_by_the_kinds_that_are_named(new_workspace: Maker) -> None:
    workspace = new_workspace(**SMALL, events=EventKinds(judge_by=("purchase",)))
    for t, share in enumerate([0.5, 0.5, 0.0]):
        take_in(workspace, with_kinds(PERIODS[t], share))
        outcome = update(workspace)
        if t == 0:
            continue
        if t == 2:
            assert outcome.reason.startswith("the period stays open: 0 users have held-out purchases to judge by")
            break
        evaluation = closed_periods(workspace.engine)[1].evaluation
        assert evaluation is not None
        assert evaluation["kinds"] == ["purchase"]
        learned = load(workspace.models.path(outcome.model or "")).state.history
        assert set(learned.weights_at(range(len(learned))).tolist()) == {1.0, 4.0}
        is_bought = pc.equal(with_kinds(PERIODS[1])["kind"], "purchase")
        assert evaluation["n_tested_users"] <= pc.count_distinct(PERIODS[1].filter(is_bought)["user_id"]).as_py()
        sentences = [check["sentence"] for check in models(workspace.engine)[0].decision["checks"]]
        assert any("NDCG@20 by purchases for" in sentence for sentence in sentences)
        assert "its NDCG by purchases was" in " ".join(Status.of(workspace).sentences())


def test_kinds_that_do_not_count_are_stored_and_not_learned(new_workspace: Maker) -> None:
    kinds = EventKinds(kinds={"event": 1, "seen": 0, "dislike": -1})
    workspace = new_workspace(**SMALL, events=kinds)
    for kind in ("event", "seen", "dislike"):
        events = PERIODS[0].append_column("kind", pa.array([kind] * len(PERIODS[0])))
        EventStore(workspace).append(batch_from_arrow(events, workspace.config.limits, kinds))
    outcome = update(workspace)
    assert EventStore(workspace).n_open() == 0
    assert outcome.model is not None
    learned = load(workspace.models.path(outcome.model)).state.history
    assert len(learned) == len(split_of(workspace, closed_periods(workspace.engine)[0]).learned) < len(PERIODS[0])
